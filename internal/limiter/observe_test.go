package limiter_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// A ledger adds up what an observer gets, by limit.
type ledger struct {
	mu                sync.Mutex
	delayed, canceled map[string]uint64
	rejected          map[string]map[bucket.Reason]uint64
	waited            map[string]time.Duration
	all               uint64
}

func newLedger() *ledger {
	return &ledger{
		delayed: make(map[string]uint64), canceled: make(map[string]uint64),
		rejected: make(map[string]map[bucket.Reason]uint64), waited: make(map[string]time.Duration),
	}
}

// observe has the ledger add up what a Core reports.
func (x *ledger) observe(l *driven) {
	l.onGrant = func(at limiter.Place, waited time.Duration) {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.all++; at.Limit != "" {
			x.delayed[at.Limit]++
			x.waited[at.Limit] += waited
		}
	}
	l.onReject = func(r *rejection) {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.rejected[r.Limit.Name] == nil {
			x.rejected[r.Limit.Name] = make(map[bucket.Reason]uint64)
		}
		x.rejected[r.Limit.Name][r.Reason]++
	}
	l.onCancel = func(at limiter.Place) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.canceled[at.Limit]++
	}
}

// Counters of limits are the sum of the events of each request, whatever happens.
func TestCountersOfLimitsAreTheSumOfEvents(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			x := newLedger()
			l := drive(t, maxQueue(20), tokenBucket(20, time.Second, withBurst(5), named("rate")), slidingWindow(60, 10*time.Second, named("window")), inFlight(6, named("slots")))
			x.observe(l)
			var all sync.WaitGroup
			for range 400 {
				time.Sleep(time.Duration(r.IntN(40)) * time.Millisecond)
				asked := ask{Key: fmt.Sprint(r.IntN(3)), Cost: 1 + r.Int64N(7), Priority: r.IntN(3) - 1}
				if r.IntN(3) == 0 {
					asked.MaxWait = new(time.Duration(r.IntN(2000)) * time.Millisecond)
				}
				ctx, cancel := context.WithCancel(t.Context())
				switch r.IntN(4) {
				case 0:
					time.AfterFunc(time.Duration(r.IntN(1000))*time.Millisecond, cancel)
				case 1:
					ctx, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(3000))*time.Millisecond)
				}
				if r.IntN(50) == 0 {
					l.hold(asked.Key, time.Duration(r.IntN(1000))*time.Millisecond)
				}
				busy, settles := time.Duration(r.IntN(500))*time.Millisecond, r.Int64N(10)
				all.Go(func() {
					defer cancel()
					if g, err := l.acquire(ctx, asked); err == nil {
						time.Sleep(busy)
						_ = g.settle("rate", settles)
						g.done()
					}
				})
			}
			all.Wait()
			l.check()
			total := l.counts()
			require.EqualValues(t, total.Granted-total.Undone, x.all)
			for _, li := range l.Limits {
				name, s := li.Name, l.countsOf(li)
				require.Equal(t, x.canceled[name], s.Canceled, name)
				for reason, n := range s.Refused {
					require.Equal(t, x.rejected[name][bucket.Reason(reason)], n, "%s: %v", name, reason)
				}
				require.LessOrEqual(t, x.delayed[name], s.Delayed, name)
				require.LessOrEqual(t, s.Delayed-x.delayed[name], s.Undone, "granted as its context ended")
				if s.Undone == 0 {
					require.Equal(t, x.waited[name], s.Waits.Sum, name)
				}
				require.Zero(t, s.Waiting, name)
				require.Zero(t, s.InFlight, name)
				total.Delayed -= s.Delayed
				total.Canceled -= s.Canceled
				total.Waited -= s.Waits.Sum
			}
			require.Zero(t, total.Delayed)
			require.Zero(t, total.Canceled)
			require.Zero(t, total.Waited)
		})
	}
}
