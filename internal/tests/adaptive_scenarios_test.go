//go:build !race

package tests

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/scene"
	"github.com/httpthrottle/throttle/throttletest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An adaptiveScene is a scene for real Transports. The same as arithmetic alone is a scenario of scenarios_test.go, with the rest of
// what the figures mean.
type adaptiveScene struct {
	scene.Scene
	config  throttle.AIMD
	options []throttle.Option // besides the adaptive limit
	want    want
}

// A want is what the mean of the seeds must reach; 0: not looked at.
type want struct {
	goodput, refused float64 // percent of the oracle's at least; percent of what was sent at most
	p50, p99         float64 // ms
	jain             float64
	inOutage         float64
	back             []float64 // s, after each change
}

// results are what came of a run.
type results struct {
	scene.Outcome
	wait   float64     // ms, the median of requests that come at random
	probes [][]stretch // what was sent in each silence of a client that is alone
}

// A stretch of time, since the start.
type stretch struct{ from, to time.Duration }

// An observer records the events of Transports, and what they send when.
type observer struct {
	start time.Time

	mu       sync.Mutex
	waits    []float64
	spans    []stretch // from each request to its response
	silences []stretch
}

func (o *observer) hooks() throttle.Hooks {
	return throttle.Hooks{OnGrant: o.granted, OnRetune: o.retuned}
}

func (o *observer) granted(e throttle.GrantEvent) {
	if scene.AtRandom(e.Context) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.waits = append(o.waits, e.Waited.Seconds())
	}
}

// retuned notes when nothing but probes are sent.
func (o *observer) retuned(e throttle.RetuneEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Since(o.start)
	switch e.Reason {
	case throttle.CauseSilence:
		o.silences = append(o.silences, stretch{now, math.MaxInt64})
	case throttle.CauseProbeAnswered:
		o.silences[len(o.silences)-1].to = now
	}
}

// sending returns a RoundTripper that notes when requests to base are under way.
func (o *observer) sending(base http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		began := time.Since(o.start)
		resp, err := base.RoundTrip(req)
		if err == nil || req.Context().Err() != context.Canceled { // otherwise the run is over
			o.mu.Lock()
			defer o.mu.Unlock()
			o.spans = append(o.spans, stretch{began, time.Since(o.start)})
		}
		return resp, err
	})
}

// probes returns what was sent in each silence.
func (o *observer) probes() (all [][]stretch) {
	for _, silence := range o.silences {
		var probes []stretch
		for _, s := range o.spans {
			if silence.from < s.from && s.from < silence.to {
				probes = append(probes, s)
			}
		}
		slices.SortFunc(probes, func(a, b stretch) int { return cmp.Compare(a.from, b.from) })
		all = append(all, probes)
	}
	return all
}

// play runs the scene once, in a bubble.
func (s adaptiveScene) play(t testing.TB, seed uint64) results {
	o := &observer{start: time.Now()}
	out := s.Play(t, seed, func(base http.RoundTripper) http.RoundTripper {
		tr, err := throttle.New(o.sending(base), append([]throttle.Option{throttle.WithAdaptive(s.config), throttle.WithHooks(o.hooks())}, s.options...)...)
		require.NoError(t, err)
		return s.checked(t, tr)
	})
	r := results{Outcome: out, wait: 1000 * scene.Quantile(o.waits, 0.5)}
	if s.Clients <= 1 {
		r.probes = o.probes()
	}
	return r
}

// checked returns a RoundTripper that fails the test if tr rejects a request in advance, or fails for another reason than the scene has.
func (s adaptiveScene) checked(t testing.TB, tr http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		ctx := req.Context()
		resp, err := tr.RoundTrip(req.WithContext(throttle.ContextWithCost(ctx, scene.CostOf(ctx))))
		switch {
		case err != nil && s.Timeout == 0 && s.Patience == 0:
			assert.ErrorIs(t, err, context.Canceled)
		case err == nil:
			_, local := throttle.RejectionOf(resp)
			assert.False(t, local, "no request is rejected in advance")
		}
		return resp, err
	})
}

// playAll plays a scene with several seeds.
func (s adaptiveScene) playAll(t *testing.T) (all []results) {
	seeds := seedsOf()
	if s.Callers > 200 {
		seeds = min(seeds, 2) // more than a hundred thousand requests each
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { all = append(all, s.play(t, uint64(seed)+1)) })
	}
	return all
}

// played returns the scenes to play: every fifth with -short, and the first under the race detector, which makes them ten times
// slower and finds nothing in the others that it would not find in that one.
func played(all []adaptiveScene) (some []adaptiveScene) {
	switch {
	case underRace():
		return all[:1]
	case !testing.Short():
		return all
	}
	for i := 0; i < len(all); i += 5 {
		some = append(some, all[i])
	}
	return some
}

// underRace reports whether the tests were built with the race detector.
func underRace() bool {
	info, _ := debug.ReadBuildInfo()
	return slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func seedsOf() int {
	if testing.Short() || underRace() {
		return 1
	}
	return 5
}

// average returns the mean, and the index of the one of least goodput.
func average(all []results) (m results, worst int) {
	n := float64(len(all))
	m.Back = make([]float64, len(all[0].Back))
	for i, r := range all {
		m.Goodput += r.Goodput / n
		m.Refused += r.Refused / n
		m.P50 += r.P50 / n
		m.P99 += r.P99 / n
		m.wait += r.wait / n
		m.Jain += r.Jain / n
		m.InOutage += r.InOutage / n
		m.Found += r.Found / n
		for j := range r.Back {
			m.Back[j] += r.Back[j] / n
		}
		if r.Goodput < all[worst].Goodput {
			worst = i
		}
	}
	return m, worst
}

func (r results) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "goodput %.1f %%, refused %.2f %%, latency %.0f/%.0f ms, found in %.1f s", r.Goodput, r.Refused, r.P50, r.P99, r.Found)
	if r.Jain < 1-1e-9 {
		fmt.Fprintf(&b, ", Jain's index %.3f", r.Jain)
	}
	if len(r.Back) > 0 {
		fmt.Fprintf(&b, ", again in %.1f s", r.Back)
	}
	if r.InOutage > 0 {
		fmt.Fprintf(&b, ", %.0f sent in the outage", r.InOutage)
	}
	return b.String()
}

// missed returns what is worse than it should be. One seed may be worse than the mean of five.
func (w want) missed(r results) (all []string) {
	if seedsOf() == 1 {
		w.goodput, w.refused, w.p50, w.p99, w.jain = w.goodput-3, 1.3*w.refused, 1.1*w.p50, 1.1*w.p99, w.jain-0.05
		w.inOutage *= 1.1
		for i := range r.Back {
			r.Back[i] /= 1.5
		}
	}
	check := func(ok bool, format string, args ...any) {
		if !ok {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	check(r.Goodput >= w.goodput, "goodput %.2f %%, want at least %.1f", r.Goodput, w.goodput)
	check(w.refused == 0 || r.Refused <= w.refused, "refused %.3f %%, want at most %.2f", r.Refused, w.refused)
	check(w.p50 == 0 || r.P50 <= w.p50, "p50 %.1f ms, want at most %.0f", r.P50, w.p50)
	check(w.p99 == 0 || r.P99 <= w.p99, "p99 %.1f ms, want at most %.0f", r.P99, w.p99)
	check(r.Jain >= w.jain, "Jain's index %.3f, want at least %.2f", r.Jain, w.jain)
	check(w.inOutage == 0 || r.InOutage <= w.inOutage, "%.1f sent in the outage, want at most %.0f", r.InOutage, w.inOutage)
	check(r.wait == 0, "median wait %.2f ms, want none", r.wait)
	for i, b := range w.back {
		check(r.Back[i] <= b, "limit found again after %.2f s, want at most %.1f", r.Back[i], b)
	}
	return all
}

func (s adaptiveScene) reach(t *testing.T) {
	all := s.playAll(t)
	m, worst := average(all)
	t.Logf("mean of %d: %v", len(all), m)
	t.Logf("worst, seed %d: %v", worst+1, all[worst])
	if missed := s.want.missed(m); missed != nil {
		t.Errorf("%s\nworst, seed %d: %v", strings.Join(missed, "\n"), worst+1, all[worst])
	}
}

// figures are what the controller reaches in the scenes that it was made for. Six are lower than in the first round, most of all the
// fairness of ten clients, 0.92 instead of 0.97: the price of finding a raised limit sooner.
var figures = map[string]want{
	"token bucket, bare 429":             {goodput: 98.5, refused: 0.2},
	"token bucket, Retry-After":          {goodput: 93.5, refused: 0.1},
	"600 per minute, Retry-After":        {goodput: 98, refused: 1},
	"600 per minute, bare 429":           {goodput: 97, refused: 4},
	"nginx, 503 above burst 20":          {goodput: 98.5, refused: 0.7},
	"nginx, delays up to 50":             {goodput: 95, refused: 0.05, p50: 60, p99: 90},
	"10 servers at 100 ms, queue of 100": {goodput: 95, refused: 0.05, p50: 170, p99: 320},
	scene.Drops:                          {goodput: 93, refused: 0.6, back: []float64{2, 13}},
	"limit drifts by half":               {goodput: 96, refused: 0.345},
	"load comes and goes":                {goodput: 98, refused: 0.22},
	"half load, at random":               {goodput: 98, refused: 0.1},
	"ten clients":                        {goodput: 99, refused: 2.5, jain: 0.91},
	"heavy tail, 1 % random 500":         {goodput: 98.5, refused: 1.2},
	"outage 60 to 90 s, fast 503":        {goodput: 95.5, refused: 0.4, inOutage: 25, back: []float64{3}},
	"outage 60 to 90 s, hanging":         {goodput: 96, refused: 0.4, back: []float64{3}},
	"2 per second, burst 5":              {goodput: 99, refused: 5},
	"1,000 per second, burst 100":        {goodput: 94, refused: 0.1},
}

// scenes returns those of package scene with their figures. Two are played without server hints, which would set the end of a bare
// 429.
func scenes(t testing.TB) (all []adaptiveScene) {
	for _, s := range scene.Scenes() {
		want, ok := figures[s.Name]
		require.True(t, ok, s.Name)
		a := adaptiveScene{Scene: s, want: want}
		if strings.HasSuffix(s.Name, "bare 429") {
			a.options = []throttle.Option{throttle.WithoutServerHints()}
		}
		all = append(all, a)
	}
	return all
}

func TestAdaptiveReachesItsFigures(t *testing.T) {
	for _, s := range played(scenes(t)) {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.reach(t)
		})
	}
}

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
	for i, s := range played(halves(t)) {
		if i%2 != 0 { // the full load of every one is played above
			continue
		}
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
		{"429", throttletest.Outage(429), 200 * time.Second, 20 * time.Minute, 60},
		{"503", throttletest.Outage(503), 200 * time.Second, 20 * time.Minute, 100},
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

// A refilling server accepts 600 requests a minute, and reports how many are left, but not that the next one is accepted soon.
type refilling struct {
	mu          sync.Mutex
	log         []time.Time // of a sliding window
	count       bool        // the window before counts by the share of it that the last minute covers, as in go-chi/httprate
	turn        int64
	used        [2]int // in this minute and in the one before
	ok, refused int
}

func (s *refilling) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var left int
	var reset time.Duration
	if s.count {
		if turn := now.Unix() / 60; turn != s.turn {
			s.used = [2]int{0, s.used[0] * int(max(0, 2-turn+s.turn))}
			s.turn = turn
		}
		reset = now.Truncate(time.Minute).Add(time.Minute).Sub(now)
		left = 600 - s.used[0] - int(float64(s.used[1])*reset.Minutes())
	} else {
		for len(s.log) > 0 && now.Sub(s.log[0]) >= time.Minute {
			s.log = s.log[1:]
		}
		left, reset = 600-len(s.log), time.Minute // until all requests may come together
	}
	status := http.StatusTooManyRequests
	if left > 0 {
		status, left = http.StatusOK, left-1
		s.log = append(s.log, now)
		s.used[0]++
		s.ok++
	} else {
		s.refused++
	}
	resp := says(status, "RateLimit-Limit", "600", "RateLimit-Remaining", strconv.Itoa(max(0, left)), "RateLimit-Reset", strconv.Itoa(int(math.Ceil(reset.Seconds()))))
	resp.Request = req
	return resp, nil
}

// The reset of a quota that refills is not when the next request is accepted, neither if nothing is left nor after a refusal.
func TestAnAdaptiveLimitDoesNotWaitForTheResetOfAQuotaThatRefills(t *testing.T) {
	for name, count := range map[string]bool{"a log whose reset moves": false, "a count of two windows": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &refilling{count: count}
				press(t, transportTo(t, s, throttle.WithAdaptive(throttle.AIMD{Initial: 20})), 16, 6*time.Minute, api)
				assert.Greater(t, s.ok, 6*600*80/100) // one minute may be lost, by chance
				assert.Less(t, s.refused, s.ok/20)
			})
		})
	}
}
