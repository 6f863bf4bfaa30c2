package tests

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// A countedStore counts its calls, each of which takes as long there as back.
type countedStore struct {
	store.Store
	oneWay time.Duration
	calls  atomic.Int64
}

func (d *countedStore) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	d.calls.Add(1)
	time.Sleep(d.oneWay)
	leases, err := d.Store.Lease(ctx, asks)
	time.Sleep(d.oneWay)
	return leases, err
}

// A costlyFleet is processes that share a bucket, each with callers that always want more.
type costlyFleet struct {
	processes, callers int
	oneWay             time.Duration
	perSecond          float64 // requests
	costs              []int64 // of the requests, in turn
	burst              int64
}

// A costlyResult is what a fleet got, from when its burst was used.
type costlyResult struct {
	calls  float64 // of the store for each request
	used   float64 // of the rate
	jain   float64
	beyond float64 // burst + rate·t, in tokens
}

func (f costlyFleet) play(t *testing.T) (got costlyResult) {
	mean := 0.
	for _, cost := range f.costs {
		mean += float64(cost) / float64(len(f.costs))
	}
	perMinute := int64(f.perSecond * mean * 60)
	rate := float64(perMinute) / 60
	warm := 2*time.Second + time.Duration(float64(f.burst)/rate*float64(time.Second))
	lasts := time.Duration(float64(f.processes) * 15 / f.perSecond * float64(time.Second))
	ctx, cancel := context.WithTimeout(t.Context(), warm+lasts)
	defer cancel()
	st := &countedStore{Store: store.NewMemory(), oneWay: f.oneWay}
	var all sync.WaitGroup
	var mu sync.Mutex
	shares, requests := make([]float64, f.processes), 0.
	level, at, began := -float64(f.burst), time.Duration(0), time.Now()
	got.beyond = math.Inf(-1)
	for p := range f.processes {
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(perMinute, time.Minute,
			throttle.Name("tokens"), throttle.Burst(f.burst), throttle.Shared(st))))
		require.NoError(t, err)
		for c := range f.callers {
			all.Go(func() {
				for i := p + c; ; i++ {
					cost := f.costs[i%len(f.costs)]
					if l.Wait(ctx, throttle.Ask{Cost: cost}) != nil {
						return
					}
					mu.Lock()
					now := time.Since(began)
					level = max(-float64(f.burst), level-rate*(now-at).Seconds()) + float64(cost)
					at = now
					got.beyond = max(got.beyond, level)
					if now > warm {
						shares[p] += float64(cost)
						requests++
					}
					mu.Unlock()
					time.Sleep(time.Millisecond)
				}
			})
		}
	}
	time.Sleep(warm)
	st.calls.Store(0)
	all.Wait()
	got.calls = float64(st.calls.Load()) / requests
	sum, squares := 0., 0.
	for _, share := range shares {
		sum, squares = sum+share, squares+share*share
	}
	got.used = sum / rate / lasts.Seconds()
	got.jain = sum * sum / squares / float64(f.processes)
	time.Sleep(time.Minute) // late calls
	return got
}

// What a request needs of a shared bucket is reserved whole: the calls of the store are in proportion to the requests, and not to the
// tokens, and no process keeps a part of a request.
func TestCallsOfASharedBucketDoNotGrowWithTheCost(t *testing.T) {
	for _, f := range []costlyFleet{
		{8, 8, time.Millisecond, 3.33, []int64{1}, 10},
		{8, 8, time.Millisecond, 3.33, []int64{1000}, 10_000},
		{8, 8, time.Millisecond, 3.33, []int64{10_000}, 10_000},
		{1, 64, time.Millisecond, 3.33, []int64{1000}, 10_000},
		{32, 4, 250 * time.Microsecond, 3.33, []int64{1000}, 10_000},
		{32, 4, 50 * time.Millisecond, 3.33, []int64{1000}, 1000},
		{8, 8, time.Millisecond, 33.3, []int64{10}, 100},
		{2, 8, 10 * time.Millisecond, 33.3, []int64{1000}, 1000},
		{1, 8, 50 * time.Millisecond, 33.3, []int64{1000}, 10_000},
		{8, 4, 10 * time.Millisecond, 33.3, []int64{1, 300, 1000}, 3000},
	} {
		t.Run(fmt.Sprintf("%+v", f), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := f.play(t)
				assert.LessOrEqual(t, got.calls, 3., "calls for each request")
				assert.GreaterOrEqual(t, got.used, .98)
				assert.GreaterOrEqual(t, got.jain, .9)
				assert.Less(t, got.beyond, 1.)
			})
		})
	}
}

// The last tokens before the deadline of all requests come a moment after it. No process asks for them again and again, neither for its first
// request nor for the one behind that.
func TestAFleetDoesNotAskForWhatComesAfterADeadline(t *testing.T) {
	for _, cost := range []int64{1, 20_000} {
		synctest.Test(t, func(t *testing.T) {
			st := &countedStore{Store: store.NewMemory(), oneWay: time.Millisecond}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var all sync.WaitGroup
			var sent atomic.Int64
			for range 8 {
				l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(12*cost, time.Minute, throttle.Name("tokens"), throttle.Burst(2*cost), throttle.Shared(st))))
				require.NoError(t, err)
				for range 8 {
					all.Go(func() {
						for l.Wait(ctx, throttle.Ask{Cost: cost}) == nil {
							sent.Add(1)
							time.Sleep(time.Millisecond)
						}
					})
				}
			}
			all.Wait()
			assert.EqualValues(t, 5, sent.Load(), "the burst, and one in five seconds")
			assert.LessOrEqual(t, st.calls.Load(), int64(8+10), "calls of the store: one of each process, and two for each request")
			time.Sleep(time.Minute)
		})
	}
}

// Tokens for a request that could not wait long enough would be missing in other processes. The store is only asked for them when others may
// have given some back.
func TestARejectedRequestLeasesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &countedStore{Store: store.NewMemory(), oneWay: time.Millisecond}
		var fleet [2]*throttle.Limiter
		for i := range fleet {
			var err error
			fleet[i], err = throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(60, time.Minute, throttle.Name("tokens"), throttle.Burst(60), throttle.Shared(st))))
			require.NoError(t, err)
		}
		brief := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			return fleet[0].Wait(ctx, throttle.Ask{Cost: 2})
		}
		require.NoError(t, fleet[1].Wait(t.Context(), throttle.Ask{Cost: 60}))
		require.Error(t, brief(), "nothing is known, so the store is asked, which has none")
		time.Sleep(200 * time.Millisecond)
		known := st.calls.Load()
		for began := time.Now(); time.Since(began) < 3*time.Second; time.Sleep(700 * time.Millisecond) {
			if time.Since(began) < time.Second {
				require.Error(t, brief(), "two tokens come in within two seconds")
				assert.Equal(t, known, st.calls.Load())
			}
		}
		require.NoError(t, brief())
		assert.Equal(t, known+1, st.calls.Load())
		time.Sleep(time.Minute)
	})
}
