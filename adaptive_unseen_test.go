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

	"github.com/httpthrottle/throttle/internal/scene"
	"github.com/httpthrottle/throttle/throttletest"
)

// halves are servers at half load, at random.
func halves(t testing.TB) (all []adaptiveScene) {
	for _, s := range scenes(t) {
		load, steady := halfLoad(s.WithDefaults())
		if !steady {
			continue
		}
		s.Name, s.Callers, s.Load = "half load: "+s.Name, 0, scene.Constantly(load)
		s.want = want{goodput: 98, refused: 0.1}
		if strings.Contains(s.Name, "500") {
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
func halfLoad(s scene.Scene) (load float64, steady bool) {
	return s.Limit(0) / 2, s.Named == "" && s.Clients == 1 && s.Load == nil && s.Outage[1] == 0
}

func TestAdaptiveAtHalfLoad(t *testing.T) {
	for _, s := range played(halves(t)) {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.reach(t)
		})
	}
}

func sliding(n int64, per time.Duration, opts ...throttletest.LimitOption) []throttletest.Option {
	return scene.Served(throttletest.WithLimits(throttletest.SlidingWindow(n, per, opts...)), scene.Silently)
}

const startAtTwice = "100 per 10 s, refused counted, start at twice"

// adapted returns scenes for a client that knows nothing, except in one.
func adapted(scenes []scene.Scene) (all []adaptiveScene) {
	for _, s := range scenes {
		a := adaptiveScene{Scene: s}
		if s.Name == startAtTwice {
			a.config.Initial = 20
		}
		all = append(all, a)
	}
	return all
}

// punishing are servers that refuse clients while these press.
var punishing = []scene.Scene{
	{Name: "100 per 10 s, refused counted", Server: sliding(100, 10*time.Second, throttletest.CountRefused()), Limit: scene.Constantly(10)},
	{Name: startAtTwice, Server: sliding(100, 10*time.Second, throttletest.CountRefused()), Limit: scene.Constantly(10)},
	{Name: "1,000 per 10 s, refused counted", Server: sliding(1000, 10*time.Second, throttletest.CountRefused())},
	{Name: "60 per 60 s, refused counted", Seconds: 600, Server: sliding(60, time.Minute, throttletest.CountRefused()), Limit: scene.Constantly(1)},
	{Name: "60 per 60 s, refused counted, Retry-After", Seconds: 600,
		Server: scene.Served(throttletest.WithLimits(throttletest.SlidingWindow(60, time.Minute, throttletest.CountRefused()))), Limit: scene.Constantly(1)},
	{Name: "100 per 10 s, ban of 30 s", Seconds: 600, Server: sliding(100, 10*time.Second, throttletest.Ban(30*time.Second)), Limit: scene.Constantly(10)},
	{Name: "100/s, ban of 10 s", Limit: scene.Constantly(100),
		Server: scene.Served(throttletest.WithLimits(throttletest.TokenBucket(100, time.Second, throttletest.Burst(20), throttletest.Ban(10*time.Second))), scene.Silently)},
	{Name: "100 per 10 s, ban until quiet for 10 s", Server: sliding(100, 10*time.Second, throttletest.BanUntilQuiet(10*time.Second)), Limit: scene.Constantly(10)},
	{Name: "50 per 20 s, ban until quiet for 20 s", Seconds: 600,
		Server: sliding(50, 20*time.Second, throttletest.BanUntilQuiet(20*time.Second)), Limit: scene.Constantly(2.5)},
	{Name: "50 per 20 s, ban until quiet for 90 s", Seconds: 1800,
		Server: sliding(50, 20*time.Second, throttletest.BanUntilQuiet(90*time.Second)), Limit: scene.Constantly(2.5)},
}

// What is let in depends on the server's mercy and is logged; the manners are asserted.
func TestServersThatPunishPressingAreLeftAlone(t *testing.T) {
	for _, s := range played(adapted(punishing)) {
		t.Run(s.Name, func(t *testing.T) {
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
			s := adaptiveScene{Scene: scene.Scene{Seconds: 3600, Server: scene.Served(scene.Silently, throttletest.WithFaults(c.fault.Between(time.Minute, 2*time.Hour)))}}
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
var untuned = []scene.Scene{
	{Name: "7/s, burst 3, round trip 300 ms", RoundTrip: 300 * time.Millisecond, Server: scene.Served(scene.Bucket(7, 3), scene.Silently), Limit: scene.Constantly(7)},
	{Name: "300/s, burst 30, round trip 5 ms", RoundTrip: 5 * time.Millisecond, Server: scene.Served(scene.Bucket(300, 30), scene.Silently), Limit: scene.Constantly(300)},
	{Name: "120 per 10 s from the first request, Retry-After", Limit: scene.Constantly(12),
		Server: scene.Served(throttletest.WithLimits(throttletest.FixedWindow(120, 10*time.Second, throttletest.FromFirstRequest())))},
	{Name: "5,000 per hour, Retry-After, three hours", Seconds: 3 * 3600, Limit: scene.Constantly(5000. / 3600),
		Server: scene.Served(throttletest.WithLimits(throttletest.FixedWindow(5000, time.Hour)))},
	{Name: "20/s and 500 per minute sliding", Seconds: 600, Limit: scene.Constantly(500. / 60), Server: scene.Served(scene.Silently,
		throttletest.WithLimits(throttletest.TokenBucket(20, time.Second), throttletest.SlidingWindow(500, time.Minute)))},
	{Name: "20/s and 500 per minute sliding, Retry-After", Seconds: 600, Limit: scene.Constantly(500. / 60), Server: scene.Served(
		throttletest.WithLimits(throttletest.TokenBucket(20, time.Second), throttletest.SlidingWindow(500, time.Minute)))},
	{Name: "200 tokens/s, burst 40, costs from 1 to 20", Server: scene.Served(scene.Bucket(200, 40), scene.Silently, throttletest.WithCost(func(r *http.Request) int64 { return scene.CostOf(r.Context()) })),
		Cost: func(r *rand.Rand) int64 { return 1 + r.Int64N(20) }, Limit: scene.Constantly(200)},
	{Name: "another limit every 20 s", Server: scene.BareBucket, Named: "bucket",
		Limit: func(t float64) float64 { return []float64{30, 90, 60, 150, 20}[int(t/20)%5] }},
	{Name: "2 % random 503", Limit: scene.Constantly(98),
		Server: scene.Served(scene.Bucket(100, 20), scene.Silently, throttletest.WithFaults(throttletest.Respond(503, nil).Chance(0.02)))},
	{Name: "outage 60 to 90 s, hanging, 3 s for all", Server: scene.Struck(throttletest.Hang()), Patience: 3 * time.Second,
		Outage: [2]float64{60, 90}, Changes: []float64{90}},
	{Name: "a quota that is spent at the start, Retry-After of a minute", Seconds: 600, Limit: scene.Except(0, 60, 100, 0),
		Server: scene.Served(scene.Bucket(100, 20), throttletest.WithFaults(throttletest.Respond(429, http.Header{"Retry-After": {"60"}}).Between(0, 59*time.Second)))},
	{Name: "a quota of 600 per minute that is spent at the start", Seconds: 600, Limit: scene.Except(0, 45, 10, 0),
		Server: scene.Served(throttletest.WithLimits(throttletest.FixedWindow(600, time.Minute)),
			throttletest.WithFaults(throttletest.Respond(429, http.Header{"Retry-After": {"45"}}).Between(0, 45*time.Second)))},
}

// BenchmarkAdaptiveOnUnseenScenes reports what comes out: there is nothing to assert.
func BenchmarkAdaptiveOnUnseenScenes(b *testing.B) {
	for _, s := range adapted(append(untuned, punishing...)) {
		b.Run(s.Name, func(b *testing.B) {
			for b.Loop() {
				all := s.playForBenchmark(b)
				m, worst := average(all)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(m.Goodput, "%goodput")
				b.ReportMetric(all[worst].Goodput, "%goodput/worst")
				b.ReportMetric(m.Refused, "%refused")
				b.ReportMetric(m.P99, "ms/p99")
				b.ReportMetric(m.Found, "s/found")
				for i, back := range m.Back {
					b.ReportMetric(back, fmt.Sprintf("s/back-%d", i+1))
				}
			}
		})
	}
}

// playForBenchmark is playAll for a benchmark, which has no bubbles of its own.
func (s adaptiveScene) playForBenchmark(b *testing.B) (all []results) {
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
