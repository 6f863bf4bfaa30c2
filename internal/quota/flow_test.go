package quota

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/meter"
)

// What is told by a server that gives back a request with each that it accepts is no forecast after a few responses. Windows that
// turn stay one, even where responses come out of order or tell of the window before.
func TestAFlowIsToldFromWindows(t *testing.T) {
	said := func(limit int64, lefts ...int64) (f flow) {
		f.left = -1
		for _, left := range lefts {
			f.hear(left, limit)
		}
		return f
	}
	windows := func(n int64, turns int, order func(lefts []int64)) (all []int64) {
		for range turns {
			lefts := make([]int64, n)
			for i := range lefts {
				lefts[i] = n - 1 - int64(i)
			}
			order(lefts)
			all = append(all, lefts...)
		}
		return all
	}
	straight := func([]int64) {}
	f := said(10)
	assert.False(t, f.forecasts(), "no accepted response has named it")
	for _, n := range []int64{2, 3, 5, 8, 50, 1000} {
		f = said(n, windows(n, 10, straight)...)
		assert.True(t, f.forecasts(), "a window of %d", n)
		assert.Zero(t, f.share)
	}
	dice := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		f = said(50, windows(50, 1+dice.IntN(9), func(lefts []int64) { // up to three places out of order
			for i := 0; i+3 < len(lefts); i += 3 {
				j := i + dice.IntN(3)
				lefts[i], lefts[j] = lefts[j], lefts[i]
			}
		})...)
		assert.Less(t, f.share, float32(0.5))
	}
	f = said(50, 0, 0, 0, 0, 0)
	assert.False(t, f.forecasts(), "an empty bucket")
	f = said(50, 40, 39, 39, 38, 38, 37, 37, 36, 36, 35, 35)
	assert.False(t, f.forecasts(), "a bucket that half of the rate fills")
	for _, left := range windows(50, 2, straight) {
		f.hear(left, 50)
	}
	assert.True(t, f.forecasts(), "the server has changed")
}

// A client whose own limit allows no more requests in a window than the server accepts is not stopped when nothing is left: the next one
// is sent after the window, which may end a second before the server reports. Other limits do not exclude refusals.
func TestAQuotaThatTheOwnLimitKeepsStopsNoRequest(t *testing.T) {
	for _, c := range []struct {
		name     string
		own      float64
		adaptive bool
		limit    int64
		reserve  int64
		window   meter.Instant // as told
		stops    bool
	}{
		{"the server's rate", 10, false, 10, 0, second, false},
		{"told a second late", 10, false, 10, 0, 2 * second, false},
		{"a minute", 9.5, false, 600, 0, 61 * second, false},
		{"above the server's rate", 11, false, 600, 0, 60 * second, true},
		{"of an hour", 10, false, 5000, 0, 3600 * second, true},
		{"that learns", 10, true, 10, 0, second, true},
		{"none", 0, false, 10, 0, second, true},
		{"with something left to others", 10, false, 10, 1, second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, g, _ := newFamilies()
			a.Cover(&Own{Rate: c.own, Fastest: c.own, Adaptive: c.adaptive})
			told := core(c.limit, c.limit-1, 10*second+c.window)
			told.Reserve = c.reserve
			asks(t, g, 10*second, told)
			told.Left = 0
			asks(t, g, 10*second+milli, told)
			now, end := 10*second+2*milli, 10*second+c.window
			if c.stops {
				assert.GreaterOrEqual(t, g.Ready(now, 0, 1), min(end, now+patience)) // longer than that needs a refusal
			} else {
				requireReady(t, g, now, now)
			}
			now = max(now, g.Ready(now, 0, 1))
			sends(t, g, now, 1)
			told.Refused = true
			own := Own{Rate: c.own, Adaptive: c.adaptive}
			reading := Reading{Hints: &Hints{Limited: true}, Explained: true, tells: []Tell{told}}
			g.apply(&Report{Sent: now, Own: own, Reading: reading}, now+milli)
			assert.GreaterOrEqual(t, g.Ready(now+milli, 0, 1), end, "a refusal shows that the server means it")
		})
	}
}

// What is left is spread after a window that ran dry, but a client with a limit of its own spreads nothing before a refusal. A bucket
// that refills does not stop such a client either.
func TestOnlyARefusalMakesAKnownRateSpread(t *testing.T) {
	next := func(own float64, refused bool) int64 {
		a, g, _ := newFamilies()
		a.Cover(&Own{Rate: own, Fastest: own})
		asks(t, g, 10*second, core(100, 1, 12*second))
		empty := core(100, 0, 12*second)
		empty.Refused = refused
		sends(t, g, 10*second+milli, 1)
		g.Answered(10*second+milli, 10*second+milli, !refused, []Tell{empty})
		now := g.Ready(12*second, 0, 1)
		asks(t, g, now, core(100, 99, now+2*second))
		return g.Ready(now, 0, 1) - now
	}
	assert.Zero(t, next(100, false))
	assert.Positive(t, next(100, true))
	assert.Positive(t, next(0, false))

	a, g, _ := newFamilies()
	a.Cover(&Own{Rate: 100, Fastest: 100})
	for i := range meter.Instant(8) {
		now := 10*second + 500*milli*i
		asks(t, g, max(now, g.Ready(now, 0, 1)), core(100, 0, now+60*second))
	}
	requireReady(t, g, 600*second, 600*second)
}

func TestAQuotaThatRefillsExplainsNoRefusal(t *testing.T) {
	for name, c := range map[string]struct {
		lefts     []int64
		counted   bool
		explained bool
	}{
		"that was never reported":          {nil, true, true},
		"a window":                         {[]int64{49, 48, 47, 46, 45}, true, true},
		"a bucket":                         {[]int64{40, 40, 40, 40, 40}, true, false},
		"tokens, which nobody sees refill": {[]int64{40, 40, 40, 40, 40}, false, true},
	} {
		a, g, _ := newFamilies()
		for _, left := range c.lefts {
			asks(t, g, second, Tell{Name: "core", Limit: 50, Left: left, Reset: 10 * second, Counted: c.counted})
		}
		sends(t, g, 2*second, 1)
		tells := []Tell{{Name: "core", Limit: 50, Reset: 10 * second, Counted: c.counted, Refused: true}}
		g.Answered(2*second, 2*second, false, tells)
		assert.Equal(t, c.explained, a.Explains(&Reading{Explained: true, tells: tells}), name)
	}
}

// A window ends at one instant, whatever is left of it, but every request puts off when a bucket is full again.
func TestAResetThatMovesIsOfAQuotaThatRefills(t *testing.T) {
	for _, c := range []struct {
		name    string
		reset   meter.Instant // as reported by the second response, a second after the first
		took    int64         // until that came
		refills bool
	}{
		{"the same", 60 * second, 0, false},
		{"rounded otherwise", 62 * second, 0, false},
		{"later", 62*second + 1, 0, true},
		{"rounded otherwise, before the server worked on it", 92 * second, 30 * second, false},
		{"later, before the server worked on it", 92*second + 1, 30 * second, true},
		{"unknown", meter.Never, 0, false},
		{"earlier", 30 * second, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, g, _ := newFamilies()
			a.Cover(&Own{Adaptive: true})
			asks(t, g, 0, core(50, 49, 60*second))
			sends(t, g, second, 1)
			g.Answered(second+c.took, second, true, []Tell{core(50, 48, c.reset)})
			assert.Equal(t, c.refills, a.quotas[0].flow.refills())
			assert.Equal(t, c.refills, a.quotas[0].blind())
		})
	}

	a, g, _ := newFamilies()
	a.Cover(&Own{Adaptive: true})
	asks(t, g, 0, core(50, 49, 60*second))
	sends(t, g, second, 1)
	refused := core(50, 0, 90*second)
	refused.Refused = true
	g.Answered(second, second, false, []Tell{refused})
	assert.False(t, a.quotas[0].flow.refills(), "a refusal may ask for more than the reset")

	a, g, _ = newFamilies()
	asks(t, g, 0, core(50, 40, 60*second))
	g.Hear(0, meter.Never-1, []Tell{core(50, 40, 62*second)})
	assert.False(t, a.quotas[0].flow.refills(), "as a body reports it")
	g.Hear(0, meter.Never-1, []Tell{core(50, 40, 62*second+1)})
	assert.True(t, a.quotas[0].flow.refills(), "a body counts like headers")
}

// A window begins with nearly all of it left. Other clients may use it up, but not within a second.
func TestAWindowThatDoesNotBeginIsOfAQuotaThatRefills(t *testing.T) {
	for _, c := range []struct {
		name    string
		late    int64 // the first request after the reset
		left    int64
		lasts   int64 // the time until the next reset, as reported
		refills bool
	}{
		{"nothing is left", 0, 0, 60 * second, true},
		{"a quarter is left", second, 12, 60 * second, true},
		{"more is left", 0, 13, 60 * second, false},
		{"others had time", second + 1, 0, 60 * second, false},
		{"the reset was early, and is corrected", 0, 0, 2 * second, false},
		{"just more than that", 0, 0, 2*second + 1, true},
		{"no reset is known", 0, 0, 0, false},
	} {
		for name, accepted := range map[string]bool{"accepted": true, "refused": false} {
			t.Run(c.name+", "+name, func(t *testing.T) {
				a, g, _ := newFamilies()
				a.Cover(&Own{Adaptive: true})
				asks(t, g, 0, core(50, 0, 10*second))
				requireReady(t, g, second, 10*second)
				now := 10*second + c.late
				report := core(50, c.left, now+c.lasts)
				if c.lasts == 0 {
					report.Reset = meter.Never
				}
				report.Refused = !accepted && c.left == 0
				sends(t, g, now, 1)
				g.Answered(now, now, accepted, []Tell{report})
				assert.Equal(t, c.refills, a.quotas[0].flow.refills())
			})
		}
	}
}

// Where a quota refills, a client without limits of its own waits for its reset until a refusal begins a pace, which is faster.
func TestAPaceDecidesWhereAQuotaRefills(t *testing.T) {
	a, g, _ := newFamilies()
	for i := range meter.Instant(8) {
		asks(t, g, i*second, core(50, 1, i*second+60*second))
	}
	asks(t, g, 8*second, core(50, 0, 60*second))
	requireReady(t, g, 9*second, 60*second)
	a.pace.rate, a.pace.steady = 10, 100*second
	now := g.Ready(9*second, 0, 1)
	assert.LessOrEqual(t, now, 8*second+spreadOver, "what is left is spread")
	asks(t, g, now, core(50, 0, 60*second))

	a, g, _ = newFamilies()
	for i := range meter.Instant(8) {
		asks(t, g, i*second, core(50, 8-i, 60*second))
	}
	asks(t, g, 8*second, core(50, 0, 60*second))
	a.pace.rate, a.pace.steady = 10, 100*second
	requireReady(t, g, 9*second, 60*second) // a window does not
}

// A refusal that reports only the reset of a quota that refills asks for no wait, unless the server has refused several in a row.
func TestTheResetOfAQuotaThatRefillsIsNoWait(t *testing.T) {
	bucket, window := []int64{40, 40, 40, 40, 40, 40}, []int64{49, 48, 47, 46, 45, 44}
	for name, c := range map[string]struct {
		lefts     []int64
		uncounted bool
		own       Own
		asked     bool
		row       int8
		wait      time.Duration
	}{
		"a bucket":                             {lefts: bucket, own: Own{Adaptive: true}},
		"and the server asks for it":           {lefts: bucket, own: Own{Adaptive: true}, asked: true, wait: time.Minute},
		"of tokens":                            {lefts: bucket, own: Own{Adaptive: true}, uncounted: true, wait: time.Minute},
		"refused twice":                        {lefts: bucket, own: Own{Rate: 10}, row: 2},
		"refused three times":                  {lefts: bucket, own: Own{Rate: 10}, row: 3, wait: time.Minute},
		"a client without limits":              {lefts: bucket, wait: time.Minute},
		"a limit in flight":                    {lefts: bucket, own: Own{Slots: true}, wait: time.Minute},
		"a window":                             {lefts: window, own: Own{Adaptive: true}, wait: time.Minute},
		"no accepted response has reported it": {own: Own{Adaptive: true}, wait: time.Minute},
	} {
		a, g, _ := newFamilies()
		a.Cover(&c.own)
		report := Tell{Name: "core", Limit: 50, Reset: 60 * second, Counted: !c.uncounted}
		for _, report.Left = range c.lefts {
			asks(t, g, second, report)
		}
		sends(t, g, 2*second, 1)
		report.Left, report.Refused = 0, true
		g.Answered(2*second, 2*second, false, []Tell{report})
		a.refusals = c.row
		h := &Hints{Limited: true, Wait: time.Minute, Asked: c.asked}
		assert.Equal(t, c.wait, a.Wait(&Reading{Hints: h, Explained: true, tells: []Tell{report}}), name)
		if a.pace.rate = 10; name == "a client without limits" {
			c.wait = 0 // a pace decides
		}
		assert.Equal(t, c.wait, a.Wait(&Reading{Hints: h, Explained: true, tells: []Tell{report}}), name)
	}

	a, _, _ := newFamilies()
	assert.Zero(t, a.Wait(&Reading{}))
	assert.Equal(t, time.Second, a.Wait(&Reading{Hints: &Hints{Limited: true, Wait: time.Second}}))
}
