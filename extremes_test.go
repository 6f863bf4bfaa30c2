package throttle

import (
	"math"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/httpthrottle/throttle/internal/queue"
	"github.com/stretchr/testify/require"
)

func TestExtremeValuesSaturate(t *testing.T) {
	r := metertest.Seeded(t, 3)
	extreme := func(from int64) int64 {
		all := []int64{0, 1, 2, meter.MaxCount - 1, meter.MaxCount, meter.MaxCount + 1, meter.MaxPer, math.MaxInt64 - 1, math.MaxInt64}
		return max(from, all[r.IntN(len(all))])
	}
	rounds := 2_000
	if testing.Short() {
		rounds = 100
	}
	for range rounds {
		l := newLimit([]limitKind{kindBucket, kindPace, kindSliding, kindFixed}[r.IntN(4)], 1, 1, nil)
		if r.IntN(3) == 0 {
			l.rule.Share = 1 - r.Float64()
		}
		rt := meter.Rate{N: extreme(1), Per: time.Duration(extreme(1))}
		if l.check(rt) != nil {
			continue
		}
		wall := &meter.Wall{Unix: r.Int64N(1 << 61)}
		b := queue.Bucket{Limit: new(queue.Limit), Extra: new(queue.Extra), Meter: l.meter(0, l.rule.Shared(rt), l.rule.BurstOf(rt), wall)}
		now := meter.Instant(0)
		for range 50 {
			now = min(now+r.Int64N(1<<r.IntN(61)), meter.MaxPer/2)
			if r.IntN(5) == 0 {
				b.Held = now + extreme(1)&(meter.MaxPer-1)
			}
			cost, ahead := extreme(1), min(extreme(0), 2*meter.MaxCount)
			first, later := b.Ready(now, 0, cost), b.Ready(now, ahead, cost)
			require.GreaterOrEqual(t, first, now, "%s %v, cost %d", l.kind, rt, cost)
			require.GreaterOrEqual(t, later, first, "%s %v, cost %d after %d", l.kind, rt, cost, ahead)
			if b.Held <= now && b.Meter.Payable(now, cost) {
				require.Equal(t, now, first, "%s %v, cost %d", l.kind, rt, cost)
				b.Meter.Take(now, now, cost, false)
			}
			_, full := b.Meter.Matters(0)
			require.GreaterOrEqual(t, full, meter.Instant(0))
			require.False(t, math.IsNaN(b.Meter.Tokens(now)))
			if r.IntN(5) == 0 {
				if next := (meter.Rate{N: extreme(1), Per: time.Duration(extreme(1))}); l.check(next) == nil {
					rt = next
					b.Meter.Retune(now, l.rule.Shared(rt))
				}
			}
		}
	}
}
