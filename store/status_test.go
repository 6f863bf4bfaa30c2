package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The status of a budget is what an ask would find, at each instant, and a hold lasts as long as it says.
func TestStatusIsWhatAnAskFinds(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, b := range []Budget{
		{Kind: Bucket, Limit: "l", Key: "k", N: 10, Per: time.Second, Burst: 50, Initial: 50},
		{Kind: Pace, Limit: "l", Key: "k", N: 10, Per: time.Second},
		{Kind: Sliding, Limit: "l", Key: "k", N: 50, Per: time.Second},
		{Kind: Fixed, Limit: "l", Key: "k", N: 50, Per: 10 * time.Second},
		{Kind: Slots, Limit: "l", Key: "k", N: 50},
	} {
		book := NewBook()
		_, ok := book.Status(&b, now)
		require.False(t, ok)
		require.False(t, book.Hold(&b, now, time.Second), "a new budget")
		part := Part{Budget: b, Need: 1, Want: 7, Since: MaxSince, Holder: "h"}
		book.Lease(now, []Ask{{Parts: []Part{part}}})
		for _, after := range []time.Duration{0, 100 * time.Millisecond, 600 * time.Millisecond, time.Second - time.Microsecond} {
			at := now.Add(after)
			state := book.State(&b)
			s, ok := book.Status(&b, at)
			require.True(t, ok)
			assert.Equal(t, state, book.State(&b), "a look changes nothing")
			other := NewBook()
			require.NoError(t, other.SetState(&b, state))
			held := int64(0)
			if b.Kind == Slots {
				held = 7
			}
			found := other.Lease(at, []Ask{{Parts: []Part{{Budget: b, Holder: "h", Held: held}}}})[0].Parts[0]
			assert.InDelta(t, found.Left, s.Left, 1e-9, "%s after %v", b.Kind, after)
			assert.Equal(t, found.Processes, s.Processes, "%s after %v", b.Kind, after)
			assert.Equal(t, []string{string(b.Kind), "l", "k"}, []string{s.Kind, s.Limit, s.Key})
			if b.Kind != Slots {
				assert.InEpsilon(t, float64(b.N)/b.Per.Seconds(), s.PerSecond, 1e-9)
				assert.InEpsilon(t, map[Kind]float64{Bucket: 50, Pace: 1, Sliding: 50, Fixed: 50}[b.Kind], s.Most, 1e-9)
			} else {
				assert.Equal(t, []Holder{{"h", 7, 0, SlotLease - after}}, s.Holders)
			}
		}
		require.True(t, book.Hold(&b, now, time.Minute))
		for left, at := range map[time.Duration]time.Time{time.Minute: now, time.Microsecond: now.Add(time.Minute - time.Microsecond)} {
			s, ok := book.Status(&b, at)
			require.True(t, ok)
			assert.Equal(t, left, s.Held, b.Kind)
		}
		require.True(t, book.Hold(&b, now, 0))
		s, _ := book.Status(&b, now)
		assert.Zero(t, s.Held)
	}
}
