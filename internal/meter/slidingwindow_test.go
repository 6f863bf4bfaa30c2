package meter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

func TestSlidingWindowAgreesWithAPlainList(t *testing.T) {
	for seed := range uint64(150) {
		r := metertest.Seeded(t, seed)
		n, per := 1+r.Int64N(30), 1+r.Int64N(1<<r.IntN(50))
		w, m, now := &SlidingWindow{n: n, per: per}, &metertest.SlidingWindow{N: n, Per: per}, r.Int64N(1<<40)
		var tooLate Late
		for op := range 150 {
			what := fmt.Sprintf("seed %d, op %d, n %d, per %d, now %d", seed, op, w.n, w.per, now)
			cost := 1 + r.Int64N(w.n)
			switch r.IntN(8) {
			case 0, 1:
				now += r.Int64N(1 + m.Per/3)
			case 2, 3: // pay now
				ok := w.Payable(now, cost)
				require.Equal(t, m.Left(now) >= cost, ok, "%s: payable %d", what, cost)
				if _, spent := spendOrTake(w, r, now, cost); spent {
					m.Take(now, cost)
				}
			case 4, 5: // wait, then pay
				due := w.Ready(now, 0, cost)
				require.Equal(t, m.Ready(now, cost), due, "%s: ready for %d", what, cost)
				require.Equal(t, Never, w.Ready(now, 0, m.N+1), "%s: more than n", what)
				w.Take(due, due, cost, true)
				m.Take(due, cost)
				now = due
			case 6:
				if len(m.Events) > 0 {
					i := r.IntN(len(m.Events))
					e := &m.Events[i]
					settled := r.Int64N(5*e.Cost + 1)
					w.Settle(e.At, now, e.Cost, settled)
					if settled > e.Cost {
						m.Owe(now, tooLate.Reduce(now, settled-e.Cost, per))
					} else {
						tooLate.Add(now, e.Cost-settled, now-e.At, per)
						if e.At+per > now {
							e.Cost = settled
							m.Advance(now)
						}
					}
				}
			case 7:
				if r.IntN(4) == 0 {
					rt := Rate{1 + r.Int64N(30), time.Duration(per)}
					w.Retune(now, rt)
					m.Retune(now, rt)
				}
			}
			require.InDelta(t, float64(m.Left(now)), w.Tokens(now), 0, "%s: tokens", what)
			if must, full := w.Matters(now); full > now {
				later := m.Clone().(*metertest.SlidingWindow)
				if must > now {
					require.Less(t, later.Left(must-1), int64(0), "%s: it owes until %d", what, must)
					require.GreaterOrEqual(t, later.Left(must), int64(0), "%s: it owes until %d", what, must)
				}
				require.Equal(t, m.N, later.Left(full), "%s: full at %d", what, full)
			} else {
				require.Zero(t, m.Used(now), "%s: full at %d", what, full)
			}
		}
	}
}

// TestSlidingWindowPlansALine is about requests of cost 1: for others a plan is the earliest that can be.
func TestSlidingWindowPlansALine(t *testing.T) {
	for seed := range uint64(60) {
		r := metertest.Seeded(t, seed)
		n, per := 1+r.Int64N(12), 1+r.Int64N(1<<r.IntN(40))
		w, m, now := &SlidingWindow{n: n, per: per}, &metertest.SlidingWindow{N: n, Per: per}, r.Int64N(1<<40)
		for range r.IntN(40) {
			if now += r.Int64N(1 + per/8); w.Payable(now, 1) {
				w.Take(now, now, 1, false)
				m.Take(now, 1)
			}
		}
		for ahead := range int64(3*n + 2) {
			due := m.Ready(now, 1)
			require.Equal(t, due, w.Ready(now, ahead, 1), "seed %d, n %d, per %d, %d ahead", seed, n, per, ahead)
			m.Take(due, 1)
		}
	}
}

// TestSlidingWindowBeyondItsMemory saturates a window of more grants than it remembers one by one.
func TestSlidingWindowBeyondItsMemory(t *testing.T) {
	const day = int64(24 * time.Hour)
	const n, days = 10_000, 3
	r := rand.New(rand.NewPCG(4, 4))
	for name, next := range map[string]func(Instant) Instant{
		"saturated": func(now Instant) Instant { return now },
		"bursts":    func(now Instant) Instant { return now + day/40*(r.Int64N(300)/299) },
		"evenly":    func(now Instant) Instant { return now + day/(n*3/2) },
		"random":    func(now Instant) Instant { return now + int64(r.ExpFloat64()*float64(day)/(n*1.2)) },
		"nights": func(now Instant) Instant {
			if now%day > day/2 {
				return now - now%day + day
			}
			return now + day/(n*3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &SlidingWindow{n: n, per: day}
			var got []metertest.Event
			ideal, idealAt := 0, make([]Instant, 0, n*(days+1)) // by a window that remembers all
			for now := Instant(1); now < days*day; now = next(now) {
				if len(idealAt) < n || now-idealAt[len(idealAt)-n] >= day {
					idealAt = append(idealAt, now)
					ideal++
				}
				switch ready := w.Ready(now, 0, 1); {
				case w.Payable(now, 1):
					require.Equal(t, now, ready)
					w.Take(now, now, 1, false)
					got = append(got, metertest.Event{At: now, Cost: 1})
				case name == "saturated":
					require.Greater(t, ready, now)
					early := *w
					early.log = slices.Clone(w.log)
					if r.IntN(50) == 0 {
						require.False(t, early.Payable(ready-1, 1), "ready is not the first instant")
					}
					now = ready
					require.True(t, w.Payable(now, 1), "not payable when ready")
					w.Take(now, now, 1, false)
					got = append(got, metertest.Event{At: now, Cost: 1})
				default:
					require.Greater(t, ready, now)
				}
				require.LessOrEqual(t, len(w.log)-w.head, exactEvents+slots+2)
				require.LessOrEqual(t, cap(w.log), 4*exactEvents)
			}
			require.LessOrEqual(t, metertest.MostInAnyWindow(got, day), int64(n))
			if name == "saturated" {
				ideal = n * days
			}
			require.GreaterOrEqual(t, float64(len(got)), 0.95*float64(ideal), "of %d", ideal)
		})
	}
}

func TestSlidingWindowIsExactUpToItsMemory(t *testing.T) {
	const per = int64(time.Second)
	w, m, r := &SlidingWindow{n: exactEvents, per: per}, &metertest.SlidingWindow{N: exactEvents, Per: per}, rand.New(rand.NewPCG(5, 5))
	now := Instant(0)
	for range 5 * exactEvents {
		now += r.Int64N(per / exactEvents)
		want := now
		if len(m.Events) >= exactEvents {
			want = max(now, m.Events[len(m.Events)-exactEvents].At+per)
		}
		now = w.Ready(now, 0, 1)
		require.Equal(t, want, now)
		w.Take(now, now, 1, true)
		m.Take(now, 1)
		require.LessOrEqual(t, cap(w.log), 3*exactEvents)
	}
	require.Equal(t, int64(exactEvents), metertest.MostInAnyWindow(m.Events, per))
	require.Equal(t, max(now, m.Events[len(m.Events)-exactEvents].At+per), w.Ready(now, 0, 1))
}

func TestSlidingWindowRemembersNoMoreThanItMust(t *testing.T) {
	w := &SlidingWindow{n: MaxCount, per: slots * 1e6}
	for now := range Instant(2 * exactEvents) {
		w.Take(now, now, 1, false)
		require.Len(t, w.log, int(min(now+1, exactEvents)))
	}
	require.EqualValues(t, 2*exactEvents, w.used())
}

// TestSlidingWindowGivesBackOnlyWhatStillCounts would find another's grant reduced for one that no longer counts.
func TestSlidingWindowGivesBackOnlyWhatStillCounts(t *testing.T) {
	w := &SlidingWindow{n: 10, per: 1000}
	w.Take(0, 0, 5, false)
	w.Take(900, 900, 5, false)
	giveBackTo(w, 0, 1500, 5)
	require.False(t, w.Payable(1500, 6), "11 in one window of 10")
	giveBackTo(w, 900, 1500, 5)
	require.True(t, w.Payable(1500, 10))
}

// TestWindowsGiveBackNothingThatANewRateForgot is about grants that no longer counted when the period became longer.
func TestWindowsGiveBackNothingThatANewRateForgot(t *testing.T) {
	for _, w := range []Meter{&SlidingWindow{n: 10, per: 1000}, NewFixedWindow(0, Rate{10, 1000}, time.Time{}, new(Wall))} {
		w.Take(500, 500, 5, false)
		require.True(t, w.Payable(2500, 8))
		w.Take(2500, 2500, 8, false)
		w.Retune(2600, Rate{10, 1_000_000})
		giveBackTo(w, 500, 2700, 5)
		require.False(t, w.Payable(2700, 3), "11 of 10: %+v", w)
		giveBackTo(w, 2500, 2700, 8)
		require.True(t, w.Payable(2700, 10), "%+v", w)
	}
}

func TestSlidingWindowGivesBackWhatSharesAnEntry(t *testing.T) {
	w := &SlidingWindow{n: 100_000, per: 64_000_000}
	for at := range int64(30_000) {
		w.Take(at*1000, at*1000, 1, false)
	}
	require.LessOrEqual(t, len(w.log), exactEvents+slots)
	for at := range int64(30_000) {
		w.GiveBack(at*1000, 30_000_000, 1)
	}
	require.Zero(t, w.used())
	for i := range w.log {
		require.Zero(t, w.cost(i))
	}
}

// A window finds by a binary search what looking at all events finds, whatever was given back or settled.
func TestSlidingWindowSearchesAsItScans(t *testing.T) {
	for seed := range uint64(50) {
		r := metertest.Seeded(t, seed)
		w := &SlidingWindow{n: 1 + r.Int64N(20), per: 1 + r.Int64N(1000)}
		charges := make(map[Instant]int64)
		for now := Instant(0); now < 20_000; now += r.Int64N(100) {
			charged, cost := now-r.Int64N(300), 1+r.Int64N(5)
			switch paid := charges[charged]; {
			case w.Payable(now, cost):
				w.Take(now, now, cost, false)
				charges[now] += cost
			case paid > 0:
				cost = r.Int64N(3 * paid)
				delete(charges, charged)
				w.Settle(charged, now, paid, cost)
			}
			ahead, cost := r.Int64N(50), 1+r.Int64N(w.n)
			free, ready, i := w.n-w.used(), now, w.head
			before := ahead + cost - 1
			for ; free < before%w.n+1; i++ {
				free += w.cost(i)
				ready = max(ready, w.log[i].at+w.per)
			}
			require.Equal(t, ready+before/w.n*w.per, w.Ready(now, ahead, cost), "seed %d: %+v", seed, w)
		}
	}
}

func TestSlidingWindowFollowsANewRate(t *testing.T) {
	w := &SlidingWindow{n: 10, per: 1000}
	w.Take(0, 0, 10, false)
	w.Retune(500, Rate{4, 1000})
	require.True(t, needed(w, 500))
	require.InDelta(t, -6, w.Tokens(500), 0)
	require.Equal(t, Instant(1000), w.Ready(500, 0, 4))
	require.Equal(t, Instant(2000), w.Ready(500, 4, 1))
	w.Retune(600, Rate{10, 2000})
	require.Equal(t, Instant(2000), w.Ready(600, 0, 1))
}

// warmWindow returns a window after its first response.
func warmWindow(r Rate) *SlidingWindow {
	w := NewSlidingWindow(r)
	w.Answered(0, 0)
	return w
}

func TestSlidingWindowCountsUntilOnePeriodAfterTheResponse(t *testing.T) {
	per := 1000 * int64(time.Millisecond)
	for _, c := range []struct{ response, expires Instant }{
		{10, per + 10}, {per / 20, per + per/20}, {per/20 + 1, per + per/20}, {per - 1, per + per/20},
	} {
		w := warmWindow(Rate{N: 2, Per: time.Duration(per)})
		require.Equal(t, Instant(0), w.Take(0, 0, 1, false))
		require.Equal(t, Instant(5), w.Take(5, 5, 1, false))
		require.True(t, w.Answered(0, c.response))
		require.False(t, w.Answered(0, c.response), "twice")
		require.Equal(t, c.expires, w.Ready(c.response, 0, 1))
		require.False(t, w.Payable(c.expires-1, 1))
		require.True(t, w.Payable(c.expires, 1))
		require.True(t, w.Payable(c.expires, 2), "a later request without a response counts until then, and no longer")
		require.False(t, w.Answered(0, c.expires), "it counts no more")
	}
	w := warmWindow(Rate{N: 1, Per: time.Minute})
	w.Take(0, 0, 1, false)
	w.Answered(0, 30*second)
	require.Equal(t, 61*second, w.Ready(30*second, 0, 1), "a second longer at most")
}

// What was granted before the first response may have waited for a connection.
func TestSlidingWindowCountsUntilAPeriodAfterTheFirstResponses(t *testing.T) {
	for _, c := range []struct{ per, most Instant }{
		{second, second / 2}, {10 * second, 5 * second}, {30 * second, 10 * second}, {3600 * second, 720 * second},
	} {
		for _, idle := range []Instant{0, 2*c.per - 1, 2 * c.per, 5 * c.per} {
			w := NewSlidingWindow(Rate{N: 2, Per: time.Duration(c.per)})
			w.Take(0, 0, 1, false)
			w.Take(0, 1, 1, false)
			require.True(t, w.Answered(0, c.most-1))
			require.Equal(t, c.per+c.most-1, w.Ready(c.most, 0, 1), "%+v", c)
			require.True(t, w.Answered(1, c.most+2))
			require.Equal(t, c.per+c.most+1, w.Ready(c.most+2, 1, 1), "%+v: no longer than that", c)

			// Later ones find connections open, unless nothing was sent for two periods.
			w.Take(0, 2*c.per, 1, false)
			again := 2*c.per + idle
			w.Take(0, again, 1, false)
			w.Answered(again, again+c.per-1)
			lag := min(c.per/20, second)
			if idle >= 2*c.per {
				lag = c.most
			}
			require.Equal(t, again+c.per+lag, w.Ready(again+c.per-1, 1, 1), "%+v, idle %d", c, idle)
		}
	}
}

func TestSlidingWindowOrdersResponsesByTheirGrants(t *testing.T) {
	w := NewSlidingWindow(Rate{N: 3, Per: time.Second})
	for at := range Instant(3) {
		w.Take(at, at, 1, false)
	}
	w.Answered(2, 100)
	w.Answered(0, 200)
	for missing, expires := range []Instant{second + 200, second + 200, second + 200} {
		require.Equal(t, expires, w.Ready(200, int64(missing), 1))
	}
	w.Answered(1, 300)
	require.Equal(t, second+200, w.Ready(300, 0, 1))
	require.Equal(t, second+300, w.Ready(300, 1, 1))
	require.Equal(t, second+300, w.Ready(300, 2, 1))
}
