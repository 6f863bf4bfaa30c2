package meter

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzSettle reads words as costs that are charged, corrected and given back, as absurd as may be. No bucket ever holds
// more than its size, or owes more than it may beside what was granted, and its books are in order.
func FuzzSettle(f *testing.F) {
	f.Add(uint8(0), int64(3), int64(time.Second), int64(5), []byte("\x01\x02\x03\x04\x05\x06\x07\x08\x09abcdefgh01234567"))
	f.Add(uint8(1), int64(7), int64(24*time.Hour), int64(1), []byte("the quick brown fox jumps over the lazy dog, and again, and again"))
	f.Add(uint8(2), int64(1_000_003), int64(1), int64(9), bytes.Repeat([]byte{255, 0, 255}, 30))
	f.Add(uint8(3), int64(math.MaxInt64), int64(math.MaxInt64), int64(200), bytes.Repeat([]byte{255}, 90))
	f.Fuzz(func(t *testing.T, kind uint8, n, per, burst int64, data []byte) {
		if n <= 0 || per <= 0 || burst < 0 || len(data) > 9*200 {
			return
		}
		now, unix := Instant(0), int64(0)
		r := Rate{min(n, MaxCount), time.Duration(min(per, MaxPer))}
		if burst = min(burst, MaxCount); burst == 0 {
			burst = r.N
		}
		m := []Meter{
			NewTokenBucket(now, r, burst, burst), NewPace(now, r), NewSlidingWindow(r), NewFixedWindow(now, r, time.Time{}, &Wall{Unix: unix}), NewQuota(r),
		}[kind%5]
		size := min(m.Most(), r.N, MaxCount)
		owed := float64(size)
		switch kind % 5 {
		case 0:
			size = m.Most()
			owed = float64(size)
		case 1:
			owed = max(owed, SettleOver*r.PerSecond())
		default:
			owed *= MostUsed - 1
		}
		type taken struct{ charged, cost int64 }
		var all []taken
		for ; len(data) >= 9; data = data[9:] {
			what, value := data[0], int64(binary.LittleEndian.Uint64(data[1:])>>1)
			switch cost := 1 + value%max(1, min(size, 1000)); {
			case what%4 == 0:
				now = AddInstant(now, value%(1<<40))
			case what%4 == 1 && m.Payable(now, cost):
				all = append(all, taken{m.Take(now, now, cost, what&16 != 0), cost})
			case len(all) > 0:
				i := int(what>>2) % len(all)
				c := all[i]
				all = slices.Delete(all, i, i+1)
				if what%4 == 2 {
					m.Settle(c.charged, now, c.cost, min(value, MaxCount))
				} else {
					m.GiveBack(c.charged, now, c.cost)
				}
			}
			sound(t, m, now, owed)
		}
	})
}

// sound checks what holds of a bucket whatever happened to it.
func sound(t *testing.T, m Meter, now Instant, owed float64) {
	require.GreaterOrEqual(t, m.Tokens(now), -2*owed-1000, "%+v", m)
	switch m := m.(type) {
	case *TokenBucket:
		require.False(t, m.full.less(m.level), "%+v", m)
		peaks := m.peaks()
		for i := 1; i < len(peaks); i++ {
			require.Less(t, peaks[i-1].seq, peaks[i].seq)
			require.True(t, peaks[i-1].room.less(peaks[i].room), "%+v", peaks)
		}
	case *SlidingWindow:
		sum := int64(0)
		for i := m.head; i < len(m.log); i++ {
			require.GreaterOrEqual(t, m.cost(i), int64(0))
			sum += m.cost(i)
		}
		require.Equal(t, sum, m.used())
		require.LessOrEqual(t, m.used(), MostUsed*m.n)
	case *FixedWindow:
		require.GreaterOrEqual(t, m.used, int64(0))
		require.LessOrEqual(t, m.used, MostUsed*m.n)
	}
}
