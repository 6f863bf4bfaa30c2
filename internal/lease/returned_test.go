package lease

import (
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// A process has a sliding window of an hour for itself, and a response is late. Its requests are not to be rejected because the store
// has nothing left.
func TestWhatGoesBackIsLeft(t *testing.T) {
	b := newBench(t, store.Budget{Kind: store.Sliding, Limit: "l", Key: "k", N: 5, Per: time.Hour})
	b.trip = ms
	b.question(waiting(1))
	b.Take(b.now, b.now, 1, true)
	b.trip = 30 * ms
	_, got := b.question(waiting(4))
	b.instant("ready", b.Ready(b.now, 0, 1), meter.Never) // the tokens are void
	b.instant("plan", b.Plan(b.now, 3, 1), b.now)
	if at := b.Plan(b.now, 4, 1); at < b.now+int64(59*time.Minute) {
		t.Errorf("there are only four: %v", time.Duration(at-b.now))
	}
	b.instant("ask", b.AskAt(b.now, waiting(4)), b.now)
	part := b.Ask(b.now, waiting(4))
	if len(part.Back) != 1 || part.Back[0] != (store.Return{Tokens: 4, Lease: got.ID}) {
		t.Errorf("asked %+v", part)
	}
	b.instant("plan while the store is asked", b.Plan(b.now, 3, 1), b.now)
}

func TestTheResponseToAnAskThatFailedGoesBack(t *testing.T) {
	for _, kind := range []store.Kind{store.Sliding, store.Fixed} {
		b := newBench(t, store.Budget{Kind: kind, Limit: "l", Key: "k", N: 9, Per: time.Hour})
		_, first := b.question(waiting(3))
		b.Take(b.now, b.now, 1, true)
		b.GiveBack(0, b.now, 1)
		b.Settle(first.ID, b.now, 1, 5) // two of them available, and two owed
		asked := b.Ask(b.now, waiting(4))
		got := b.book.Lease(time.Unix(0, began+b.now), []store.Ask{{Parts: []store.Part{asked}}})[0].Parts[0]
		b.Failed(b.now, b.now)
		again := b.Ask(b.now, Demand{})
		if again.Owe != asked.Owe || len(again.Back) != 0 {
			t.Errorf("%s: without a response: %+v", kind, again)
		}
		b.Failed(b.now, b.now)
		b.Late(b.now, asked, &got)
		again = b.Ask(b.now, Demand{})
		if again.Owe != 0 || len(again.Back) != 1 || again.Back[0] != (store.Return{Tokens: got.Tokens, Lease: got.ID}) {
			t.Errorf("%s: after the response: %+v", kind, again)
		}
		b.Failed(b.now, b.now)
		b.Late(b.now, again, nil)
		if last := b.Ask(b.now, Demand{}); len(last.Back) != 1 || last.Back[0] != again.Back[0] {
			t.Errorf("%s: nothing was carried out: %+v", kind, last)
		}
	}
}

func TestUnusedTokensGoBackAfterTheirTime(t *testing.T) {
	b := newBench(t, bucket(10, time.Second, 5))
	_, got := b.question(waiting(5))
	b.Take(b.now, b.now, 2, true)
	b.instant("ask while requests wait", b.AskAt(b.now, waiting(3)), meter.Never)
	back := b.now + 100*ms
	b.instant("ask when none waits", b.AskAt(b.now, Demand{}), back)
	b.now = back - 1
	b.instant("1 ns before", b.AskAt(b.now, Demand{}), back)
	b.now = back
	b.payable(3, true)
	p, _ := b.question(Demand{})
	if len(p.Back) != 1 || p.Back[0] != (store.Return{Tokens: 3, Lease: got.ID}) || p.Want != 0 || p.Need != 0 || p.Ahead != 0 {
		t.Errorf("asked %+v", p)
	}
	b.payable(1, false)
	if left := b.others(9).Tokens; left != 4 { // of 5, 2 were used, and 1 has come in
		t.Errorf("%d are left", left)
	}
	b.instant("nothing is asked any more", b.AskAt(b.now, Demand{}), meter.Never)
	must, full := b.Matters(b.now)
	b.instant("it is as good as new", full, b.asked+int64(store.MaxSince))
	if must > b.now {
		t.Errorf("must be kept until %v", must)
	}
}

func TestTokensOfALeaseAtHandAreUsedAgain(t *testing.T) {
	b := newBench(t, bucket(10, time.Second, 5))
	b.question(waiting(5))
	id, _ := b.Spend(b.now, 3)
	b.GiveBack(id, b.now, 3)
	b.payable(5, true)
	id, _ = b.Spend(b.now, 5)
	b.GiveBack(id, b.now, 1)
	b.payable(1, true)
	if must, _ := b.Matters(b.now); must > b.now {
		t.Error("it has something to report")
	}
	b.Spend(b.now, 1)
	b.now += 150 * ms
	b.question(waiting(1))
	b.GiveBack(id, b.now, 4)
	b.payable(2, false)
	b.instant("ask", b.AskAt(b.now, Demand{}), b.now+20*ms)
	if p, _ := b.question(Demand{}); len(p.Back) != 1 || p.Back[0] != (store.Return{Tokens: 4, Lease: id}) {
		t.Errorf("asked %+v", p)
	}
}

func TestReturnsOfManyLeasesAreJoinedIntoTheEarlier(t *testing.T) {
	b := newBench(t, bucket(10, time.Second, 5))
	sum := int64(0)
	for i := range int64(100) {
		b.GiveBack(1000-i, b.now, i+1)
		sum += i + 1
	}
	p := b.Ask(b.now, Demand{})
	if len(p.Back) > maxReturns {
		t.Errorf("%d returns", len(p.Back))
	}
	for _, r := range p.Back {
		sum -= r.Tokens
		if r.Lease > 1000 {
			t.Errorf("%+v", r)
		}
	}
	if sum != 0 {
		t.Errorf("%d tokens are missing", sum)
	}
}

func TestADebtTakesWhatIsAtHandAndTheStoreGetsTheRest(t *testing.T) {
	b := newBench(t, bucket(10, time.Second, 5))
	b.question(waiting(5))
	id, _ := b.Spend(b.now, 2)
	b.Settle(id, b.now, 2, 4)
	b.payable(1, true)
	b.payable(2, false)
	b.Settle(id, b.now, 4, 1000)
	b.payable(1, false)
	b.instant("it is reported", b.AskAt(b.now, Demand{}), b.now+20*ms)
	p, _ := b.question(Demand{})
	if p.Owe != 600 {
		t.Errorf("owes %d, want what comes in within a minute", p.Owe)
	}
	if got := b.others(9); got.Left != -600 {
		t.Errorf("%v are left", got.Left)
	}
	b.Settle(id, b.now, 10, 7)
	b.payable(3, true)
}

func TestAnAskThatFailedRepeatsDebtsAndNotReturns(t *testing.T) {
	b := newBench(t, bucket(10, time.Second, 5))
	b.owes(3, b.now)
	b.returns(store.Return{Tokens: 2, Lease: 7}, b.now)
	b.Hold(b.now, b.now+int64(time.Minute))
	p := b.Ask(b.now, waiting(1))
	if p.Owe != 3 || len(p.Back) != 1 || p.Hold != time.Minute {
		t.Fatalf("asked %+v", p)
	}
	b.owes(1, b.now)
	again := b.now + 50*ms
	b.Failed(b.now, again)
	b.instant("the debt is reported", b.AskAt(b.now, Demand{}), b.now+20*ms)
	p = b.Ask(b.now, waiting(1))
	if p.Owe != 4 || len(p.Back) != 0 || p.Hold != time.Minute {
		t.Errorf("asked again %+v", p)
	}
	c := newBench(t, bucket(10, time.Second, 5))
	c.Ask(c.now, waiting(1))
	c.Failed(c.now, again)
	c.instant("tokens are asked for", c.AskAt(c.now, waiting(1)), again)
}

func TestAHoldIsReportedImmediatelyAndReachesOthers(t *testing.T) {
	b := newBench(t, bucket(10, time.Second, 5))
	b.question(waiting(2))
	b.Hold(b.now, b.now+int64(time.Minute))
	b.payable(1, false)
	b.instant("ask", b.AskAt(b.now, Demand{}), b.now)
	b.question(Demand{})
	end := b.now + int64(time.Minute)
	other := &bench{T: t, Leased: newLeased(b.budget, Config{}), book: b.book, now: b.now + 10*ms}
	other.question(waiting(1))
	other.instant("the other's plan", other.Plan(other.now, 0, 1), end)
	other.instant("the other asks again", other.AskAt(other.now, waiting(1)), other.now+int64(other.recheck())) // the hold may be released
	b.instant("ready", b.Ready(0, 0, 1), meter.Never)                                                           // what it had is given back
	b.now = end - 1
	b.payable(1, false)
	b.now = end
	b.payable(1, false)
	b.instant("ask", b.AskAt(b.now, waiting(1)), b.now)
	b.question(waiting(1))
	b.payable(1, true)
	b.Hold(b.now, b.now+int64(time.Minute))
	b.question(waiting(1))
	b.Hold(b.now, b.now)
	b.instant("ask", b.AskAt(b.now, waiting(1)), b.now)
	if p, got := b.question(waiting(1)); p.Hold >= 0 || got.Hold != 0 {
		t.Errorf("asked %+v, got %+v", p, got)
	}
	b.payable(1, true)
}
