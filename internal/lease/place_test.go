package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// Processes that always want more share a window of few requests for each of them. Each asks to get its turn, once whether others gave tokens
// back, and when it is its turn. Latencies differ, so that turns come early and late.
func TestFewTokensOfAWindowGoAround(t *testing.T) { // slow: 864 fleets
	all, costs := testing.Verbose(), []int64{1, 1000}
	if testing.Short() {
		costs = costs[1:]
	}
	for _, kind := range []store.Kind{store.Fixed, store.Sliding} {
		for _, per := range []time.Duration{5 * time.Second, time.Minute} {
			for _, processes := range []int{2, 8, 32} {
				for _, n := range []int64{1, 2, 4, 16, 31, 32, 40, 64, 100} {
					for _, trip := range []int64{ms / 2, 2 * ms, 20 * ms, 100 * ms} {
						for _, cost := range costs {
							what := fmt.Sprintf("%s, %d of a cost of %d in %v for %d processes, %v away", kind, n, cost, per, processes, time.Duration(trip))
							f := newFleet(uint64(n), window(kind, n*cost, per), processes, 8)
							f.latency = func() int64 { return trip + f.Int64N(trip/10) }
							for _, p := range f.processes {
								p.cost = cost
							}
							cycle := time.Duration(max(1, int64(processes)/n)) * per
							f.run(4 * cycle)
							f.reset()
							f.run(10 * cycle)
							requests := float64(f.used) / float64(cost)
							periods := float64(10 * cycle / per)
							if all {
								t.Logf("%s: %.2f calls for each, used %.3f, Jain's index %.2f", what, float64(f.calls)/requests, requests/float64(n)/periods, f.jain())
							}
							assert.GreaterOrEqual(t, requests, .98*float64(n)*periods-1, what)
							assert.LessOrEqual(t, requests, float64(n)*(periods+1), what)
							assert.GreaterOrEqual(t, f.jain(), .9, what)
							calls := map[store.Kind]float64{store.Fixed: 3, store.Sliding: 6}[kind]
							assert.LessOrEqual(t, float64(f.calls), calls*requests+float64(processes), what) // those under way when the fleet is looked at
						}
					}
				}
			}
		}
	}
}

// first returns a process that has learned that it uses a window of one request with three others, and that no token is left.
func first(kind store.Kind) (m *Leased, d Demand) {
	m = leasedOf(window(kind, 10, time.Minute))
	m.latest = response{known: true, sent: now, processes: 4, ends: now + 20*second}
	return m, waitingOf(10, 3)
}

func TestAProcessAsksWhenItIsItsTurn(t *testing.T) {
	for _, kind := range []store.Kind{store.Sliding, store.Fixed} {
		m, d := first(kind)
		p := m.Ask(now, d)
		assert.True(t, p.Queue, kind)
		assert.EqualValues(t, 10, p.Need, kind)
		m.Booked(now, now+ms, p, store.LeasedPart{Wait: 20 * time.Second, ID: 7, Turn: 200 * time.Second, Processes: 4})
		at := m.place.at
		if kind == store.Sliding {
			assert.Equal(t, now+200*second, at, "the ask reaches the store as soon as the token comes in")
		} else {
			assert.Equal(t, m.opens(now+200*second), at, "processes ask at one instant in the spread of the window, however far the store is")
		}

		// Before, it only asks once whether others gave tokens back, in the middle of a period, and reports.
		recheck := m.AskAt(now+ms, d)
		assert.Equal(t, at-90*second, recheck)
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
		assert.Equal(t, at, m.place.at)
		m.news = recheck - 100*second
		assert.Equal(t, at, m.AskAt(recheck, d))

		// Then it asks at its place.
		p = m.Ask(at, d)
		assert.EqualValues(t, 7, p.Queued)
		assert.EqualValues(t, 10, p.Need)
		m.Booked(at, at+ms, p, store.LeasedPart{ID: 1, Tokens: 10, AtOnce: 10, Until: time.Minute, Wait: time.Minute, Processes: 4})
		_, ok := m.Spend(at+ms, 10)
		assert.True(t, ok)
		next := m.AskAt(at+ms, d)
		p = m.Ask(next, d)
		assert.True(t, p.Queue)
		assert.Zero(t, p.Queued, "the next request has a place of its own")
		assert.EqualValues(t, 10, p.Need)
	}
}

func TestTokensThatComeBackEndTheWaitForATurn(t *testing.T) {
	m, d := first(store.Sliding)
	p := m.Ask(now, d)
	m.Booked(now, now+ms, p, store.LeasedPart{Wait: 20 * time.Second, ID: 7, Turn: 200 * time.Second, Processes: 4})
	at := m.AskAt(now+ms, d)
	p = m.Ask(at, d)
	m.Booked(at, at, p, store.LeasedPart{Left: 10, Processes: 4})
	assert.Equal(t, at, m.AskAt(at, d))
	assert.EqualValues(t, 10, m.Ask(at, d).Need)
}

// A request that comes too early, or after others were faster, keeps its place, and comes at its new turn; also after an ask that had no
// response.
func TestATurnThatCannotBeTaken(t *testing.T) {
	m, d := first(store.Sliding)
	m.measureTrip(now, 2*time.Millisecond)
	p := m.Ask(now, d)
	m.Booked(now, now+2*ms, p, store.LeasedPart{Wait: time.Second, ID: 7, Turn: 2 * time.Second, Processes: 4})
	at := m.place.at
	for _, turn := range []time.Duration{2 * time.Millisecond, 15 * time.Second} {
		p = m.Ask(at, d)
		assert.True(t, p.Queue)
		assert.EqualValues(t, 7, p.Queued)
		m.Booked(at, at+2*ms, p, store.LeasedPart{Wait: time.Second, ID: 7, Turn: turn, Processes: 4})
		next := m.AskAt(at+2*ms, d)
		assert.Equal(t, at+2*ms+max(1, int64(turn-m.least)), next)
		at = next
	}
	m.Ask(at, d)
	m.Failed(at+ms, at+ms)
	assert.Equal(t, at+ms, m.AskAt(at+ms, d))
	assert.EqualValues(t, 7, m.Ask(at+ms, d).Queued)
}

// joint returns a process that has learned that it shares a budget of 10 requests a minute with three others, and the demand of requests that wait
// for another budget as well.
func joint(kind store.Kind) (m *Leased, d Demand) {
	b := window(kind, 100, time.Minute)
	b.Burst, b.Initial = 100, 0
	m = leasedOf(b)
	m.latest = response{known: true, sent: now, processes: 4, ends: now + second}
	m.measureTrip(now, 20*time.Millisecond)
	d = waitingOf(10, 3)
	d.Joint, d.Window = true, true
	return m, d
}

// What a request needs of several budgets is asked for at its one place, however large its share of each is. A bucket promises nothing that is due
// after the tokens of a window would be void.
func TestARequestForSeveralBudgetsHasOnePlace(t *testing.T) {
	for _, kind := range []store.Kind{store.Sliding, store.Fixed, store.Bucket, store.Pace} {
		m, d := joint(kind)
		p := m.Ask(now, d)
		assert.True(t, p.Queue, kind)
		assert.EqualValues(t, 10, p.Need)
		if m.promises() {
			assert.Equal(t, 15*time.Millisecond, p.Horizon, kind)
		}
		m.Booked(now, now+20*ms, p, store.LeasedPart{ID: 7, Processes: 4, Left: 50})
		assert.LessOrEqual(t, m.AskAt(now+21*ms, d), now+21*ms, "%s: another budget lacks tokens, and others may use this one", kind)
		p = m.Ask(now+second, d)
		assert.EqualValues(t, 7, p.Queued, kind)
		m.Booked(now+second, now+second+20*ms, p, store.LeasedPart{ID: 7, Processes: 4, Wait: time.Second, Turn: 3 * time.Second})
		at := m.AskAt(now+second+20*ms, d)
		assert.Equal(t, now+4*second, at, kind)
		p = m.Ask(at, d)
		assert.EqualValues(t, 7, p.Queued, kind)
		m.Booked(at, at+20*ms, p, store.LeasedPart{ID: at, Tokens: 10, AtOnce: 10, Until: time.Minute, Processes: 4})
		_, ok := m.Spend(at+20*ms, 10)
		assert.True(t, ok)
		assert.Zero(t, m.Ask(at+second, d).Queued, "%s: the next request has another place", kind)
	}
}

// Beside a window, a bucket promises nothing far ahead, except to a process that is alone: others would save its tokens while the window has
// none, and so would those that do not know of each other yet.
func TestOneProcessAloneIsPromisedTokensFarAheadBesideAWindow(t *testing.T) {
	for _, kind := range []store.Kind{store.Bucket, store.Pace} {
		m, d := joint(kind)
		m.latest = response{}
		assert.Zero(t, m.Ask(now, d).Within, "%s: nothing is known yet", kind)
		m, d = joint(kind)
		m.latest.processes = 1
		assert.Positive(t, m.Ask(now, d).Within, kind)
		m, d = joint(kind)
		d.Until = now + second
		p := m.Ask(now, d)
		assert.False(t, p.Queue, "%s: its turn would come too late", kind)
		assert.Zero(t, p.Within, kind)
	}
}

// A process that has a part of its share leaves the next tokens of a sliding window to others, and not those that are there while another budget
// has none.
func TestASlidingWindowThatHasTokensIsAskedAgainAtOnce(t *testing.T) {
	m, d := joint(store.Sliding)
	p := m.Ask(now, d)
	m.Booked(now, now, p, store.LeasedPart{ID: 1, Tokens: 10, AtOnce: 10, Until: time.Minute, Processes: 4, Left: 50})
	_, ok := m.Spend(now, 10)
	assert.True(t, ok)
	p = m.Ask(now+second, d)
	m.Booked(now+second, now+second, p, store.LeasedPart{ID: 7, Processes: 4, Left: 50})
	assert.Equal(t, now+second+ms, m.AskAt(now+second, d))
}

// Requests that a process has more often than three round trips take do not wait for turns: several are leased with each ask. So are those that
// need a bucket alone.
func TestManyRequestsForSeveralBudgetsAreLeasedTogether(t *testing.T) {
	for _, kind := range []store.Kind{store.Bucket, store.Pace} {
		m, d := joint(kind)
		m.measureTrip(now+1, 20*time.Second)
		assert.False(t, m.Ask(now, d).Queue, kind)
		m, d = joint(kind)
		d.Joint, d.Window = false, false
		p := m.Ask(now, d)
		assert.False(t, p.Queue, kind)
		assert.Greater(t, p.Horizon, 15*time.Millisecond)

		// Those that will come while an ask is under way get no place before the others: they are not asked for alone.
		m.trip, m.use = time.Second, 1
		assert.Positive(t, m.following(d))
		m.place.is = comes
		assert.Zero(t, m.following(d))
	}
}

// A request that has its tokens is followed by the next one at once, so that it is not the first to ask for the next token. If tokens of others
// are there, or come in soon, these come first.
func TestTheNextRequestEntersWhenNoTokensAreThereForOthers(t *testing.T) {
	for _, kind := range []store.Kind{store.Sliding, store.Fixed} {
		for _, c := range []struct {
			left  float64
			wait  time.Duration
			later int64
		}{{0, 14 * time.Millisecond, 0}, {0, 14*time.Millisecond - 1, 14 * ms}, {9, time.Minute, 0}, {10, 0, 14 * ms}} {
			m, d := first(kind)
			m.measureTrip(now, 2*time.Millisecond)
			p := m.Ask(now, d)
			m.Booked(now, now+2*ms, p, store.LeasedPart{Wait: time.Second, ID: 7, Turn: 2 * time.Second, Processes: 4})
			at := m.place.at
			p = m.Ask(at, d)
			m.Booked(at, at+2*ms, p, store.LeasedPart{ID: 1, Tokens: 10, AtOnce: 10, Until: time.Minute, Wait: c.wait, Left: c.left, Processes: 4})
			_, ok := m.Spend(at+2*ms, 10)
			assert.True(t, ok)
			if kind == store.Fixed && c.left < 10 { // no tokens come in soon
				c.later = 0
			}
			assert.Equal(t, at+2*ms+c.later, m.AskAt(at+2*ms, d), "%s: %v", kind, c)
			assert.True(t, m.Ask(at+2*ms+c.later, d).Queue)
		}
	}
}

// The first processes that ask in a long window are counted as few. They take no more than their shares for that.
func TestProcessesThatAskOncePerWindowKnowOfEachOther(t *testing.T) {
	m := leasedOf(window(store.Fixed, 80, time.Minute))
	m.latest.processes = m.count(now, 8)
	for window := range int64(4) {
		at := now + (window+1)*60*second
		m.latest.processes = m.count(at, 1)
		assert.EqualValues(t, 10, m.share())
	}
	m.latest.processes = m.count(now+241*second, 1)
	assert.EqualValues(t, 80, m.share())
}

// A request whose tokens the window lacks waits for the next window, and asks seldom whether others gave some back. One for which there are tokens
// asks immediately.
func TestAFixedWindowIsAskedWhenSomethingMayHaveChanged(t *testing.T) {
	m := leasedOf(window(store.Fixed, 100, time.Minute))
	p := m.Ask(now, waitingOf(10, 1))
	m.Booked(now, now, p, store.LeasedPart{ID: 1, Tokens: 10, AtOnce: 10, Until: time.Minute, Left: 5, Processes: 1})
	_, ok := m.Spend(now, 10)
	assert.True(t, ok)
	d := waitingOf(10, 1)
	assert.Equal(t, now, m.AskAt(now, waitingOf(5, 1)))
	assert.Equal(t, m.opens(now+60*second), m.AsksFrom(now, false), "what else a request needs is not asked for earlier")
	at := m.AskAt(now, d)
	assert.Equal(t, now+int64(m.recheck()), at)
	p = m.Ask(at, d)
	m.Booked(at, at, p, store.LeasedPart{Wait: time.Duration(now + 60*second - at), Left: 5, Processes: 1})
	assert.Equal(t, m.opens(now+60*second), m.AskAt(at, d))
	m.returns(store.Return{Tokens: 5, Lease: 1}, now+40*second)
	at = m.AskAt(now+40*second, d)
	assert.Equal(t, now+40*second, at, "its own tokens have come back")
	p = m.Ask(at, d)
	m.Booked(at, at, p, store.LeasedPart{Wait: time.Duration(now + 60*second - at), Left: 5, Processes: 1})
	assert.Equal(t, at+int64(m.recheck()), m.AskAt(at, d), "and so may those of others")
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
	m.Booked(now, now, p, store.LeasedPart{Wait: time.Second, Turn: 100 * time.Second, Processes: 4}) // no ID
	assert.Equal(t, min(now+int64(m.recheck()), now+m.chance(now, m.flow(40))), m.AskAt(now, d))
	d.Until = now + 100*second
	assert.Equal(t, now+second, m.AskAt(now, d), "one with as much time asks when the next token comes in")
}

// In a long window, processes whose requests wait ask each five minutes, and those with requests that may not wait as often as they may.
func TestAnEmptyWindowOfADayIsAskedAgain(t *testing.T) {
	m := leasedOf(window(store.Fixed, 100, 24*time.Hour))
	p := m.Ask(now, waiting(100))
	m.Booked(now, now, p, store.LeasedPart{ID: 1, Tokens: 100, AtOnce: 100, Until: 24 * time.Hour, Processes: 1})
	m.drawn, m.have, m.lots = 100, 0, nil
	d := waiting(1)
	for _, at := range []meter.Instant{now + 20*second, now + 3600*second, now + 5*3600*second} {
		p = m.Ask(at, d)
		m.Booked(at, at, p, store.LeasedPart{Wait: time.Duration(now + 24*3600*second - at), Processes: 1})
		assert.Equal(t, at+300*second, m.AskAt(at, d))
		d.Until = at
		assert.Equal(t, at+int64(m.recheck()), m.AskAt(at, d), "no time is left")
		d.Until = meter.Never
	}
}
