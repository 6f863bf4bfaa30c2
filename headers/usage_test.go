package headers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/headers"
)

func usage(name string, percent int64, reset headers.Maybe[time.Duration]) headers.Bucket {
	return headers.Bucket{Name: name, Limit: n(100), Used: n(percent), Remaining: n(max(0, 100-percent)), Reset: reset, Unit: "percent"}
}

func TestUsageInJSONIsReadInPerCent(t *testing.T) {
	got := with(headers.Meta.Dialect(), 200, "", `X-App-Usage: {"call_count":28,"total_time":25,"total_cputime":9.67}`)
	assert.False(t, got.Limited)
	assert.Equal(t, seconds(0), got.Wait)
	assert.Equal(t, []headers.Bucket{
		usage("app:call_count", 28, unknown), usage("app:total_cputime", 10, unknown), usage("app:total_time", 25, unknown),
	}, got.Buckets)

	// Of several accounts the one with the most counts, and a line may be longer than that of another header.
	got = with(headers.Meta.Dialect(), 400, `{"error":{"code":80004,"message":"There have been too many calls"}}`, isJSON, `X-Business-Use-Case-Usage: `+
		`{"112130216863063":[{"call_count":30,"total_cputime":5,"total_time":5,"estimated_time_to_regain_access":0,"type":"ads_insights"}],`+
		`"66782684":[{"type":"ads_insights","call_count":100,"total_cputime":25,"total_time":25,"estimated_time_to_regain_access":19}],`+
		`"ignored":["`+strings.Repeat("x", 300)+`"]}`)
	assert.True(t, got.Limited)
	assert.Equal(t, seconds(19*60), got.Wait)
	assert.Contains(t, got.Buckets, usage("business:ads_insights:call_count", 100, seconds(19*60)))

	got = with(headers.Meta.Dialect(), 200, "", `X-Ad-Account-Usage: {"acc_id_util_pct":100,"reset_time_duration":100,"ads_api_access_tier":"standard_access"}`)
	assert.Equal(t, seconds(100), got.Wait)
	assert.False(t, with(headers.Meta.Dialect(), 400, `{"error":{"code":100}}`, isJSON).Limited)
	assert.True(t, with(headers.Meta.Dialect(), 400, `{"error":{"code":4}}`, isJSON).Limited)
}

func TestAHeaderMayHoldAnyJSON(t *testing.T) {
	d := headers.Dialect{
		Fields: []headers.Field{{Name: "X-Quota", Form: headers.JSON, Bucket: "api"}},
		Members: []headers.Field{
			{Name: "limit", Role: headers.RoleLimit}, {Name: "left", Role: headers.RoleRemaining}, {Name: "until", Role: headers.RoleReset},
			{Name: "busy", Role: headers.RolePercent},
		},
	}
	got := with(d, 200, "", `X-Quota: [{"type":"read","limit":10,"left":0,"until":30},{"left":5,"busy":200}]`)
	assert.Equal(t, []headers.Bucket{
		{Name: "api", Remaining: n(5)},
		usage("api:busy", 200, unknown),
		{Name: "api:read", Limit: n(10), Remaining: n(0), Reset: seconds(30)},
	}, got.Buckets)
	for _, hostile := range []string{
		"", "{", "null", "7", `"x"`, `{"left":"5"}`, `{"left":-1e999}`, `{"left":1e400}`, `{"busy":-1}`, strings.Repeat("[", 5000), `{"type":"\u0000","left":true}`,
	} {
		assert.Empty(t, with(d, 200, "", "X-Quota: "+hostile).Buckets, "%q", hostile)
	}
}

func TestNamedCountsAreOneBucketEach(t *testing.T) {
	got := with(headers.AzureARM.Dialect(), 429, "", "Retry-After: 1200",
		"x-ms-ratelimit-remaining-resource: Microsoft.Compute/HighCostGet3Min;46,Microsoft.Compute/HighCostGet30Min;0",
		"x-ms-ratelimit-remaining-resource: Microsoft.Compute/Queued;4720", "x-ms-ratelimit-remaining-subscription-reads: 11999")
	assert.True(t, got.Limited)
	assert.Equal(t, seconds(1200), got.Wait)
	assert.Equal(t, []headers.Bucket{
		{Name: "Microsoft.Compute/HighCostGet30Min", Remaining: n(0), Window: seconds(1800)},
		{Name: "Microsoft.Compute/HighCostGet3Min", Remaining: n(46), Window: seconds(180)},
		{Name: "Microsoft.Compute/Queued", Remaining: n(4720)},
		{Name: "subscription-reads", Remaining: n(11999)},
	}, got.Buckets)
}

func TestACommentBehindAUsageIsNoPartOfIt(t *testing.T) {
	got := with(headers.Salesforce.Dialect(), 200, "", "Sforce-Limit-Info: api-usage=18/5000; per-app-api-usage=17/250(appName=sample-app)")
	assert.Equal(t, []headers.Bucket{
		{Name: "api-usage", Limit: n(5000), Used: n(18), Remaining: n(4982)},
		{Name: "per-app-api-usage", Limit: n(250), Used: n(17), Remaining: n(233)},
	}, got.Buckets)
}

func TestPointsOfGraphQLAreNoRequests(t *testing.T) {
	lines := []string{"X-RateLimit-Resource: graphql", "X-RateLimit-Limit: 5000", "X-RateLimit-Remaining: 4990"}
	for _, d := range []headers.Dialect{{}, headers.GitHub.Dialect()} {
		assert.Equal(t, []headers.Bucket{{Name: "graphql", Limit: n(5000), Remaining: n(4990), Unit: "points"}}, with(d, 200, "", lines...).Buckets)
	}
}

func TestTheActualCostOfAQueryCounts(t *testing.T) {
	for body, cost := range map[string]headers.Maybe[float64]{
		`{"extensions":{"cost":{"requestedQueryCost":101,"actualQueryCost":46}}}`:   known(46.0),
		`{"extensions":{"cost":{"actualQueryCost":46,"requestedQueryCost":101}}}`:   known(46.0),
		`{"extensions":{"cost":{"requestedQueryCost":101,"actualQueryCost":null}}}`: known(101.0),
		`{"extensions":{"cost":{"requestedQueryCost":101}}}`:                        known(101.0),
		`{}`: {},
	} {
		assert.Equal(t, cost, with(headers.Shopify.Dialect(), 200, body, isJSON).Cost, body)
	}
}
