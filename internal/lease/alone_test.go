package lease

import (
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

func TestLocalMeterPaysUntilTheNextResponse(t *testing.T) {
	b := newBench(t, bucket(100, time.Second, 10))
	b.question(waiting(10))
	for range 10 {
		b.Take(b.now, b.now, 1, true)
	}
	b.payable(1, false)
	var spent uint64
	b.Alone(b.now, b.Local(b.now, 4), true, &spent)
	b.instant("ready", b.Ready(b.now, 0, 1), b.now+40*ms)
	b.payable(1, false)
	b.now += 40*ms - 1
	b.payable(1, false)
	b.now++
	charged, ok := b.Spend(b.now, 1)
	if !ok || charged != localCharge || spent != 1 {
		t.Errorf("charge %d, %v, %d spent", charged, ok, spent)
	}
	b.instant("plan", b.Plan(b.now, 0, 1), b.now+40*ms)
	b.instant("ask", b.AskAt(b.now, Demand{}), b.now)
	b.payable(11, false)
	if p := b.Ask(b.now, Demand{}); p.Owe != 1 {
		t.Errorf("it owes %d", p.Owe)
	}
	b.Failed(b.now, b.now)
	b.GiveBack(charged, b.now, 1)
	part, _ := b.question(waiting(1))
	if part.Owe != 0 || b.IsAlone() {
		t.Errorf("it owes %d of what was given back, and is alone: %v", part.Owe, b.IsAlone())
	}
}

func TestWhatPassedIsNotOwed(t *testing.T) {
	b := newBench(t, bucket(100, time.Second, 10))
	var spent uint64
	b.Alone(b.now, meter.Unlimited{}, false, &spent)
	for range 50 {
		if _, ok := b.Spend(b.now, 10); !ok {
			t.Fatal("it does not pass")
		}
	}
	if _, ok := b.Spend(b.now, 11); ok {
		t.Error("a cost above the burst passes")
	}
	if part, _ := b.question(waiting(1)); part.Owe != 0 || spent != 500 {
		t.Errorf("it owes %d, %d spent", part.Owe, spent)
	}
}

func TestHoldCountsWhileALocalMeterPays(t *testing.T) {
	b := newBench(t, bucket(100, time.Second, 10))
	var spent uint64
	b.Alone(b.now, meter.Unlimited{}, false, &spent)
	b.Hold(b.now, b.now+10*ms)
	b.payable(1, false)
	b.instant("ready", b.Ready(0, 0, 1), b.now+10*ms)
	b.now += 10 * ms
	b.payable(1, true)
}

func TestFarPromisesAreTradedForTokensThatOthersReturn(t *testing.T) {
	b := newBench(t, bucket(1, time.Hour, 10))
	other := b.others(10)
	b.question(waiting(1))
	b.instant("ready", b.Ready(0, 0, 1), b.now+int64(time.Hour))
	b.instant("it asks again", b.AskAt(b.now, waiting(1)), b.now+int64(b.recheck()))
	b.book.Lease(time.Unix(0, began+b.now), []store.Ask{{Parts: []store.Part{{Budget: b.budget, Back: []store.Return{{Tokens: 5, Lease: other.ID}}}}}})
	b.now += int64(b.recheck())
	b.question(waiting(1))
	b.instant("it asks for others", b.AskAt(b.now, waiting(1)), b.now)
	b.question(waiting(1))
	b.payable(1, true)
}

func TestResponsesThatCannotBeAreErrors(t *testing.T) {
	asked := store.Part{Need: 1, Want: 5, Ahead: 2}
	for _, p := range []store.LeasedPart{{Tokens: -1}, {Tokens: 8}, {Tokens: 1, AtOnce: 2}, {AtOnce: -1}, {Next: -1}, {Until: -1}, {Wait: -1}, {Hold: -1}} {
		if Check(&p, &asked) == nil {
			t.Errorf("%+v is possible", p)
		}
	}
	if err := Check(&store.LeasedPart{Tokens: 7, AtOnce: 7}, &asked); err != nil {
		t.Error(err)
	}
}
