package throttle_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/scene"
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

// An observer notes what the hooks of Transports tell, and what they send when.
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
	case "silence":
		o.silences = append(o.silences, stretch{now, math.MaxInt64})
	case "probe_answered":
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
	for seed := range seedsOf() {
		synctest.Test(t, func(t *testing.T) { all = append(all, s.play(t, uint64(seed)+1)) })
	}
	return all
}

// played returns the scenes to play: every fifth with -short, and the first under the race detector, which makes them ten times
// slower and finds nothing in the others that it would not find in that one.
func played(all []adaptiveScene) (some []adaptiveScene) {
	switch {
	case raceEnabled:
		return all[:1]
	case !testing.Short():
		return all
	}
	for i := 0; i < len(all); i += 5 {
		some = append(some, all[i])
	}
	return some
}

func seedsOf() int {
	if testing.Short() || raceEnabled {
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
	"nginx, delays up to 50":             {goodput: 94.5, refused: 0.05, p50: 55, p99: 150},
	"10 servers at 100 ms, queue of 100": {goodput: 89, refused: 0.05, p50: 145, p99: 560},
	scene.Drops:                          {goodput: 93, refused: 0.6, back: []float64{2, 13}},
	"limit drifts by half":               {goodput: 96, refused: 0.33},
	"load comes and goes":                {goodput: 98, refused: 0.22},
	"half load, at random":               {goodput: 98, refused: 0.1},
	"ten clients":                        {goodput: 99, refused: 2.5, jain: 0.92},
	"heavy tail, 1 % random 500":         {goodput: 98.5, refused: 1.2},
	"outage 60 to 90 s, fast 503":        {goodput: 95.5, refused: 0.4, inOutage: 25, back: []float64{3}},
	"outage 60 to 90 s, hanging":         {goodput: 96, refused: 0.4, back: []float64{3}},
	"2 per second, burst 5":              {goodput: 99, refused: 5},
	"1,000 per second, burst 100":        {goodput: 94, refused: 0.1},
}

// scenes returns those of package scene with their figures. Two are played without server hints, which would tell the end of a bare
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
