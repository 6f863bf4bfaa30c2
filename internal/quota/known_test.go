package quota

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

func TestARefusalThatNamesAQuotaHoldsIt(t *testing.T) {
	a, g, other := newFamilies()
	asks(t, g, 0, core(50, 40, 60*second))
	none := QuotaHint{Name: "core", Limit: 50, Known: true, Ends: true, Reset: 5 * time.Second}
	h := refusing(10*time.Second, none, until("more", 3, time.Minute))
	n := sends(t, g, second, 1)
	g.apply(&Report{Reading: h.Read(second), Sent: second, Number: n}, second)
	require.Zero(t, a.Held())
	requireReady(t, g, second, 11*second)
	requireReady(t, other, second, second)
	require.Equal(t, []meter.Instant{11 * second, 0}, []meter.Instant{a.quotas[0].held, a.quotas[1].held})
	require.True(t, a.quotas[0].stops(11*second-1))
	require.False(t, a.quotas[0].stops(11*second))
	require.False(t, g.Open(11*second-1))
	require.Equal(t, 11*second, a.quotas[0].known(), "it is kept until then")
	must, _ := g.Matters(second)
	require.Equal(t, 11*second, must)

	h.Wait = 7 * time.Second
	n = g.Take(2*second, 2*second, 1, false)
	g.apply(&Report{Reading: h.Read(2 * second), Sent: 2 * second, Number: n}, 2*second)
	require.Equal(t, 11*second, a.quotas[0].held, "a shorter wait does not shorten it")
}

func TestAnEmptyQuotaExplainsARefusal(t *testing.T) {
	named := func(wait time.Duration) Reading { return refusing(wait, until("core", 0, time.Minute)).Read(0) }
	unnamed := func() Reading { return refusing(time.Second, until(Unnamed, 0, time.Minute)).Read(0) }
	for name, c := range map[string]struct {
		known     []Figures // that accepted responses have reported
		refused   bool      // and one that a refusal has
		adaptive  bool
		r         Reading
		explained bool
	}{
		"no response":                               {known: []Figures{core(9, 0, second)}, r: Reading{}},
		"no refusal":                                {known: []Figures{core(9, 0, second)}, r: (&Hints{}).Read(0)},
		"that it names, with a wait":                {r: named(time.Second), explained: true},
		"that it names, without a wait":             {r: named(0)},
		"that it names, with a wait, for a learner": {r: named(time.Second), adaptive: true},
		"that it names, known, for a learner": {
			known: []Figures{core(9, 5, second)}, r: named(time.Second), adaptive: true, explained: true,
		},
		"that it names, known, without a wait":            {known: []Figures{core(9, 5, second)}, r: named(0), explained: true},
		"that it names, known from a refusal only":        {refused: true, r: named(0)},
		"that it does not name":                           {r: unnamed()},
		"another one":                                     {known: []Figures{core(9, 5, second)}, r: unnamed()},
		"none is reported, and none is empty":             {known: []Figures{core(9, 1, second)}, r: refusing(time.Second).Read(0)},
		"none is reported, and one is empty":              {known: []Figures{core(9, 0, second)}, r: refusing(time.Second).Read(0), explained: true},
		"none is reported, and one of a refusal is empty": {refused: true, r: refusing(time.Second).Read(0)},
		"nothing is reported at all, and one is empty": {
			known: []Figures{core(9, 0, second)}, r: (&Hints{Bare: Forbidden}).Read(0), explained: true,
		},
	} {
		a, g, _ := newFamilies()
		passes(g, 0, c.known...)
		if c.refused {
			answer(g, g.Take(0, 0, 1, false), 0, 0, false, empty(9, second))
		}
		a.own.Adaptive = c.adaptive
		require.Equal(t, c.explained, g.explains(&c.r), name)
	}
}

// A response without a word about limits is a refusal if a quota is empty.
func TestABareResponseIsARefusalIfAQuotaIsEmpty(t *testing.T) {
	for left, limited := range map[int64]uint32{0: 1, 1: 0} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(9, left, 60*second))
		h := &Hints{Bare: Forbidden}
		n := g.Take(2*second, 2*second, 1, false)
		c := g.apply(&Report{Reading: h.Read(2 * second), Sent: 2 * second, Number: n, Own: Own{Adaptive: true}}, 2*second)
		require.Equal(t, limited, a.Limited)
		require.Equal(t, limited > 0, c.Verdict == server.Exhausted)
	}
}

// The end of an empty quota stops requests by itself. A hold would outlast it, if it is reported too late.
func TestAWaitUntilTheEndOfAnEmptyQuotaIsNoHold(t *testing.T) {
	const now = 5 * second
	for name, c := range map[string]struct {
		wait   time.Duration
		reset  time.Duration
		asked  bool
		known  meter.Instant // the end that accepted responses have reported
		second bool          // a request was refused after that end
		others float64       // requests of other clients for each own
		served bool
		want   time.Duration
	}{
		"until the end":                       {10 * time.Second, 10 * time.Second, true, 600 * second, false, 0, true, 0},
		"a second longer":                     {11 * time.Second, 10 * time.Second, true, 600 * second, false, 0, true, 0},
		"longer":                              {11*time.Second + 1, 10 * time.Second, true, 600 * second, false, 0, true, 11*time.Second + 1},
		"shorter":                             {2 * time.Second, 10 * time.Second, true, 600 * second, false, 0, true, 0},
		"just before the end":                 {10 * time.Second, 10 * time.Second, true, now + 1, false, 0, true, 0},
		"after the end":                       {10 * time.Second, 10 * time.Second, true, now, false, 0, true, 10 * time.Second},
		"after the end, no Retry-After":       {10 * time.Second, 10 * time.Second, false, now, false, 0, true, 0},
		"after the end, for the second time":  {10 * time.Second, 10 * time.Second, false, now, true, 0, true, 10 * time.Second},
		"after the end, which others reached": {10 * time.Second, 10 * time.Second, true, now, false, 1, true, 0},
		"reported by refusals only":           {10 * time.Second, 10 * time.Second, true, 600 * second, false, 0, false, 10 * time.Second},
	} {
		a, g, _ := newFamilies()
		passes(g, 0, core(9, 0, c.known))
		q := only(t, a)
		if q.served, q.flow.back = c.served, -8*c.others; c.second {
			q.again(now-1, 0)
		}
		h := refusing(c.wait, QuotaHint{Name: "core", Limit: 9, Known: true, Ends: true, Reset: c.reset})
		h.Asked = c.asked
		r := h.Read(now)
		require.Equal(t, c.want, g.wait(&r, now), name)
		h.Quotas[0].Name = "another"
		r = h.Read(now)
		require.Equal(t, c.wait, g.wait(&r, now), "%s, but of another", name)
	}
	_, g, _ := newFamilies()
	require.Zero(t, g.wait(&Reading{}, now))
	require.Equal(t, time.Minute, g.wait(&Reading{Hints: refusing(time.Minute)}, now))
}

// What is left until the end may be used, and what comes back.
func TestTheRoomIsWhatIsLeftOverTheTimeUntilTheEnd(t *testing.T) {
	tokens := Figures{Name: "tokens", Unit: "tokens", Limit: 9, Left: 5, Reset: 60 * second}
	for name, c := range map[string]struct {
		figures []Figures
		reserve int64
		flow    flow
		refused bool
		room    float64
	}{
		"none":                    {room: 0},
		"an end":                  {figures: []Figures{core(100, 40, 50*second)}, room: 1},
		"an end, with a reserve":  {figures: []Figures{core(100, 40, 50*second)}, reserve: 20, room: 0.5},
		"all is reserved":         {figures: []Figures{core(100, 40, 50*second)}, reserve: 60, room: 0},
		"no end":                  {figures: []Figures{core(100, 40, meter.Never)}, room: 4},
		"an end soon":             {figures: []Figures{core(100, 40, 10*second+1)}, room: 40},
		"it refills":              {figures: []Figures{core(100, 40, 50*second)}, flow: flow{10, 5e9, 10}, room: 2 + 20},
		"it refills, an end soon": {figures: []Figures{core(100, 40, 11*second)}, flow: flow{10, 5e9, 10}, room: 2 + 40},
		"of another unit":         {figures: []Figures{tokens}, room: 0},
		"of two":                  {figures: []Figures{core(100, 40, 50*second), tokens}, room: 1},
		"unlimited":               {figures: []Figures{core(-1, meter.MaxCount, 50*second)}, room: 0},
	} {
		a, g, _ := newFamilies()
		passes(g, 0, c.figures...)
		for _, q := range a.quotas {
			q.reserve, q.flow, q.scarce = c.reserve, c.flow, c.flow.n > 0
		}
		require.InDelta(t, c.room, g.Room(10*second), 1e-6, name)
	}
	_, g, _ := newFamilies()
	answer(g, g.Take(0, 0, 1, false), 0, 0, false, core(100, 40, 50*second))
	require.Zero(t, g.Room(0), "only a refusal has reported it")
}

func TestWhatIsSavedIsRestored(t *testing.T) {
	a, g, _ := newFamilies()
	c := core(100, 40, 60*second)
	c.Reserve = 7
	asks(t, g, 0, c)
	sends(t, g, second, 3)
	saved, ok := a.Saved(2*second, "core")
	require.True(t, ok)
	c.Left = 37
	require.Equal(t, c, saved)

	a, g, _ = newFamilies()
	sends(t, g, second, 2)
	a.Restore(3*second, &saved)
	g.under(3*second, "core")
	require.EqualValues(t, 37-7-2, g.Tokens(3*second))
	q := only(t, a)
	require.Equal(t, []int64{60 * second, 100, 3 * second}, []int64{q.reset, q.limit, q.leftAt})
	require.True(t, q.served)
	asks(t, g, 4*second, core(100, 36, 60*second))
	require.EqualValues(t, 36, q.left)
}

func TestAStateIsThatOfTheNextWindowAfterTheEnd(t *testing.T) {
	a, g, _ := newFamilies()
	other := Figures{Name: "b", Limit: -1, Left: 4, Reset: 50 * second, Counted: true, Unit: "requests"}
	asks(t, g, 0, core(100, 40, 60*second), other)
	for now, want := range map[meter.Instant][]State{
		50*second - 1: {
			{Name: "b", Unit: "requests", Limit: -1, Left: 4, Reset: 50 * second}, {Name: "core", Limit: 100, Left: 40, Reset: 60 * second},
		},
		60 * second: {
			{Name: "b", Unit: "requests", Limit: -1, Left: -1, Reset: meter.Never}, {Name: "core", Limit: 100, Left: 100, Reset: meter.Never},
		},
	} {
		pace, quotas := a.State(now)
		require.Zero(t, pace)
		require.Equal(t, want, quotas)
	}
	require.EqualValues(t, 4, g.Tokens(50*second-1))
	require.EqualValues(t, 40, g.Tokens(50*second))
	require.EqualValues(t, 100, g.Tokens(60*second))
	require.False(t, g.Open(60*second))
}

func TestWhatIsForgottenIsReportedAgain(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(100, 2, 60*second))
	sends(t, g, 1, 2)
	a.quotas[0].held = 90 * second
	a.Forget(2)
	q := only(t, a)
	require.Equal(t, "core", q.name)
	require.EqualValues(t, 2, q.inFlight)
	require.Equal(t, math.Inf(1), g.Tokens(2))
	requireReady(t, g, 2, 2)
	require.True(t, g.Open(2))
	answer(g, 2, 1, 3, true, core(100, 1, 60*second))
	answer(g, 3, 1, 3, true, core(100, 0, 60*second))
	requireReady(t, g, 3, 60*second)
	require.Zero(t, g.InFlight())
	require.Zero(t, q.inFlight)
}

// What is known of a quota that was never reported, or has no end, counts until its newest request has left.
func TestWhatIsKnownIsOverAtTheEnd(t *testing.T) {
	q := newQuota(&Account{}, "core")
	require.Zero(t, q.known())
	q.newest.sent = 7
	require.EqualValues(t, 7, q.known())
	q.held = 8
	require.EqualValues(t, 8, q.known())
	q.reset = 6
	require.EqualValues(t, 8, q.known())
	q.reset = 9
	require.EqualValues(t, 9, q.known())
}

func TestAGateHasNoCostsAndNoRate(t *testing.T) {
	a, g, _ := newFamilies()
	require.Panics(t, func() { g.Settle(1, 0, 1, 2) })
	g.Retune(0, meter.Rate{N: 1, Per: time.Second})
	g.Resize(0, 1)
	requireReady(t, g, 0, 0) // they change nothing
	require.Zero(t, g.PerSecond(0))
	require.Equal(t, meter.MaxCount, g.Most())
	n, ok := g.Spend(0, 1)
	require.True(t, ok)
	require.EqualValues(t, 1, n)
	a.Hold(0, second)
	require.Equal(t, a.held, g.HeldUntil())
	_, ok = g.Spend(0, 1)
	require.False(t, ok)
}
