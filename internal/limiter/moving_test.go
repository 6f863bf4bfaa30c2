package limiter_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/store"
)

// A moving store changes its distance, as by a failover to another region. As module throttleredis, it carries out nothing that arrives
// after the deadline of a call, and returns without a response after some time.
type moving struct {
	store.Store
	half atomic.Int64
}

const hangs = 2 * time.Second

func (s *moving) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	half := time.Duration(s.half.Load())
	patient, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangs)
	defer cancel()
	if err := sleepIn(patient, half); err != nil {
		return nil, err
	}
	leases, err := []store.Lease(nil), store.ErrLate
	if ctx.Err() == nil {
		leases, err = s.Store.Lease(patient, asks)
	}
	if err := sleepIn(patient, half); err != nil {
		return nil, err
	}
	return leases, err
}

// sleepIn sleeps until ctx is done at the latest.
func sleepIn(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A store moves to distances within and beyond the documented one, in any order. It is reached again within 2 s, or within 2 s of when
// calls that were sent to a place without a response return.
func TestAStoreThatMovesIsReachedAgain(t *testing.T) { // slow: 64 callers for minutes, in 8 worlds
	const rate = 100
	within := []time.Duration{ms, 100 * ms, 240 * ms, 260 * ms, 400 * ms, 490 * ms} // round trips
	beyond := []time.Duration{600 * ms, 1100 * ms, 1900 * ms, time.Hour}
	seeds := uint64(2)
	if !testing.Short() {
		seeds = 4
	}
	for _, wait := range []time.Duration{300 * ms, 20 * time.Second} {
		for seed := range seeds {
			moves := func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 1))
				s := &moving{Store: store.NewMemory()}
				ctx, cancel := context.WithCancel(t.Context())
				l := drive(t, tokenBucket(rate, time.Second, withBurst(10), shared(s)))
				var granted atomic.Int64
				for range 64 {
					go func() {
						for ctx.Err() == nil {
							if l.wait(ctx, ask{MaxWait: &wait}) == nil {
								granted.Add(1)
							} else {
								time.Sleep(10 * ms)
							}
						}
					}()
				}
				trip := time.Duration(0)
				for range 12 {
					from := trip
					if trip = within[r.IntN(len(within))]; r.IntN(3) == 0 {
						trip = beyond[r.IntN(len(beyond))]
					}
					s.half.Store(int64(trip / 2))
					time.Sleep(2 * time.Second)
					if from > 1500*ms {
						time.Sleep(hangs)
					}
					granted.Store(0)
					time.Sleep(time.Second)
					if trip <= 490*ms {
						assert.GreaterOrEqual(t, granted.Load(), int64(rate/3), "%v away after %v", trip, from) // it is back; in one world, 38 were granted
					}
					time.Sleep(time.Duration(r.Int64N(int64(10 * time.Second))))
				}
				cancel()
				time.Sleep(time.Minute)
			}
			t.Run(fmt.Sprintf("waits of %v, seed %d", wait, seed), func(t *testing.T) { synctest.Test(t, moves) })
		}
	}
}
