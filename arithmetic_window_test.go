package throttle

import (
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A plainWindow is a sliding window as a plain list of all that was granted: what a slidingWindow is meant to be.
type plainWindow struct {
	n, per int64
	events []event
}

func (m *plainWindow) used(now instant) (sum int64) {
	for _, e := range m.events {
		if now-e.at < m.per {
			sum += e.cost
		}
	}
	return sum
}

// ready returns the first instant from which cost can be paid, not before from.
func (m *plainWindow) ready(from instant, cost int64) instant {
	if cost > m.n {
		return never
	}
	free := []instant{from}
	for _, e := range m.events {
		from, free = max(from, e.at), append(free, e.at+m.per)
	}
	slices.Sort(free)
	for _, t := range free {
		if t = max(t, from); m.used(t)+cost <= m.n {
			return t
		}
	}
	panic("an empty window can't pay")
}

func (m *plainWindow) take(now instant, cost int64) {
	m.events = append(m.events, event{at: now, cost: cost})
}

func (m *plainWindow) clone() ideal { return &plainWindow{m.n, m.per, slices.Clone(m.events)} }

func (m *plainWindow) pay(_, now instant, cost int64, _ bool) { m.take(now, cost) }

func (m *plainWindow) retune(now instant, r rate) {
	m.events = slices.DeleteFunc(m.events, func(e event) bool { return now-e.at >= m.per })
	m.n, m.per = r.n, int64(r.per)
}

// giveBack forgets a grant, unless it no longer counts.
func (m *plainWindow) giveBack(i int) { m.events = slices.Delete(m.events, i, i+1) }

func TestSlidingWindowAgreesWithAPlainList(t *testing.T) {
	for seed := range uint64(150) {
		r := seeded(t, seed)
		n, per := 1+r.Int64N(30), 1+r.Int64N(1<<r.IntN(50))
		w, m, now := &slidingWindow{n: n, per: per}, &plainWindow{n: n, per: per}, r.Int64N(1<<40)
		for op := range 150 {
			what := fmt.Sprintf("seed %d, op %d, n %d, per %d, now %d", seed, op, w.n, w.per, now)
			cost := 1 + r.Int64N(w.n)
			switch r.IntN(8) {
			case 0, 1:
				now += r.Int64N(1 + m.per/3)
			case 2, 3: // pay now
				ok := w.payable(now, cost)
				require.Equal(t, m.used(now)+cost <= m.n, ok, "%s: payable %d", what, cost)
				if ok {
					w.take(now, now, cost, false)
					m.take(now, cost)
				}
			case 4, 5: // wait, then pay
				due := w.ready(now, 0, cost)
				require.Equal(t, m.ready(now, cost), due, "%s: ready for %d", what, cost)
				require.Equal(t, never, w.ready(now, 0, m.n+1), "%s: more than n", what)
				w.take(due, due, cost, true)
				m.take(due, cost)
				now = due
			case 6:
				if len(m.events) > 0 {
					i := r.IntN(len(m.events))
					e := m.events[i]
					giveBackTo(w, e.at, now, e.cost)
					m.giveBack(i)
				}
			case 7:
				if r.IntN(4) == 0 {
					w.retune(now, rate{1 + r.Int64N(30), time.Duration(per)})
					m.n = w.n
				}
			}
			require.InDelta(t, float64(m.n-m.used(now)), w.tokens(now), 0, "%s: tokens", what)
			if full := w.fullAt(); full > now {
				require.Zero(t, m.used(full), "%s: full at %d", what, full)
			} else {
				require.Zero(t, m.used(now), "%s: full at %d", what, full)
			}
		}
	}
}

// TestSlidingWindowPlansALine is about requests of cost 1: for others a plan is the earliest that can be.
func TestSlidingWindowPlansALine(t *testing.T) {
	for seed := range uint64(60) {
		r := seeded(t, seed)
		n, per := 1+r.Int64N(12), 1+r.Int64N(1<<r.IntN(40))
		w, m, now := &slidingWindow{n: n, per: per}, &plainWindow{n: n, per: per}, r.Int64N(1<<40)
		for range r.IntN(40) {
			if now += r.Int64N(1 + per/8); w.payable(now, 1) {
				w.take(now, now, 1, false)
				m.take(now, 1)
			}
		}
		for ahead := range int64(3*n + 2) {
			due := m.ready(now, 1)
			require.Equal(t, due, w.ready(now, ahead, 1), "seed %d, n %d, per %d, %d ahead", seed, n, per, ahead)
			m.take(due, 1)
		}
	}
}

// mostInAnyWindow returns the most that lies in a half-open stretch of length per.
func mostInAnyWindow(events []event, per int64) (most int64) {
	sum, i := int64(0), 0
	for _, e := range events {
		for sum += e.cost; e.at-events[i].at >= per; i++ {
			sum -= events[i].cost
		}
		most = max(most, sum)
	}
	return most
}

// TestSlidingWindowBeyondItsMemory saturates a window of more grants than it remembers one by one.
func TestSlidingWindowBeyondItsMemory(t *testing.T) {
	const day = int64(24 * time.Hour)
	const n, days = 10_000, 3
	r := rand.New(rand.NewPCG(4, 4))
	for name, next := range map[string]func(instant) instant{
		"saturated": func(now instant) instant { return now },
		"bursts":    func(now instant) instant { return now + day/40*(r.Int64N(300)/299) },
		"evenly":    func(now instant) instant { return now + day/(n*3/2) },
		"random":    func(now instant) instant { return now + int64(r.ExpFloat64()*float64(day)/(n*1.2)) },
		"nights": func(now instant) instant {
			if now%day > day/2 {
				return now - now%day + day
			}
			return now + day/(n*3)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &slidingWindow{n: n, per: day}
			var got []event
			ideal, idealAt := 0, make([]instant, 0, n*(days+1)) // by a window that remembers all
			for now := instant(1); now < days*day; now = next(now) {
				if len(idealAt) < n || now-idealAt[len(idealAt)-n] >= day {
					idealAt = append(idealAt, now)
					ideal++
				}
				switch ready := w.ready(now, 0, 1); {
				case w.payable(now, 1):
					require.Equal(t, now, ready)
					w.take(now, now, 1, false)
					got = append(got, event{at: now, cost: 1})
				case name == "saturated":
					require.Greater(t, ready, now)
					early := *w
					early.log = slices.Clone(w.log)
					if r.IntN(50) == 0 {
						require.False(t, early.payable(ready-1, 1), "ready is not the first instant")
					}
					now = ready
					require.True(t, w.payable(now, 1), "not payable when ready")
					w.take(now, now, 1, false)
					got = append(got, event{at: now, cost: 1})
				default:
					require.Greater(t, ready, now)
				}
				require.LessOrEqual(t, len(w.log)-w.head, exactEvents+slots+2)
				require.LessOrEqual(t, cap(w.log), 4*exactEvents)
			}
			require.LessOrEqual(t, mostInAnyWindow(got, day), int64(n))
			if name == "saturated" {
				ideal = n * days
			}
			require.GreaterOrEqual(t, float64(len(got)), 0.95*float64(ideal), "of %d", ideal)
		})
	}
}

func TestSlidingWindowIsExactUpToItsMemory(t *testing.T) {
	const per = int64(time.Second)
	w, m, r := &slidingWindow{n: exactEvents, per: per}, &plainWindow{n: exactEvents, per: per}, rand.New(rand.NewPCG(5, 5))
	now := instant(0)
	for range 5 * exactEvents {
		now = max(now+r.Int64N(per/exactEvents), w.ready(now, 0, 1))
		if len(m.events) >= exactEvents {
			require.GreaterOrEqual(t, now, m.events[len(m.events)-exactEvents].at+per)
		}
		w.take(now, now, 1, true)
		m.take(now, 1)
		require.LessOrEqual(t, cap(w.log), 3*exactEvents)
	}
	require.Equal(t, int64(exactEvents), mostInAnyWindow(m.events, per))
	require.Equal(t, max(now, m.events[len(m.events)-exactEvents].at+per), w.ready(now, 0, 1))
}

// TestSlidingWindowGivesBackOnlyWhatStillCounts would find another's grant reduced for one that no longer counts.
func TestSlidingWindowGivesBackOnlyWhatStillCounts(t *testing.T) {
	w := &slidingWindow{n: 10, per: 1000}
	w.take(0, 0, 5, false)
	w.take(900, 900, 5, false)
	giveBackTo(w, 0, 1500, 5)
	require.False(t, w.payable(1500, 6), "11 in one window of 10")
	giveBackTo(w, 900, 1500, 5)
	require.True(t, w.payable(1500, 10))
}

// TestWindowsGiveBackNothingThatANewRateForgot is about grants that no longer counted when the period became longer.
func TestWindowsGiveBackNothingThatANewRateForgot(t *testing.T) {
	var unix int64
	for _, w := range []meter{&slidingWindow{n: 10, per: 1000}, &fixedWindow{n: 10, per: 1000, unix: &unix}} {
		w.take(500, 500, 5, false)
		require.True(t, w.payable(2500, 8))
		w.take(2500, 2500, 8, false)
		w.retune(2600, rate{10, 1_000_000})
		giveBackTo(w, 500, 2700, 5)
		require.False(t, w.payable(2700, 3), "11 of 10: %+v", w)
		giveBackTo(w, 2500, 2700, 8)
		require.True(t, w.payable(2700, 10), "%+v", w)
	}
}

func TestSlidingWindowGivesBackWhatSharesAnEntry(t *testing.T) {
	w := &slidingWindow{n: 100_000, per: 64_000_000}
	for at := range int64(30_000) {
		w.take(at*1000, at*1000, 1, false)
	}
	require.LessOrEqual(t, len(w.log), exactEvents+slots)
	for at := range int64(30_000) {
		w.giveBack(at*1000, at*1000, 1)
	}
	require.Zero(t, w.used)
	for _, e := range w.log {
		require.Zero(t, e.cost)
	}
}

func TestSlidingWindowFollowsANewRate(t *testing.T) {
	w := &slidingWindow{n: 10, per: 1000}
	w.take(0, 0, 10, false)
	w.retune(500, rate{4, 1000})
	require.True(t, w.indebted(500))
	require.InDelta(t, -6, w.tokens(500), 0)
	require.Equal(t, instant(1000), w.ready(500, 0, 4))
	require.Equal(t, instant(2000), w.ready(500, 4, 1))
	w.retune(600, rate{10, 2000})
	require.Equal(t, instant(2000), w.ready(600, 0, 1))
}

func TestFixedWindowFollowsANewRate(t *testing.T) {
	var unix int64
	w := &fixedWindow{n: 10, per: 1000, unix: &unix}
	w.take(500, 500, 10, false)
	w.retune(1500, rate{10, 2000})
	require.True(t, w.payable(1500, 10), "what an earlier window used counts")
	w.take(1500, 1500, 7, false)
	w.retune(1600, rate{10, 500})
	require.False(t, w.payable(1600, 4))
	require.Equal(t, instant(2000), w.ready(1600, 0, 4))
}

// A calendar is a fixed window as a table of what was used, by window.
type calendar struct {
	n, per, origin int64
	unix           int64 // of instant 0
	used           map[int64]int64
	retuned, since instant // in the window of the last new rate, what was granted since counts
}

func (m *calendar) ready(from instant, cost int64) instant {
	if cost > m.n {
		return never
	}
	i := m.index(from + m.unix)
	for later := range m.used {
		i = max(i, later) // what is past can't be used any more
	}
	for m.used[i]+cost > m.n {
		i++
	}
	return max(from, i*m.per+m.origin-m.unix)
}

func (m *calendar) pay(_, now instant, cost int64, _ bool) { m.used[m.index(now+m.unix)] += cost }

func (m *calendar) clone() ideal {
	c := *m
	c.used = maps.Clone(m.used)
	return &c
}

func (m *calendar) retune(now instant, r rate) {
	i := m.index(now + m.unix)
	used := m.used[i]
	m.since, m.retuned = m.opened(now), now
	m.n, m.per = r.n, int64(r.per)
	m.used = map[int64]int64{m.index(now + m.unix): used}
}

// opened returns the instant from which on all counts that was granted.
func (m *calendar) opened(now instant) instant {
	begun := m.index(now+m.unix)*m.per + m.origin - m.unix
	if m.retuned >= begun && m.retuned > 0 {
		return m.since
	}
	return begun
}

func (m *calendar) index(unix int64) int64 {
	since := new(big.Int).Sub(big.NewInt(unix), big.NewInt(m.origin))
	return since.Div(since, big.NewInt(m.per)).Int64() // rounds down for per > 0
}

func TestFixedWindowAgreesWithACalendar(t *testing.T) {
	for seed := range uint64(200) {
		r := seeded(t, seed)
		unix := r.Int64N(1<<61) - 1<<60
		l := Limit{kind: kindFixed, rate: rate{1 + r.Int64N(20), time.Duration(1 + r.Int64N(1<<r.IntN(50)))}, burst: -1, initial: -1, share: 1}
		m := &calendar{n: l.rate.n, per: int64(l.rate.per), used: make(map[int64]int64)}
		if seed%2 == 0 {
			m.origin = r.Int64N(1<<61) - 1<<60
			l.start = time.Unix(0, m.origin)
		}
		now := r.Int64N(1 << 50)
		w := l.meter(now, l.rate, 0, &unix)
		var grants []event
		for range 100 {
			what := fmt.Sprintf("seed %d: %+v, now %d", seed, w, now)
			i, cost := m.index(now+unix), 1+r.Int64N(m.n)
			switch r.IntN(6) {
			case 0:
				now += r.Int64N(2 * m.per)
			case 1, 2:
				ok := w.payable(now, cost)
				require.Equal(t, m.used[i]+cost <= m.n, ok, what)
				if ok {
					w.take(now, now, cost, false)
					m.used[i] += cost
					if e := (event{at: now, cost: cost}); !slices.Contains(grants, e) {
						grants = append(grants, e)
					}
				}
			case 3, 4:
				ahead := r.Int64N(3 * m.n)
				due := w.ready(now, ahead, 1)
				windows := (m.used[i] + ahead) / m.n
				want := now
				if windows > 0 {
					want = (i+windows)*m.per + m.origin - unix
				}
				require.Equal(t, want, due, "%s, ahead %d", what, ahead)
				require.Equal(t, never, w.ready(now, 0, m.n+1), what)
			case 5:
				if len(grants) > 0 {
					e := grants[r.IntN(len(grants))]
					grants = slices.DeleteFunc(grants, func(other event) bool { return other == e })
					giveBackTo(w, e.at, now, e.cost)
					if m.index(e.at+unix) == i { // else its window is over
						m.used[i] -= e.cost
					}
				}
			}
			i = m.index(now + unix)
			require.InDelta(t, float64(m.n-m.used[i]), w.tokens(now), 0, what)
			if full := w.fullAt(); m.used[i] > 0 {
				require.Equal(t, (i+1)*m.per+m.origin-unix, full, what)
			} else {
				require.LessOrEqual(t, full, now, what)
			}
		}
	}
}
