package sdktest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A sibling is one of two SDKs that retry alike: 429 and broken connections twice, after retry-after-ms, Retry-After, or
// else half a second and a second, each shortened by up to a quarter.
type sibling struct {
	api     api
	preset  headers.Preset
	refusal string // in its API's own words
	refused func(error) (status int, kind string, resp *http.Response, ok bool)
	// callers returns what makes a call with the SDK's own retries, and what makes one without.
	callers func(url string, client *http.Client) (patient, impatient func(context.Context) error)
}

var siblings = map[string]sibling{
	"OpenAI": {
		api: openAI, preset: headers.OpenAI, refusal: openAIRefusal,
		refused: func(err error) (int, string, *http.Response, bool) {
			if e, ok := errors.AsType[*openai.Error](err); ok {
				return e.StatusCode, e.Code, e.Response, true
			}
			return 0, "", nil, false
		},
		callers: func(url string, client *http.Client) (patient, impatient func(context.Context) error) {
			call := func(c openai.Client) func(context.Context) error {
				return func(ctx context.Context) error {
					_, err := chat(ctx, c)
					return err
				}
			}
			return call(newOpenAI(url, client)), call(newOpenAI(url, client, openaioption.WithMaxRetries(0)))
		},
	},
	"Anthropic": {
		api: anthropicAPI, preset: headers.Anthropic, refusal: anthropicRefusal,
		refused: func(err error) (int, string, *http.Response, bool) {
			if e, ok := errors.AsType[*anthropic.Error](err); ok {
				return e.StatusCode, string(e.Type()), e.Response, true
			}
			return 0, "", nil, false
		},
		callers: func(url string, client *http.Client) (patient, impatient func(context.Context) error) {
			call := func(c anthropic.Client) func(context.Context) error {
				return func(ctx context.Context) error {
					_, err := newMessage(ctx, c)
					return err
				}
			}
			return call(newAnthropic(url, client)), call(newAnthropic(url, client, anthropicoption.WithMaxRetries(0)))
		},
	},
}

// shaped answers refusals in an API's own words, and says whether to retry.
func shaped(text, retry string) throttle.Option {
	return throttle.WithRejectionResponse(func(*throttle.Rejection, *http.Request) *http.Response {
		return &http.Response{
			Header: http.Header{"Content-Type": {"application/json"}, "X-Should-Retry": {retry}},
			Body:   io.NopCloser(strings.NewReader(text)),
		}
	})
}

// each runs a test in a bubble with each of the siblings.
func each(t *testing.T, f func(*testing.T, sibling)) {
	t.Helper()
	for name, s := range siblings {
		bubble(t, name, func(t *testing.T) { f(t, s) })
	}
}

func TestRefusalIsTheErrorOfTheSDK(t *testing.T) {
	each(t, func(t *testing.T, s sibling) {
		server := s.api.start(t)
		_, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, 1500*time.Millisecond)), throttle.WithFailFast())
		_, call := s.callers(server.URL, client)
		require.NoError(t, call(t.Context()))

		status, kind, resp, ok := s.refused(call(t.Context()))
		require.True(t, ok)
		assert.Equal(t, http.StatusTooManyRequests, status)
		assert.Equal(t, "2", resp.Header.Get("Retry-After"))
		rejection, ok := throttle.RejectionOf(resp)
		require.True(t, ok)
		assert.Equal(t, 1500*time.Millisecond, rejection.Wait)
		assert.Contains(t, []string{"rate_limit_exceeded", "rate_limit_error"}, kind)
		assert.EqualValues(t, 1, server.Counts().Received)
	})
}

func TestRefusalMaySpeakAsTheAPI(t *testing.T) {
	kinds := map[string]string{"OpenAI": "rate_limit_exceeded", "Anthropic": string(anthropic.ErrorTypeRateLimitError)}
	for name, s := range siblings {
		bubble(t, name+", and say that the SDK must not retry", func(t *testing.T) {
			server := s.api.start(t)
			transport, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, time.Minute)),
				throttle.WithMaxWait(time.Second), shaped(s.refusal, "false"))
			call, _ := s.callers(server.URL, client)
			require.NoError(t, call(t.Context()))

			begun := time.Now()
			status, kind, resp, ok := s.refused(call(t.Context()))
			require.True(t, ok)
			assert.Equal(t, http.StatusTooManyRequests, status)
			assert.Equal(t, kinds[name], kind)
			_, ok = throttle.RejectionOf(resp)
			assert.True(t, ok)
			assert.Zero(t, time.Since(begun))
			assert.EqualValues(t, 1, transport.Stats().Rejected.Total())
		})
	}
}

func TestRefusalIsRetriedByTheSDKWhenItMay(t *testing.T) {
	each(t, func(t *testing.T, s sibling) {
		server := s.api.start(t)
		transport, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, 1500*time.Millisecond)), throttle.WithFailFast())
		call, _ := s.callers(server.URL, client)
		require.NoError(t, call(t.Context()))

		begun := time.Now()
		require.NoError(t, call(t.Context()))
		assert.Equal(t, 1500*time.Millisecond, time.Since(begun), "Retry-After-Ms")
		assert.EqualValues(t, 1, transport.Stats().Rejected.Total())
		assert.EqualValues(t, 2, server.Counts().Received)
	})
}

// OpenAI's gives up on a Retry-After of more than two minutes, Anthropic's knows no bound.
func TestLongRefusalIsWaitedForByAnthropicOnly(t *testing.T) {
	waits := map[string]time.Duration{"OpenAI": 0, "Anthropic": 121 * time.Second}
	for name, s := range siblings {
		bubble(t, name, func(t *testing.T) {
			server := s.api.start(t)
			_, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, 121*time.Second)), throttle.WithFailFast())
			call, _ := s.callers(server.URL, client)
			require.NoError(t, call(t.Context()))

			begun := time.Now()
			_, _, resp, refused := s.refused(call(t.Context()))
			assert.Equal(t, waits[name], time.Since(begun))
			assert.Equal(t, waits[name] == 0, refused)
			if refused {
				assert.Equal(t, "121", resp.Header.Get("Retry-After"))
			}
		})
	}
}

func TestRetriesOfTheSDKStandInLineAndPay(t *testing.T) {
	each(t, func(t *testing.T, s sibling) {
		server := s.api.start(t, throttletest.WithFaults(
			throttletest.Respond(http.StatusTooManyRequests, http.Header{"Retry-After-Ms": {"300"}}).First(2)))
		transport, client := throttled(t, server, throttle.WithServerHints(s.preset), throttle.WithLimit(
			throttle.Pace(1, 2*time.Second), throttle.FixedWindow(100, time.Hour, throttle.Name("hourly"))))
		call, _ := s.callers(server.URL, client)
		begun := time.Now()
		require.NoError(t, call(t.Context()))
		assert.Equal(t, 4*time.Second, time.Since(begun), "the SDK has waited for 300 ms, and then in line")
		assert.EqualValues(t, 3, server.Counts().Received)
		assert.EqualValues(t, 97, left(t, transport, "hourly"))
	})
}

func TestRetryAfterMsHoldsOthersToo(t *testing.T) {
	each(t, func(t *testing.T, s sibling) {
		server := s.api.start(t, throttletest.WithFaults(
			throttletest.Respond(http.StatusTooManyRequests, http.Header{"Retry-After-Ms": {"5300"}}).First(1)))
		_, client := throttled(t, server, throttle.WithServerHints(s.preset))
		_, call := s.callers(server.URL, client)
		status, _, resp, ok := s.refused(call(t.Context()))
		require.True(t, ok)
		assert.Equal(t, http.StatusTooManyRequests, status)
		_, ok = throttle.RejectionOf(resp)
		assert.False(t, ok, "it is the server's own")

		begun := time.Now()
		require.NoError(t, call(t.Context()))
		assert.GreaterOrEqual(t, time.Since(begun), 5300*time.Millisecond)
		assert.LessOrEqual(t, time.Since(begun), 5830*time.Millisecond)
	})
}

func TestRejectionErrorsPassThroughTheSDK(t *testing.T) {
	each(t, func(t *testing.T, s sibling) {
		server := s.api.start(t)
		transport, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, time.Minute)),
			throttle.WithFailFast(), throttle.WithRejectionError())
		patient, impatient := s.callers(server.URL, client)
		require.NoError(t, impatient(t.Context()))

		begun := time.Now()
		err := impatient(t.Context())
		require.ErrorIs(t, err, throttle.ErrThrottled)
		var rejection *throttle.Rejection
		require.ErrorAs(t, err, &rejection)
		assert.Equal(t, throttle.ReasonNoTokens, rejection.Reason)
		assert.Zero(t, time.Since(begun))

		require.ErrorIs(t, patient(t.Context()), throttle.ErrThrottled, "which the SDK takes for a broken connection")
		assert.Greater(t, time.Since(begun), 1125*time.Millisecond)
		assert.Less(t, time.Since(begun), 1500*time.Millisecond+1)
		assert.EqualValues(t, 1+3, transport.Stats().Rejected[throttle.ReasonNoTokens])
		assert.EqualValues(t, 1, server.Counts().Received)
	})
}

func TestRefusalForTheDeadlineComesAtOnceOnlyWithoutRetries(t *testing.T) {
	each(t, func(t *testing.T, s sibling) {
		server := s.api.start(t)
		transport, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, time.Hour)))
		patient, impatient := s.callers(server.URL, client)
		require.NoError(t, impatient(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()

		begun := time.Now()
		err := impatient(ctx)
		require.ErrorIs(t, err, throttle.ErrThrottled)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Zero(t, time.Since(begun))

		err = patient(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, throttle.ErrThrottled, "the SDK has waited for its own retry until the deadline")
		assert.Equal(t, 200*time.Millisecond, time.Since(begun))
		assert.EqualValues(t, 2, transport.Stats().Rejected[throttle.ReasonDeadline])
	})
}
