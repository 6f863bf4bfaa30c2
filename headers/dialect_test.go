package headers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/headers"
)

func with(d headers.Dialect, status int, body string, lines ...string) headers.Signal {
	return d.Parse(status, header(lines...), []byte(body), noon)
}

func TestTheZeroDialectIsParse(t *testing.T) {
	for _, c := range responses(t) {
		assert.Equal(t, headers.Parse(c.Status, c.header(), c.Now), headers.Dialect{}.Parse(c.Status, c.header(), nil, c.Now), c.ID)
		assert.False(t, headers.Dialect{}.WantsBody(c.Status, c.header()), c.ID)
	}
}

func TestMinWaitIsForLimitsWithoutAKnownEnd(t *testing.T) {
	d := headers.Dialect{MinWait: time.Minute}
	for _, c := range []struct {
		want  unknownOr
		lines string
	}{
		{seconds(60), ""},
		{seconds(60), "X-RateLimit-Remaining: 0"},
		{seconds(60), "X-RateLimit-Remaining: 9|X-RateLimit-Reset: 3000"},
		{seconds(5), "X-RateLimit-Remaining: 0|X-RateLimit-Reset: 5"},
		{seconds(5), "Retry-After: 5"},
		{seconds(0), "Retry-After: 0"},
	} {
		assert.Equal(t, c.want, with(d, 429, "", strings.Split(c.lines, "|")...).Wait, c.lines)
	}
	assert.Equal(t, seconds(0), with(d, 200, "").Wait)
	d.MinWait = 1 << 62
	assert.Equal(t, known(ceiling), with(d, 429, "").Wait)
}

func TestADialectSetsTheUnitOfResets(t *testing.T) {
	d := headers.Dialect{Reset: headers.Milliseconds}
	assert.Equal(t, seconds(5), with(d, 200, "", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 5000").Wait)
	assert.Equal(t, seconds(5), with(d, 200, "", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset-After: 5").Wait)
}

func TestTheFirstRuleThatAppliesDecides(t *testing.T) {
	d := headers.Dialect{Scope: "account", Rules: []headers.Rule{
		{Statuses: []int{429}, Header: headers.Match{Name: "X-Why", Values: []string{"QUOTA*"}}, NotLimited: true},
		{Statuses: []int{429, 400}, Header: headers.Match{Name: "X-Why"}, Concurrency: true, Wait: 3 * time.Second, Reason: "why", Scope: "tenant"},
		{Body: []headers.Match{{Name: "", Values: []string{"*slow down*"}}}, Reason: "text"},
	}}
	got := with(d, 429, "", "x-why: quota gone")
	assert.False(t, got.Limited)
	assert.Equal(t, seconds(0), got.Wait)

	got = with(d, 400, "", "X-Why: because")
	assert.True(t, got.Limited)
	assert.True(t, got.Concurrency)
	assert.Equal(t, seconds(3), got.Wait)
	assert.Equal(t, "why", got.Reason)
	assert.Equal(t, "tenant", got.Scope)

	assert.Equal(t, seconds(9), with(d, 400, "", "X-Why: because", "RateLimit: a;r=0;t=9").Wait, "at least")
	assert.Equal(t, seconds(1), with(d, 400, "", "X-Why: because", "Retry-After: 1").Wait)
	assert.Equal(t, "text", with(d, 500, "Please SLOW down.").Reason)
	assert.False(t, with(d, 500, "Please hurry.").Limited)
	assert.Equal(t, "account", with(d, 429, "").Scope)
	assert.Equal(t, "", with(d, 200, "").Scope)
}

func TestWildcardsOfMatches(t *testing.T) {
	for pattern, texts := range map[string]string{"ab": "ab|AB", "*ab": "ab|xAb", "ab*": "ab|abx", "*ab*": "ab|xabx", "*": "|x"} {
		d := headers.Dialect{Rules: []headers.Rule{{Body: []headers.Match{{Name: "m", Values: []string{"other", pattern}}}}}}
		for text := range strings.SplitSeq(texts, "|") {
			assert.True(t, with(d, 400, `{"m":"`+text+`"}`).Limited, "%q %q", pattern, text)
		}
		if pattern != "*" {
			assert.False(t, with(d, 400, `{"m":"a"}`).Limited, pattern)
			assert.False(t, with(d, 400, `{"n":"ab"}`).Limited, pattern)
		}
	}
}

func TestMembersOfABodyAtAnyDepth(t *testing.T) {
	member := func(name string, role headers.Role) headers.Field {
		return headers.Field{Name: name, Role: role, Bucket: "b"}
	}
	d := headers.Dialect{Members: []headers.Field{
		member("limit", headers.RoleLimit), member("left", headers.RoleRemaining), member("rate", headers.RoleRate),
		member("after", headers.RoleRetryAfter), member("why", headers.RoleReason), member("cost", headers.RoleCost),
		member("policies", headers.RoleViolated), member("busy", headers.RoleInFlight),
	}}
	json := `{"a":[{"limit":10,"x":null},{"left":"0"}],"after":1.5,"why":"so","cost":2.5,"policies":["p",["q"]],"busy":3,"rate":2,"ok":true}`
	got := with(d, 429, json)
	assert.Equal(t, seconds(1.5), got.RetryAfter)
	assert.Equal(t, "so", got.Reason)
	assert.Equal(t, known(2.5), got.Cost)
	assert.Equal(t, []string{"p", "q"}, got.Violated)
	assert.Equal(t, []headers.Bucket{{Name: "b", Limit: n(10), Remaining: n(0), InFlight: n(3), Rate: known(2.0)}}, got.Buckets)

	xml := "\ufeff<?xml version=\"1.0\"?>\n<a x=\"1\"><limit y=\"<\">10</limit><left> 0 </left><b><why>so</why></b></a>"
	got = with(d, 429, xml)
	assert.Equal(t, "so", got.Reason)
	assert.Equal(t, n(0), got.Buckets[0].Remaining)

	// A header takes precedence over the body.
	assert.Equal(t, seconds(9), with(d, 429, json, "Retry-After: 9").RetryAfter)

	// A body that ends early is read up to its end, and a malformed one has no harmful value.
	assert.Equal(t, "so", with(d, 429, `{"why":"so","after":`).Reason)
	for _, body := range []string{"{", "[", "]", "<", "<a", "</a>", "{]", `{"after":-1}`, `{"after":"NaN"}`, `{"after":{}}`, `"after"`, "\x00", strings.Repeat("[", 9999)} {
		assert.Equal(t, unknown, with(d, 429, body).RetryAfter, body)
	}
	assert.Equal(t, "", with(d, 429, strings.Repeat(" ", headers.BodyBytes)+`{"why":"so"}`).Reason, "beyond the bytes that are read")
}

func TestARateShowsWhenThereIsEnoughForTheRequest(t *testing.T) {
	shopify := headers.Shopify.Dialect()
	body := `{"errors":[{"message":"Throttled","extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":1000,` +
		`"throttleStatus":{"maximumAvailable":2000.0,"currentlyAvailable":500,"restoreRate":100.0}}}}`
	got := with(shopify, 200, body, "Content-Type: application/json")
	assert.True(t, got.Limited)
	assert.Equal(t, seconds(5), got.Wait)
	assert.Equal(t, []headers.Bucket{{Name: "graphql", Unit: "points", Limit: n(2000), Remaining: n(500), Rate: known(100.0)}}, got.Buckets)

	for rate, want := range map[string]unknownOr{"0": unknown, "0.5": seconds(2), "0.000000001": known(ceiling), "99999999999999999999": seconds(0)} {
		assert.Equal(t, want, with(headers.AmazonSP.Dialect(), 429, "", "x-amzn-RateLimit-Limit: "+rate).Wait, rate)
	}
}

func TestBodiesAreReadOnlyWhereTheyMayReportSomething(t *testing.T) {
	for _, c := range []struct {
		preset headers.Preset
		status int
		lines  string
		want   bool
	}{
		{headers.GitHub, 403, "Content-Type: application/json; charset=utf-8", true},
		{headers.GitHub, 403, "", true},
		{headers.GitHub, 404, "", false},
		{headers.GitHub, 200, "Content-Type: application/json", false},
		{headers.GitHub, 200, "Content-Type: application/json|X-RateLimit-Resource: graphql", true},
		{headers.GitHub, 200, "content-type: application/json|x-ratelimit-resource: GRAPHQL", true},
		{headers.GitHub, 200, "Content-Type: application/zip|X-RateLimit-Resource: graphql", false},
		{headers.GitHub, 403, "Content-Encoding: gzip", false},
		{headers.GitHub, 403, "Content-Encoding: identity", true},
		{headers.GitHub, 403, "Content-Type: text/event-stream", false},
		{headers.Google, 429, "", true},
		{headers.Google, 500, "", false},
		{headers.Problem, 503, "Content-Type: application/problem+json", true},
		{headers.Problem, 503, "Content-Type: application/json", false},
		{headers.Stripe, 429, "", false},
		{headers.Generic, 429, "", false},
	} {
		h := header(strings.Split(c.lines, "|")...)
		assert.Equal(t, c.want, c.preset.Dialect().WantsBody(c.status, h), "%+v", c)
	}
}

func TestFormsOfFields(t *testing.T) {
	d := headers.Dialect{Fields: []headers.Field{
		{Name: "X-Used", Form: headers.UsedOf, Bucket: "shop", Window: time.Minute},
		{Name: "X-Windows", Form: headers.PerWindow, Bucket: "app", Role: headers.RoleLimit},
		{Name: "X-Pairs-*", Form: headers.Pairs},
		{Name: "X-Plan-*", Form: headers.Family, Bucket: "plan", Advisory: true},
		{Name: "X-Who", Role: headers.RoleScope},
		{Name: "X-Called", Role: headers.RoleName},
		{Name: "X-Left", Role: headers.RoleRemaining},
	}}
	got := with(d, 200, "",
		"X-Used: 32/40, day=1/9; bad; 1/x; y=/", "x-windows: 100:120,20:1,5,:,7:0,a:b", "X-Pairs-Tickets: total=100; remaining=99; resets=41",
		"X-Plan-Limit: 5", "X-Plan-Tokens-Remaining: 0", "X-Plan-Tokens-Reset: 5", "X-Who: you", "X-Called: it", "X-Left: 3")
	assert.Equal(t, []headers.Bucket{
		{Name: "app:1", Limit: n(20), Window: seconds(1)},
		{Name: "app:120", Limit: n(100), Window: seconds(120)},
		{Name: "day", Limit: n(9), Used: n(1), Remaining: n(8), Window: seconds(60)},
		{Name: "it", Remaining: n(3)},
		{Name: "plan", Limit: n(5), Advisory: true},
		{Name: "plan-tokens", Remaining: n(0), Reset: seconds(5), Unit: "tokens", Advisory: true},
		{Name: "shop", Limit: n(40), Used: n(32), Remaining: n(8), Window: seconds(60)},
		{Name: "tickets", Limit: n(100), Remaining: n(99), Reset: seconds(41)},
	}, got.Buckets)
	assert.Equal(t, "you", got.Scope)
	assert.Equal(t, seconds(0), got.Wait)
}

func TestZeroMayStandForConcurrency(t *testing.T) {
	okta := headers.Okta.Dialect()
	got := with(okta, 429, "", "X-Rate-Limit-Limit: 0", "X-Rate-Limit-Remaining: 0", "X-Rate-Limit-Reset: 40")
	assert.True(t, got.Concurrency)
	assert.Nil(t, got.Buckets)
	assert.Equal(t, seconds(40), got.Wait)
	got = with(okta, 429, "", "X-Rate-Limit-Limit: 600", "X-Rate-Limit-Remaining: 0", "X-Rate-Limit-Reset: 40")
	assert.False(t, got.Concurrency)
	assert.Len(t, got.Buckets, 1)
}

func TestPresetsAreCopies(t *testing.T) {
	d := headers.GitHub.Dialect()
	d.MinWait, d.Rules[0].NotLimited, d.Hosts[0] = time.Hour, true, "example.com"
	fresh := headers.GitHub.Dialect()
	assert.Equal(t, time.Minute, fresh.MinWait)
	assert.False(t, fresh.Rules[0].NotLimited)
	assert.Equal(t, "api.github.com", fresh.Hosts[0])
	assert.Equal(t, headers.Dialect{}, headers.Preset("gitbuh").Dialect())
}

func TestEveryPresetIsValidAndClaimsItsOwnHosts(t *testing.T) {
	_, err := headers.NewReader(headers.Auto)
	require.NoError(t, err)
	claimed := map[string]headers.Preset{}
	for _, preset := range headers.Presets() {
		d := preset.Dialect()
		assert.Equal(t, string(preset), d.Name)
		_, err := headers.NewReader(preset)
		require.NoError(t, err, preset)
		for _, host := range d.Hosts {
			assert.Empty(t, claimed[host], host)
			claimed[host] = preset
		}
	}
}
