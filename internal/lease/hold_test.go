package lease

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// mostWithin returns the most instants, of those from an instant on, that lie within a span. They are in order.
func mostWithin(all []int64, from, span int64) (most int) {
	last := 0
	for i, at := range all {
		if at < from {
			continue
		}
		for last < len(all) && all[last] < at+span {
			last++
		}
		most = max(most, last-i)
	}
	return most
}

// After a hold, all processes together use no more than the burst and what comes in, in any 10 ms and any second, and soon as much
// as before, whether they have learned of the hold or not.
func TestFleetHasOneBurstAfterAHold(t *testing.T) { // slow: up to 100 processes, 4 seeds of 72 cases
	seeds, holds := uint64(1), []time.Duration{100 * time.Millisecond, 2 * time.Second}
	budgets := []store.Budget{bucket(5, time.Second, 1), bucket(20, time.Second, 2), bucket(100, time.Second, 10), kindOf(store.Pace, 5), kindOf(store.Pace, 100)}
	if !testing.Short() {
		seeds, holds, budgets = 4, append(holds, 20*time.Second), append(budgets, bucket(1000, time.Second, 10))
	}
	for _, b := range budgets {
		for _, processes := range []int{1, 8, 32, 100} {
			for _, hold := range holds {
				for seed := range seeds {
					what := fmt.Sprintf("%s of %d/s, burst %d, %d processes, a hold of %v, seed %d", b.Kind, b.N, b.Most(), processes, hold, seed)
					f := newFleet(seed, b, processes, 8)
					var used []int64
					for _, p := range f.processes {
						p.served = func() { used = append(used, f.now) }
					}
					f.run(5 * time.Second)
					f.processes[0].meter.Hold(f.now, f.now+int64(hold))
					f.step(f.processes[0])
					end := f.now + int64(hold)
					f.run(hold + 15*time.Second)
					burst := max(1, b.Burst)
					for _, span := range []time.Duration{10 * time.Millisecond, time.Second} {
						most := mostWithin(used, end, int64(span))
						require.LessOrEqual(t, float64(most), float64(burst)+float64(b.N)*span.Seconds(), "in %v: %s", span, what)
					}
					late, _ := slices.BinarySearch(used, end+5*second)
					assert.GreaterOrEqual(t, float64(len(used)-late), .98*10*float64(b.N), what)
				}
			}
		}
	}
}

// A window has no more than n after a hold, and uses as much as before.
func TestWindowsAreUsedAfterAHold(t *testing.T) {
	for _, kind := range []store.Kind{store.Sliding, store.Fixed} {
		for _, processes := range []int{1, 8, 32, 100} {
			f := newFleet(1, kindOf(kind, 20), processes, 8)
			var used []int64
			for _, p := range f.processes {
				p.served = func() { used = append(used, f.now) }
			}
			f.run(5 * time.Second)
			f.processes[0].meter.Hold(f.now, f.now+2*second)
			f.step(f.processes[0])
			end := f.now + 2*second
			f.run(22 * time.Second)
			require.LessOrEqual(t, mostWithin(used, end, 10*ms), 20, "%s, %d processes", kind, processes)
			late, _ := slices.BinarySearch(used, end+10*second)
			assert.GreaterOrEqual(t, len(used)-late, 180, "%s, %d processes", kind, processes)
		}
	}
}

// A hold that is released early stops no process for longer than until the process asks whether it still holds.
func TestAHoldThatIsReleasedEarlyStopsNoProcess(t *testing.T) {
	for _, b := range []store.Budget{bucket(5, time.Second, 1), bucket(100, time.Second, 10), kindOf(store.Pace, 100)} {
		for _, processes := range []int{1, 8, 32, 100} {
			f := newFleet(1, b, processes, 8)
			f.run(5 * time.Second)
			p := f.processes[0]
			p.meter.Hold(f.now, f.now+3600*second)
			f.step(p)
			f.run(time.Second)
			p.meter.Hold(f.now, f.now)
			f.step(p)
			f.run(max(recheckAfter, time.Duration(processes)*recheckEach) * 5 / 4)
			f.reset()
			f.run(time.Minute)
			require.GreaterOrEqual(t, float64(f.used), .98*60*float64(b.N), "%s, %d processes", b.Kind, processes)
			for _, p := range f.processes {
				require.Positive(t, p.used, "%s, %d processes", b.Kind, processes)
			}
		}
	}
}

// heldOf returns a meter of 100/s with tokens available, and with promised ones, which are due 10, 20, 30 and 40 ms from now.
func heldOf() *Leased {
	return leasedOf(bucket(100, time.Second, 9)).give([]lot{{2, 5, meter.Never, meter.Never}}, runOf(4, 6, now+10*ms, 100))
}

// responds has the store respond to an ask, without tokens and with a hold.
func (m *Leased) responds(at meter.Instant, left float64, hold int64) {
	part := m.Ask(at, waiting(9))
	m.Booked(at, at, part, store.LeasedPart{Left: left, Hold: time.Duration(hold), Wait: time.Duration(hold)})
}

func TestAHoldTakesWhatIsDueBeforeItsEnd(t *testing.T) {
	m := heldOf()
	m.responds(now, 0, 20*ms+1)
	assert.Zero(t, m.have)
	assert.Equal(t, []store.Return{{Tokens: 2, Lease: 5}, {Tokens: 2, Lease: 6}}, m.back)
	assert.Equal(t, now+30*ms, m.Ready(now, 0, 1), "the third has its own instant")

	m = heldOf()
	m.responds(now, 0, 20*ms)
	assert.Equal(t, []store.Return{{Tokens: 2, Lease: 5}, {Tokens: 1, Lease: 6}}, m.back)
	assert.Equal(t, now+20*ms, m.Ready(now, 0, 1), "a token that is due at the end can be used")
	assert.False(t, m.Payable(now+20*ms-1, 1))
	assert.True(t, m.Payable(now+20*ms, 1))

	m.responds(now+20*ms, 0, 10*ms+1) // it is extended
	assert.Equal(t, []store.Return{{Tokens: 2, Lease: 6}}, m.back)
	assert.Equal(t, now+40*ms, m.Ready(now, 0, 1))
	m.responds(now+21*ms, 0, 60*ms)
	assert.Equal(t, []store.Return{{Tokens: 1, Lease: 6}}, m.back)
	assert.Empty(t, m.runs)
}

// Where promised tokens outlast a hold, what is given back would be granted beside them.
func TestAHoldTakesNothingBackBesidePromisesThatOutlastIt(t *testing.T) {
	back := func(m *Leased, left float64) []store.Return {
		m.responds(now, left, 20*ms)
		assert.Zero(t, m.have)
		return m.back
	}
	assert.Len(t, back(heldOf(), -1), 2, "there will be a token at the end")
	assert.Empty(t, back(heldOf(), -1.001))
	window := leasedOf(kindOf(store.Fixed, 9)).give([]lot{{2, 5, meter.Never, meter.Never}})
	assert.Len(t, back(window, 0), 1, "a window promises none")
}

// A refusal that was none may be followed by another one before the store knows: the second hold is the only one then.
func TestAShorterHoldFollowsOneThatWasReleased(t *testing.T) {
	for _, kind := range []store.Kind{store.Bucket, store.Pace, store.Sliding, store.Fixed, store.Slots} {
		b := kindOf(kind, 5)
		b.Burst = 5
		m, book, at := New(b, Config{Name: "one"}), store.NewBook(), now
		answer := func() (store.Part, store.LeasedPart) {
			part := m.Ask(at, Demand{})
			return part, book.Lease(time.Unix(0, began+at), []store.Ask{{Parts: []store.Part{part}}})[0].Parts[0]
		}
		m.Hold(at, at+100*second)
		part, got := answer()
		m.Hold(at, at) // while the ask is under way
		m.Booked(at, at, part, got)
		assert.Zero(t, m.HeldUntil(), "%s: the response is older than the release", kind)
		m.Hold(at, at+2*second)
		assert.Equal(t, at+2*second, m.HeldUntil(), kind)

		assert.Equal(t, at, m.AskAt(at, Demand{}), kind)
		part, got = answer()
		assert.Negative(t, part.Hold, kind)
		m.Booked(at, at, part, got)
		assert.Equal(t, at+2*second, m.HeldUntil(), kind)

		assert.Equal(t, at, m.AskAt(at, Demand{}), "%s: the store does not know the second hold", kind)
		part, got = answer()
		assert.Equal(t, 2*time.Second, part.Hold, kind)
		assert.Equal(t, 2*time.Second, got.Hold, kind)
		m.Booked(at, at, part, got)
		assert.Equal(t, at+2*second, m.HeldUntil(), kind)
		assert.Greater(t, m.AskAt(at, Demand{}), at, kind)
	}
}

func TestTokensThatArriveDuringAHoldGoBack(t *testing.T) {
	b := newBench(t, bucket(10, time.Second, 5))
	b.trip = ms
	sent, part := b.now, b.Ask(b.now, waiting(7))
	got := b.book.Lease(time.Unix(0, began+b.now), []store.Ask{{Parts: []store.Part{part}}})[0].Parts[0]
	b.Hold(b.now, b.now+second) // while the ask is under way
	b.now += ms
	b.Booked(sent, b.now, part, got)
	b.payable(1, false)
	part = b.Ask(b.now, waiting(7))
	assert.Equal(t, []store.Return{{Tokens: got.Tokens, Lease: got.ID}}, part.Back)
	assert.Equal(t, time.Second-time.Millisecond, part.Hold)

	b.Failed(b.now, b.now+second)
	b.GiveBack(got.ID, b.now, 1) // a request that was not sent after all
	b.payable(1, false)
	assert.Equal(t, []store.Return{{Tokens: 1, Lease: got.ID}}, b.back)
}

// Without a response to the ask that reports a hold, the tokens are not kept either.
func TestAHoldTakesTokensWhereTheStoreIsUnreachable(t *testing.T) {
	m := heldOf()
	m.latest = response{known: true, sent: now}
	m.Hold(now, now+20*ms)
	m.Ask(now, waiting(9))
	m.Failed(now, now)
	assert.Zero(t, m.have)
	assert.EqualValues(t, 3, m.promised())
	assert.Equal(t, []store.Return{{Tokens: 2, Lease: 5}, {Tokens: 1, Lease: 6}}, m.back)
}

// Slots are not of one instant: after a hold, no more requests are in flight than before. So a process keeps those that it has.
func TestSlotsAreKeptDuringAHold(t *testing.T) {
	b := newSlotBench(t, 5)
	b.question(waiting(3))
	b.is("to the other", b.other(0, 2).Tokens, 2)
	b.take(1)
	b.Hold(b.now, b.now+50*ms)
	end := b.now + 50*ms
	b.question(waiting(2))
	b.payable(1, false)
	b.is("ready", b.Ready(b.now, 0, 2), b.HeldUntil())
	b.now = b.HeldUntil()
	b.payable(2, true)
	b.payable(3, false)
	b.is("to the other", b.other(2, 1).Tokens, 0)
	if b.now < end || b.now > end+2*ms {
		t.Errorf("the hold ended at %v", time.Duration(b.now))
	}
}
