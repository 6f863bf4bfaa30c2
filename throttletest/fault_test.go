package throttletest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ways are the clients that work in a bubble: every fault must look the same to all of them.
var ways = map[string]func(t *testing.T, opts ...Option) (*Handler, *http.Client){
	"direct": func(t *testing.T, opts ...Option) (*Handler, *http.Client) {
		h, err := NewHandler(opts...)
		require.NoError(t, err)
		return h, &http.Client{Transport: h.Direct()}
	},
	"HTTP/1.1": func(t *testing.T, opts ...Option) (*Handler, *http.Client) {
		s := Start(t, append(opts, WithInMemory())...)
		return s.Handler, s.Client()
	},
	"HTTP/2": func(t *testing.T, opts ...Option) (*Handler, *http.Client) {
		s := Start(t, append(opts, WithInMemory(), WithHTTP2())...)
		return s.Handler, s.Client()
	},
}

func inAllWays(t *testing.T, test func(t *testing.T, h *Handler, c *http.Client), opts ...Option) {
	for name, start := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, c := start(t, opts...)
				test(t, h, c)
			})
		})
	}
}

// post sends a request with a body, which net/http's Transport does not send again by itself.
func post(t *testing.T, c *http.Client) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://api.test/x", strings.NewReader("hello"))
	require.NoError(t, err)
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, string(b), err
}

func TestOutageComesBeforeTheLimits(t *testing.T) {
	inAllWays(t, func(t *testing.T, h *Handler, c *http.Client) {
		status := func() int {
			status, _, err := post(t, c)
			require.NoError(t, err)
			return status
		}
		assert.Equal(t, 200, status())
		assert.Equal(t, 429, status())
		time.Sleep(30*time.Second - 1)
		assert.Equal(t, 429, status())
		time.Sleep(time.Nanosecond)
		assert.Equal(t, 503, status())
		time.Sleep(30*time.Second - 1)
		assert.Equal(t, 503, status())
		time.Sleep(time.Nanosecond)
		assert.Equal(t, 429, status())
		counts := h.Counts()
		assert.EqualValues(t, 2, counts.Failed)
		assert.EqualValues(t, 3, counts.Refused)
	},
		WithLimits(FixedWindow(1, time.Hour)), WithFaults(Outage(503).Between(30*time.Second, time.Minute)))
}

func TestHangLastsUntilTheClientGivesUp(t *testing.T) {
	inAllWays(t, func(t *testing.T, h *Handler, c *http.Client) {
		c.Timeout = 5 * time.Second
		start := time.Now()
		_, _, err := post(t, c)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 5*time.Second, time.Since(start))
		synctest.Wait()
		assert.EqualValues(t, 0, h.Counts().InFlight, "the server has noticed")
		status, _, err := post(t, c)
		require.NoError(t, err)
		assert.Equal(t, 200, status)
	},
		WithFaults(Hang().First(1)))
}

func TestAbortClosesTheConnection(t *testing.T) {
	inAllWays(t, func(t *testing.T, h *Handler, c *http.Client) {
		for i := range 4 {
			status, _, err := post(t, c)
			if i == 1 || i == 3 {
				assert.Error(t, err)
			} else {
				require.NoError(t, err)
				assert.Equal(t, 200, status)
			}
		}
		assert.EqualValues(t, 2, h.Counts().Failed)
	},
		WithFaults(Abort().Every(2)))
}

func TestRespondIsChargedAndTakesItsTime(t *testing.T) {
	header := http.Header{"Content-Type": {"application/json"}, "X-Reason": {"a", "b"}}
	inAllWays(t, func(t *testing.T, h *Handler, c *http.Client) {
		start := time.Now()
		resp, err := c.Get("http://api.test/")
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, 418, resp.StatusCode)
		assert.Equal(t, []string{"a", "b"}, resp.Header.Values("X-Reason"))
		assert.Equal(t, "application/json", resp.Header.Get("Content-Type"))
		assert.Equal(t, time.Second, time.Since(start))
		status, _, err := post(t, c)
		require.NoError(t, err)
		assert.Equal(t, 429, status)
		assert.EqualValues(t, 1, h.Counts().Spoiled)
		assert.EqualValues(t, 1, h.Counts().Accepted)
	},
		WithLimits(FixedWindow(1, time.Hour)), WithServiceTime(Constant(time.Second)),
		WithFaults(Respond(418, header), Hang()))
}

func TestCutBodyBreaksOff(t *testing.T) {
	say := func(n int) Option {
		return WithHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("x", n))
		}))
	}
	for _, c := range []struct{ length, cut, want int }{{3, 1, 1}, {3, 0, 0}, {3, 5, 3}, {0, 5, 0}, {100_000, 50_000, 50_000}} {
		inAllWays(t, func(t *testing.T, _ *Handler, client *http.Client) {
			resp, err := client.Get("http://api.test/")
			require.NoError(t, err)
			body, err := io.ReadAll(resp.Body)
			assert.Error(t, err)
			if resp.ProtoMajor == 1 {
				assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
			}
			assert.Len(t, body, c.want)
			assert.Equal(t, 200, resp.StatusCode)
			require.NoError(t, resp.Body.Close())
		}, say(c.length), WithFaults(CutBody(c.cut)))
	}
}

func TestSlowBodyRests(t *testing.T) {
	inAllWays(t, func(t *testing.T, h *Handler, c *http.Client) {
		start := time.Now()
		resp, err := c.Get("http://api.test/")
		require.NoError(t, err)
		if resp.TransferEncoding != nil || resp.ProtoMajor == 2 {
			assert.Zero(t, time.Since(start), "the header comes at once")
		}
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, "ok\n", string(body))
		assert.Equal(t, 3*time.Second, time.Since(start))
	}, WithFaults(SlowBody(1, time.Second)))
}

func TestConditionsMustAllHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := Respond(500, nil).OnRequests(2, 3, 4, 5, 6)
		api := newCaller(t, WithFaults(
			base.Matching(func(r *http.Request) bool { return r.Header.Get("Tenant") == "a" }).Between(time.Second, time.Minute),
			base.Every(6),
			Respond(501, nil).First(2)))
		assert.Equal(t, 501, api.status("Tenant", "a")) // 1
		assert.Equal(t, 501, api.status("Tenant", "a")) // 2, but too early for the first fault
		time.Sleep(time.Second)
		assert.Equal(t, 500, api.status("Tenant", "a")) // 3
		assert.Equal(t, 200, api.status("Tenant", "b")) // 4
		assert.Equal(t, 500, api.status("Tenant", "a")) // 5
		assert.Equal(t, 500, api.status("Tenant", "b")) // 6
		assert.Equal(t, 200, api.status("Tenant", "a")) // 7
	})
}

func TestChanceIsAsLikelyAsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithFaults(Outage(503).Chance(0.1), Abort().Chance(0), Respond(500, nil).Chance(0.5)))
		api.take(4000)
		assert.InDelta(t, 400, api.Counts().Failed, 80)
		assert.InDelta(t, 1800, api.Counts().Spoiled, 150)
	})
}

func TestDirectEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(FixedWindow(1, time.Minute)), WithServiceTime(Constant(time.Second)))
		cause := errors.New("no longer needed")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(300*time.Millisecond, func() { cancel(cause) })
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.test/", nil)
		require.NoError(t, err)
		_, err = api.Direct().RoundTrip(req)
		assert.ErrorIs(t, err, cause)
		assert.EqualValues(t, 1, api.Counts().InFlight, "the server works on")
		time.Sleep(time.Second)
		assert.EqualValues(t, 0, api.Counts().InFlight)
		assert.Equal(t, 429, api.status(), "and has charged it")
		_, err = api.Direct().RoundTrip(req)
		assert.ErrorIs(t, err, cause)
		assert.EqualValues(t, 2, api.Counts().Received, "a request that is over is not sent")
	})
}

func TestDirectReportsAPanickingHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithHandler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oops") })))
		_, err := (&http.Client{Transport: api.Direct()}).Get("http://api.test/")
		assert.ErrorContains(t, err, "oops")
	})
}

func TestDirectHidesTheClientsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Changed", "yes")
			assert.Equal(t, "api.test", r.Host)
			assert.Equal(t, "/a%2fb?q=1", r.RequestURI)
			assert.Empty(t, r.URL.Host)
			w.WriteHeader(http.StatusEarlyHints)
			_, err := io.Copy(w, r.Body)
			assert.NoError(t, err)
		})))
		req, err := http.NewRequest(http.MethodPut, "http://api.test/a%2fb?q=1", strings.NewReader("hello"))
		require.NoError(t, err)
		resp, err := api.Direct().RoundTrip(req)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, "hello", string(body))
		assert.Equal(t, "Sat, 01 Jan 2000 00:00:00 GMT", resp.Header.Get("Date"))
		assert.Empty(t, req.Header)
		assert.Same(t, req, resp.Request)
	})
}
