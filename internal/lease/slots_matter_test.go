package lease

import (
	"testing"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A bucket of slots must not be forgotten while the store is asked, while requests use slots, while slots are leased, and while
// it is still to be reported that some came back.
func TestSlotsMatterWhileTheStoreKnowsOfThem(t *testing.T) {
	b := newSlotBench(t, 5)
	matters := func(what string, want bool) {
		t.Helper()
		must, _ := b.Matters(b.now)
		if (must == meter.Never) != want {
			t.Errorf("%s: must be kept until %d", what, must)
		}
	}
	matters("new", false)
	sent, part := b.now, b.Ask(b.now, waiting(1))
	matters("asked", true)
	b.now += ms
	b.Booked(sent, b.now, part, b.store(part))
	matters("leased", true)
	b.take(1)
	matters("used", true)
	b.now += b.keep
	b.GiveBack(0, b.now, 1)
	matters("unused", true)
	b.now += 2 * b.keep
	b.question(Demand{})
	matters("given back", false)

	b = newSlotBench(t, 1)
	b.question(waiting(1))
	b.take(1)
	b.other(0, 1)
	b.question(Demand{})
	b.GiveBack(0, b.now, 1)
	b.is("slots that are leased", b.leased, 0)
	matters("passed on to another process, which the store does not know yet", true)
	b.question(Demand{})
	matters("passed on", false)
}
