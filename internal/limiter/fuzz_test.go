package limiter_test

import (
	"context"
	"encoding/binary"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/httpthrottle/throttle/internal/order"
)

// FuzzArrivals reads bytes as arrivals, with costs, priorities and patience, and compares with the model.
func FuzzArrivals(f *testing.F) {
	f.Add(int64(3), int64(time.Second), int64(5), []byte("\x01\x02\x03\x04\x05\x06\x07\x08abcdefgh01234567"))
	f.Add(int64(7), int64(24*time.Hour), int64(1), []byte("the quick brown fox jumps over the lazy dog, and again, and again"))
	f.Add(int64(1_000_003), int64(1), int64(9), make([]byte, 64))
	f.Add(int64(1), int64(math.MaxInt64), int64(200), []byte{255, 255, 255, 255, 255, 255, 0, 0, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, n, per, burst int64, data []byte) {
		if n <= 0 || per <= 0 || burst <= 0 || len(data) > 4*200 {
			return
		}
		limit := tokenBucket(n, time.Duration(per), withBurst(burst), withInitial(0))
		synctest.Test(t, func(t *testing.T) {
			x := &modelRun{T: t, name: "bucket", burst: min(burst, meter.MaxCount), fates: make(map[int]fate), waiters: make(map[int]*modelWaiter)}
			x.l = drive(t, limit)
			li := x.l.Limits[0]
			r := li.Shared(li.Rate)
			x.m = &model{ideal: metertest.NewBucket(0, r, x.burst, 0), fates: make(map[int]fate)}
			for ; len(data) >= 4; data = data[4:] {
				x.fuzzed(binary.LittleEndian.Uint32(data), r)
				x.compare()
			}
			for _, w := range x.m.line {
				w.cancel()
			}
			synctest.Wait()
			require.Zero(t, x.l.LineCount())
		})
	})
}

// fuzzed does what a word says: it lets time pass, or sends a request in.
func (x *modelRun) fuzzed(word uint32, r meter.Rate) {
	value := int64(word >> 4)
	if word&1 == 0 {
		one := min(int64(r.Per)/r.N+1, int64(time.Hour))
		time.Sleep(time.Duration(value % (2 * one)))
		synctest.Wait()
		x.m.run(x.now())
		return
	}
	now := x.now()
	w := &modelWaiter{id: len(x.waiters), cost: 1 + value%min(x.burst+1, 1<<20)}
	w.bounds = bounds{Arrived: now, Expiry: meter.Never, Deadline: meter.Never}
	asked := ask{Cost: w.cost, Priority: int(word>>1&3) - 1}
	if word&8 != 0 {
		w.bounds.Expiry = now + value*int64(time.Microsecond)
		asked.MaxWait = ptr(time.Duration(w.bounds.Expiry - now))
	}
	w.bounds.Rank = order.RankOf(now, asked.Priority)
	ctx, cancel := context.WithCancel(x.Context())
	w.cancel = cancel
	x.enter(ctx, w, asked)
}
