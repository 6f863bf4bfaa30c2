package headers_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/headers"
)

// Vendors of language models count tokens under names of their own.
func TestQuotasOfTokensHaveThatUnit(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for name, c := range map[string]struct {
		h    map[string]string
		want []headers.Bucket
	}{
		"Mistral": {
			map[string]string{
				"x-ratelimitbysize-limit-minute": "500000", "x-ratelimitbysize-remaining-minute": "499000", "ratelimitbysize-query-cost": "1000",
			},
			[]headers.Bucket{{Name: "tokens-minute", Unit: "tokens", Limit: is(500_000), Remaining: is(499_000), Window: lasts(time.Minute)}},
		},
		"Together": {
			map[string]string{"x-tokenlimit-limit": "9000", "x-tokenlimit-remaining": "8000", "x-tokenlimit-reset": "1"},
			[]headers.Bucket{{Name: "tokens", Unit: "tokens", Limit: is(9000), Remaining: is(8000), Reset: lasts(time.Second)}},
		},
		"OpenAI's count by usage, which refuses nothing": {
			map[string]string{
				"x-ratelimit-limit-tokens": "9000", "x-ratelimit-remaining-tokens": "8000",
				"x-ratelimit-limit-tokens_usage_based": "9000", "x-ratelimit-remaining-tokens_usage_based": "0",
			},
			[]headers.Bucket{{Name: "tokens", Unit: "tokens", Limit: is(9000), Remaining: is(8000)}},
		},
		"shares of Anthropic's subscriptions, above which requests are accepted": {
			map[string]string{
				"anthropic-ratelimit-unified-5h-utilization": "1.0", "anthropic-ratelimit-unified-5h-reset": "1800000100",
				"anthropic-ratelimit-unified-remaining": "0", "anthropic-ratelimit-unified-status": "allowed",
			}, nil,
		},
		"nestjs-rate-limiter": {
			map[string]string{"X-RateLimit-Limit": "9", "X-Retry-Remaining": "3", "X-Retry-Reset": now.Add(time.Minute).UTC().Format(http.TimeFormat)},
			[]headers.Bucket{{Name: "default", Limit: is(9), Remaining: is(3), Reset: lasts(time.Minute)}},
		},
	} {
		h := http.Header{}
		for key, value := range c.h {
			h.Set(key, value)
		}
		assert.Equal(t, c.want, headers.Parse(200, h, now).Buckets, name)
	}
}

func is(n int64) headers.Maybe[int64] { return headers.Maybe[int64]{Value: n, Known: true} }

func lasts(d time.Duration) headers.Maybe[time.Duration] {
	return headers.Maybe[time.Duration]{Value: d, Known: true}
}

func TestRelativesOfRetryAfter(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		name, value string
		want        time.Duration
	}{
		{"Retry-After", "PT30S", 30 * time.Second},
		{"X-Retry-After", "7", 7 * time.Second},
		{"RateLimit-RetryAfter", "123ms", 123 * time.Millisecond},
		{"X-RateLimit-RetryAfter", "60", time.Minute},
		{"X-RateLimit-RetryAfter", "1800000005", 5 * time.Second},
		{"X-RateLimit-RetryAfter-Ms", "250", 250 * time.Millisecond},
	} {
		h := http.Header{}
		h.Set(c.name, c.value)
		assert.Equal(t, lasts(c.want), headers.Parse(429, h, now).RetryAfter, "%s: %s", c.name, c.value)
	}
}

// OpenAI and its relatives say in words when to try again. What a header says counts more.
func TestASentenceSaysWhenToTryAgain(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for sentence, want := range map[string]headers.Maybe[time.Duration]{
		"Rate limit reached on tokens per min (TPM): Limit 30000, Used 29000. Please try again in 5.23s. Visit x.": lasts(5230 * time.Millisecond),
		"Please try again in 6m0s.":                             lasts(6 * time.Minute),
		"Please try again in 20ms":                              lasts(20 * time.Millisecond),
		"Requests have exceeded. Please retry after 6 seconds.": lasts(6 * time.Second),
		"please RETRY IN 2 minutes":                             lasts(2 * time.Minute),
		"Try again in 300 milliseconds":                         lasts(300 * time.Millisecond),
		"Please try again after a while, or in 5s.":             {},
		"try again in 999999999999999999999999999999h":          lasts(366 * 24 * time.Hour),
		"Your token limit is 5s. Entry in 5s does not say it":   {},
	} {
		body := []byte(`{"error":{"message":"` + sentence + `","code":"rate_limit_exceeded"}}`)
		for _, preset := range []headers.Preset{headers.OpenAI, headers.AzureOpenAI, headers.Groq, headers.Cerebras} {
			got := preset.Dialect().Parse(429, http.Header{}, body, now)
			assert.Equal(t, want, got.RetryAfter, sentence)
			assert.Equal(t, "rate_limit_exceeded", got.Reason)
			got = preset.Dialect().Parse(429, http.Header{"Retry-After": {"9"}}, body, now)
			assert.Equal(t, lasts(9*time.Second), got.RetryAfter, sentence)
		}
	}
}
