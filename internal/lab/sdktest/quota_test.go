package sdktest

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/openai/openai-go/v3"
	"github.com/stretchr/testify/assert"
)

// A server allows 2,000 tokens a minute, reserves 100 for each call, and gives back what the call did not use.
const (
	quotaTokens = 2000
	reserved    = 100
)

// quotaServer starts an API with that limit, which it reports in its own form.
func quotaServer(t *testing.T, a api, used int64, fields throttletest.Fields) *throttletest.Server {
	t.Helper()
	serve := a.serve
	a.serve = func(w http.ResponseWriter, r *http.Request) {
		serve(w, r)
		assert.NoError(t, throttletest.Charge(r, "tokens", used-reserved))
	}
	cost := throttletest.Cost(func(*http.Request) int64 { return reserved })
	return a.start(t, throttletest.WithLimits(throttletest.TokenBucket(quotaTokens, time.Minute, throttletest.Name("tokens"), cost)),
		throttletest.WithFields(fields), throttletest.WithFullResets(), throttletest.WithRoundTrip(20*time.Millisecond, 0))
}

// checkQuotaKept checks that calls of an SDK are refused by a limit of tokens, and that with a ServerQuota none is, although nothing says
// what the limit is, and nearly all of it is used.
func checkQuotaKept(t *testing.T, a api, used int64, fields throttletest.Fields, settle throttle.LimitOption, newCall caller) {
	t.Helper()
	bubble(t, "without a Transport some calls are refused", func(t *testing.T) {
		server := quotaServer(t, a, used, fields)
		for range 3 {
			_ = work(t.Context(), newCall(t, server.URL, server.Client()))
		}
		assert.Positive(t, server.Counts().Refused)
	})
	bubble(t, "with a ServerQuota none is", func(t *testing.T) {
		server := quotaServer(t, a, used, fields)
		transport, client := throttled(t, server, throttle.WithServerHints(headers.Auto), throttle.WithLimit(
			throttle.ServerQuota("tokens", throttle.Cost(func(*http.Request) int64 { return reserved }), settle)))
		begun := time.Now()
		for range 3 {
			assert.NoError(t, work(t.Context(), newCall(t, server.URL, client)))
		}
		assert.Zero(t, server.Counts().Refused)
		took := time.Since(begun).Seconds()
		spent := float64(3 * calls * used)
		assert.GreaterOrEqual(t, spent/quotaTokens, 0.9*(1+took/60), "of what was possible")
		assert.EqualValues(t, 3*calls, transport.Stats().Granted)
	})
}

func TestOpenAIKeepsTheQuotaOfTheServer(t *testing.T) {
	for name, call := range map[string]func(context.Context, openai.Client) (int64, error){"chat": chat, "chat, streams": chatStream, "response": respond, "response, streams": respondStream} {
		t.Run(name, func(t *testing.T) {
			checkQuotaKept(t, openAI, openAIUsage, throttletest.OpenAI, openAITokens(), func(_ *testing.T, url string, client *http.Client) func(context.Context) error {
				c := newOpenAI(url, client)
				return func(ctx context.Context) error {
					_, err := call(ctx, c)
					return err
				}
			})
		})
	}
}

func TestAnthropicKeepsTheQuotaOfTheServer(t *testing.T) {
	for name, call := range map[string]func(context.Context, anthropic.Client) (int64, error){"message": newMessage, "message, streams": streamMessage} {
		t.Run(name, func(t *testing.T) {
			checkQuotaKept(t, anthropicAPI, anthropicUsage, throttletest.Anthropic, anthropicTokens(), func(_ *testing.T, url string, client *http.Client) func(context.Context) error {
				c := newAnthropic(url, client)
				return func(ctx context.Context) error {
					_, err := call(ctx, c)
					return err
				}
			})
		})
	}
}
