package meter

import (
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

// Whatever is settled and given back, in whatever order: never more than had each request cost from the first what it
// cost in the end, its debt being charged when it became known.
func TestNothingIsMintedBySettlement(t *testing.T) {
	type entry struct {
		at, more Instant // of the take; of the debt
		cost     int64
		debt     int64
		seq      int64
		done     bool
	}
	for seed := range uint64(300) {
		r := metertest.Seeded(t, seed)
		rt := Rate{1 + r.Int64N(9), time.Duration(1 + r.Int64N(50))}
		burst := 1 + r.Int64N(60)
		initial := r.Int64N(burst + 1)
		b, now := NewTokenBucket(0, rt, burst, initial), Instant(0)
		var all []*entry
		for range 60 {
			switch r.IntN(7) {
			case 0, 1:
				now += r.Int64N(2 + 2*int64(rt.Per))
			case 2, 3, 4:
				cost := 1 + r.Int64N(max(1, burst/4))
				if b.Payable(now, cost) {
					all = append(all, &entry{at: now, cost: cost, seq: b.Take(now, now, cost, false), more: -1})
				}
			default:
				if len(all) == 0 {
					continue
				}
				e := all[r.IntN(len(all))]
				if e.done {
					continue
				}
				e.done = true
				if cost := r.Int64N(2*e.cost + 1); cost <= e.cost {
					b.Settle(e.seq, now, e.cost, cost)
					e.cost = cost
				} else if b.Tokens(now)-float64(cost-e.cost) > float64(-burst) {
					b.Settle(e.seq, now, e.cost, cost)
					e.debt, e.more = cost-e.cost, now
				}
			}
			m := metertest.NewBucket(0, rt, burst, initial)
			type ev struct {
				at   Instant
				cost int64
				owe  bool
				ord  int64
			}
			var evs []ev
			for i, e := range all {
				evs = append(evs, ev{e.at, e.cost, false, int64(i)})
				if e.debt > 0 {
					evs = append(evs, ev{e.more, e.debt, true, int64(i)})
				}
			}
			for {
				best := -1
				for i := range evs {
					if evs[i].ord >= 0 && (best < 0 || evs[i].at < evs[best].at) {
						best = i
					}
				}
				if best < 0 {
					break
				}
				m.At(evs[best].at, nil)
				m.Take(evs[best].at, evs[best].cost, false)
				evs[best].ord = -1
			}
			want, _ := m.At(now, nil).Float64()
			require.LessOrEqual(t, b.Tokens(now), want+1e-6, "seed %d", seed)
		}
	}
}
