package quota

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A server decides about a request that arrives, and reports what is left.
type counter interface {
	arrive(now meter.Instant) (ok bool, c Figures)
}

// A fixed server has windows of a length.
type fixed struct {
	limit, length int64
	window, used  int64
}

func (s *fixed) arrive(now meter.Instant) (bool, Figures) {
	if w := now / s.length; w != s.window {
		s.window, s.used = w, 0
	}
	ok := s.used < s.limit
	if ok {
		s.used++
	}
	return ok, refusedUnless(ok, core(s.limit, s.limit-s.used, (s.window+1)*s.length))
}

// A bucket reports when it is full.
type bucket struct {
	rate, burst, level float64
	at                 meter.Instant
}

func (s *bucket) arrive(now meter.Instant) (bool, Figures) {
	s.level = min(s.burst, s.level+float64(now-s.at)/1e9*s.rate)
	s.at = now
	ok := s.level >= 1
	if ok {
		s.level--
	}
	full := now + int64(math.Ceil((s.burst-s.level)/s.rate*1e9))
	return ok, refusedUnless(ok, core(int64(s.burst), int64(s.level), full))
}

// A sliding server keeps a log of the requests that it accepted, and reports when the oldest leaves it.
type sliding struct {
	limit, length int64
	log           []meter.Instant
}

func (s *sliding) arrive(now meter.Instant) (bool, Figures) {
	s.log = slices.DeleteFunc(s.log, func(at meter.Instant) bool { return at <= now-s.length })
	ok := int64(len(s.log)) < s.limit
	if ok {
		s.log = append(s.log, now)
	}
	return ok, refusedUnless(ok, core(s.limit, s.limit-int64(len(s.log)), s.log[0]+s.length))
}

func refusedUnless(ok bool, c Figures) Figures {
	c.Refused = !ok
	return c
}

// drain has requests leave one by one as early as they can, each answered after a trip. It returns how many the server accepted.
func drain(g *Gate, s counter, from, until meter.Instant, trip int64) (accepted, refused float64) {
	for now := from; ; {
		if now = g.Ready(now, 0, 1); now >= until {
			return accepted, refused
		}
		n := g.Take(now, now, 1, false)
		ok, c := s.arrive(now + trip/2)
		if ok {
			accepted++
		} else {
			refused++
		}
		answer(g, n, now, now+trip, ok, c)
		now += trip
	}
}

// An event is the arrival of a request, or of its response.
type event struct {
	at, sent meter.Instant
	n        int64
	response bool
	ok       bool
	figures  Figures
}

// crowd has callers send requests one after the other, with random latencies from least to most in each direction. It returns how many
// the server accepted and refused from the instant from on.
func crowd(r *rand.Rand, g *Gate, s counter, callers int, least, most int64, from, until meter.Instant) (accepted, refused float64) {
	var events []event
	now, idle := second, callers
	latency := func() int64 { return least + r.Int64N(most-least+1) }
	push := func(e event) {
		i, _ := slices.BinarySearchFunc(events, e, func(x, y event) int { return cmp.Compare(x.at, y.at) })
		events = slices.Insert(events, i, e)
	}
	for now < until {
		for idle > 0 && g.Payable(now, 1) {
			push(event{at: now + latency(), sent: now, n: g.Take(now, now, 1, true)})
			idle--
		}
		next := meter.Never
		if idle > 0 {
			next = max(now+1, g.Ready(now, 0, 1))
		}
		if len(events) == 0 || next < events[0].at {
			now = next
			continue
		}
		e := events[0]
		events = events[1:]
		now = e.at
		if e.response {
			answer(g, e.n, e.sent, now, e.ok, e.figures)
			idle++
			continue
		}
		e.ok, e.figures = s.arrive(now)
		switch {
		case now < from:
		case e.ok:
			accepted++
		default:
			refused++
		}
		e.at, e.response = now+latency(), true
		push(e)
	}
	return accepted, refused
}

// Of callers that always have another request, a server accepts most of what it can, and refuses few, once it is known.
func TestMostOfALimitIsUsedAndFewRequestsAreRefused(t *testing.T) {
	window := func(limit, length int64) func() counter {
		return func() counter { return &fixed{limit: limit, length: length} }
	}
	refills := func(rate, burst float64) func() counter {
		return func() counter { return &bucket{rate: rate, burst: burst, level: burst} }
	}
	slides := func(limit, length int64) func() counter {
		return func() counter { return &sliding{limit: limit, length: length} }
	}
	for name, c := range map[string]struct {
		make    func() counter
		rate    float64 // that the server accepts in the long run
		window  int64
		callers int
		most    int64 // latency
		refused float64
	}{
		"a window":                       {window(50, 10*second), 5, 10 * second, 8, 100 * milli, 0.05},
		"a large window":                 {window(1000, 10*second), 100, 10 * second, 30, 100 * milli, 0.05},
		"a short window":                 {window(20, 2*second), 10, 2 * second, 4, 20 * milli, 0.05},
		"a bucket":                       {refills(10, 20), 10, 5 * second, 8, 100 * milli, 0.05},
		"a large bucket":                 {refills(50, 500), 50, 10 * second, 30, 100 * milli, 0.05},
		"a sliding log":                  {slides(50, 10*second), 5, 10 * second, 8, 100 * milli, 0.17},
		"a sliding log of a short time":  {slides(40, 2*second), 20, 2 * second, 8, 50 * milli, 0.05},
		"a sliding log of many requests": {slides(600, 20*second), 30, 20 * second, 16, 100 * milli, 0.05},
		"a log of few requests":          {slides(17, 60*second), 17.0 / 60, 60 * second, 8, second, 0.05},
		"a bucket of one a minute":       {refills(1.0/60, 10), 1.0 / 60, 600 * second, 8, second, 0.05},
	} {
		t.Run(name, func(t *testing.T) {
			const seeds = 5
			var used float64
			for seed := range uint64(seeds) {
				_, g, _ := newFamilies()
				from := second + 3*c.window
				until := from + 10*c.window
				accepted, refused := crowd(rand.New(rand.NewPCG(seed, 0)), g, c.make(), c.callers, 2*milli, c.most, from, until)
				used += accepted / (c.rate * float64(until-from) / 1e9) / seeds
				assert.LessOrEqual(t, refused, c.refused*(accepted+refused), "seed %d", seed)
			}
			assert.GreaterOrEqual(t, used, 0.85)
		})
	}
}

// endless is a bucket that reports no reset.
type endless struct{ bucket }

func (s *endless) arrive(now meter.Instant) (bool, Figures) {
	ok, c := s.bucket.arrive(now)
	c.Reset = meter.Never
	return ok, c
}

// A small bucket that gets one a minute is asked too early only while its rate is not known.
func TestASlowBucketRefusesOnlyWhileItIsLearned(t *testing.T) {
	for _, burst := range []float64{5, 8, 10} {
		for seed := range uint64(20) {
			_, g, _ := newFamilies()
			s := &endless{bucket{rate: 1.0 / 60, burst: burst, level: burst}}
			accepted, refused := crowd(rand.New(rand.NewPCG(seed, 0)), g, s, 8, 2*milli, 100*milli, 3600*second, 4*3600*second)
			assert.GreaterOrEqual(t, accepted, .99*180, "burst %v, seed %d", burst, seed)
			assert.Zero(t, refused, "burst %v, seed %d", burst, seed)
		}
	}
}
