package limiter_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/meter"
)

// A slotRun is a set of requests against a Limiter, each with the instant at which it was decided.
type slotRun struct {
	*testing.T
	l     *throttle.Limiter
	start time.Time
	mu    sync.Mutex
	at    []time.Duration
	errs  []error
	grant []*throttle.Grant
}

func newSlotRun(t *testing.T, opts ...throttle.Option) *slotRun {
	return &slotRun{T: t, l: limiterOf(t, opts...), start: time.Now()}
}

// take starts a request for that many slots of the limit "in-flight", and returns its number.
func (x *slotRun) take(slots int64, maxWait time.Duration) int {
	x.mu.Lock()
	i := len(x.at)
	x.at, x.errs, x.grant = append(x.at, -1), append(x.errs, nil), append(x.grant, nil)
	x.mu.Unlock()
	a := throttle.Ask{Costs: map[string]int64{"in-flight": slots}}
	if maxWait > 0 {
		a.MaxWait = &maxWait
	}
	go func() {
		g, err := x.l.Acquire(x.Context(), a)
		x.mu.Lock()
		defer x.mu.Unlock()
		x.at[i], x.errs[i], x.grant[i] = time.Since(x.start), err, g
	}()
	synctest.Wait()
	return i
}

func (x *slotRun) done(i int) {
	x.grant[i].Done()
	synctest.Wait()
}

func (x *slotRun) set(n int64) {
	require.NoError(x, x.l.SetInFlight("in-flight", n))
	synctest.Wait()
	checkInvariants(x.T, x.l)
}

func (x *slotRun) stats() throttle.BucketStats {
	for b := range x.l.Buckets() {
		return b
	}
	return throttle.BucketStats{}
}

func (x *slotRun) reasonOf(i int) throttle.Reason {
	r, ok := errors.AsType[*throttle.Rejection](x.errs[i])
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

const sec = time.Second

func TestMoreSlotsReleaseWaitersImmediately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newSlotRun(t, throttle.WithLimit(throttle.InFlight(2)))
		for range 6 {
			x.take(1, 0)
		}
		x.sleep(3*sec - 1)
		require.Equal(t, []time.Duration{0, 0, -1, -1, -1, -1}, x.ended())
		x.sleep(1)
		x.set(4)
		require.Equal(t, []time.Duration{0, 0, 3 * sec, 3 * sec, -1, -1}, x.ended())
		assert.Equal(t, 4, x.stats().InFlight)
		x.set(7)
		require.Equal(t, []time.Duration{0, 0, 3 * sec, 3 * sec, 3 * sec, 3 * sec}, x.ended())
		assert.Equal(t, 1.0, x.stats().Tokens)
	})
}

func TestFewerSlotsLetRequestsFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newSlotRun(t, throttle.WithLimit(throttle.InFlight(4)))
		for range 6 {
			x.take(1, 0)
		}
		x.sleep(sec)
		x.set(2)
		assert.Equal(t, 4, x.stats().InFlight)
		assert.Equal(t, -2.0, x.stats().Tokens)
		assert.Equal(t, 2.0, x.l.Limits()[0].Capacity)
		assert.Equal(t, 4, x.l.Limits()[0].InFlight)
		for i := range 3 { // 3, 2 and then 1 of 2 are in flight
			x.sleep(sec - 1)
			require.Equal(t, time.Duration(-1), x.ended()[4], "before %d are done", i+1)
			x.sleep(1)
			x.done(i)
		}
		require.Equal(t, []time.Duration{0, 0, 0, 0, 4 * sec, -1}, x.ended())
		x.done(3)
		require.Equal(t, 4*sec, x.ended()[5])
		assert.Equal(t, 2, x.stats().InFlight)
		for _, i := range []int{4, 5} {
			x.done(i)
		}
		assert.Equal(t, 2.0, x.stats().Tokens)
	})
}

func TestFewerSlotsRejectWhatCanNeverFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newSlotRun(t, throttle.WithLimit(throttle.InFlight(4)))
		first, large, small := x.take(4, 0), x.take(3, time.Hour), x.take(2, 0)
		x.sleep(sec)
		x.set(2)
		require.Equal(t, sec, x.ended()[large])
		require.Equal(t, throttle.ReasonCost, x.reasonOf(large))
		r, _ := errors.AsType[*throttle.Rejection](x.errs[large])
		require.Equal(t, time.Duration(math.MaxInt64), r.Wait)
		require.Equal(t, time.Duration(-1), x.ended()[small], "4 are in flight")
		late := x.take(3, 0)
		require.Equal(t, throttle.ReasonCost, x.reasonOf(late))
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
		x := newSlotRun(t, throttle.WithLimit(throttle.InFlight(4, throttle.ClampCost())))
		first, large, late := x.take(9, 0), x.take(3, 0), 0
		assert.Equal(t, 4, x.stats().InFlight)
		x.sleep(sec)
		x.set(2)
		x.done(first)
		require.Equal(t, sec, x.ended()[large])
		assert.Equal(t, 2, x.stats().InFlight)
		x.set(5)
		late = x.take(9, 0)
		x.done(large)
		require.NoError(t, x.errs[late])
		assert.Equal(t, 5, x.stats().InFlight)
		x.done(late)
		assert.Equal(t, 5.0, x.stats().Tokens)
	})
}

// A request that may wait for a minute is rejected after a minute, however the slots change meanwhile.
func TestPatienceOutlivesAChangeOfSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newSlotRun(t, throttle.WithLimit(throttle.InFlight(2)))
		x.take(2, 0)
		waits := x.take(1, time.Minute)
		x.sleep(30 * sec)
		x.set(1)
		x.sleep(30*sec - 1)
		require.Equal(t, time.Duration(-1), x.ended()[waits])
		x.sleep(1)
		require.Equal(t, time.Minute, x.ended()[waits])
		require.Equal(t, throttle.ReasonMaxWait, x.reasonOf(waits))
	})
}

func TestSlotsOfEveryKeyChange(t *testing.T) {
	l := limiterOf(t, throttle.WithLimit(throttle.InFlight(10, throttle.Fraction(0.5))))
	take := func(key string) (n int) {
		for {
			_, err := l.Acquire(t.Context(), throttle.Ask{Key: key, MaxWait: new(time.Duration(0))})
			if err != nil {
				require.ErrorIs(t, err, throttle.ErrThrottled)
				return n
			}
			n++
		}
	}
	require.Equal(t, 5, take("a"))
	require.Equal(t, 5, take(""))
	require.NoError(t, l.SetInFlight("in-flight", 16))
	require.Equal(t, 3, take("a"), "its share")
	require.Equal(t, 3, take(""))
	require.Equal(t, 8, take("new"))
	require.NoError(t, l.SetInFlight("in-flight", 1))
	require.Equal(t, 1, take("newer"), "a share is one at least")
	checkInvariants(t, l)
}

func TestSetInFlightNamesWhatIsWrong(t *testing.T) {
	l := limiterOf(t, throttle.WithLimit(throttle.InFlight(3), throttle.TokenBucket(1, time.Second)))
	for want, err := range map[string]error{
		`SetInFlight("in-flight", 0)`:       l.SetInFlight("in-flight", 0),
		`SetInFlight("in-flight", -1)`:      l.SetInFlight("in-flight", -1),
		"kind bucket has no slots":          l.SetInFlight("bucket", 1),
		`no limit named "other"`:            l.SetInFlight("other", 1),
		"kind in-flight has no burst":       l.SetBurst("in-flight", 1),
		"kind in-flight has no rate to set": l.SetRate("in-flight", 1, time.Second),
	} {
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, l.SetInFlight("in-flight", math.MaxInt64))
	for b := range l.Buckets() {
		if b.Limit == "in-flight" {
			require.Equal(t, float64(meter.MaxCount), b.Tokens)
		}
	}
}

// Slots in use are no part of a snapshot, nor is how many there are: the next process has requests and options of its own.
func TestASnapshotHasNoSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newSlotRun(t, throttle.WithLimit(throttle.InFlight(2)))
		x.take(2, 0)
		x.set(1)
		saved := x.l.Snapshot()
		require.Empty(t, stateOf(t, saved).Buckets)
		x.l.Hold("", 5*sec)
		saved = x.l.Snapshot()
		require.Len(t, stateOf(t, saved).Buckets, 1)
		next := newSlotRun(t, throttle.WithLimit(throttle.InFlight(3)))
		require.NoError(t, next.l.Restore(saved))
		next.take(3, 0)
		next.set(4)
		x.sleep(5*sec - 1)
		require.Equal(t, []time.Duration{-1}, next.ended())
		x.sleep(1)
		require.Equal(t, []time.Duration{5 * sec}, next.ended())
		require.Equal(t, 1.0, next.stats().Tokens)
	})
}

// The bodies that are open when the slots of a Transport are reduced stay readable and free their slots.
func TestFewerSlotsOfATransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripFunc(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("text")), Request: req}, nil
		})
		tr, err := throttle.New(base, throttle.WithLimit(throttle.InFlight(2)))
		require.NoError(t, err)
		open := func() *http.Response {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a/", nil)
			require.NoError(t, err)
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			return resp
		}
		first, second := open(), open()
		require.NoError(t, tr.Limiter().SetInFlight("in-flight", 1))
		sent := make(chan time.Time, 1)
		go func() {
			resp := open()
			sent <- time.Now()
			assert.NoError(t, resp.Body.Close())
		}()
		start := time.Now()
		time.Sleep(sec)
		require.NoError(t, first.Body.Close())
		time.Sleep(sec)
		text, err := io.ReadAll(second.Body)
		require.NoError(t, err)
		require.Equal(t, "text", string(text))
		require.Equal(t, 2*sec, (<-sent).Sub(start))
	})
}

type roundTripFunc func(*http.Request) (*http.Response, error)

func (f roundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// Two changes at the same time end with one of them everywhere.
func TestChangesAtTheSameTimeAgree(t *testing.T) {
	l := limiterOf(t, throttle.WithLimit(throttle.InFlight(5)))
	for i := range 1000 {
		g, err := l.Acquire(context.Background(), throttle.Ask{Key: string(rune('a' + i))})
		require.NoError(t, err)
		defer g.Done()
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 20 {
				assert.NoError(t, l.SetInFlight("in-flight", int64(1+i*20+n)))
			}
		})
	}
	all.Wait()
	free := make(map[float64]int)
	for b := range l.Buckets() {
		free[b.Tokens+float64(b.InFlight)]++
	}
	require.Len(t, free, 1, "every key has the same number of slots")
}
