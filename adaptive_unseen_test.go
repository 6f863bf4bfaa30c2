package throttle_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
)

// halves are servers at half load, at random.
func halves() (all []scene) {
	for _, s := range scenes {
		load, steady := s.halfLoad()
		if !steady {
			continue
		}
		s.name, s.callers, s.load = "half load: "+s.name, 0, constantly(load)
		s.want = want{goodput: 98, refused: 0.1}
		if strings.Contains(s.name, "500") {
			s.want = want{goodput: 98 * 0.99, refused: 1.2} // the server's own faults
		}
		if load == 1 {
			s.want.refused = 0.3 // chance alone empties a bucket of five now and then
		}
		all = append(all, s)
	}
	return all
}

// halfLoad returns half of the limit, if that stays what it is and one client has it to itself.
func (s scene) halfLoad() (load float64, steady bool) {
	s = s.withDefaults()
	return s.limit(0) / 2, s.named == "" && s.clients == 1 && s.off == nil && s.outage[1] == 0
}

func TestAdaptiveAtHalfLoad(t *testing.T) {
	for _, s := range played(halves()) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.reach(t)
		})
	}
}

func sliding(n int64, per time.Duration, opts ...throttletest.LimitOption) []throttletest.Option {
	return served(limits(throttletest.SlidingWindow(n, per, opts...)), silently)
}

// punishing are servers that refuse clients while these press.
var punishing = []scene{
	{name: "100 per 10 s, refused counted", server: sliding(100, 10*time.Second, throttletest.CountRefused()), limit: constantly(10)},
	{name: "100 per 10 s, refused counted, start at twice", config: throttle.AIMD{Initial: 20},
		server: sliding(100, 10*time.Second, throttletest.CountRefused()), limit: constantly(10)},
	{name: "1,000 per 10 s, refused counted", server: sliding(1000, 10*time.Second, throttletest.CountRefused())},
	{name: "60 per 60 s, refused counted", seconds: 600, server: sliding(60, time.Minute, throttletest.CountRefused()), limit: constantly(1)},
	{name: "60 per 60 s, refused counted, Retry-After", seconds: 600,
		server: served(limits(throttletest.SlidingWindow(60, time.Minute, throttletest.CountRefused()))), limit: constantly(1)},
	{name: "100 per 10 s, ban of 30 s", seconds: 600, server: sliding(100, 10*time.Second, throttletest.Ban(30*time.Second)), limit: constantly(10)},
	{name: "100/s, ban of 10 s", limit: constantly(100),
		server: served(limits(throttletest.TokenBucket(100, time.Second, throttletest.Burst(20), throttletest.Ban(10*time.Second))), silently)},
	{name: "100 per 10 s, ban until quiet for 10 s", server: sliding(100, 10*time.Second, throttletest.BanUntilQuiet(10*time.Second)), limit: constantly(10)},
	{name: "50 per 20 s, ban until quiet for 20 s", seconds: 600,
		server: sliding(50, 20*time.Second, throttletest.BanUntilQuiet(20*time.Second)), limit: constantly(2.5)},
	{name: "50 per 20 s, ban until quiet for 90 s", seconds: 1800,
		server: sliding(50, 20*time.Second, throttletest.BanUntilQuiet(90*time.Second)), limit: constantly(2.5)},
}

// What is let in depends on the server's mercy and is logged; the manners are asserted.
func TestServersThatPunishPressingAreLeftAlone(t *testing.T) {
	for _, s := range played(punishing) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			all := s.playAll(t)
			m, worst := average(all)
			t.Logf("mean of %d: %v", len(all), m)
			t.Logf("worst, seed %d: %v", worst+1, all[worst])
			for i, r := range all {
				for _, probes := range r.probes {
					checkProbes(t, i+1, probes)
				}
			}
		})
	}
}

// checkProbes checks that probes are sent one after the other, after gaps that grow, except for what a low rate makes them
// anyway, and for chance when they are as long as they get.
func checkProbes(t *testing.T, seed int, probes []stretch) {
	t.Helper()
	last := time.Duration(0)
	for i, p := range probes[min(1, len(probes)):] {
		require.Greater(t, p.from, probes[i].to, "seed %d: two probes in flight", seed)
		gap := p.from - probes[i].from
		grows := gap > last-last/50 || gap > 1900*time.Millisecond && gap > last*2/3
		require.True(t, grows, "seed %d: after %v a gap of %v", seed, last, gap)
		last = gap
	}
}

func TestAServerThatRefusesForAnHourIsAskedSeldom(t *testing.T) {
	for _, c := range []struct {
		name             string
		fault            throttletest.Fault
		longest, shorter time.Duration
		most             int
	}{
		{"429", throttletest.Outage(429), 200 * time.Second, 360 * time.Second, 60},
		{"503", throttletest.Outage(503), 5 * time.Second / 2, 3 * time.Second, 1900},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			s := scene{seconds: 3600, server: served(silently, throttletest.WithFaults(c.fault.Between(time.Minute, 2*time.Hour)))}
			s.config.Max = 20
			r := s.play(t, 1)
			require.Len(t, r.probes, 1)
			probes := r.probes[0]
			checkProbes(t, 1, probes)
			assert.Less(t, len(probes), c.most)
			longest := time.Duration(0)
			for i, p := range probes[1:] {
				longest = max(longest, p.from-probes[i].from)
			}
			assert.Greater(t, longest, c.longest)
			assert.LessOrEqual(t, longest, c.shorter)
			assert.Less(t, probes[1].from-probes[0].to, time.Second)
		})
	}
}

// untuned are scenes that were not used while the rules were made.
var untuned = []scene{
	{name: "7/s, burst 3, round trip 300 ms", rtt: 300 * time.Millisecond, server: served(bucketOf(7, 3), silently), limit: constantly(7)},
	{name: "300/s, burst 30, round trip 5 ms", rtt: 5 * time.Millisecond, server: served(bucketOf(300, 30), silently), limit: constantly(300)},
	{name: "120 per 10 s from the first request, Retry-After", limit: constantly(12),
		server: served(limits(throttletest.FixedWindow(120, 10*time.Second, throttletest.FromFirstRequest())))},
	{name: "5,000 per hour, Retry-After, three hours", seconds: 3 * 3600, limit: constantly(5000. / 3600),
		server: served(limits(throttletest.FixedWindow(5000, time.Hour)))},
	{name: "20/s and 500 per minute sliding", seconds: 600, limit: constantly(500. / 60), server: served(silently,
		limits(throttletest.TokenBucket(20, time.Second), throttletest.SlidingWindow(500, time.Minute)))},
	{name: "20/s and 500 per minute sliding, Retry-After", seconds: 600, limit: constantly(500. / 60), server: served(
		limits(throttletest.TokenBucket(20, time.Second), throttletest.SlidingWindow(500, time.Minute)))},
	{name: "200 tokens/s, burst 40, costs from 1 to 20", server: served(bucketOf(200, 40), silently, throttletest.WithCost(costOf)),
		cost: func(r *rand.Rand) int64 { return 1 + r.Int64N(20) }, limit: constantly(200)},
	{name: "another limit every 20 s", server: bareBucket, named: "bucket",
		limit: func(t float64) float64 { return []float64{30, 90, 60, 150, 20}[int(t/20)%5] }},
	{name: "2 % random 503", limit: constantly(98),
		server: served(bucketOf(100, 20), silently, throttletest.WithFaults(throttletest.Respond(503, nil).Chance(0.02)))},
	{name: "outage 60 to 90 s, hanging, 3 s for all", server: struck(throttletest.Hang()), patience: 3 * time.Second,
		outage: [2]float64{60, 90}, changes: []float64{90}},
	{name: "a quota that is spent at the start, Retry-After of a minute", seconds: 600, limit: except(0, 60, 100, 0),
		server: served(bucketOf(100, 20), throttletest.WithFaults(throttletest.Respond(429, http.Header{"Retry-After": {"60"}}).Between(0, 59*time.Second)))},
	{name: "a quota of 600 per minute that is spent at the start", seconds: 600, limit: except(0, 45, 10, 0),
		server: served(limits(throttletest.FixedWindow(600, time.Minute)),
			throttletest.WithFaults(throttletest.Respond(429, http.Header{"Retry-After": {"45"}}).Between(0, 45*time.Second)))},
}

func costOf(r *http.Request) int64 {
	cost, _ := r.Context().Value(costKey{}).(int64)
	return max(1, cost)
}

// BenchmarkAdaptiveOnUnseenScenes reports what comes out: there is nothing to assert.
func BenchmarkAdaptiveOnUnseenScenes(b *testing.B) {
	for _, s := range append(untuned, punishing...) {
		b.Run(s.name, func(b *testing.B) {
			for b.Loop() {
				all := s.playForBenchmark(b)
				m, worst := average(all)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(m.goodput, "%goodput")
				b.ReportMetric(all[worst].goodput, "%goodput/worst")
				b.ReportMetric(m.refused, "%refused")
				b.ReportMetric(m.p99, "ms/p99")
				b.ReportMetric(m.found, "s/found")
				for i, back := range m.back {
					b.ReportMetric(back, fmt.Sprintf("s/back-%d", i+1))
				}
			}
		})
	}
}

// playForBenchmark is playAll for a benchmark, which has no bubbles of its own.
func (s scene) playForBenchmark(b *testing.B) (all []results) {
	test := testing.InternalTest{Name: b.Name(), F: func(t *testing.T) {
		for seed := range seedsOf() {
			synctest.Test(t, func(t *testing.T) { all = append(all, s.play(t, uint64(seed)+1)) })
		}
	}}
	if !testing.RunTests(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{test}) {
		b.FailNow()
	}
	return all
}
