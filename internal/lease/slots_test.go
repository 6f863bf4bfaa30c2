package lease

import (
	"math"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

const second = int64(time.Second)

// A slotBench is a meter of slots on a Book, with a clock that the test sets: in ns, from 1 s on.
type slotBench struct {
	*testing.T
	*LeasedSlots
	book *store.Book
	now  meter.Instant
}

func newSlotBench(t *testing.T, n int64) *slotBench {
	b := store.Budget{Kind: store.Slots, Limit: "l", N: n}
	return &slotBench{T: t, LeasedSlots: newLeasedSlots(b, Config{Seed: 42}), book: store.NewBook(), now: second}
}

// store has the Book decide an ask.
func (b *slotBench) store(p store.Part) store.LeasedPart {
	b.Helper()
	got := b.book.Lease(time.Unix(0, began+b.now), []store.Ask{{Parts: []store.Part{p}}})[0]
	if got.Err != nil {
		b.Fatal(got.Err)
	}
	return got.Parts[0]
}

// question asks the store and books the response. Both ways take a millisecond.
func (b *slotBench) question(d Demand) (store.Part, store.LeasedPart) {
	b.Helper()
	sent, part := b.now, b.Ask(b.now, d)
	b.now += ms
	got := b.store(part)
	b.now += ms
	b.Booked(sent, b.now, part, got)
	return part, got
}

// other has another process ask.
func (b *slotBench) other(held, want int64) store.LeasedPart {
	b.Helper()
	return b.store(store.Part{Budget: b.budget, Holder: "other", Held: held, Need: min(1, want), Want: want})
}

// next returns when the store is asked next if nothing happens before.
func (b *slotBench) next(d Demand) meter.Instant {
	m := *b.LeasedSlots
	for now := b.now; ; {
		at := m.AskAt(now, d)
		if at == now || at == meter.Never {
			return at
		}
		now = at
	}
}

// take takes slots, which must be free.
func (b *slotBench) take(n int64) {
	b.Helper()
	if _, ok := b.Spend(b.now, n); !ok {
		b.Fatalf("at %v there are no %d slots", time.Duration(b.now), n)
	}
}

func (b *slotBench) is(what string, got, want int64) {
	b.Helper()
	if got != want {
		b.Errorf("%s: %v, want %v", what, time.Duration(got), time.Duration(want))
	}
}

func (b *slotBench) payable(cost int64, want bool) {
	b.Helper()
	if got := b.Payable(b.now, cost); got != want {
		b.Errorf("at %v %d slots are free: %v", time.Duration(b.now), cost, got)
	}
}

func TestSlotsAreFreeWithTheResponse(t *testing.T) {
	b := newSlotBench(t, 5)
	b.payable(1, false)
	b.is("ready", b.Ready(0, 0, 1), meter.Never)
	b.is("plan", b.Plan(b.now, 0, 1), b.now)
	b.is("plan of too many", b.Plan(b.now, 0, 6), meter.Never)
	b.is("ask, nothing waiting", b.AskAt(b.now, Demand{}), meter.Never)
	b.is("ask", b.AskAt(b.now, waiting(3)), b.now)
	part, _ := b.question(waiting(3))
	b.is("need", part.Need, 1)
	b.is("want", part.Want, 3)
	b.payable(3, true)
	b.payable(4, false)
	b.take(3)
	b.is("in flight", b.InFlight(), 3)
	b.payable(1, false)
}

func TestRequestForSeveralSlotsGetsAllOrNone(t *testing.T) {
	b := newSlotBench(t, 5)
	b.other(0, 3)
	part, got := b.question(waitingOf(3, 1))
	b.is("need", part.Need, 3)
	b.is("slots", got.Tokens, 0)
	b.is("the next ask", b.AskAt(b.now, waitingOf(3, 1)), b.now+20*ms)
	b.other(2, 0)
	_, got = b.question(waitingOf(3, 1))
	b.is("slots", got.Tokens, 3)
}

// A slot that a request will use before another one could come is kept, unless other processes wait for it.
func TestASlotThatWillBeUsedSoonIsKept(t *testing.T) {
	b := newSlotBench(t, 10)
	b.question(waiting(3))
	kept := b.now + 100*ms
	soon := func(cost, n, soon int64) Demand {
		d := waitingOf(cost, n)
		d.Soon = soon
		return d
	}
	b.is("the next ask, two will be used", b.next(soon(1, 2, 2)), kept)
	b.is("the next ask, all will be used", b.next(soon(1, 3, 3)), b.asked+int64(renewSlots))
	b.is("the next ask, three may be used and none is sure to be", b.next(soon(1, 3, 0)), kept)
	b.is("the next ask, there are too few for the first", b.next(soon(4, 1, 4)), b.again)
	b.now = kept
	part, _ := b.question(soon(1, 2, 2))
	b.is("slots kept", part.Held, 2)
	b.is("slots wanted", part.Want, 0)
	b.now += 200 * ms
	b.is("the next ask", b.next(soon(1, 2, 2)), b.asked+int64(renewSlots))
	b.is("the next ask, none will be used", b.next(Demand{}), b.now)
	b.other(0, 9)
	b.question(soon(1, 3, 2))
	b.now += 100 * ms
	b.is("the next ask, others wait", b.next(soon(1, 2, 2)), b.now)
}

func TestUnusedSlotsAreGivenBack(t *testing.T) {
	b := newSlotBench(t, 10)
	b.question(waiting(3))
	b.take(3)
	b.GiveBack(0, b.now, 1)
	kept := b.now + 100*ms
	b.is("the next ask", b.next(Demand{}), kept+100*ms) // all were used until now
	b.now = kept
	b.AskAt(b.now, Demand{})
	b.now += 50 * ms
	b.GiveBack(0, b.now, 1)
	b.is("the next ask", b.next(Demand{}), kept+100*ms)
	b.now = kept + 100*ms
	part, _ := b.question(Demand{})
	b.is("slots kept", part.Held, 2) // one of them came back later
	b.is("the next ask", b.next(Demand{}), kept+200*ms)
	b.now = kept + 200*ms
	b.take(1) // it is used again
	b.is("the next ask", b.next(Demand{}), kept+100*ms+int64(renewSlots))
	b.GiveBack(0, b.now, 2)
	b.now += 100 * ms
	part, got := b.question(Demand{})
	b.is("slots kept", part.Held, 0)
	b.is("slots left at the store", int64(got.Left), 10)
	b.is("the next ask", b.AskAt(b.now, Demand{}), meter.Never)
	must, full := b.Matters(b.now)
	b.is("must be kept until", must, 0)
	b.is("differs from a new one until", max(full, b.now), b.now)
}

func TestSlotsAreRenewedWhileTheyAreHeld(t *testing.T) {
	b := newSlotBench(t, 5)
	asked := b.now
	b.question(waiting(1))
	b.take(1)
	for range 5 {
		b.is("the next ask", b.next(Demand{}), asked+3*second)
		b.now = asked + 3*second
		asked = b.now
		part, _ := b.question(Demand{})
		b.is("held", part.Held, 1)
		b.is("wanted", part.Want, 0)
	}
}

func TestSlotsAreVoidBeforeTheStoreFreesThem(t *testing.T) {
	b := newSlotBench(t, 5)
	sent := b.now
	b.question(waiting(3))
	b.take(1)
	b.Ask(b.now, Demand{})
	b.Failed(b.now, b.now)
	b.now = voidAt(sent, 10*time.Second) - 1
	b.payable(2, true)
	b.now++
	b.payable(1, false)
	b.is("in flight", b.InFlight(), 1)
	b.GiveBack(0, b.now, 1)
	b.payable(1, false)

	b.is("the ask", b.AskAt(b.now, waiting(1)), b.now)
	part, _ := b.question(waiting(1))
	b.is("held", part.Held, 0)
	b.payable(1, true)
}

func TestRequestsThatGoOnAfterTheirSlotsExpiredAreCountedAgain(t *testing.T) {
	b := newSlotBench(t, 5)
	b.question(waiting(4))
	b.take(4)
	b.now += 11 * second // the process was stopped
	if got := b.other(0, 5); got.Tokens != 5 {
		t.Fatalf("%+v", got)
	}
	b.is("the ask", b.AskAt(b.now, Demand{}), b.now)
	part, got := b.question(Demand{})
	b.is("held", part.Held, 4)
	b.is("left at the store", int64(got.Left), -4)
	if got := b.other(3, 5); got.Tokens != 0 {
		t.Errorf("%+v was granted above n", got)
	}
	b.GiveBack(0, b.now, 1)
	b.payable(1, false) // nine were in flight of five
}

func TestARequestDoesNotTakeASlotThatExpiredWhenTheStoreIsBack(t *testing.T) {
	b := newSlotBench(t, 5)
	b.question(waiting(4))
	b.take(4)
	b.now += 11 * second // the store was unreachable
	part, got := b.question(waiting(9))
	b.is("held", part.Held, 4)
	b.is("granted", got.Tokens, 0) // the store does not know which other processes have slots
	b.GiveBack(0, b.now, 1)
	b.payable(1, false)
	b.is("what is in flight is reported", b.tellAt(b.now), b.now+20*ms)
	b.now += 4 * second
	part, got = b.question(waiting(9))
	b.is("held", part.Held, 3)
	b.is("granted", got.Tokens, 2)
	b.payable(2, true)
	b.take(2)
	b.GiveBack(0, b.now, 1)
	b.payable(1, false) // three of the five in flight had slots that expired
	b.GiveBack(0, b.now, 3)
	b.payable(1, true)
}

func TestSlotsThatExpireDuringAnAskAreThereAgainWithTheResponse(t *testing.T) {
	b := newSlotBench(t, 5)
	b.question(waiting(3))
	b.take(3)
	b.now = b.void - ms
	b.GiveBack(0, b.now, 1)
	sent, part := b.now, b.Ask(b.now, Demand{})
	got := b.store(part)
	b.now += ms
	b.payable(1, false)
	b.Booked(sent, b.now, part, got)
	b.payable(1, true)
	b.payable(2, false)

	b.now = b.void - ms
	b.Ask(b.now, Demand{})
	b.now += ms
	b.Failed(b.now, b.now)
	b.payable(1, false)
	b.is("what it has are the requests in flight", b.Ask(b.now, Demand{}).Held, 2)
}

func TestSlotsThatOthersHaveAreNotUsedAgain(t *testing.T) {
	b := newSlotBench(t, 5)
	b.question(waiting(4))
	b.take(3)
	b.book = store.NewBook()
	b.is("granted", b.other(0, 4).Tokens, 4) // a process that does not know that there was another state
	part, got := b.question(Demand{})
	b.is("held", part.Held, 4)
	b.is("over", got.Over, 3)
	b.payable(1, false)
	b.is("the requests go on", b.InFlight(), 3)
	b.GiveBack(0, b.now, 2)
	b.payable(1, false)
	_, got = b.question(Demand{})
	b.is("over", got.Over, 0)
	b.payable(1, false)
	b.GiveBack(0, b.now, 1)
	b.payable(1, true)
	b.is("others get no more", b.other(4, 1).Tokens, 0)
}

// Slots that others have by the response are no unused ones, so the slots of requests in flight stay.
func TestSlotsThatOthersHaveAreNotGivenBackAgain(t *testing.T) {
	b := newSlotBench(t, 5)
	b.question(waiting(5))
	b.take(2)
	kept := b.now + 100*ms
	b.book = store.NewBook()
	b.is("granted", b.other(0, 2).Tokens, 2)
	_, got := b.question(Demand{})
	b.is("over", got.Over, 2)
	b.is("the next ask", b.next(Demand{}), kept)
	b.now = kept
	part, _ := b.question(Demand{})
	b.is("held", part.Held, 2)
}

func TestAProcessAloneReportsThatItMayHaveASlot(t *testing.T) {
	b := newSlotBench(t, 6)
	b.Alone(b.now, b.Local(b.now, 3), false, new(uint64))
	part, got := b.question(waiting(1))
	b.is("held", part.Held, 1)
	b.is("granted", got.Tokens, 0)
	b.payable(1, true)
}

func TestAnAskHasTheTimeForWhichTheStoreMustKnowTheProcess(t *testing.T) {
	b := newSlotBench(t, 5)
	since := func(d Demand, want time.Duration) {
		t.Helper()
		part, _ := b.question(d)
		b.is("since", int64(part.Since), int64(want))
	}
	since(waiting(2), store.MaxSince)
	b.now += second
	since(waiting(2), time.Second+2*time.Millisecond)
	b.Ask(b.now, waiting(1))
	b.Failed(b.now, b.now)
	b.now += second
	since(waiting(2), time.Second+2*time.Millisecond) // the one that failed may not have arrived
	b.now += 100 * ms
	b.Ask(b.now, Demand{}) // gives everything back
	b.Failed(b.now, b.now)
	since(waiting(1), store.MaxSince)
	b.now += 20 * second
	since(waiting(1), store.MaxSince)
}

func TestResponseAfterSlotsExpiredGrantsNothing(t *testing.T) {
	b := newSlotBench(t, 5)
	sent, part := b.now, b.Ask(b.now, waiting(2))
	got := b.store(part)
	b.now = voidAt(sent, 10*time.Second) - 1
	b.Booked(sent, b.now, part, got)
	b.payable(2, true)
	b.now++
	b.payable(1, false)
}

func TestLostResponseLeavesNoTrace(t *testing.T) {
	b := newSlotBench(t, 5)
	b.question(waiting(1))
	b.take(1)
	b.store(b.Ask(b.now, waiting(3))) // three are granted, and the process does not know
	b.Failed(b.now, b.now)
	b.is("the next ask", b.AskAt(b.now, Demand{}), b.now)
	part, got := b.question(Demand{})
	b.is("held", part.Held, 1)
	b.is("left", int64(got.Left), 4)
}

func TestNoSlotsAreReportedUntilTheStoreHasForgottenThem(t *testing.T) {
	b := newSlotBench(t, 5)
	sent := b.now
	b.Ask(b.now, waiting(3))
	b.Failed(b.now, b.now)
	for b.now < sent+9*second {
		b.is("the next ask", b.AskAt(b.now, Demand{}), b.now)
		part := b.Ask(b.now, Demand{})
		b.is("held", part.Held, 0)
		b.now += 250 * ms
		b.Failed(b.now, b.now)
	}
	b.now = sent + 10*second
	b.is("the next ask", b.AskAt(b.now, Demand{}), meter.Never)
}

func TestItIsReportedThatNoRequestWaitsAnyMore(t *testing.T) {
	b := newSlotBench(t, 1)
	b.other(0, 1)
	asked := b.now
	b.question(waiting(2))
	b.is("the next ask", b.AskAt(b.now, waiting(2)), b.now+20*ms)
	b.is("the next ask without requests", b.AskAt(b.now, Demand{}), asked+20*ms)
	if got := b.other(1, 0); got.Left != -2 {
		t.Errorf("%v are left, and two are waited for", got.Left)
	}
	b.now = asked + 20*ms
	b.question(Demand{})
	if got := b.other(1, 0); got.Left != 0 {
		t.Errorf("%v are left, and none is waited for", got.Left)
	}
}

func TestSlotsThatNoRequestCanUseAreReturned(t *testing.T) {
	b := newSlotBench(t, 5)
	b.question(waiting(1)) // which takes 2 ms
	b.take(1)
	b.GiveBack(0, b.now, 1)
	b.AskAt(b.now+100*ms, Demand{})
	b.now += 200 * ms
	part, _ := b.question(Demand{})
	b.is("held", part.Held, 0)
	b.is("lead", int64(b.Lead()), 5*ms)
}

func TestProcessPassesOnSlotsAboveItsShare(t *testing.T) {
	b := newSlotBench(t, 10)
	b.question(waiting(10))
	b.take(10)
	b.other(0, 3)
	_, got := b.question(waiting(7))
	b.is("left", int64(got.Left), -3)
	b.GiveBack(0, b.now, 4)
	b.payable(1, true)
	b.payable(2, false) // three are for the other
	b.is("the next ask", b.AskAt(b.now, waiting(7)), b.now)
	part, got := b.question(waiting(7))
	b.is("held", part.Held, 7)
	b.is("granted to the process that gives slots back", got.Tokens, 0)
	if got := b.other(0, 3); got.Tokens != 3 {
		t.Errorf("the other process got %+v", got)
	}
	b.other(3, 5)
	b.take(1)
	b.now += 20 * ms
	_, got = b.question(waiting(7))
	b.is("left", int64(got.Left), -5)
	b.GiveBack(0, b.now, 5)
	b.payable(3, true)
	b.payable(4, false) // of those that the other waits for, two are above this process's share
}

func TestProcessWithAllSlotsAsksWhetherOthersWait(t *testing.T) {
	b := newSlotBench(t, 2)
	asked := b.now
	b.question(waiting(2))
	b.take(2)
	b.GiveBack(0, b.now, 1)
	b.take(1)
	b.is("the next ask", b.AskAt(b.now, Demand{}), asked+100*ms)
	b.now = asked + 100*ms
	b.other(0, 1)
	b.question(Demand{})
	b.GiveBack(0, b.now, 1)
	b.payable(1, false)
	part, _ := b.question(Demand{})
	b.is("held", part.Held, 1)
	if got := b.other(0, 1); got.Tokens != 1 {
		t.Errorf("the other process got %+v", got)
	}
}

func TestFewerSlotsAreGivenBackImmediately(t *testing.T) {
	b := newSlotBench(t, 10)
	b.question(waiting(8))
	b.take(6)
	b.Resize(b.now, 4)
	b.payable(1, false)
	b.is("the next ask", b.AskAt(b.now, Demand{}), b.now)
	part, _ := b.question(Demand{})
	b.is("held", part.Held, 6)
	b.GiveBack(0, b.now, 3)
	part, _ = b.question(Demand{})
	b.is("held", part.Held, 4)
	b.payable(1, true)
	b.payable(2, false)
	b.Resize(b.now, 6)
	b.is("the next ask", b.AskAt(b.now, waiting(3)), b.now)
	_, got := b.question(waiting(3))
	b.is("granted", got.Tokens, 2)
}

func TestAHoldOfSlotsIsReportedImmediately(t *testing.T) {
	b := newSlotBench(t, 5)
	b.Hold(b.now, b.now+second)
	b.is("the ask", b.AskAt(b.now, Demand{}), b.now)
	part, _ := b.question(Demand{})
	b.is("hold", int64(part.Hold), second)
	if got := b.other(0, 1); got.Tokens != 0 || got.Hold == 0 {
		t.Errorf("while slots are held: %+v", got)
	}
	b.question(waiting(1))
	b.is("the next ask", b.AskAt(b.now, waiting(1)), b.HeldUntil())
}

func TestSlotsOfAProcessAlone(t *testing.T) {
	b := newSlotBench(t, 10)
	b.other(0, 1)
	b.question(waiting(2))
	b.take(1)
	spent := uint64(0)
	b.Alone(b.now, b.Local(b.now, 3), true, &spent)
	b.payable(2, true)
	b.payable(3, false) // a third of ten, less one in flight
	b.take(2)
	if spent != 2 {
		t.Errorf("%d slots were counted", spent)
	}
	b.is("the next ask", b.AskAt(b.now, Demand{}), b.now)
	part, _ := b.question(Demand{})
	b.is("held", part.Held, 3)
	if b.IsAlone() {
		t.Error("still alone")
	}
	b.Alone(b.now, meter.Unlimited{}, false, &spent)
	b.take(100)
	b.is("share of many processes", b.Local(b.now, 1000).Most(), 1)
	b.GiveBack(0, b.now, 103)
	if left := b.Tokens(b.now); math.IsNaN(left) || left < 0 {
		t.Errorf("%v are free", left)
	}
}
