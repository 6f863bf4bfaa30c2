package throttle

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
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
			transport, err := New(base, WithLimit(limit), WithWeights(map[string]int64{pattern: cost, "PUT /fuzz/only": 2}), WithMaxWait(time.Minute))
			if err != nil {
				require.Nil(t, transport)
				require.NotEmpty(t, err.Error())
				return
			}
			b := transport.limiter.limits[0].single
			r := b.rate
			require.Positive(t, r.n)
			require.Positive(t, r.per)
			start := time.Now()
			for range 30 {
				before := b.meter.tokens(int64(time.Since(start)))
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://example.com/fuzz/only", nil)
				resp, err := transport.RoundTrip(req)
				require.True(t, err != nil || resp != nil)
				require.False(t, math.IsNaN(before))
				if burst := b.burst(); burst < math.MaxInt64/4 {
					most := float64(burst) + r.perSecond()*(time.Since(start).Seconds()+2e-9)
					require.LessOrEqual(t, float64(2*sent), most*(1+1e-9)+2, "%+v", b.meter)
				}
			}
			checkInvariants(t, transport.limiter)
		})
	})
}

func fuzzedLimit(kind uint8, n int64, per time.Duration, burst, initial int64, share float64, name string) Limit {
	var opts []LimitOption
	if name != "" {
		opts = append(opts, Name(name))
	}
	if share != 0 {
		opts = append(opts, Share(share))
	}
	if kind%4 == 0 && burst != 0 {
		opts = append(opts, Burst(burst))
	}
	if kind%4 == 0 && initial != 0 {
		opts = append(opts, Initial(initial))
	}
	return []func(int64, time.Duration, ...LimitOption) Limit{TokenBucket, Pace, SlidingWindow, FixedWindow}[kind%4](n, per, opts...)
}

// burst returns how much a bucket may grant at one instant; a cost of 2 may make it 1 more.
func (b *bucket) burst() int64 {
	switch m := b.meter.(type) {
	case *tokenBucket:
		return m.burst
	case *slidingWindow:
		return m.n
	case *fixedWindow:
		return 2 * m.n // before and after the end of a window
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
		limit := TokenBucket(n, time.Duration(per), Burst(burst), Initial(0))
		if limit.validate() != nil || len(data) > 4*200 {
			return // what New refuses is FuzzOptions' business
		}
		synctest.Test(t, func(t *testing.T) {
			x := &modelRun{T: t, name: "bucket", burst: min(burst, maxCount), fates: make(map[int]fate), waiters: make(map[int]*modelWaiter)}
			r := limit.shared(limit.rate)
			x.m = &model{ideal: newRationalBucket(0, r, x.burst, 0), fates: make(map[int]fate)}
			x.l = limiterOf(t, WithLimit(limit))
			for ; len(data) >= 4; data = data[4:] {
				x.fuzzed(binary.LittleEndian.Uint32(data), r)
				x.compare()
			}
			for _, w := range x.m.line {
				w.cancel()
			}
			synctest.Wait()
			require.Empty(t, x.l.lines)
		})
	})
}

// fuzzed does what a word says: it lets time pass, or sends a request in.
func (x *modelRun) fuzzed(word uint32, r rate) {
	value := int64(word >> 4)
	if word&1 == 0 {
		one := min(int64(r.per)/r.n+1, int64(time.Hour))
		time.Sleep(time.Duration(value % (2 * one)))
		synctest.Wait()
		x.m.run(x.now())
		return
	}
	now := x.now()
	w := &modelWaiter{id: len(x.waiters), cost: 1 + value%min(x.burst+1, 1<<20)}
	w.bounds = bounds{arrived: now, expiry: never, deadline: never}
	ask := Ask{Cost: w.cost, Priority: int(word>>1&3) - 1}
	if word&8 != 0 {
		w.expiry = now + value*int64(time.Microsecond)
		ask.MaxWait = new(time.Duration(w.expiry - now))
	}
	w.rank = rankOf(now, ask.Priority)
	ctx, cancel := context.WithCancel(x.Context())
	w.cancel = cancel
	x.enter(ctx, w, ask)
}

// FuzzSettle reads words as costs that are charged, corrected and given back, as absurd as may be. No bucket ever holds
// more than its size, or owes more than it may beside what was granted, and its books are in order.
func FuzzSettle(f *testing.F) {
	f.Add(uint8(0), int64(3), int64(time.Second), int64(5), []byte("\x01\x02\x03\x04\x05\x06\x07\x08\x09abcdefgh01234567"))
	f.Add(uint8(1), int64(7), int64(24*time.Hour), int64(1), []byte("the quick brown fox jumps over the lazy dog, and again, and again"))
	f.Add(uint8(2), int64(1_000_003), int64(1), int64(9), bytes.Repeat([]byte{255, 0, 255}, 30))
	f.Add(uint8(3), int64(math.MaxInt64), int64(math.MaxInt64), int64(200), bytes.Repeat([]byte{255}, 90))
	f.Fuzz(func(t *testing.T, kind uint8, n, per, burst int64, data []byte) {
		limit := fuzzedLimit(kind, n, time.Duration(per), burst, 0, 0, "")
		if limit.validate() != nil || len(data) > 9*200 {
			return // what New refuses is FuzzOptions' business
		}
		now, unix := instant(0), int64(0)
		m := limit.meter(now, limit.shared(limit.rate), limit.burstOf(limit.rate), &unix)
		size := min(m.most(), limit.shared(limit.rate).n, maxCount)
		owed := float64(size)
		switch limit.kind {
		case kindBucket:
			size = m.most()
			owed = float64(size)
		case kindPace:
			owed = max(owed, settleOver*limit.shared(limit.rate).perSecond())
		}
		type taken struct{ charged, cost int64 }
		var all []taken
		for ; len(data) >= 9; data = data[9:] {
			what, value := data[0], int64(binary.LittleEndian.Uint64(data[1:])>>1)
			switch cost := 1 + value%max(1, min(size, 1000)); {
			case what%4 == 0:
				now = addInstant(now, value%(1<<40))
			case what%4 == 1 && m.payable(now, cost):
				all = append(all, taken{m.take(now, now, cost, what&16 != 0), cost})
			case len(all) > 0:
				i := int(what>>2) % len(all)
				c := all[i]
				all = slices.Delete(all, i, i+1)
				if what%4 == 2 {
					m.settle(c.charged, now, c.cost, min(value, maxCount))
				} else {
					m.giveBack(c.charged, now, c.cost)
				}
			}
			sound(t, m, now, owed)
		}
	})
}

// sound checks what holds of a bucket whatever happened to it.
func sound(t *testing.T, m meter, now instant, owed float64) {
	require.GreaterOrEqual(t, m.tokens(now), -2*owed-1000, "%+v", m)
	switch m := m.(type) {
	case *tokenBucket:
		require.False(t, m.full.less(m.level), "%+v", m)
		for i := 1; i < len(m.peaks); i++ {
			require.Less(t, m.peaks[i-1].seq, m.peaks[i].seq)
			require.True(t, m.peaks[i-1].room.less(m.peaks[i].room), "%+v", m.peaks)
		}
	case *slidingWindow:
		sum := int64(0)
		for _, e := range m.log[m.head:] {
			require.GreaterOrEqual(t, e.cost, int64(0))
			sum += e.cost
		}
		require.Equal(t, sum, m.used)
		require.LessOrEqual(t, m.used, 2*m.n)
	case *fixedWindow:
		require.GreaterOrEqual(t, m.used, int64(0))
		require.LessOrEqual(t, m.used, 2*m.n)
	}
}
