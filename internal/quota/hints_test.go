package quota

import (
	"cmp"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

func TestHintsAreReadAsOfNow(t *testing.T) {
	const now = 100 * second
	quota := func(change func(*QuotaHint)) QuotaHint {
		q := QuotaHint{Name: "q", Limit: 10, Left: 5, Reserve: 2, Known: true, Ends: true, Reset: time.Minute}
		change(&q)
		return q
	}
	figures := func(left int64, reset meter.Instant, refused bool) []Figures {
		return []Figures{{Name: "q", Limit: 10, Left: left, Reset: reset, Counted: true, Reserve: 2, Refused: refused}}
	}
	for name, c := range map[string]struct {
		limited          bool
		wait             time.Duration
		quota            QuotaHint
		figures          []Figures
		explained, named bool
	}{
		"what is left": {quota: quota(func(q *QuotaHint) {}), figures: figures(5, now+60*second, false)},
		"what is left in a response that has nothing to do with it": {limited: true, quota: quota(func(q *QuotaHint) {}), figures: figures(5, now+60*second, false)},
		"a limit of 0, although it was accepted":                    {quota: quota(func(q *QuotaHint) { q.Limit, q.Left = 0, 0 })},
		"nothing is known":                                          {quota: quota(func(q *QuotaHint) { q.Known = false })},
		"not enforced":                                              {quota: quota(func(q *QuotaHint) { q.Advisory = true })},
		"without an end":                                            {quota: quota(func(q *QuotaHint) { q.Ends = false }), figures: figures(5, meter.Never, false)},
		"nothing is left":                                           {quota: quota(func(q *QuotaHint) { q.Left = 0 }), figures: figures(0, now+60*second, false)},
		"a refusal that an empty quota explains": {
			limited: true, quota: quota(func(q *QuotaHint) { q.Left = 0 }), figures: figures(0, now+60*second, true), explained: true, named: true,
		},
		"an empty quota until later than the wait": {
			limited: true, wait: time.Second, quota: quota(func(q *QuotaHint) { q.Left = 0 }), figures: figures(0, now+60*second, true), explained: true, named: true,
		},
		"an empty quota until sooner than the wait": {
			limited: true, wait: 2 * time.Minute, quota: quota(func(q *QuotaHint) { q.Left = -1 }), figures: figures(-1, now+60*second, true), explained: true, named: true,
		},
		"an empty quota that ends now": {
			limited: true, quota: quota(func(q *QuotaHint) { q.Left, q.Reset = 0, 0 }), figures: figures(0, now, true), explained: true, named: true,
		},
		"an empty quota that ends now, and a wait": {
			limited: true, wait: 1, quota: quota(func(q *QuotaHint) { q.Left, q.Reset = 0, 0 }), figures: figures(0, now, true), explained: true, named: true,
		},
		"an empty quota without an end": {
			limited: true, quota: quota(func(q *QuotaHint) { q.Left, q.Ends = 0, false }), figures: figures(0, meter.Never, true), explained: true, named: true,
		},
		"an empty quota without an end, and a wait": {
			limited: true, wait: time.Second, quota: quota(func(q *QuotaHint) { q.Left, q.Ends = 0, false }), figures: figures(0, meter.Never, true), explained: true, named: true,
		},
		"too little is left": {
			limited: true, wait: time.Second, quota: quota(func(q *QuotaHint) { q.Left, q.Violated = 1, true }), figures: figures(0, now+second, true), explained: true, named: true,
		},
		"a quota that was exceeded, of which nothing else is known": {
			limited: true, wait: time.Second, quota: quota(func(q *QuotaHint) { q.Known, q.Ends, q.Violated = false, false, true }),
			figures: figures(0, now+second, true), explained: true, named: true,
		},
		"a quota that was exceeded, until an unknown time": {
			limited: true, quota: quota(func(q *QuotaHint) { q.Violated = true }), figures: figures(5, now+60*second, false),
		},
		"an exceeded quota in a response that is no refusal": {
			wait: time.Second, quota: quota(func(q *QuotaHint) { q.Violated = true }), figures: figures(5, now+60*second, false),
		},
	} {
		h := &Hints{Limited: c.limited, Wait: c.wait, Quotas: []QuotaHint{c.quota}}
		r := h.Read(now)
		require.Same(t, h, r.Hints)
		require.Equal(t, c.figures, r.figures, name)
		require.Equal(t, c.explained, r.empty, name)
		require.Equal(t, c.named, r.named, name)
		require.Equal(t, c.quota, h.Quotas[0], "%s: hints may be read again", name)
	}
}

func TestAnEmptyQuotaThatIsNotNamedExplainsARefusalWithoutNamingWhatWasExceeded(t *testing.T) {
	h := &Hints{Limited: true, Quotas: []QuotaHint{
		{Name: Unnamed, Left: 0, Known: true, Ends: true, Reset: time.Minute}, {Name: "q", Left: 1, Known: true, Ends: true, Reset: time.Minute},
	}}
	r := h.Read(0)
	require.True(t, r.empty)
	require.False(t, r.named)
	require.Len(t, r.figures, 2)
	h.Quotas[0].Ends = false // such as X-RateLimit-Remaining: 0 without a reset
	r = h.Read(0)
	require.True(t, r.empty)
	require.Len(t, r.figures, 2)
	require.Equal(t, meter.Never, r.figures[0].Reset)
}

func TestOnlyRequestsAreCounted(t *testing.T) {
	for unit, counted := range map[string]bool{"": true, "requests": true, "tokens": false, "content-bytes": false} {
		h := &Hints{Quotas: []QuotaHint{{Name: "q", Unit: unit, Limit: -1, Left: 1, Known: true, Ends: true, Reset: time.Minute}}}
		r := h.Read(0)
		require.Equal(t, counted, r.figures[0].Counted, unit)
		require.Equal(t, unit, r.figures[0].Unit)
	}
}

func TestAResetThatNeverComesIsNoOverflow(t *testing.T) {
	h := &Hints{Limited: true, Wait: math.MaxInt64, Quotas: []QuotaHint{{Name: "q", Known: true, Ends: true, Reset: math.MaxInt64}}}
	require.Equal(t, meter.Never, h.Read(100).figures[0].Reset)
}

// A refusal that asks for no wait, but reports a quota of which enough is left, has another reason. Its reset is no wait.
func TestAResetOfAQuotaThatIsFarFromEmptyIsNoWait(t *testing.T) {
	at := 2 * second
	for name, c := range map[string]struct {
		left   int64
		inUnit string
		asked  bool
		other  bool // a quota is reported of which nothing is left
		wait   time.Duration
		spare  int64 // what is left for other clients
		first  bool  // no response has reported the quota before
		waits  bool
	}{
		"enough":                  {left: 50},
		"one more than in flight": {left: 4},
		"as much as in flight":    {left: 3, waits: true},
		"nothing":                 {left: 0, waits: true},
		"the first report":        {left: 50, first: true},
		"as much, at first":       {left: 3, first: true, waits: true},
		"a reserve, at first":     {left: 50, spare: 47, first: true, waits: true},
		"a reserve":               {left: 50, spare: 47, waits: true},
		"more than a reserve":     {left: 50, spare: 46},
		"Retry-After":             {left: 50, asked: true, waits: true},
		"a wait besides":          {left: 50, wait: 45e9, waits: true},
		"another quota is empty":  {left: 11, other: true, waits: true},
		"a unit":                  {left: 50, inUnit: "tokens"},
		"too little of a unit":    {left: 1, inUnit: "tokens"}, // the unit stops requests by itself
	} {
		t.Run(name, func(t *testing.T) {
			a := newAccount(NewServer(1), 2)
			g := newGate(a)
			quotas := func(left int64) []QuotaHint {
				q := []QuotaHint{{Name: "core", Unit: c.inUnit, Limit: 100, Left: left, Known: true, Reset: 30e9, Ends: true, Reserve: c.spare}}
				if c.other {
					q = append(q, QuotaHint{Name: "other", Limit: 10, Left: left / 12, Known: true, Reset: 30e9, Ends: true})
				}
				return q
			}
			takes := func(n int64, sent, now meter.Instant, h *Hints) *Report {
				rep := &Report{Reading: h.Read(now), Sent: sent, Number: n, Accepted: !h.Limited, Done: !h.Limited}
				g.apply(rep, now)
				return rep
			}
			first := sends(t, g, second, 1)
			before := &Hints{Status: 200}
			if !c.first {
				before.Quotas = quotas(60)
			}
			takes(first, second, at, before)
			n := sends(t, g, at, 3) - 2
			wait := cmp.Or(c.wait, 30e9)
			h := &Hints{Status: 429, Limited: true, Wait: wait, Asked: c.asked, Quotas: quotas(c.left)}
			rep := takes(n, at, at+milli, h)
			if c.waits {
				assert.GreaterOrEqual(t, g.Ready(at+milli, 0, 1), at+29*second)
				assert.Equal(t, int64(wait), g.Account.LastRefusal(at+milli).Asked)
				return
			}
			require.Less(t, g.Account.Until(), at+2*second)
			if c.left > 3 {
				assert.Equal(t, server.TooFast, rep.Verdict)
				assert.Zero(t, g.Account.LastRefusal(at+milli).Asked)
				assert.Greater(t, g.Account.Until(), at+milli, "as after a bare refusal")
			}
		})
	}
}

// What others send is unanswered, too, and the newest response may have reported less than the refusal does.
func TestAQuotaIsFarFromEmptyIfMoreIsLeftThanAllMayHaveUsed(t *testing.T) {
	a, g, _ := newFamilies()
	now := 2 * second
	passes(g, now, core(100, 90, 60*second))
	q := only(t, a)
	sends(t, g, now, 3)
	isFar := func(left int64) bool {
		c := core(100, left, 60*second)
		return g.hasMore(&c, now)
	}
	assert.False(t, isFar(3))
	assert.True(t, isFar(4))
	q.flow.back = -40
	require.EqualValues(t, 5, q.others())
	assert.False(t, isFar(18), "three of the client and fifteen of others")
	assert.True(t, isFar(19))
	q.left = 18
	assert.False(t, isFar(50), "it was reported to be less")
}
