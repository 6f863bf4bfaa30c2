package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// configOf returns the configuration of a text.
func configOf(t *testing.T, text string) (*config, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "limits.json")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return readConfig(name)
}

func TestTheExampleIsValid(t *testing.T) {
	c, err := readConfig("limits.json")
	require.NoError(t, err)
	assert.Equal(t, "127.0.0.1:8080", c.Listen)
	assert.Equal(t, "127.0.0.1:8081", c.Page)
	assert.Equal(t, "budgets", c.Store)
	assert.Equal(t, "anthropic, github, openai", names(c.Upstreams))
}

// A text of one line has all faults at once, each with its line, its column, the path of the field and the value.
func TestFaultsNameLineFieldAndValue(t *testing.T) {
	const up = `{"upstreams": {"a": {"url": "https://a.example", `
	for text, want := range map[string][]string{
		``:                    {"1:1: unexpected end of JSON input"},
		"{\n  \"drain\": 1,}": {"2:14: invalid character '}' looking for beginning of object key string"},
		`{}`:                  {"1:1: there are no upstreams"},
		`[]`:                  {"1:1: [] is not an object"},
		`{"upstreams": {}, "listn": ":80", "drain": "-1s"}`: {
			"1:15: upstreams: there are no upstreams",
			"1:19: listn: unknown field; the fields are drain, listen, page, store, upstreams",
			"1:44: drain: -1s is negative",
		},
		"{\"drain\": \"60\",\n \"upstreams\": {\"a b\": {\"url\": \"api.example\", \"max_wait\": 2}, \"c\": 3, \"d\": {}}}": {
			`1:11: drain: "60" is not a time with its unit, such as "90s" or "5m"`,
			"2:23: upstreams.a b: the name of an upstream is a segment of a path: letters, digits, dots, hyphens and underscores",
			"2:31: upstreams.a b.url: want a URL such as https://api.example.com, without a user and a query",
			`2:58: upstreams.a b.max_wait: 2 is not a time with its unit, such as "90s" or "5m"`,
			"2:67: upstreams.c: 3 is not an object",
			"2:75: upstreams.d: want a URL such as https://api.example.com, without a user and a query",
		},
		up + `"url": "https://user:password@b.example"}}}`: {
			"1:50: upstreams.a.url: repeated field",
		},
		`{"upstreams": {"a": {"url": "https://user:password@b.example"}}}`: {
			"1:29: upstreams.a.url: want a URL such as https://api.example.com, without a user and a query",
		},
		up + `"hints": "opnai", "shape": "x", "max_wait": "-2s", "max_queue": 0, "costs": {"GET": -1}}}}`: {
			`1:59: upstreams.a.hints: WithServerHints: headers: there is no preset "opnai"`,
			`1:77: upstreams.a.shape: unknown shape "x"; there are aws-json, discord, gitlab, google, problem, s3, stripe`,
			"1:94: upstreams.a.max_wait: WithMaxWait(-2s) is negative",
			"1:114: upstreams.a.max_queue: WithMaxQueue(0) is not positive",
			`1:126: upstreams.a.costs: WithWeights: cost -1 of pattern "GET" is negative`,
			`1:126: upstreams.a.costs: WithWeights: pattern "GET": parsing "get": at offset 0: host/path missing /`,
		},
		limitsOf(`{"kind": "bukket"}`, `{"n": 4}`, `{"kind": "quota", "n": null, "settle": "x"}`, `5`): {
			`2:10: upstreams.a.limits[0].kind: unknown kind "bukket"; there are ` + names(kinds),
			`3:1: upstreams.a.limits[1]: unknown kind ""; there are ` + names(kinds),
			"4:24: upstreams.a.limits[2].n: null is not a whole number",
			`4:40: upstreams.a.limits[2].settle: "x" is not an array`,
			"5:1: upstreams.a.limits[3]: 5 is not an object",
		},
		limitsOf(`{"kind": "fixed-window", "n": -6, "per": "24us", "burst": 5, "zone": "UTC", "start": "today"}`): {
			`2:86: upstreams.a.limits[0].start: "today" is not a date and a time, such as "2026-01-31T08:00:00Z"`,
		},
		limitsOf(`{"kind": "fixed-window", "n": -6, "per": "24us", "burst": 5, "zone": "UTC", "name": "x"}`): {
			"2:31: upstreams.a.limits[0].n: n of -6 is not positive",
			"2:42: upstreams.a.limits[0].per: a period of 24µs is below a millisecond: write 24000*time.Second if seconds are meant",
			"2:59: upstreams.a.limits[0].burst: Burst(5) does not fit a limit of kind fixed-window",
			"2:70: upstreams.a.limits[0].zone: a limit of kind fixed-window has no zone",
		},
		limitsOf(`{"kind": "bucket", "n": 9, "per": "1s", "learn_cost": true, "burst": 0, "initial": 1.5, "costs": {"A B C": 1}, "bytes_per_token": -1}`): {
			"2:55: upstreams.a.limits[0].learn_cost: LearnCost needs a Settle, SettleJSON or SettleJSONFunc, from which it learns",
			"2:70: upstreams.a.limits[0].burst: Burst(0) is not positive",
			"2:84: upstreams.a.limits[0].initial: initial of 1.5 is not a whole number",
			"2:98: upstreams.a.limits[0].costs: pattern \"A B C\": parsing \"A b c\": at offset 2: host/path missing /",
			"2:131: upstreams.a.limits[0].bytes_per_token: bytes_per_token of -1 is negative",
		},
		limitsOf(`{"kind": "in-flight", "n": 2, "pause": "1s"}`, `{"kind": "server-quota", "n": 2}`, `{"kind": "adaptive", "min": 5, "max": 2}`,
			`{"kind": "calendar-window", "n": 2, "unit": "year", "zone": "Mars"}`): {
			"2:40: upstreams.a.limits[0].pause: Pause(1s) does not fit a limit that is Shared",
			"3:1: upstreams.a.limits[1]: ServerQuota: the unit is empty",
			"3:31: upstreams.a.limits[1].n: a limit of kind server-quota has no n",
			"4:39: upstreams.a.limits[2].max: AIMD.Min is 5: above Max, which is 2",
			`5:45: upstreams.a.limits[3].unit: unknown unit "year"; there are day, week and month`,
			"5:61: upstreams.a.limits[3].zone: unknown time zone Mars",
		},
		limitsOf(`{"kind": "pace", "n": 1, "per": "1s", "fair_by": "A"}`, `{"kind": "quota", "n": 1, "per": "1s", "fair_by": "A", "name": "pace"}`): {
			`1:80: upstreams.a.limits: WithLimit: FairBy in limits "pace-2" and "pace": a request has one place in the queue; set it on the limit whose cost counts`,
		},
	} {
		_, err := configOf(t, text)
		require.Error(t, err, text)
		var got []string
		for line := range strings.SplitSeq(err.Error(), "\n") {
			_, line, _ = strings.Cut(line, "limits.json:")
			got = append(got, line)
		}
		assert.Equal(t, want, got, text)
	}
}

// limitsOf returns a file with an upstream with these limits, from the second line on.
func limitsOf(limits ...string) string {
	return `{"store": "budgets", "upstreams": {"a": {"url": "https://a.example", "limits": [` + "\n" + strings.Join(limits, ",\n") + "]}}}"
}

// Every kind and every field reaches the library.
func TestEveryKindOfLimit(t *testing.T) {
	for _, stored := range []string{"", "budgets"} {
		c, err := configOf(t, fmt.Sprintf(`{"store": %q, "upstreams": {"a": {
			"url": "https://a.example/v1", "hints": "openai", "shape": "google", "max_wait": "1m", "max_queue": 5, "costs": {"GET /": 1, "/": 5},
			"limits": [
				{"kind": "bucket", "n": 10, "per": "1s", "burst": 5, "initial": 0, "fraction": 0.5, "clamp_cost": true},
				{"kind": "pace", "n": 10, "per": "1s", "key_by": "Authorization", "fair_by": "X-Caller"},
				{"kind": "quota", "n": 10, "per": "1s", "from_grant": true, "costs": {"/": 2}},
				{"kind": "sliding-window", "n": 10, "per": "1s", "settle": ["a.b", "c"], "learn_cost": true},
				{"kind": "fixed-window", "n": 10, "per": "24h", "start": "2026-01-31T08:00:00Z"},
				{"kind": "calendar-window", "n": 10, "unit": "month", "zone": "Europe/Berlin"},
				{"kind": "in-flight", "n": 10, "until_headers": true},
				{"kind": "in-flight", "name": "resting", "n": 10, "pause": "1s", "local": true},
				{"kind": "adaptive", "initial": 0.5, "min": 0.1, "max": 9.5},
				{"kind": "adaptive-in-flight", "initial": 2, "min": 1, "max": 9},
				{"kind": "server-quota", "unit": "tokens", "bytes_per_token": 4}
			]}}}`, stored))
		require.NoError(t, err)
		p, err := newProxy(c, nil, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		var all []string
		for _, l := range p.transports["a"].Limiter().Limits() {
			all = append(all, l.Kind+" "+l.Name)
		}
		assert.Equal(t, []string{
			"bucket bucket", "pace pace", "quota quota", "sliding-window sliding-window", "fixed-window fixed-window",
			"calendar-window calendar-window", "in-flight in-flight", "in-flight resting", "adaptive adaptive",
			"adaptive-in-flight adaptive-in-flight", "server-quota tokens", "server server",
		}, all)
		for b := range p.transports["a"].Limiter().Buckets() {
			if b.Limit == throttle.KindTokenBucket {
				assert.Equal(t, 5.0, b.Rate)
			}
		}
		require.NoError(t, p.close())
		if stored != "" {
			assert.FileExists(t, filepath.Join(c.Store, "a"))
		}
	}
}
