package throttle

import (
	"math"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

func TestExtremeValuesSaturate(t *testing.T) {
	r := metertest.Seeded(t, 3)
	extreme := func(from int64) int64 {
		all := []int64{0, 1, 2, maxCount - 1, maxCount, maxCount + 1, maxPer, math.MaxInt64 - 1, math.MaxInt64}
		return max(from, all[r.IntN(len(all))])
	}
	rounds := 2_000
	if testing.Short() {
		rounds = 100
	}
	for range rounds {
		l := newLimit([]limitKind{kindBucket, kindPace, kindSliding, kindFixed}[r.IntN(4)], 1, 1, nil)
		if r.IntN(3) == 0 {
			l.share = 1 - r.Float64()
		}
		rt := rate{N: extreme(1), Per: time.Duration(extreme(1))}
		if l.check(rt) != nil {
			continue
		}
		wall := &meter.Wall{Unix: r.Int64N(1 << 61)}
		b := bucket{limit: new(limit), extra: new(extra), meter: l.meter(0, l.shared(rt), l.burstOf(rt), wall)}
		now := instant(0)
		for range 50 {
			now = min(now+r.Int64N(1<<r.IntN(61)), maxPer/2)
			if r.IntN(5) == 0 {
				b.held = now + extreme(1)&(maxPer-1)
			}
			cost, ahead := extreme(1), min(extreme(0), 2*maxCount)
			first, later := b.ready(now, 0, cost), b.ready(now, ahead, cost)
			require.GreaterOrEqual(t, first, now, "%s %v, cost %d", l.kind, rt, cost)
			require.GreaterOrEqual(t, later, first, "%s %v, cost %d after %d", l.kind, rt, cost, ahead)
			if b.held <= now && b.meter.Payable(now, cost) {
				require.Equal(t, now, first, "%s %v, cost %d", l.kind, rt, cost)
				b.meter.Take(now, now, cost, false)
			}
			require.GreaterOrEqual(t, fullAt(b.meter), instant(0))
			require.False(t, math.IsNaN(b.meter.Tokens(now)))
			if r.IntN(5) == 0 {
				if next := (rate{N: extreme(1), Per: time.Duration(extreme(1))}); l.check(next) == nil {
					rt = next
					b.meter.Retune(now, l.shared(rt))
				}
			}
		}
	}
}
