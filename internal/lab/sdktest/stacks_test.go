package sdktest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// stacks are the RoundTrippers that a Transport is used with, above it or below.
var stacks = map[string]func(next http.RoundTripper) http.RoundTripper{
	"oauth2": func(next http.RoundTripper) http.RoundTripper {
		return &oauth2.Transport{Source: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "token"}), Base: next}
	},
	"otelhttp": func(next http.RoundTripper) http.RoundTripper { return otelhttp.NewTransport(next) },
}

// A statusError is a response that is not a success.
type statusError struct{ *http.Response }

func (e statusError) Error() string { return e.Status }

// plainCaller calls without any SDK.
func plainCaller(wrap func(http.RoundTripper) http.RoundTripper) caller {
	return func(_ *testing.T, url string, client *http.Client) func(context.Context) error {
		client = &http.Client{Transport: wrap(client.Transport)}
		return func(ctx context.Context) error {
			resp, err := getPlain(ctx, url, client)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return statusError{resp}
			}
			_, err = io.Copy(io.Discard, resp.Body)
			return err
		}
	}
}

func getPlain(ctx context.Context, url string, client *http.Client) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	return client.Do(req)
}

var plainAPI = api{
	serve: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, object) },
	refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
		w.WriteHeader(refusal.Status)
	},
}

func TestBelowOtherRoundTrippers(t *testing.T) {
	for name, wrap := range stacks {
		t.Run(name, func(t *testing.T) {
			checkSDK(t, sdk{
				api:  plainAPI,
				call: plainCaller(wrap),
				refused: func(err error) (*http.Response, bool) {
					e, ok := errors.AsType[statusError](err)
					return e.Response, ok && e.StatusCode == http.StatusTooManyRequests
				},
				open: func(t *testing.T, url string, client *http.Client) stream {
					resp, err := getPlain(t.Context(), url, &http.Client{Transport: wrap(client.Transport)})
					require.NoError(t, err)
					return streamOf(resp.Body)
				},
				rejected: rejections{once, once, once},
				errored:  once,
				deadline: once,
			})
		})
	}
}

func TestAboveOtherRoundTrippers(t *testing.T) {
	for name, wrap := range stacks {
		bubble(t, name, func(t *testing.T) {
			server := plainAPI.start(t, throttletest.WithLimits(throttletest.SlidingWindow(perSec, time.Second)))
			transport, err := throttle.New(wrap(server.Transport()), throttle.WithLimit(
				throttle.SlidingWindow(perSec, time.Second), throttle.InFlight(workers/2, throttle.Name("slots"))))
			require.NoError(t, err)
			call := plainCaller(func(next http.RoundTripper) http.RoundTripper { return next })
			begun := time.Now()
			assert.NoError(t, work(t.Context(), call(t, server.URL, &http.Client{Transport: transport})))
			assert.Equal(t, (calls/perSec-1)*time.Second, time.Since(begun))
			assert.Zero(t, server.Counts().Refused)
			assert.EqualValues(t, workers/2, left(t, transport, "slots"))
		})
	}
}

// What fetches tokens is a client too, and its error keeps the response.
func TestOAuth2TokensAreRejectedWithTheResponse(t *testing.T) {
	fetch := func(t *testing.T, opts ...throttle.Option) error {
		api := plainAPI
		api.serve = func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, `{"access_token": "token", "token_type": "Bearer"}`)
		}
		server := api.start(t)
		_, client := throttled(t, server, append(opts, throttle.WithLimit(throttle.Pace(1, time.Hour)), throttle.WithFailFast())...)
		config := clientcredentials.Config{ClientID: "id", ClientSecret: "secret", TokenURL: server.URL, AuthStyle: oauth2.AuthStyleInHeader}
		ctx := context.WithValue(t.Context(), oauth2.HTTPClient, client)
		_, err := config.Token(ctx)
		require.NoError(t, err)
		_, err = config.Token(ctx)
		return err
	}
	bubble(t, "by a response", func(t *testing.T) {
		e, ok := errors.AsType[*oauth2.RetrieveError](fetch(t))
		require.True(t, ok)
		rejection, ok := throttle.RejectionOf(e.Response)
		require.True(t, ok)
		assert.Equal(t, time.Hour, rejection.Wait)
	})
	bubble(t, "by an error", func(t *testing.T) {
		assert.ErrorIs(t, fetch(t, throttle.WithRejectionError()), throttle.ErrThrottled)
	})
}

var webSocketAPI = api{
	serve: func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, message, err := c.Read(r.Context())
			if err != nil || c.Write(r.Context(), kind, message) != nil {
				return
			}
		}
	},
	refusal: plainAPI.refusal,
}

// A connection is one request: it is charged once, and holds its slot until it is closed.
func TestWebSocketHoldsItsSlotUntilItIsClosed(t *testing.T) {
	for how, end := range map[string]func(*websocket.Conn) error{
		"closed":         func(c *websocket.Conn) error { return c.Close(websocket.StatusNormalClosure, "") },
		"closed at once": (*websocket.Conn).CloseNow,
	} {
		bubble(t, how, func(t *testing.T) {
			server := webSocketAPI.start(t)
			transport, client := throttled(t, server, throttle.WithLimit(
				throttle.InFlight(1, throttle.Name("slots")), throttle.FixedWindow(10, time.Hour, throttle.Name("hourly"))))
			c, _, err := websocket.Dial(t.Context(), server.URL, &websocket.DialOptions{HTTPClient: client})
			require.NoError(t, err)
			for range 3 {
				require.NoError(t, c.Write(t.Context(), websocket.MessageText, []byte(object)))
				_, message, err := c.Read(t.Context())
				require.NoError(t, err)
				assert.Equal(t, object, string(message))
			}
			assert.Zero(t, left(t, transport, "slots"))
			require.NoError(t, end(c))
			assert.EqualValues(t, 1, left(t, transport, "slots"))
			assert.EqualValues(t, 9, left(t, transport, "hourly"))
		})
	}
}

func TestWebSocketDialIsPacedAndRejected(t *testing.T) {
	dial := func(ctx context.Context, server *throttletest.Server, client *http.Client) (*http.Response, error) {
		c, resp, err := websocket.Dial(ctx, server.URL, &websocket.DialOptions{HTTPClient: client})
		if err == nil {
			_ = c.CloseNow()
		}
		return resp, err
	}
	bubble(t, "paced", func(t *testing.T) {
		server := webSocketAPI.start(t)
		_, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, shortWait)))
		begun := time.Now()
		for range 3 {
			_, err := dial(t.Context(), server, client)
			require.NoError(t, err)
		}
		assert.Equal(t, 2*shortWait, time.Since(begun))
	})
	bubble(t, "rejected", func(t *testing.T) {
		server := webSocketAPI.start(t)
		_, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, time.Hour)), throttle.WithFailFast())
		_, err := dial(t.Context(), server, client)
		require.NoError(t, err)
		resp, err := dial(t.Context(), server, client)
		require.Error(t, err)
		rejection, ok := throttle.RejectionOf(resp)
		require.True(t, ok)
		assert.Equal(t, time.Hour, rejection.Wait)
	})
}
