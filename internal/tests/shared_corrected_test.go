package tests

import (
	"context"
	"fmt"
	"sync"
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

// Processes that share a bucket or a pace get as much back of what requests did not cost as one process without a store does, although
// they have tokens promised before these are due. Of what requests cost more, they pay all: one process is in debt by no more than its burst.
func TestACorrectedFleetUsesAsMuchAsOneProcess(t *testing.T) { // slow: fleets for minutes
	bucket := func(burst int64) func(...throttle.LimitOption) throttle.Limit {
		return func(opts ...throttle.LimitOption) throttle.Limit {
			return throttle.TokenBucket(perMinute, time.Minute, append(opts, throttle.Burst(burst))...)
		}
	}
	pace := func(opts ...throttle.LimitOption) throttle.Limit {
		return throttle.Pace(perMinute, time.Minute, opts...)
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
	} {
		t.Run(fmt.Sprintf("%s, cost %d", f.name, f.truth), func(t *testing.T) {
			assert.InDelta(t, min(1, f.used(t, 0)), f.used(t, 8), .02)
		})
	}
}
