package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// This file has the single steps of slots, of turns and of units.

// slotsOf returns a meter of n slots, of which some are leased, and of these some in use.
func slotsOf(n, leased, used int64) *LeasedSlots {
	m := newLeasedSlots(store.Budget{Kind: store.Slots, Limit: "l", N: n}, Config{Seed: 42})
	m.leased, m.used, m.void, m.processes = leased, used, meter.Never, 1
	return m
}

func TestASlotIsPayableWhileTheBudgetIsNotHeld(t *testing.T) {
	m := slotsOf(9, 5, 3)
	assert.True(t, m.Payable(now, 2))
	assert.False(t, m.Payable(now, 3))
	m.set(now, now+2)
	assert.False(t, m.Payable(now+1, 2))
	assert.True(t, m.Payable(now+2, 2))
	assert.Equal(t, now+2, m.Ready(now, 0, 2))
	assert.Equal(t, meter.Never, m.Ready(now, 0, 3))
	assert.Equal(t, 2.0+9, m.Tokens(now))
	m.left = -3
	assert.Equal(t, 2.0, m.Tokens(now))
}

func TestAPlanOfSlotsIsLaterWhileThereAreTooFew(t *testing.T) {
	m := slotsOf(9, 5, 3)
	m.again = now + 5
	assert.Equal(t, now, m.Plan(now, 1, 1))
	assert.Equal(t, now+1, m.Plan(now, 2, 1))
	assert.Equal(t, now+5, m.Plan(now+5, 2, 1), "the store is asked again")
	assert.Equal(t, meter.Never, m.Plan(now, 0, 10))
	assert.Equal(t, now+1, m.Plan(now, 0, 9))
	m.local = meter.NewSlots(4)
	assert.Equal(t, now+6, m.Plan(now+5, 1, 1))
}

func TestSlotsThatWereUnusedAllTheTimeAreGivenBack(t *testing.T) {
	m := slotsOf(9, 5, 2)
	m.watch(now)
	assert.EqualValues(t, 3, m.low)
	assert.Equal(t, now+m.keep, m.kept)
	m.Take(now, now, 2, false)
	assert.EqualValues(t, 1, m.low, "the fewest")
	m.GiveBack(0, now+1, 2)
	assert.EqualValues(t, 1, m.low)
	p := m.Ask(now+m.keep, Demand{})
	assert.EqualValues(t, 4, p.Held)
	assert.EqualValues(t, 2, m.low, "the next time begins")
	assert.Equal(t, now+2*m.keep, m.kept)

	m = slotsOf(9, 5, 2)
	m.watch(now)
	m.Take(now, now, 3, false)
	assert.Zero(t, m.low)
	m.GiveBack(0, now+m.keep, 1)
	assert.EqualValues(t, 1, m.low, "all were in use once, so another time begins")
	m.leased = 3
	m.advance(now)
	assert.Zero(t, m.low, "fewer are leased than are in use")
}

func TestSlotsThatOthersWaitForAreYielded(t *testing.T) {
	yields := func(yield, cost int64, under bool) *LeasedSlots {
		m := slotsOf(9, 6, 6)
		m.yield, m.under = yield, under
		m.GiveBack(0, now, cost)
		return m
	}
	m := yields(2, 3, false)
	assert.EqualValues(t, 4, m.leased)
	assert.Zero(t, m.yield)
	assert.Equal(t, now, m.tell)
	assert.EqualValues(t, 1, m.low)
	m = yields(5, 3, false)
	assert.EqualValues(t, 3, m.leased)
	assert.EqualValues(t, 2, m.yield)
	m = yields(5, 3, true)
	assert.EqualValues(t, 6, m.leased, "the response says how many")
	assert.Equal(t, meter.Never, m.tell)

	m = slotsOf(9, 8, 6)
	m.Resize(now, 7)
	assert.EqualValues(t, 7, m.leased)
	assert.Equal(t, now, m.tell)
	m.Resize(now, 3)
	assert.EqualValues(t, 6, m.leased, "those in use stay")

	m = slotsOf(9, 9, 6)
	m.low = 3
	m.Resize(now, 7)
	assert.EqualValues(t, 1, m.low)
	m = slotsOf(9, 3, 6)
	m.yield = 5
	m.GiveBack(0, now, 2)
	assert.EqualValues(t, 3, m.leased, "the store took three of its slots already")
}

func TestSlotsAreAskedForWhenTheyAreOfUse(t *testing.T) {
	m := slotsOf(9, 5, 3)
	m.asked = now
	assert.Equal(t, now+int64(renewSlots), m.AskAt(now, Demand{}))
	first, all := m.wanted(Demand{First: 3, All: 4})
	assert.EqualValues(t, 1, first)
	assert.EqualValues(t, 2, all)
	m.again = now + 95
	assert.Equal(t, now+95, m.AskAt(now, Demand{First: 1, All: 3}))
	assert.Equal(t, now+int64(renewSlots), m.AskAt(now, Demand{First: 1, All: 2}), "there are two")
	m.leased, m.used = 9, 9
	assert.Equal(t, now+int64(renewSlots), m.AskAt(now, Demand{First: 1, All: 2}), "it has all of them")

	m = slotsOf(9, 5, 3)
	m.asked, m.came = now, true
	assert.Equal(t, now+passEach, m.AskAt(now, Demand{}), "more than its share with one more process")
	m.leased = 4
	assert.Equal(t, now+int64(renewSlots), m.AskAt(now, Demand{}))

	m = slotsOf(9, 0, 0)
	m.asked, m.wants = now, 1
	assert.Equal(t, now+tellAfter, m.AskAt(now, Demand{}), "the store believes that it waits")
	m.wants = 0
	assert.Equal(t, meter.Never, m.AskAt(now, Demand{}))
	assert.False(t, m.Low())
	m.local = meter.NewSlots(2)
	assert.True(t, m.Low())
	assert.Equal(t, meter.Never, m.AskAt(now, Demand{}))
	m.used = 1
	assert.Equal(t, now, m.AskAt(now, Demand{}), "a local meter pays")
	m.used = 0
	m.again = now + 5
	assert.Equal(t, now, m.AskAt(now, Demand{First: 1, All: 1}))
}

func TestAskingAgainForSlotsTakesTurns(t *testing.T) {
	again := func(processes int, wait time.Duration, tokens int64) int64 {
		m := slotsOf(9, 0, 0)
		m.Booked(now, now, store.Part{Budget: m.budget, Want: 2}, store.LeasedPart{Tokens: tokens, Processes: processes, Wait: wait})
		return m.again - now
	}
	assert.Zero(t, again(3, time.Second, 2))
	assert.Equal(t, 30*ms, again(3, 0, 1))
	assert.Equal(t, 40*ms, again(3, 40*time.Millisecond, 1))
	assert.Equal(t, second, again(1000, 0, 1))
	assert.Equal(t, 5*second, again(3, time.Hour, 1))

	m := slotsOf(9, 0, 0)
	m.had = 4
	m.Booked(now-ms, now, store.Part{Budget: m.budget, Held: 4, Want: 3}, store.LeasedPart{Tokens: 2, Processes: 3, Left: -2})
	assert.EqualValues(t, 6, m.leased)
	assert.EqualValues(t, 1, m.wants)
	assert.EqualValues(t, 2, m.yield)
	assert.Equal(t, 3*ms, m.lead)
	assert.Equal(t, voidAt(now-ms, store.SlotLease), m.void)
	m.Booked(now, now, store.Part{Budget: m.budget, Held: 4}, store.LeasedPart{Processes: 3, Left: -2})
	assert.EqualValues(t, 1, m.yield, "down to its share")
	m.had = 3
	m.Booked(now, now, store.Part{Budget: m.budget, Held: 3}, store.LeasedPart{Processes: 3, Left: -2})
	assert.Zero(t, m.yield)
}

// A slot that a process gives back is unused until a process without one asks. With fewer slots than processes, it does not go around
// with each request.
func TestAProcessKeepsOneOfTooFewSlotsForItsTurn(t *testing.T) {
	booked := func(n, held, tokens int64, processes int) *LeasedSlots {
		m := slotsOf(n, held, held)
		m.had = held
		m.Booked(now, now, store.Part{Budget: m.budget, Held: held, Want: 4}, store.LeasedPart{Tokens: tokens, Processes: processes, Left: -8})
		return m
	}
	m := booked(1, 0, 1, 2)
	assert.Equal(t, now+500*ms, m.turn, "25 times 20 ms, in which one process asks")
	assert.Equal(t, now+500*ms, booked(500, 0, 1, 1000).turn, "25 times 20 ms: 500 of 1,000 processes ask for 500 slots")
	m.Take(now, now, 1, true)
	m.GiveBack(0, m.turn-1, 1)
	assert.True(t, m.Payable(m.turn-1, 1))
	m.Take(now, now, 1, true)
	m.GiveBack(0, m.turn, 1)
	assert.False(t, m.Payable(m.turn, 1))
	assert.Equal(t, m.turn, m.tell)

	m = booked(6, 0, 3, 26)
	assert.Equal(t, now+325*ms, m.turn, "25 times 260 ms, in which 20 processes ask")
	m.Take(now, now, 3, true)
	m.GiveBack(0, now, 3)
	assert.True(t, m.Payable(now, 1), "it keeps one slot")
	assert.False(t, m.Payable(now, 2))
	assert.Zero(t, booked(6, 2, 1, 26).turn, "its turn began before")
	assert.Zero(t, booked(6, 0, 0, 26).turn)
	assert.Zero(t, booked(26, 0, 1, 26).turn)
}

func TestTurnsAreForWindowsThatOthersUse(t *testing.T) {
	for k, competes := range map[store.Kind]bool{store.Sliding: true, store.Fixed: true, store.Bucket: false, store.Pace: false} {
		m := leasedOf(kindOf(k, 100))
		m.latest.processes = 1
		assert.False(t, m.competes(), k)
		m.latest.processes = 2
		assert.Equal(t, competes, m.competes(), k)
	}
}

func TestTheTokensOfAPeriodAreCountedBySixteenths(t *testing.T) {
	m := leasedOf(store.Budget{Kind: store.Sliding, N: 100, Per: 16 * time.Second})
	assert.Zero(t, m.inPeriod(now))
	for i := range int64(16) {
		m.inPeriod(now + i*second)
		m.leased[m.part%turnParts] = 1 << i
	}
	assert.EqualValues(t, 1<<16-1, m.inPeriod(now+16*second-1))
	assert.EqualValues(t, 1<<16-2, m.inPeriod(now+16*second), "the first is over")
	assert.EqualValues(t, 1<<16-8, m.inPeriod(now+18*second), "and the next two")
	assert.Zero(t, m.inPeriod(now+1000*second))
	assert.Equal(t, (now+1000*second)/second, m.part)
}

func TestAnAskIsLimitedToTheRestOfAShare(t *testing.T) {
	limited := func(leased, need int64) store.Part {
		m := leasedOf(kindOf(store.Sliding, 320))
		m.latest.processes, m.latest.left = 4, 160
		m.inPeriod(now)
		m.leased[0] = leased
		p := store.Part{Need: need, Want: 200, Ahead: 7}
		m.limitToTurn(&p, now)
		return p
	}
	assert.Equal(t, store.Part{Need: 1, Want: 80, Ahead: 7}, limited(0, 1))
	assert.Equal(t, store.Part{Need: 1, Want: 1, Ahead: 7}, limited(79, 1))
	assert.Equal(t, store.Part{Need: 1, Want: 10}, limited(80, 1), "a turn")
	assert.Equal(t, store.Part{Need: 20, Want: 20}, limited(80, 20))
}

func TestATurnFollowsAShareThatIsUsed(t *testing.T) {
	turn := func(tokens int64, left float64) int64 {
		m := leasedOf(kindOf(store.Sliding, 320))
		m.latest.processes = 4
		m.inPeriod(now)
		m.leased[0], m.asked = 70, now
		m.endTurn(now-ms, now, &store.Part{Need: 1}, store.LeasedPart{Tokens: tokens, Left: left})
		assert.EqualValues(t, 70+tokens, m.inPeriod(now))
		if m.again == 0 {
			return 0
		}
		return m.again - (now - ms)
	}
	assert.Zero(t, turn(9, 0))
	assert.Zero(t, turn(0, 0), "it was granted nothing, and waits for what the store said")
	assert.Positive(t, turn(10, 160))
	assert.Positive(t, turn(10, 0))
	assert.GreaterOrEqual(t, turn(100, 0), second/32/4)
	assert.Less(t, turn(100, 0), second/32/4+second/32, "a turn at most")
	m := leasedOf(kindOf(store.Sliding, 32000))
	m.latest.processes = 1000
	m.inPeriod(now)
	m.leased[0] = 100
	m.endTurn(now, now, &store.Part{Need: 1}, store.LeasedPart{Tokens: 32})
	assert.GreaterOrEqual(t, m.again, now+ms/4)
	assert.Less(t, m.again, now+ms+ms/4, "32 of 32,000 a second")
}
