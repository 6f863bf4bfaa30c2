package limiter_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
)

// A slotRun is a set of requests against a Limiter, each with the instant at which it was decided.
type slotRun struct {
	*testing.T
	l     *driven
	start time.Time
	mu    sync.Mutex
	at    []time.Duration
	errs  []error
	grant []*grant
}

func newSlotRun(t *testing.T, opts ...option) *slotRun {
	return &slotRun{T: t, l: drive(t, opts...), start: time.Now()}
}

// take starts a request for that many slots of the limit "in-flight", and returns its number.
func (x *slotRun) take(slots int64, maxWait time.Duration) int {
	x.mu.Lock()
	i := len(x.at)
	x.at, x.errs, x.grant = append(x.at, -1), append(x.errs, nil), append(x.grant, nil)
	x.mu.Unlock()
	a := ask{Costs: map[string]int64{"in-flight": slots}}
	if maxWait > 0 {
		a.MaxWait = &maxWait
	}
	go func() {
		g, err := x.l.acquire(x.Context(), a)
		x.mu.Lock()
		defer x.mu.Unlock()
		x.at[i], x.errs[i], x.grant[i] = time.Since(x.start), err, g
	}()
	synctest.Wait()
	return i
}

func (x *slotRun) done(i int) {
	x.grant[i].done()
	synctest.Wait()
}

func (x *slotRun) set(n int64) {
	x.l.setInFlight("in-flight", n)
	synctest.Wait()
	x.l.check()
}

func (x *slotRun) view() view { return x.l.views()[0] }

func (x *slotRun) reasonOf(i int) bucket.Reason {
	var r *rejection
	ok := errors.As(x.errs[i], &r)
	require.True(x, ok, "request %d: %v", i, x.errs[i])
	return r.Reason
}

// ended returns when each request was decided; -1: it waits.
func (x *slotRun) ended() []time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.at)
}

// sleep lets time pass, and what is due then happen.
func (x *slotRun) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestMoreSlotsReleaseWaitersImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newSlotRun(t, limits(inFlight(2)))
		for range 6 {
			x.take(1, 0)
		}
		x.sleep(3*sec - 1)
		require.Equal(t, []time.Duration{0, 0, -1, -1, -1, -1}, x.ended())
		x.sleep(1)
		x.set(4)
		require.Equal(t, []time.Duration{0, 0, 3 * sec, 3 * sec, -1, -1}, x.ended())
		assert.EqualValues(t, 4, x.view().InFlight)
		x.set(7)
		require.Equal(t, []time.Duration{0, 0, 3 * sec, 3 * sec, 3 * sec, 3 * sec}, x.ended())
		assert.Equal(t, 1.0, x.view().Tokens)
	})
}

func TestFewerSlotsLetRequestsFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newSlotRun(t, limits(inFlight(4)))
		for range 6 {
			x.take(1, 0)
		}
		x.sleep(sec)
		x.set(2)
		assert.EqualValues(t, 4, x.view().InFlight)
		assert.Equal(t, -2.0, x.view().Tokens)
		assert.Equal(t, 2.0, x.l.Limits[0].Single.Capacity())
		assert.Equal(t, 4, x.l.Limits[0].InFlight())
		for i := range 3 { // 3, 2 and then 1 of 2 are in flight
			x.sleep(sec - 1)
			require.Equal(t, time.Duration(-1), x.ended()[4], "before %d are done", i+1)
			x.sleep(1)
			x.done(i)
		}
		require.Equal(t, []time.Duration{0, 0, 0, 0, 4 * sec, -1}, x.ended())
		x.done(3)
		require.Equal(t, 4*sec, x.ended()[5])
		assert.EqualValues(t, 2, x.view().InFlight)
		for _, i := range []int{4, 5} {
			x.done(i)
		}
		assert.Equal(t, 2.0, x.view().Tokens)
	})
}

func TestFewerSlotsRejectWhatCanNeverFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newSlotRun(t, limits(inFlight(4)))
		first, large, small := x.take(4, 0), x.take(3, time.Hour), x.take(2, 0)
		x.sleep(sec)
		x.set(2)
		require.Equal(t, sec, x.ended()[large])
		require.Equal(t, bucket.ReasonCost, x.reasonOf(large))
		var r *rejection
		_ = errors.As(x.errs[large], &r)
		require.Equal(t, never, r.Wait)
		require.Equal(t, time.Duration(-1), x.ended()[small], "4 are in flight")
		late := x.take(3, 0)
		require.Equal(t, bucket.ReasonCost, x.reasonOf(late))
		x.done(first)
		require.Equal(t, sec, x.ended()[small])
		x.set(3)
		x.done(small)
		late = x.take(3, 0)
		require.NoError(t, x.errs[late])
	})
}

func TestFewerSlotsReduceClampedCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newSlotRun(t, limits(inFlight(4, clamped())))
		first, large, late := x.take(9, 0), x.take(3, 0), 0
		assert.EqualValues(t, 4, x.view().InFlight)
		x.sleep(sec)
		x.set(2)
		x.done(first)
		require.Equal(t, sec, x.ended()[large])
		assert.EqualValues(t, 2, x.view().InFlight)
		x.set(5)
		late = x.take(9, 0)
		x.done(large)
		require.NoError(t, x.errs[late])
		assert.EqualValues(t, 5, x.view().InFlight)
		x.done(late)
		assert.Equal(t, 5.0, x.view().Tokens)
	})
}

// A request that may wait for a minute is rejected after a minute, however the slots change meanwhile.
func TestMaxWaitOutlivesAChangeOfSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newSlotRun(t, limits(inFlight(2)))
		x.take(2, 0)
		waits := x.take(1, time.Minute)
		x.sleep(30 * sec)
		x.set(1)
		x.sleep(30*sec - 1)
		require.Equal(t, time.Duration(-1), x.ended()[waits])
		x.sleep(1)
		require.Equal(t, time.Minute, x.ended()[waits])
		require.Equal(t, bucket.ReasonMaxWait, x.reasonOf(waits))
	})
}

func TestSlotsOfEveryKeyChange(t *testing.T) {
	l := drive(t, inFlight(10, withFraction(0.5)))
	take := func(key string) (n int) {
		for {
			_, err := l.acquire(t.Context(), ask{Key: key, MaxWait: ptr(time.Duration(0))})
			if err != nil {
				require.ErrorIs(t, err, errRejected)
				return n
			}
			n++
		}
	}
	require.Equal(t, 5, take("a"))
	require.Equal(t, 5, take(""))
	l.setInFlight("in-flight", 16)
	require.Equal(t, 3, take("a"), "its share")
	require.Equal(t, 3, take(""))
	require.Equal(t, 8, take("new"))
	l.setInFlight("in-flight", 1)
	require.Equal(t, 1, take("newer"), "a share is one at least")
	l.check()
}

// Two changes at the same time end with one of them everywhere.
func TestChangesAtTheSameTimeAgree(t *testing.T) {
	l := drive(t, inFlight(5))
	for i := range 1000 {
		g, err := l.acquire(context.Background(), ask{Key: string(rune('a' + i))})
		require.NoError(t, err)
		defer g.done()
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 20 {
				l.setInFlight("in-flight", int64(1+i*20+n))
			}
		})
	}
	all.Wait()
	free := make(map[float64]int)
	for _, b := range l.views() {
		free[b.Tokens+float64(b.InFlight)]++
	}
	require.Len(t, free, 1, "every key has the same number of slots")
}
