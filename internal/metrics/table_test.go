package metrics

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/metrics/metricstest"
	"github.com/httpthrottle/throttle/retry"
)

func TestRowsAreComplete(t *testing.T) {
	names := make(map[string]bool)
	for _, m := range slices.Concat(All(), OfPools()) {
		assert.Regexp(t, `^throttle\.[a-z]+([._][a-z]+)*$`, m.Name)
		assert.Regexp(t, `^(s|\{[a-z]+\}(/s)?)?$`, m.Unit, m.Name)
		assert.Contains(t, []Kind{Counter, UpDownCounter, Gauge, Histogram}, m.Kind, m.Name)
		assert.Regexp(t, `^[A-Z0-9].*\.$`, m.Help, m.Name)
		assert.NotContains(t, m.Labels, "limiter", "exporters add it to %s", m.Name)
		assert.Len(t, slices.Compact(slices.Sorted(slices.Values(m.Labels))), len(m.Labels), m.Name)
		for _, name := range []string{m.Name, m.PrometheusName()} {
			assert.False(t, names[name], name)
			names[name] = true
		}
	}
}

func TestPrometheusNames(t *testing.T) {
	for want, m := range map[string]Metric{
		"throttle_wait_seconds":         {Name: "throttle.wait", Unit: "s", Kind: Histogram},
		"throttle_rate_per_second":      {Name: "throttle.rate", Unit: "{token}/s", Kind: Gauge},
		"throttle_tokens_charged_total": {Name: "throttle.tokens.charged", Unit: "{token}", Kind: Counter},
		"throttle_keys":                 {Name: "throttle.keys", Unit: "{key}", Kind: UpDownCounter},
		"throttle_dry_run":              {Name: "throttle.dry_run", Kind: Gauge},
	} {
		assert.Equal(t, want, m.PrometheusName())
	}
}

// The tests of the exporters compare what they export after the scene with the table.
func TestSceneHasAValueOfEachMetric(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := metricstest.Play(t)
		l := s.Transport.Limiter()
		missing := make(map[*Metric]bool)
		for _, m := range All() {
			missing[m] = true
		}
		series := make(map[string]bool)
		to := func(s Sample) {
			delete(missing, s.Metric)
			assert.Len(t, s.Labels, len(s.Metric.Labels), s.Metric.Name)
			one := fmt.Sprint(s.Metric.Name, s.Labels)
			assert.False(t, series[one], "%s twice", one)
			series[one] = true
			if s.Metric.Kind == Histogram {
				assert.Len(t, s.Counts.Counts, len(s.Counts.Bounds)+1, s.Metric.Name)
				assert.IsIncreasing(t, s.Counts.Bounds, s.Metric.Name)
			}
		}
		ReadLimiter(l, to)
		ReadTransport("t", s.Transport, to)
		ReadPolicy("c", s.Policy, to)
		b, ok := l.Bucket("requests", metricstest.Host)
		require.True(t, ok)
		ReadBucket(&b, to)
		ReadQuota(metricstest.Host, &l.Server(metricstest.Host)[0].Quotas[0], to)
		for m := range missing {
			assert.Fail(t, "no value", m.Name)
		}
	})
}

// withoutRow are the fields of the statistics that have no row, with the reason. A struct stands for its fields.
var withoutRow = map[string]string{
	"Stats.Waiting":        "throttle.waiting_requests has it for each limit",
	"Stats.Buckets":        "throttle.keys has it for each limit",
	"Stats.Undone":         "throttle.grants_undone has it for each limit",
	"Stats.Delayed":        "throttle.wait has it for each limit",
	"Stats.Waited":         "throttle.wait has it for each limit",
	"Stats.Rejected":       "throttle.rejections has it for each limit, and throttle.requests the total",
	"LimitStats.Granted":   "the count of throttle.wait",
	"LimitStats.Delayed":   "the count of throttle.wait above its first bucket",
	"LimitStats.Callers":   "throttle.waiting_callers has it for all limits together",
	"LimitStats.Canceled":  "throttle.requests has it for all limits together",
	"LimitStats.Holds":     "throttle.holds has it by source",
	"LimitStats.Unread":    "it says that the set-up is wrong, which the log and the page do, too",
	"BucketStats.Capacity": "throttle.tokens.capacity has it, because it is the same for all keys",
	"BucketStats.Wait":     "it is an estimate for one request",
	"BucketStats.Callers":  "throttle.waiting_callers has it for all limits together",
	"BucketStats.InFlight": "throttle.in_flight_requests has it for all keys together",
	"BucketStats.Reset":    "it is part of the configuration",
	"QuotaStats.HeldUntil": "nothing is left of it then, which throttle.server_quota.remaining shows",
	"QuotaStats.InFlight":  "throttle.in_flight_requests has it for all servers together",
}

func TestEachFigureOfTheStatisticsHasARow(t *testing.T) {
	f := figures{at: make(map[float64]string)}
	var s throttle.Stats
	f.fill("Stats", reflect.ValueOf(&s).Elem())
	limit := throttle.LimitStats{Kind: "adaptive"}
	f.fill("LimitStats", reflect.ValueOf(&limit).Elem())
	var store throttle.StoreStats
	f.fill("StoreStats", reflect.ValueOf(&store).Elem())
	client := retry.Stats{Retries: map[retry.Cause]uint64{retry.CauseStatus: 0}}
	f.fill("retry.Stats", reflect.ValueOf(&client).Elem())
	var b throttle.BucketStats
	f.fill("BucketStats", reflect.ValueOf(&b).Elem())
	var q throttle.QuotaStats
	f.fill("QuotaStats", reflect.ValueOf(&q).Elem())

	missing := make(map[string]bool)
	for _, path := range f.at {
		missing[path] = true
	}
	require.Greater(t, len(missing), 80)
	to := func(s Sample) {
		found := []float64{float64(s.Int), s.Float, s.Counts.Sum}
		for _, n := range s.Counts.Counts {
			found = append(found, float64(n))
		}
		for _, v := range found {
			delete(missing, f.at[v])
		}
	}
	limiters.read(&s, to)
	limits.read(&limit, to, "l")
	stores.read(&store, to, "s")
	transports.read(&s, to, "t")
	policies.read(&client, to, "c")
	ReadBucket(&b, to)
	ReadQuota("h", &q, to)
	used := make(map[string]bool)
	for path := range missing {
		of := path
		for withoutRow[of] == "" && strings.Contains(of, ".") {
			of = of[:strings.LastIndex(of, ".")]
		}
		assert.NotEmpty(t, withoutRow[of], "%s has no row, and withoutRow has no reason for that", path)
		used[of] = true
	}
	for path := range withoutRow {
		assert.True(t, used[path], "%s has a row, or does not exist", path)
	}
}

// figures are the fields that have been filled, by their values.
type figures struct{ at map[float64]string }

// fill gives every number and instant in v a value of its own.
func (f *figures) fill(path string, v reflect.Value) {
	n := float64(1_000_000 + len(f.at))
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = time.Unix(int64(n), 0)
		f.at[n] = path
		return
	case *time.Duration:
		*x = time.Duration(n) * time.Second
		f.at[n] = path
		return
	case *throttle.Counts[throttle.Reason]:
		fillCounts(f, path, x)
		return
	case *throttle.Counts[throttle.Cause]:
		fillCounts(f, path, x)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(path+"."+v.Type().Field(i).Name, v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			f.fill(fmt.Sprintf("%s[%d]", path, i), v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			v.SetMapIndex(key, reflect.ValueOf(uint64(n)))
			f.at[n] = path
		}
	case reflect.Uint64:
		v.SetUint(uint64(n))
		f.at[n] = path
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(n))
		f.at[n] = path
	case reflect.Float64:
		v.SetFloat(n)
		f.at[n] = path
	}
}

// fillCounts gives every count a value of its own.
func fillCounts[K throttle.Reason | throttle.Cause](f *figures, path string, c *throttle.Counts[K]) {
	for k := range c.All() {
		n := uint64(1_000_000 + len(f.at))
		c[k], f.at[float64(n)] = n, fmt.Sprintf("%s.%v", path, k)
	}
}

func TestAPoolHasAValueOfEachOfItsMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		missing := make(map[*Metric]bool)
		for _, m := range OfPools() {
			assert.Equal(t, FromPool, m.Source)
			assert.NotContains(t, m.Labels, "pool", "exporters add it to %s", m.Name)
			missing[m] = true
		}
		ReadPool(metricstest.PlayPool(t), func(s Sample) {
			delete(missing, s.Metric)
			assert.Len(t, s.Labels, len(s.Metric.Labels), s.Metric.Name)
		})
		assert.Empty(t, missing)
	})
}

func TestWhatALimitCannotHaveIsLeftOut(t *testing.T) {
	always := []string{"throttle.grants_undone", "throttle.held_until", "throttle.keys", "throttle.keys_evicted", "throttle.rejections", "throttle.wait", "throttle.waiting_requests"}
	tokens := append(slices.Clone(always), "throttle.tokens.charged", "throttle.tokens.returned", "throttle.tokens.capacity")
	for _, c := range []struct {
		limit throttle.LimitStats
		want  []string
	}{
		{throttle.LimitStats{Kind: "none", Capacity: 1, Rate: 1}, always},
		{throttle.LimitStats{Kind: "server", Capacity: 1, Rate: 1}, append(slices.Clone(always), "throttle.in_flight_requests")},
		{throttle.LimitStats{Kind: "bucket", Capacity: 1, Rate: 1}, append(slices.Clone(tokens), "throttle.tokens.available", "throttle.rate")},
		{throttle.LimitStats{Kind: "bucket", Capacity: 1, Rate: 1, Keyed: true}, tokens},
		{throttle.LimitStats{Kind: "bucket", Capacity: 1, Keyed: true, Estimated: 1}, append(slices.Clone(tokens), "throttle.tokens.estimated", "throttle.tokens.settled")},
		{throttle.LimitStats{Kind: "in-flight", Capacity: 1, Tokens: 1}, append(slices.Clone(tokens), "throttle.tokens.available", "throttle.in_flight_requests")},
		{throttle.LimitStats{Kind: "adaptive", Rate: 1, Tokens: math.Inf(1)}, append(slices.Clone(always),
			"throttle.tokens.charged", "throttle.tokens.returned", "throttle.rate", "throttle.in_flight_requests", "throttle.retunes")},
	} {
		var got []string
		limits.read(&c.limit, func(s Sample) { got = append(got, s.Metric.Name) }, "l")
		slices.Sort(got)
		slices.Sort(c.want)
		assert.Equal(t, c.want, slices.Compact(got), "%+v", c.limit)
	}
}

func TestCountersBeyondInt64AreTheLargest(t *testing.T) {
	var got []int64
	limiters.read(&throttle.Stats{ServerRefused: math.MaxUint64}, func(s Sample) {
		if s.Metric.Name == "throttle.server_refusals" {
			got = append(got, s.Int)
		}
	})
	assert.Equal(t, []int64{math.MaxInt64}, got)
}

func TestInstants(t *testing.T) {
	for want, at := range map[float64]time.Time{0: {}, 1.5: time.UnixMilli(1500), -2: time.Unix(-2, 0)} {
		var got []float64
		buckets.read(&throttle.BucketStats{HeldUntil: at}, func(s Sample) {
			if s.Metric.Name == "throttle.key.held_until" {
				got = append(got, s.Float)
			}
		}, "l", "k")
		assert.Equal(t, []float64{want}, got)
	}
}
