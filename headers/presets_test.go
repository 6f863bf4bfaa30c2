package headers_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/headers"
)

const isJSON = "Content-Type: application/json"

// Answers as the APIs document them, beyond those in testdata.
func TestPresetsKnowTheirAPIs(t *testing.T) {
	for _, c := range []struct {
		name    string
		preset  headers.Preset
		status  int
		body    string
		lines   []string
		limited bool
		wait    unknownOr
		reason  string
	}{
		{
			"secondary limit without a time", headers.GitHub, 403,
			`{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}`,
			[]string{isJSON, "X-RateLimit-Limit: 5000", "X-RateLimit-Remaining: 4000", "X-RateLimit-Reset: 1795177800"},
			true, seconds(60), "secondary rate limit",
		},
		{
			"secondary limit with Retry-After", headers.GitHub, 403, `{"message":"You have exceeded a secondary rate limit."}`,
			[]string{isJSON, "Retry-After: 47", "X-RateLimit-Remaining: 4000"}, true, seconds(47), "secondary rate limit",
		},
		{
			"primary limit", headers.GitHub, 403, `{"message":"API rate limit exceeded for user ID 1."}`,
			[]string{isJSON, "X-RateLimit-Limit: 5000", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1795176600"}, true, seconds(600), "",
		},
		{
			"no permission", headers.GitHub, 403, `{"message":"Resource not accessible by integration"}`,
			[]string{isJSON, "X-RateLimit-Limit: 5000", "X-RateLimit-Remaining: 4989", "X-RateLimit-Reset: 1795177800"}, false, seconds(0), "",
		},
		{
			"GraphQL", headers.GitHub, 200, `{"errors":[{"type":"RATE_LIMITED","message":"API rate limit exceeded"}]}`,
			[]string{isJSON, "X-RateLimit-Resource: graphql", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1795176600"}, true, seconds(600), "",
		},
		{
			"JSON", headers.AWS, 400, `{"__type":"ThrottlingException","message":"Rate exceeded"}`, nil, true, unknown, "",
		},
		{
			"JSON with a namespace", headers.AWS, 400, `{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"}`,
			nil, true, unknown, "",
		},
		{
			"a header", headers.AWS, 400, "", []string{"x-amzn-ErrorType: TooManyRequestsException:http://internal.amazon.com/"}, true, unknown, "",
		},
		{
			"XML", headers.AWS, 503, `<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>`,
			nil, true, unknown, "",
		},
		{
			"a header", headers.Bedrock, 400, "", []string{"x-amzn-ErrorType: ThrottlingException:http://internal.amazon.com/"}, true, unknown, "",
		},
		{
			"without a time", headers.Databricks, 429, `{"error_code":"REQUEST_LIMIT_EXCEEDED","message":"Exceeded workspace output tokens per minute rate limit"}`,
			nil, true, unknown, "REQUEST_LIMIT_EXCEEDED",
		},
		{
			"without a time", headers.Mistral, 429, `{"object":"error","message":"Requests rate limit exceeded","type":"rate_limited","code":"1300"}`,
			nil, true, unknown, "rate_limited",
		},
		{
			"another error", headers.AWS, 400, `{"__type":"ValidationException","message":"ThrottlingException"}`, nil, false, seconds(0), "",
		},
		{
			"GraphQL", headers.Linear, 400, `{"errors":[{"message":"Rate limit exceeded","extensions":{"code":"RATELIMITED"}}]}`,
			[]string{isJSON, "X-RateLimit-Requests-Remaining: 0", "X-RateLimit-Requests-Reset: 1795176060000"}, true, seconds(60), "",
		},
		{
			"another error", headers.Linear, 400, `{"errors":[{"extensions":{"code":"GRAPHQL_VALIDATION_FAILED"}}]}`, []string{isJSON}, false, seconds(0), "",
		},
		{
			"ban without headers", headers.Discord, 429, `{"message":"You are being blocked","retry_after":64.57,"global":true}`, nil, true, seconds(64.57), "",
		},
		{
			"no credit", headers.OpenAI, 429, `{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}`,
			nil, true, unknown, "insufficient_quota",
		},
		{
			"per second", headers.HubSpot, 429, `{"policyName":"SECONDLY"}`, nil, true, seconds(1), "SECONDLY",
		},
		{
			"per day", headers.HubSpot, 429, `{"policyName":"DAILY"}`, nil, true, unknown, "DAILY",
		},
		{
			"permission", headers.Google, 403, `{"error":{"errors":[{"reason":"insufficientPermissions"}]}}`, []string{isJSON}, false, seconds(0), "",
		},
		{
			"other 403", headers.Salesforce, 403, `[{"errorCode":"INSUFFICIENT_ACCESS"}]`, []string{isJSON}, false, seconds(0), "",
		},
		{
			"endpoint", headers.Zendesk, 429, "",
			[]string{"X-Rate-Limit: 700", "X-Rate-Limit-Remaining: 699", "Zendesk-RateLimit-Tickets-Index: total=100; remaining=0; resets=41"},
			true, seconds(41), "",
		},
		{
			"refused", headers.GitLab, 429, "",
			[]string{"RateLimit-Limit: 600", "RateLimit-Observed: 601", "RateLimit-Remaining: 0", "RateLimit-Reset: 1795176030", "Retry-After: 30"},
			true, seconds(30), "",
		},
		{
			"refused", headers.Jira, 429, "", []string{"X-RateLimit-NearLimit: true", "RateLimit-Reason: jira-burst-based", "Retry-After: 5"}, true, seconds(5), "jira-burst-based",
		},
		{
			"no pulls left", headers.Docker, 429, "", []string{"RateLimit-Limit: 100;w=21600", "RateLimit-Remaining: 0;w=21600"}, true, unknown, "",
		},
	} {
		got := with(c.preset.Dialect(), c.status, c.body, c.lines...)
		assert.Equal(t, c.limited, got.Limited, "%s: %s", c.preset, c.name)
		assert.Equal(t, c.wait, got.Wait, "%s: %s", c.preset, c.name)
		assert.Equal(t, c.reason, got.Reason, "%s: %s", c.preset, c.name)
		assert.Equal(t, c.body != "", c.preset.Dialect().WantsBody(c.status, header(c.lines...)), "%s: %s", c.preset, c.name)
	}
}

func TestScopesOfPresets(t *testing.T) {
	assert.Equal(t, "method", with(headers.Slack.Dialect(), 429, "", "Retry-After: 30").Scope)
	assert.Equal(t, "global", with(headers.Discord.Dialect(), 429, "", "Retry-After: 1", "X-RateLimit-Global: true").Scope)
	assert.Equal(t, "user", with(headers.Discord.Dialect(), 429, "", "Retry-After: 1", "X-RateLimit-Scope: user").Scope)
	assert.Equal(t, "service", with(headers.Riot.Dialect(), 429, "", "X-Rate-Limit-Type: service").Scope)
}

func TestBinanceCountsWeights(t *testing.T) {
	got := with(headers.Binance.Dialect(), 200, "", "X-Mbx-Used-Weight-1m: 57", "X-Mbx-Order-Count-10s: 2")
	assert.Equal(t, []headers.Bucket{
		{Name: "orders", Used: n(2), Window: seconds(10)}, {Name: "weight", Used: n(57), Window: seconds(60)},
	}, got.Buckets)
}

// APIs that need no preset, as they document their headers.
func TestOneRuleReadsManyAPIs(t *testing.T) {
	bucket := func(name string, limit, remaining number, reset, window unknownOr) headers.Bucket {
		return headers.Bucket{Name: name, Limit: limit, Remaining: remaining, Reset: reset, Window: window}
	}
	for name, c := range map[string]struct {
		lines []string
		want  []headers.Bucket
	}{
		"Trello": {
			[]string{
				"X-Rate-Limit-Api-Key-Interval-Ms: 300000", "X-Rate-Limit-Api-Key-Max: 300", "X-Rate-Limit-Api-Key-Remaining: 299",
				"X-Rate-Limit-Api-Token-Interval-Ms: 10000", "X-Rate-Limit-Api-Token-Max: 100", "X-Rate-Limit-Api-Token-Remaining: 99",
			},
			[]headers.Bucket{
				bucket("api-key", n(300), n(299), unknown, seconds(300)), bucket("api-token", n(100), n(99), unknown, seconds(10)),
			},
		},
		"Azure Resource Manager": {
			[]string{"X-Ms-Ratelimit-Remaining-Subscription-Reads: 11999", "X-Ms-Ratelimit-Remaining-Resource: Microsoft.Compute/HighCostGet3Min;159"},
			[]headers.Bucket{bucket("subscription-reads", number{}, n(11999), unknown, unknown)},
		},
		"Contentful": {
			[]string{
				"X-Contentful-RateLimit-Hour-Limit: 36000", "X-Contentful-RateLimit-Hour-Remaining: 35883",
				"X-Contentful-RateLimit-Second-Limit: 10", "X-Contentful-RateLimit-Second-Remaining: 9", "X-Contentful-RateLimit-Reset: 0",
			},
			[]headers.Bucket{
				bucket("hour", n(36000), n(35883), unknown, seconds(3600)), bucket("second", n(10), n(9), unknown, seconds(1)),
			},
		},
		"Bitbucket": {
			[]string{
				"X-RateLimit-Interval-Seconds: 1", "X-RateLimit-FillRate: 5", "X-RateLimit-Limit: 60", "X-RateLimit-Remaining: 55",
				"X-RateLimit-NearLimit: false",
			},
			[]headers.Bucket{bucket("default", n(60), n(55), unknown, seconds(1))},
		},
		"Cerebras": {
			[]string{
				"x-ratelimit-limit-requests-day: 1440", "x-ratelimit-remaining-requests-day: 1439", "x-ratelimit-reset-requests-day: 33011.382867",
			},
			[]headers.Bucket{{
				Name: "requests-day", Limit: n(1440), Remaining: n(1439), Reset: seconds(33011.382867), Window: seconds(86400), Unit: "requests",
			}},
		},
		"two vendors, one name": {
			[]string{"X-RateLimit-Remaining: 5", "X-App-RateLimit-Remaining: 3", "X-Method-RateLimit-Remaining: 0"},
			[]headers.Bucket{
				bucket("app-default", number{}, n(3), unknown, unknown), bucket("default", number{}, n(5), unknown, unknown),
				bucket("method-default", number{}, n(0), unknown, unknown),
			},
		},
	} {
		assert.Equal(t, c.want, parse(200, c.lines...).Buckets, name)
	}
}

// A preset that is not listed is no choice of Auto, and one without a response of its API is a guess.
func TestEachPresetIsListedAndTested(t *testing.T) {
	source, err := os.ReadFile("presets.go")
	require.NoError(t, err)
	var tests strings.Builder
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		tests.Write(text)
	}
	for _, c := range responses(t) {
		fmt.Fprintf(&tests, "%q\n", c.Preset)
	}
	found := 0
	for _, m := range regexp.MustCompile(`(?m)^\t(\w+) +Preset = "(.+)"`).FindAllStringSubmatch(string(source), -1) {
		if preset := headers.Preset(m[2]); preset != headers.Generic && preset != headers.Auto {
			assert.Contains(t, headers.Presets(), preset)
			assert.Regexp(t, fmt.Sprintf(`headers\.%s\b|%q`, m[1], preset), tests.String(), "no test has a response of %s", preset)
			found++
		}
	}
	assert.Len(t, headers.Presets(), found)
}
