package lease

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// A charge that does not leave few tokens need not look when to ask, because that is not earlier than before.
func TestOnlyFewTokensMoveTheAskEarlier(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		low, high := 0, 0
		b := newBench(t, bucket(5000, time.Second, 100))
		b.trip = r.Int64N(3 * ms)
		var spent uint64
		for range 2000 {
			b.now += r.Int64N(ms)
			before := b.AskAt(b.now, Demand{})
			if _, ok := b.Spend(b.now, 1+r.Int64N(3)); ok {
				after := b.AskAt(b.now, Demand{})
				switch {
				case b.Low():
					low++
				case after < before:
					t.Fatalf("seed %d: the ask is %v earlier", seed, time.Duration(before-after))
				default:
					high++
				}
			}
			switch at := b.AskAt(b.now, Demand{}); {
			case r.IntN(200) == 0:
				b.Alone(b.now, meter.Unlimited{}, false, &spent)
			case at <= b.now:
				b.question(Demand{})
			case r.IntN(10) == 0 && !b.Payable(b.now, 3):
				b.question(waiting(3))
			}
		}
		if low == 0 || high == 0 {
			t.Errorf("seed %d: tokens were low after %d charges, and not after %d", seed, low, high)
		}
	}
}

func TestFewSlotsMoveNoAskEarlier(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	m, book, now := newLeasedSlots(store.Budget{Kind: store.Slots, N: 10}, Config{Seed: 1}), store.NewBook(), int64(time.Second)
	for range 2000 {
		now += r.Int64N(50 * ms)
		before := m.AskAt(now, Demand{})
		if _, ok := m.Spend(now, 1); ok && !m.Low() && m.AskAt(now, Demand{}) < before {
			t.Fatalf("the ask is earlier by a charge with %d slots left", m.free())
		}
		if m.used > 0 && r.IntN(2) == 0 {
			m.GiveBack(0, now, 1)
		}
		if m.AskAt(now, waiting(3)) <= now {
			p := m.Ask(now, waiting(3))
			m.Booked(now, now+ms, p, book.Lease(time.Unix(0, began+now), []store.Ask{{Parts: []store.Part{p}}})[0].Parts[0])
		}
	}
}

// What a store may grant is more than none, however large the rate.
func TestAHugeRateOffersTokens(t *testing.T) {
	for _, kind := range []store.Kind{store.Bucket, store.Pace, store.Fixed, store.Sliding} {
		m := newLeased(store.Budget{Kind: kind, Limit: "l", N: meter.MaxCount, Per: 1, Burst: meter.MaxCount}, Config{})
		require.Positive(t, m.Offers(0), kind)
	}
}
