package headers_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/headers"
)

func TestPresetsKnowRefusalsThatNoWaitingEnds(t *testing.T) {
	const (
		gemini = `{"error":{"code":429,"message":"You exceeded your current quota, please check your plan and billing details. * Quota exceeded for metric: g, limit: 0, model: m. ` +
			`Please retry in 23s.","status":"RESOURCE_EXHAUSTED","details":[{"violations":[{"quotaId":"PerDay"}]},{"retryDelay":"23s"}]}}`
		spend = `{"type":"error","error":{"type":"rate_limit_error","message":"You have reached your API usage limits.","details":{"error_code":"enforced_spend_limit_reached"}}}`
	)
	for _, c := range []struct {
		preset headers.Preset
		status int
		body   string
		reason string // "": it is not final
	}{
		{headers.OpenAI, 429, `{"error":{"message":"m","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}`, "insufficient_quota"},
		{headers.OpenAI, 429, `{"error":{"message":"m","type":"insufficient_quota","param":null,"code":null}}`, "billing"},
		{headers.OpenAI, 400, `{"error":{"message":"m","type":"invalid_request_error","code":"billing_hard_limit_reached"}}`, "billing_hard_limit_reached"},
		{headers.OpenAI, 429, `{"error":{"message":"m","type":"billing_not_active","code":"billing_not_active"}}`, "billing_not_active"},
		{headers.OpenAI, 429, `{"error":{"message":"m","type":"tokens","code":"rate_limit_exceeded"}}`, ""},
		{headers.OpenAI, 400, `{"error":{"message":"m","type":"invalid_request_error","code":"context_length_exceeded"}}`, ""},
		{headers.Anthropic, 429, spend, "enforced_spend_limit_reached"},
		{headers.Anthropic, 402, `{"type":"error","error":{"type":"billing_error","message":"m"}}`, "billing_error"},
		{headers.Anthropic, 400, `{"error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the API."}}`, "billing"},
		{headers.Anthropic, 400, `{"error":{"type":"invalid_request_error","message":"You have reached your specified workspace API usage limits."}}`, "billing"},
		{headers.Anthropic, 400, `{"error":{"type":"invalid_request_error","message":"max_tokens is too large"}}`, ""},
		{headers.Anthropic, 429, `{"type":"error","error":{"type":"rate_limit_error","message":"Number of request tokens has exceeded your limit"}}`, ""},
		{headers.Google, 429, gemini, "limit 0"},
		{headers.Google, 429, strings.Replace(gemini, "limit: 0,", "limit: 250,", 1), ""},
		{headers.Google, 429, `{"error":{"message":"m","details":[{"violations":[{"quotaValue":"250"},{"quotaValue":"0"}]}]}}`, "limit 0"},
		{headers.Google, 429, `{"error":{"message":"m","details":[{"violations":[{"quotaValue":"250"}]}]}}`, ""},
		{headers.Google, 403, `{"error":{"message":"m","details":[{"metadata":{"quota_limit_value":"0"}}]}}`, "limit 0"},
	} {
		require.True(t, c.preset.Dialect().WantsBody(c.status, header(isJSON)), c.body)
		got := with(c.preset.Dialect(), c.status, c.body, isJSON)
		if got.Final {
			assert.Equal(t, c.reason, got.Reason, c.body)
			assert.True(t, got.Limited, c.body)
		}
		assert.Equal(t, c.reason != "", got.Final, c.body)
	}
	assert.Equal(t, "You have reached your API usage limits.", with(headers.Anthropic.Dialect(), 429, spend, isJSON).Message)
}

// x-should-retry speaks of one request. Only if nothing says when the next may be sent does it speak of all.
func TestShouldRetryOfARefusalIsHeeded(t *testing.T) {
	for _, c := range []struct {
		status         int
		lines          string
		noRetry, final bool
	}{
		{429, "X-Should-Retry: false", true, true},
		{429, "x-should-retry: FALSE", true, true},
		{529, "X-Should-Retry: false", true, true},
		{429, "X-Should-Retry: true", false, false},
		{429, "X-Should-Retry: false|Retry-After: 3600", true, false},
		{429, "X-Should-Retry: false|X-RateLimit-Remaining: 0|X-RateLimit-Reset: 5", true, true},
		{503, "X-Should-Retry: false|Retry-After: 5", true, false},
		{500, "X-Should-Retry: false", true, false},
		{400, "X-Should-Retry: false", true, false},
		{200, "X-Should-Retry: false", true, false},
		{429, "", false, false},
	} {
		lines := strings.Split(c.lines, "|")
		got := headers.Parse(c.status, header(lines...), noon)
		assert.Equal(t, c.noRetry, got.NoRetry, "%d %s", c.status, c.lines)
		assert.Equal(t, c.final, got.Final, "%d %s", c.status, c.lines)
		reader, err := headers.NewReader()
		require.NoError(t, err)
		limited := c.status == 429 || c.status == 529
		assert.Equal(t, c.noRetry && limited, reader.WantsBody("h", c.status, header(append(lines, isJSON)...)), "%d %s", c.status, c.lines)
		if c.final {
			got = reader.Parse("h", c.status, header(lines...), []byte(`{"code":429,"error":{"code":"no_credit","detail":"d","message":"m"}}`), noon)
			assert.Equal(t, "no_credit: m", got.Reason+": "+got.Message)
		}
	}
}

func TestTheMessageOfAFinalRefusalIsOneLineOf256Bytes(t *testing.T) {
	d := headers.Dialect{Rules: []headers.Rule{{Statuses: []int{402}, Final: true, Reason: "unpaid"}}}
	for body, want := range map[string]string{
		"":                             "",
		"text":                         "",
		`{"message":"a\nb\u0000\t c"}`: "a b c",
		`{"detail":"d"}`:               "d",
		`{"detail":"d","message":"m"}`: "m",
		`{"message":"` + strings.Repeat("x", 256) + `"}`:  strings.Repeat("x", 256),
		`{"message":"` + strings.Repeat("é", 129) + `"}`:  strings.Repeat("é", 126) + "…",
		`<Error><message>no money</message></Error>`:      "no money",
		`{"message":"` + strings.Repeat("x", 5000) + `"}`: "",
	} {
		assert.True(t, d.WantsBody(402, header(isJSON)))
		got := with(d, 402, body, isJSON)
		assert.True(t, got.Final)
		assert.Equal(t, want, got.Message, body)
		assert.Equal(t, "unpaid", got.Reason)
	}
}

func TestARuleIsNotBothNotLimitedAndFinal(t *testing.T) {
	_, err := headers.NewReader(headers.Dialect{Name: "d", Rules: []headers.Rule{{NotLimited: true, Final: true}}})
	require.ErrorContains(t, err, `headers: dialect "d": rule`)
	require.ErrorContains(t, err, "NotLimited and Final")
}
