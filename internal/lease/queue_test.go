package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// Where a window has tokens for fewer requests than there are processes, each asks when it is its turn, and not whenever one comes in. Without
// turns, the calls for each request were 4 to 34.
func TestFewTokensOfAWindowGoAround(t *testing.T) {
	for _, kind := range []store.Kind{store.Sliding, store.Fixed} {
		for _, c := range []struct {
			n         int64
			processes int
			trip      int64
			calls     float64 // for each request, at most
		}{{1, 32, 2 * ms, 5}, {4, 32, 2 * ms, 3.7}, {4, 32, 100 * ms, 3.7}, {16, 32, 2 * ms, 3}, {3, 8, 100 * ms, 3}} {
			f := newFleet(1, window(kind, 1000*c.n, 5*time.Second), c.processes, 8)
			f.latency = func() int64 { return c.trip }
			for _, p := range f.processes {
				p.cost = 1000
			}
			cycle := time.Duration(max(1, int64(c.processes)/c.n)) * 5 * time.Second
			f.run(4 * cycle)
			f.reset()
			f.run(10 * cycle)
			requests := float64(f.used) / 1000
			used := requests / float64(c.n) / (10 * cycle.Seconds() / 5)
			t.Logf("%s, %d for %d processes, %v away: %.2f calls for each, used %.3f, Jain's index %.2f", kind, c.n, c.processes, time.Duration(c.trip), float64(f.calls)/requests, used, f.jain())
			assert.GreaterOrEqual(t, used, .98)
			assert.LessOrEqual(t, used, 1.+2/float64(c.n)/(10*cycle.Seconds()/5))
			assert.GreaterOrEqual(t, f.jain(), .9)
			assert.LessOrEqual(t, float64(f.calls)/requests, c.calls)
		}
	}
}

// first returns a process that has learned that it uses a window of one request with three others, and that no token is left.
func first(kind store.Kind) (m *Leased, d Demand) {
	m = leasedOf(window(kind, 10, time.Minute))
	m.latest = response{known: true, sent: now, processes: 4, ends: now + second}
	m.got = now
	return m, waitingOf(10, 3)
}

func TestAProcessAsksWhenItIsItsTurn(t *testing.T) {
	for _, kind := range []store.Kind{store.Sliding, store.Fixed} {
		m, d := first(kind)
		p := m.Ask(now, d)
		assert.True(t, p.Queue, kind)
		assert.EqualValues(t, 10, p.Need, kind)
		m.Booked(now, now+ms, p, store.LeasedPart{Wait: time.Second, Turn: 200 * time.Second, Processes: 4})
		at := m.myTurn
		if kind == store.Sliding {
			assert.Equal(t, now+200*second, at, "the ask reaches the store as soon as the token comes in")
		} else {
			assert.Equal(t, now+ms+200*second+m.chance(m.latest.ends/spreadOver, spreadOver), at)
		}

		// Before, it only asks whether others gave tokens back, and reports.
		recheck := m.AskAt(now+ms, d)
		assert.Equal(t, now+int64(m.recheck()), recheck)
		p = m.Ask(recheck, d)
		assert.False(t, p.Queue)
		assert.Zero(t, p.Need)
		assert.Zero(t, p.Want)
		m.Booked(recheck, recheck, p, store.LeasedPart{Wait: time.Second, Processes: 4})
		m.tell(recheck - tellAfter)
		assert.Equal(t, recheck, m.AskAt(recheck, d))
		p = m.Ask(recheck, d)
		assert.Zero(t, p.Need)
		m.Booked(recheck, recheck, p, store.LeasedPart{Wait: time.Second, Processes: 4})
		assert.Equal(t, at, m.myTurn)
		m.got = recheck - 100*second
		assert.Equal(t, at, m.AskAt(recheck, d))

		// Then it asks without a new turn.
		p = m.Ask(at, d)
		assert.False(t, p.Queue)
		assert.EqualValues(t, 10, p.Need)
		m.Booked(at, at+ms, p, store.LeasedPart{ID: 1, Tokens: 10, AtOnce: 10, Until: time.Minute, Wait: time.Minute, Processes: 4})
		_, ok := m.Spend(at+ms, 10)
		assert.True(t, ok)
		next := m.AskAt(at+ms, d)
		p = m.Ask(next, d)
		assert.True(t, p.Queue, "the next request has a turn of its own")
		assert.EqualValues(t, 10, p.Need)
	}
}

func TestTokensThatComeBackEndTheWaitForATurn(t *testing.T) {
	m, d := first(store.Sliding)
	p := m.Ask(now, d)
	m.Booked(now, now+ms, p, store.LeasedPart{Wait: time.Second, Turn: 200 * time.Second, Processes: 4})
	at := m.AskAt(now+ms, d)
	p = m.Ask(at, d)
	m.Booked(at, at, p, store.LeasedPart{Left: 10, Processes: 4})
	assert.Equal(t, at, m.AskAt(at, d))
	assert.EqualValues(t, 10, m.Ask(at, d).Need)
}

// An ask that reaches the store before its token comes in keeps its turn. If others were faster, the request gets another one.
func TestATurnThatCannotBeTaken(t *testing.T) {
	turn := func() (*Leased, Demand, store.Part, meter.Instant) {
		m, d := first(store.Sliding)
		m.measureTrip(2 * time.Millisecond)
		p := m.Ask(now, d)
		m.Booked(now, now+2*ms, p, store.LeasedPart{Wait: time.Second, Turn: 2 * time.Second, Processes: 4})
		at := m.myTurn
		return m, d, m.Ask(at, d), at
	}
	m, d, p, at := turn()
	m.Booked(at, at+2*ms, p, store.LeasedPart{Wait: 2 * time.Millisecond, Processes: 4})
	assert.Equal(t, at+2*ms+1, m.AskAt(at+2*ms, d))
	assert.False(t, m.Ask(at+2*ms+1, d).Queue)

	m, d, p, at = turn()
	m.Booked(at, at+2*ms, p, store.LeasedPart{Wait: 2*time.Millisecond + 1, Processes: 4})
	assert.Equal(t, at+2*ms, m.AskAt(at+2*ms, d))
	p = m.Ask(at+2*ms, d)
	assert.True(t, p.Queue)
	assert.False(t, p.Queued)

	m.Failed(at+3*ms, at+3*ms) // the store may have counted it
	p = m.Ask(at+3*ms, d)
	assert.True(t, p.Queued)
	m.Booked(at+3*ms, at+4*ms, p, store.LeasedPart{Wait: time.Second, Turn: 3 * time.Second, Processes: 4})
	assert.Equal(t, at+4*ms+3*second-int64(m.least), m.AskAt(at+4*ms, d))
	assert.False(t, m.unsure)
}

// A store that gives no turns is asked as it is for a window of many requests: a process that has its share leaves the next tokens to others.
func TestWithoutTurnsSharesCount(t *testing.T) {
	for _, held := range []time.Duration{0, time.Second} {
		m, d := first(store.Sliding)
		m.leased = make([]int64, turnParts)
		p := m.Ask(now, d)
		m.Booked(now, now+ms, p, store.LeasedPart{Wait: time.Second, Hold: held, Processes: 4})
		m.endTurn(now, now+ms, &p, store.LeasedPart{Tokens: 10})
		p = m.Ask(now+ms, d)
		assert.Equal(t, held > 0, p.Need > 0, "nothing is known of turns during a hold")
	}
}

// Of requests that have less time than others wait already, a few ask, and not all.
func TestARequestWhoseTurnComesTooLateAsksSeldom(t *testing.T) {
	m, d := first(store.Sliding)
	d.Until = now + 10*second
	p := m.Ask(now, d)
	assert.Equal(t, 10*time.Second, p.Within)
	m.Booked(now, now, p, store.LeasedPart{Wait: time.Second, Turn: 100 * time.Second, Processes: 4})
	assert.Equal(t, min(now+int64(m.recheck()), now+m.chance(now, m.flow(40))), m.AskAt(now, d))
	d.Until = now + 100*second
	assert.Equal(t, now+second, m.AskAt(now, d), "one with as much time asks when the next token comes in")
}
