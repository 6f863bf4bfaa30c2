package tests

import (
	"context"
	"fmt"
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

// A correctedFleet has 64 callers whose requests are estimated at 1,000 tokens, really cost truth, and take 5 s.
type correctedFleet struct {
	name  string
	limit func(...throttle.LimitOption) throttle.Limit
	truth int64
}

const perMinute = 100_000 // tokens

// used returns what is really used of the rate, by processes that share the limit, or by one without a store if there are none.
func (f correctedFleet) used(t *testing.T, processes int) (share float64) {
	synctest.Test(t, func(t *testing.T) {
		const warm, lasts = 2 * time.Minute, 8 * time.Minute
		ctx, cancel := context.WithTimeout(t.Context(), warm+lasts)
		defer cancel()
		st := &countedStore{Store: store.NewMemory(), oneWay: time.Millisecond}
		var all sync.WaitGroup
		var mu sync.Mutex
		used, began := int64(0), time.Now()
		for range max(1, processes) {
			opts := []throttle.LimitOption{throttle.Name("tokens")}
			if processes > 0 {
				opts = append(opts, throttle.Shared(st))
			}
			l, err := throttle.NewLimiter(throttle.WithLimit(f.limit(opts...)))
			require.NoError(t, err)
			for range 64 / max(1, processes) {
				all.Go(func() {
					for {
						g, err := l.Acquire(ctx, throttle.Ask{Cost: 1000})
						if err != nil {
							return
						}
						sent := time.Since(began)
						time.Sleep(5 * time.Second)
						assert.NoError(t, g.Settle("tokens", f.truth))
						mu.Lock()
						if sent >= warm {
							used += f.truth
						}
						mu.Unlock()
					}
				})
			}
		}
		all.Wait()
		time.Sleep(time.Minute) // late calls
		share = float64(used) / perMinute / lasts.Minutes()
	})
	return share
}

// Processes that share a limit get as much back of what requests did not cost as one process without a store does, although they have tokens
// promised before these are due. Of what requests cost more, they pay all: one process is in debt by no more than the burst of a bucket.
func TestACorrectedFleetUsesAsMuchAsOneProcess(t *testing.T) { // slow: fleets for minutes
	bucket := func(burst int64) func(...throttle.LimitOption) throttle.Limit {
		return func(opts ...throttle.LimitOption) throttle.Limit {
			return throttle.TokenBucket(perMinute, time.Minute, append(opts, throttle.Burst(burst))...)
		}
	}
	pace := func(opts ...throttle.LimitOption) throttle.Limit {
		return throttle.Pace(perMinute, time.Minute, opts...)
	}
	window := func(of func(int64, time.Duration, ...throttle.LimitOption) throttle.Limit) func(...throttle.LimitOption) throttle.Limit {
		return func(opts ...throttle.LimitOption) throttle.Limit { return of(perMinute, time.Minute, opts...) }
	}
	for _, f := range []correctedFleet{
		{"bucket, a fiftieth", bucket(perMinute / 50), 200},
		{"bucket, a fiftieth", bucket(perMinute / 50), 500},
		{"bucket, a fiftieth", bucket(perMinute / 50), 3000},
		{"bucket, a tenth", bucket(perMinute / 10), 200},
		{"bucket, a tenth", bucket(perMinute / 10), 500},
		{"bucket, a tenth", bucket(perMinute / 10), 5000},
		{"bucket", bucket(perMinute), 200},
		{"pace", pace, 200},
		{"pace", pace, 800},
		{"pace", pace, 5000},
		{"sliding window", window(throttle.SlidingWindow), 500},
		{"sliding window", window(throttle.SlidingWindow), 1500},
		{"fixed window", window(throttle.FixedWindow), 500},
		{"fixed window", window(throttle.FixedWindow), 1500},
	} {
		t.Run(fmt.Sprintf("%s, cost %d", f.name, f.truth), func(t *testing.T) {
			assert.InDelta(t, min(1, f.used(t, 0)), f.used(t, 8), .025) // .02 in the mean; one of 25 runs of a window of 20 has up to .024
		})
	}
}

// Windows of a second that are granted at once, to requests that cost what truth returns and are estimated at 10 tokens, pay for all that is
// used, and lose nothing to estimates that are right on average.
func TestAWindowPaysForWhatRequestsReallyCost(t *testing.T) {
	kinds := map[string]func(int64, time.Duration, ...throttle.LimitOption) throttle.Limit{"sliding": throttle.SlidingWindow, "fixed": throttle.FixedWindow}
	for name, c := range map[string]struct {
		processes int
		takes     time.Duration
		truth     func(i int64) int64
		least     float64
	}{
		"three times the estimate":            {0, 20 * time.Millisecond, func(int64) int64 { return 30 }, .93},
		"three times the estimate, a fleet":   {8, 20 * time.Millisecond, func(int64) int64 { return 30 }, .93},
		"five times the estimate, a fleet":    {8, 20 * time.Millisecond, func(int64) int64 { return 50 }, .9},
		"right on average":                    {0, 900 * time.Millisecond, func(i int64) int64 { return 5 + i%11 }, .93},
		"right on average, longer":            {0, 1500 * time.Millisecond, func(i int64) int64 { return 5 + i%11 }, .93},
		"right on average, longer, and a few": {4, 1500 * time.Millisecond, func(i int64) int64 { return 5 + i%11 }, .9},
	} {
		for kind, window := range kinds {
			inBubble(t, kind+", "+name, func(t *testing.T) {
				const warm, lasts, n = 5 * time.Second, time.Minute, 1000 // five windows are paid together, and may lie at either end
				ctx, cancel := context.WithTimeout(t.Context(), warm+lasts+10*time.Second)
				defer cancel()
				st := &countedStore{Store: store.NewMemory(), oneWay: time.Millisecond}
				var all sync.WaitGroup
				var count, used atomic.Int64
				began := time.Now()
				for range max(1, c.processes) {
					opts := []throttle.LimitOption{throttle.Name("x")}
					if c.processes > 0 {
						opts = append(opts, throttle.Shared(st))
					}
					l, err := throttle.NewLimiter(throttle.WithLimit(window(n, time.Second, opts...)))
					require.NoError(t, err)
					for range 240 / max(1, c.processes) {
						all.Go(func() {
							for time.Since(began) < warm+lasts {
								g, err := l.Acquire(ctx, throttle.Ask{Cost: 10})
								if err != nil {
									return
								}
								sent, truth := time.Since(began), c.truth(count.Add(1))
								time.Sleep(c.takes)
								assert.NoError(t, g.Settle("x", truth))
								if sent >= warm && sent < warm+lasts {
									used.Add(truth)
								}
							}
						})
					}
				}
				all.Wait()
				time.Sleep(time.Minute) // late calls
				share := float64(used.Load()) / n / lasts.Seconds()
				assert.LessOrEqual(t, share, 1.1)
				assert.GreaterOrEqual(t, share, c.least)
			})
		}
	}
}

// A Quota that is shared is a Pace with a small burst, to which what requests did not need comes back for all processes. So estimates that are
// right on average lose nothing, and no minute has more than n.
func TestASharedQuotaHasOverchargesBack(t *testing.T) { // slow: fleets for minutes
	for processes, least := range map[int]float64{1: .945, 8: .945, 32: .94} {
		inBubble(t, fmt.Sprintf("%d processes", processes), func(t *testing.T) {
			const lasts = 10 // minutes, the first of which does not count
			ctx, cancel := context.WithTimeout(t.Context(), lasts*time.Minute)
			defer cancel()
			st := &countedStore{Store: store.NewMemory(), oneWay: time.Millisecond}
			var all sync.WaitGroup
			var count atomic.Int64
			var used [lasts * 60]atomic.Int64
			began := time.Now()
			for range processes {
				l, err := throttle.NewLimiter(throttle.WithLimit(throttle.Quota(perMinute, time.Minute, throttle.Name("tokens"), throttle.Shared(st))))
				require.NoError(t, err)
				for range 64 / processes {
					all.Go(func() {
						for {
							g, err := l.Acquire(ctx, throttle.Ask{Cost: 1000})
							if err != nil {
								return
							}
							truth := 500 + count.Add(1)*617%1001
							used[int(time.Since(began).Seconds())].Add(truth)
							time.Sleep(5 * time.Second)
							assert.NoError(t, g.Settle("tokens", truth))
						}
					})
				}
			}
			all.Wait()
			time.Sleep(time.Minute) // late calls
			sum, most := 0., 0.
			for i := 60; i < len(used); i++ {
				sum += float64(used[i].Load())
				minute := 0.
				for k := i; k < min(i+60, len(used)); k++ {
					minute += float64(used[k].Load())
				}
				most = max(most, minute/perMinute)
			}
			share := sum / perMinute / (lasts - 1)
			t.Logf("used %.3f, at most %.3f in a minute", share, most)
			assert.GreaterOrEqual(t, share, least)
			assert.LessOrEqual(t, most, 1.)
		})
	}
}
