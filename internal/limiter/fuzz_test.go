package limiter_test

import (
	"context"
	"encoding/binary"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/httpthrottle/throttle/internal/order"
)

// FuzzOptions gives New any options. It either says what is wrong with them, or keeps the limit that they describe.
func FuzzOptions(f *testing.F) {
	f.Add(uint8(0), int64(10), int64(time.Second), int64(5), int64(3), 1.0, "name", "POST /upload", int64(3))
	f.Add(uint8(1), int64(7), int64(24*time.Hour), int64(-1), int64(-1), 0.5, "", "/", int64(0))
	f.Add(uint8(2), int64(math.MaxInt64), int64(1), int64(math.MaxInt64), int64(math.MaxInt64), 0.3, "x", "example.com/", int64(math.MaxInt64))
	f.Add(uint8(3), int64(1), int64(math.MaxInt64), int64(0), int64(0), math.NaN(), "", "GET {", int64(-1))
	f.Add(uint8(0), int64(-1), int64(-1), int64(math.MinInt64), int64(math.MinInt64), math.Inf(1), "\x00", "", int64(math.MinInt64))
	f.Add(uint8(0), int64(1<<40), int64(1), int64(2), int64(0), 1e-300, "a", "/{x...}", int64(1))
	f.Fuzz(func(t *testing.T, kind uint8, n, per, burst, initial int64, share float64, name, pattern string, cost int64) {
		limit := fuzzedLimit(kind, n, time.Duration(per), burst, initial, share, name)
		synctest.Test(t, func(t *testing.T) {
			sent := int64(0)
			base := roundTripper(func(*http.Request) (*http.Response, error) {
				sent++
				return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
			})
			transport, err := throttle.New(base, throttle.WithLimit(limit), throttle.WithWeights(map[string]int64{pattern: cost, "PUT /fuzz/only": 2}), throttle.WithMaxWait(time.Minute))
			if err != nil {
				require.Nil(t, transport)
				require.NotEmpty(t, err.Error())
				return
			}
			b := coreOf(transport.Limiter()).Limits[0].Single
			r := b.Rate()
			require.Positive(t, r.N)
			require.Positive(t, r.Per)
			start := time.Now()
			for range 30 {
				before := b.Meter.Tokens(int64(time.Since(start)))
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://example.com/fuzz/only", nil)
				resp, err := transport.RoundTrip(req)
				require.True(t, err != nil || resp != nil)
				require.False(t, math.IsNaN(before))
				if burst := burstOf(b); burst < math.MaxInt64/4 {
					most := float64(burst) + r.PerSecond()*(time.Since(start).Seconds()+2e-9)
					require.LessOrEqual(t, float64(2*sent), most*(1+1e-9)+2, "%+v", b.Meter)
				}
			}
			checkInvariants(t, transport.Limiter())
		})
	})
}

func fuzzedLimit(kind uint8, n int64, per time.Duration, burst, initial int64, share float64, name string) throttle.Limit {
	var opts []throttle.LimitOption
	if name != "" {
		opts = append(opts, throttle.Name(name))
	}
	if share != 0 {
		opts = append(opts, throttle.Fraction(share))
	}
	if kind%4 == 0 && burst != 0 {
		opts = append(opts, throttle.Burst(burst))
	}
	if kind%4 == 0 && initial != 0 {
		opts = append(opts, throttle.Initial(initial))
	}
	return []func(int64, time.Duration, ...throttle.LimitOption) throttle.Limit{throttle.TokenBucket, throttle.Pace, throttle.SlidingWindow, throttle.FixedWindow}[kind%4](n, per, opts...)
}

// burstOf returns how much a bucket may grant at one instant; a cost of 2 may make it 1 more.
func burstOf(b *bucket.Bucket) int64 {
	switch m := b.Meter.(type) {
	case *meter.TokenBucket:
		return m.Burst()
	case *meter.SlidingWindow:
		return m.Most()
	case *meter.FixedWindow:
		return 2 * m.Most() // before and after the end of a window
	}
	return 0
}

// FuzzArrivals reads bytes as arrivals, with costs, priorities and patience, and compares with the model.
func FuzzArrivals(f *testing.F) {
	f.Add(int64(3), int64(time.Second), int64(5), []byte("\x01\x02\x03\x04\x05\x06\x07\x08abcdefgh01234567"))
	f.Add(int64(7), int64(24*time.Hour), int64(1), []byte("the quick brown fox jumps over the lazy dog, and again, and again"))
	f.Add(int64(1_000_003), int64(1), int64(9), make([]byte, 64))
	f.Add(int64(1), int64(math.MaxInt64), int64(200), []byte{255, 255, 255, 255, 255, 255, 0, 0, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, n, per, burst int64, data []byte) {
		limit := throttle.TokenBucket(n, time.Duration(per), throttle.Burst(burst), throttle.Initial(0))
		if invalid(limit) || len(data) > 4*200 {
			return // what New refuses is FuzzOptions' business
		}
		synctest.Test(t, func(t *testing.T) {
			x := &modelRun{T: t, name: "bucket", burst: min(burst, meter.MaxCount), fates: make(map[int]fate), waiters: make(map[int]*modelWaiter)}
			x.l = limiterOf(t, throttle.WithLimit(limit))
			li := coreOf(x.l).Limits[0]
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
			require.Zero(t, coreOf(x.l).LineCount())
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
	ask := throttle.Ask{Cost: w.cost, Priority: int(word>>1&3) - 1}
	if word&8 != 0 {
		w.bounds.Expiry = now + value*int64(time.Microsecond)
		ask.MaxWait = new(time.Duration(w.bounds.Expiry - now))
	}
	w.bounds.Rank = order.RankOf(now, ask.Priority)
	ctx, cancel := context.WithCancel(x.Context())
	w.cancel = cancel
	x.enter(ctx, w, ask)
}
