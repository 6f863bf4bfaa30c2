package headers_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/headers"
)

// A response is a case of testdata: what a server sent, and what a client should conclude from it.
type response struct {
	ID        string
	Case      string
	Preset    headers.Preset
	GenericOK bool `json:"generic_ok"`
	Status    int
	Headers   map[string][]string
	Body      string
	Now       time.Time
	Expect    struct {
		Limited     bool
		RetryAfter  *float64 `json:"retry_after_seconds"`
		Wait        *float64 `json:"wait_seconds"`
		Saturated   bool
		Concurrency bool
		Reason      string
		Scope       string
		Cost        *float64
		Violated    []string
		Buckets     []struct {
			Name, Unit       string
			Limit, Remaining *int64
			Used             *int64
			InFlight         *int64   `json:"in_flight"`
			Rate             *float64 `json:"rate_per_second"`
			Reset            *float64 `json:"reset_in_seconds"`
			Window           *float64 `json:"window_seconds"`
			PartitionKey     string   `json:"partition_key_base64"`
		}
	}
}

func responses(t testing.TB) (cases []response) {
	data, err := os.ReadFile("../testdata/headers/cases.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &cases))
	require.NotEmpty(t, cases)
	return cases
}

func (c response) header() http.Header {
	h := http.Header{}
	for name, lines := range c.Headers {
		for _, line := range lines {
			h.Add(name, line)
		}
	}
	return h
}

func TestRecordedResponsesAreReadAsDocumented(t *testing.T) {
	for _, c := range responses(t) {
		t.Run(c.ID, func(t *testing.T) {
			if c.Preset == headers.Generic || c.GenericOK {
				check(t, c, headers.Parse(c.Status, c.header(), c.Now), false)
			}
			if c.Preset != headers.Generic || c.Body != "" {
				preset := c.Preset
				if preset == headers.Generic {
					preset = headers.Problem
				}
				check(t, c, preset.Dialect().Parse(c.Status, c.header(), []byte(c.Body), c.Now), true)
			}
		})
	}
}

func TestPresetsAskForTheBodiesTheyNeed(t *testing.T) {
	for _, c := range responses(t) {
		d := c.Preset.Dialect()
		without := d.Parse(c.Status, c.header(), nil, c.Now)
		with := d.Parse(c.Status, c.header(), []byte(c.Body), c.Now)
		with.Unit = "" // no body is asked for because of it
		if c.Preset != headers.Generic && !assert.ObjectsAreEqual(without, with) {
			assert.True(t, d.WantsBody(c.Status, c.header()), c.ID)
		}
	}
}

// Presets add to what is certain: they read every response of another API as Parse does, except for how long GitHub stays away.
func TestPresetsKeepWhatIsCertain(t *testing.T) {
	for _, c := range responses(t) {
		if c.Preset != headers.Generic {
			continue
		}
		for _, preset := range headers.Presets() {
			got := preset.Dialect().Parse(c.Status, c.header(), nil, c.Now)
			want := headers.Parse(c.Status, c.header(), c.Now)
			assert.Equal(t, want.Limited, got.Limited, "%s: %s", preset, c.ID)
			assert.Equal(t, want.RetryAfter, got.RetryAfter, "%s: %s", preset, c.ID)
		}
	}
}

func check(t *testing.T, c response, got headers.Signal, preset bool) {
	t.Helper()
	want := c.Expect
	assert.Equal(t, want.Limited, got.Limited, "limited")
	near(t, want.RetryAfter, got.RetryAfter, "Retry-After")
	near(t, want.Wait, got.Wait, "wait")
	assert.Equal(t, want.Saturated, got.Saturated, "saturated")
	assert.Equal(t, want.Reason, got.Reason, "reason")
	if want.Scope != "" {
		assert.Equal(t, want.Scope, got.Scope, "scope")
	}
	if want.Cost != nil {
		assert.Equal(t, known(*want.Cost), got.Cost, "cost")
	}
	if preset {
		assert.Equal(t, want.Concurrency, got.Concurrency, "concurrency")
		assert.Equal(t, want.Violated, got.Violated, "violated")
	}
	require.Len(t, got.Buckets, len(want.Buckets), "%+v", got.Buckets)
	for _, b := range want.Buckets {
		key, _ := base64.StdEncoding.DecodeString(b.PartitionKey)
		i := slices.IndexFunc(got.Buckets, func(g headers.Bucket) bool { return g.Name == b.Name && g.PartitionKey == string(key) })
		require.GreaterOrEqual(t, i, 0, "no bucket %q among %+v", b.Name, got.Buckets)
		g := got.Buckets[i]
		same(t, b.Limit, g.Limit, b.Name+" limit")
		same(t, b.Remaining, g.Remaining, b.Name+" remaining")
		near(t, b.Reset, g.Reset, b.Name+" reset")
		if b.Used != nil {
			same(t, b.Used, g.Used, b.Name+" used")
		}
		if b.InFlight != nil {
			same(t, b.InFlight, g.InFlight, b.Name+" in flight")
		}
		if b.Rate != nil {
			same(t, b.Rate, g.Rate, b.Name+" rate")
		}
		if b.Window != nil {
			near(t, b.Window, g.Window, b.Name+" window")
		}
		if b.Unit != "" {
			assert.Equal(t, b.Unit, g.Unit, b.Name+" unit")
		}
	}
}

func same[T any](t *testing.T, want *T, got headers.Maybe[T], what string) {
	t.Helper()
	if want == nil {
		assert.False(t, got.Known, "%s: %v", what, got)
		return
	}
	assert.Equal(t, known(*want), got, what)
}

// near compares seconds within 2 ms: the cases round.
func near(t *testing.T, want *float64, got headers.Maybe[time.Duration], what string) {
	t.Helper()
	if want == nil {
		assert.False(t, got.Known, "%s: %v", what, got)
		return
	}
	require.True(t, got.Known, "%s is unknown", what)
	assert.InDelta(t, *want, got.Value.Seconds(), 0.002, what)
}

// A caller does not read a response that Silent reports as silent.
func TestResponsesWithoutHeadersReportNothing(t *testing.T) {
	silent := 0
	for _, c := range responses(t) {
		for _, hints := range [][]headers.Hint{nil, {headers.Auto}, {c.Preset}} {
			r, err := headers.NewReader(hints...)
			if err != nil {
				continue // not every case has a preset
			}
			if !r.Silent("api.example.com", c.Status, c.header()) {
				continue
			}
			silent++
			s := r.Parse("api.example.com", c.Status, c.header(), nil, c.Now)
			assert.False(t, s.Limited || s.RetryAfter.Known || len(s.Buckets) > 0, c.ID)
			assert.False(t, r.WantsBody("api.example.com", c.Status, c.header()), c.ID)
		}
	}
	assert.Positive(t, silent)
	generic, err := headers.NewReader()
	require.NoError(t, err)
	assert.True(t, generic.Silent("h", 200, http.Header{"Content-Type": {"text/plain"}}))
	assert.False(t, generic.Silent("h", 429, nil), "a status may say it all")
	assert.False(t, generic.Silent("h", 503, http.Header{"Retry-After": {"1"}}))
}
