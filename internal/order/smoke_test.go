package order

import (
	"testing"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/stretchr/testify/require"
)

// A fake pays from a meter.
type fake struct {
	meter.Meter
	held     Instant
	interval int64
}

func (f *fake) Ready(from Instant, cost int64) Instant {
	return f.Meter.Ready(max(from, f.held), 0, cost)
}
func (f *fake) Plan(from Instant, ahead, cost int64) Instant {
	if p, ok := f.Meter.(meter.Planner); ok {
		return p.Plan(max(from, f.held), ahead, cost)
	}
	return f.Meter.Ready(max(from, f.held), ahead, cost)
}
func (f *fake) Interval() int64 {
	if s, ok := f.Meter.(meter.Steady); ok {
		return s.Interval()
	}
	return 0
}

const second = Instant(1e9)

func bucketOf(n, burst, initial int64) *Point {
	return &Point{Payer: &fake{Meter: meter.NewTokenBucket(0, meter.Rate{N: n, Per: 1e9}, burst, initial)}}
}

func TestWaitersGoOneByOne(t *testing.T) {
	var o Order
	p := bucketOf(1, 1, 0)
	for range 3 {
		w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Last: Never}
		o.Join(w, 0)
	}
	w, _ := o.Next(0)
	require.Nil(t, w)
	for i := range 3 {
		require.Equal(t, Instant(i+1)*second, o.Wake())
		w, due := o.Next(o.Wake())
		require.NotNil(t, w)
		require.Equal(t, Instant(i+1)*second, due)
		for i, p := range w.At {
			p.Payer.(*fake).Take(due, due, w.Costs[i], true)
		}
		w, _ = o.Next(due)
		require.Nil(t, w)
	}
	require.Equal(t, Never, o.Wake())
}
