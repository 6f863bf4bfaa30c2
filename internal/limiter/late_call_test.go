package limiter_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/store"
)

// A tardy is a store whose response to the k-th call is late.
type tardy struct {
	store.Store
	k       int32
	by      time.Duration
	isLate  bool // the call itself is late, and is not carried out
	counted atomic.Int32
}

func (s *tardy) Lease(ctx context.Context, asks []store.Ask) (leases []store.Lease, err error) {
	time.Sleep(20 * time.Microsecond)
	isK := s.counted.Add(1) == s.k
	if isK && s.isLate {
		time.Sleep(s.by)
		return nil, store.ErrLate
	}
	leases, err = s.Store.Lease(ctx, asks)
	if isK {
		time.Sleep(s.by)
	}
	return leases, err
}

// A busy machine may delay a response. Its tokens may be void then, or the call given up, but they are not lost for the hour, and no
// request is rejected because the store has nothing left but these.
func TestTokensOfALateResponseAreNotLost(t *testing.T) { // slow: fleets for minutes
	const n, calls = 100, 30
	for name, limit := range map[string]func(...ruleOption) rule{
		"sliding": func(o ...ruleOption) rule { return slidingWindow(n, time.Hour, o...) },
		"fixed":   func(o ...ruleOption) rule { return fixedWindow(n, time.Hour, o...) },
	} {
		for _, c := range []struct {
			callers int
			takes   time.Duration // each request
			by      time.Duration
			isLate  bool
		}{
			{1, 0, 30 * ms, false}, {4, ms, 30 * ms, false}, {n, 0, 30 * ms, false}, {n, 8 * ms, 200 * ms, false},
			{1, 0, 300 * ms, false}, {4, 8 * ms, 300 * ms, false}, {n, 0, 300 * ms, false}, {n, 8 * ms, 600 * ms, false},
			{1, 0, 300 * ms, true}, {4, 8 * ms, 300 * ms, true}, {n, 0, 30 * ms, true}, {n, 8 * ms, 600 * ms, true},
		} {
			within(t, fmt.Sprintf("%s, %+v", name, c), func(t *testing.T) {
				for k := int32(1); k < calls; k++ {
					s := &tardy{Store: store.NewMemory(), k: k, by: c.by, isLate: c.isLate}
					l := drive(t, limit(named("hourly"), shared(s)))
					ctx, cancel := context.WithTimeout(t.Context(), 1500*ms)
					var wg sync.WaitGroup
					var asked, granted, rejected atomic.Int32
					for range c.callers {
						wg.Go(func() {
							for asked.Add(1) <= n {
								for ctx.Err() == nil && l.wait(ctx, ask{}) != nil {
									rejected.Add(1)
									time.Sleep(ms)
								}
								if ctx.Err() == nil {
									granted.Add(1)
								}
								time.Sleep(c.takes)
							}
						})
					}
					wg.Wait()
					cancel()
					require.EqualValues(t, n, granted.Load(), "call %d is late", k)
					if c.by < 250*ms && !c.isLate { // else the store is unreachable for a time
						require.Zero(t, rejected.Load(), "call %d is late", k)
					}
				}
				time.Sleep(time.Minute)
			})
		}
	}
}
