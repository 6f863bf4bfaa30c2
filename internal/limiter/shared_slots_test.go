package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

// sharedSlots returns a Limiter for n requests in flight over a store.
func sharedSlots(t *testing.T, n int64, s store.Store, opts ...sharedOption) *driven {
	t.Helper()
	return drive(t, inFlight(n, named("slots"), shared(s, opts...)))
}

// freeSlots returns how many of n slots of that limit a store has left.
func freeSlots(t *testing.T, s store.Store, n int64) int {
	t.Helper()
	part := store.Part{Budget: store.Budget{Kind: store.Slots, Limit: "slots", N: n}, Holder: "test"}
	leases, err := s.Lease(context.WithoutCancel(t.Context()), []store.Ask{{Parts: []store.Part{part}}})
	require.NoError(t, err)
	require.NoError(t, leases[0].Err)
	return int(leases[0].Parts[0].Left)
}

// done ends requests that were granted.
func done(all ...*request) {
	for _, r := range all {
		r.grant.done()
	}
	synctest.Wait()
}

func TestSharedSlotsAreTakenWithTheResponse(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := sharedSlots(t, 3, s)
		first := l.send(ask{})
		others := l.sendMany(3, ask{})
		sleep(2*ms - 1)
		require.False(t, first.done)
		sleep(1)
		requireGranted(t, first, 2*ms)
		sleep(2 * ms)
		requireGranted(t, others[1], 4*ms)
		require.False(t, others[2].done)
		require.Equal(t, 2, s.count())
		l.check()
		sleep(ms)
		done(first)
		requireGranted(t, others[2], 5*ms) // the slot passes from one to the other without the store
		require.Equal(t, 3, l.Limits[0].InFlight())
		l.check()
		done(others...)
		sleep(ms)
		now := l.send(ask{MaxWait: new(time.Duration)})
		requireGranted(t, now, 6*ms) // a slot available
		done(now)
	})
}

func TestLimitersNeverHaveMoreInFlightThanTheFleetMay(t *testing.T) {
	for name, lost := range map[string]float64{"every response arrives": 0, "one in fifty is lost": 0.02} {
		within(t, name, func(t *testing.T) {
			s := newFar(lost)
			const n, processes, callers = 10, 4, 10
			ctx, cancel := context.WithCancel(t.Context())
			var mu sync.Mutex
			var wg sync.WaitGroup
			used, most, served := 0, 0, make([]int, processes)
			count := func(d int) {
				mu.Lock()
				defer mu.Unlock()
				used += d
				most = max(most, used)
			}
			var fleet []*driven
			for i := range processes {
				l := sharedSlots(t, n, s)
				fleet = append(fleet, l)
				for range callers {
					wg.Go(func() {
						for {
							g, err := l.acquire(ctx, ask{})
							if err != nil {
								return
							}
							count(1)
							time.Sleep(40*ms + time.Duration(rand.Int64N(int64(20*ms))))
							count(-1)
							g.done()
							mu.Lock()
							served[i]++
							mu.Unlock()
						}
					})
				}
			}
			sleep(20 * time.Second)
			mu.Lock()
			all := 0
			for i := range served {
				all += served[i]
			}
			t.Logf("%d of %d in flight at most, served %v", most, n, served)
			require.Equal(t, n, most)
			require.Greater(t, all, 20*20*n*8/10, "the slots are used for 8 tenths of the time at least")
			for _, one := range served {
				require.InDelta(t, float64(all)/processes, one, 0.1*float64(all)/processes)
			}
			mu.Unlock()
			for _, l := range fleet {
				l.check()
			}
			cancel()
			wg.Wait()
			sleep(20 * time.Second)
			require.Equal(t, n, freeSlots(t, s.Store, n))
		})
	}
}

func TestSlotsOfALimiterThatDiesAreFreeTenSecondsAfterItsLastAsk(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		a := sharedSlots(t, 3, s)
		a.sendMany(3, ask{})
		sleep(4 * time.Second)
		require.Equal(t, 3, s.count()) // the asks were carried out at 1 ms, 3 ms and 3.003 s
		s.set(errDown, nil)            // for the store, that is the end of the process
		sleep(9003*ms - time.Nanosecond)
		require.Zero(t, freeSlots(t, s.Store, 3))
		sleep(time.Nanosecond)
		require.Equal(t, 13003*ms, a.now())
		require.Equal(t, 3, freeSlots(t, s.Store, 3))
	})
}

func TestSlotsAreRenewedEveryThreeSeconds(t *testing.T) {
	overTrip(t, 0, func(t *testing.T, s *trip) {
		l := sharedSlots(t, 3, s)
		r := l.send(ask{})
		for i := range 10 {
			require.Equal(t, 1+i, s.count())
			sleep(3*time.Second - 1)
			require.Equal(t, 1+i, s.count())
			sleep(1)
		}
		done(r)
		sleep(time.Second)
		calls := s.count()
		sleep(time.Hour)
		require.Equal(t, calls, s.count())
	})
}

// asked returns the first ask of a call.
func (s *trip) asked(call int) store.Ask {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[call][0]
}

// armedAt returns when the timer of a bucket fires.
func armedAt(l *driven, key string) meter.Instant {
	l.Lock()
	defer l.Unlock()
	return l.Armed(l.Limits[0].Bucket(key))
}

func TestIdleProcessReturnsAllSlotsAndLeavesNothingBehind(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := sharedSlots(t, 5, s)
		all := l.sendMany(5, ask{Key: "tenant"})
		sleep(10 * ms)
		done(all...)
		require.Equal(t, 0, int(s.asked(0).Parts[0].Held))
		sleep(210 * ms)
		require.Zero(t, s.underWay())
		require.Equal(t, meter.Never, armedAt(l, "tenant"))
		last := s.asked(s.count() - 1).Parts[0]
		require.Zero(t, last.Held)
		require.Zero(t, last.Want)
		sleep(2 * time.Second)
		require.Zero(t, l.counts().Buckets)
	})
}

func TestRequestThatMayNotWaitTakesASlotWithTheResponseOrNone(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		a, b := sharedSlots(t, 2, s), sharedSlots(t, 2, s)
		now := ask{MaxWait: new(time.Duration)}
		one, two, three := a.send(now), a.send(now), a.send(now)
		sleep(10 * ms)
		requireGranted(t, one, 2*ms)
		requireGranted(t, two, 4*ms)
		requireRejected(t, three, 4*ms, bucket.ReasonNoTokens)
		other := b.send(now)
		sleep(2 * ms)
		requireRejected(t, other, 12*ms, bucket.ReasonNoTokens)
		requireRejected(t, b.send(now), 12*ms, bucket.ReasonNoTokens) // as far as is known
		sleep(30 * ms)
		done(one, two)
		sleep(300 * ms)
		again := b.send(now)
		sleep(2 * ms)
		requireGranted(t, again, 344*ms)
		a.check()
		b.check()
		done(again)
	})
}

func TestWaitingLimiterGetsSlotsFromOneThatHasThemAll(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		a, b := sharedSlots(t, 4, s), sharedSlots(t, 4, s)
		ctx, cancel := context.WithCancel(t.Context())
		for range 8 {
			go func() {
				for {
					g, err := a.acquire(ctx, ask{})
					if err != nil {
						return
					}
					time.Sleep(50 * ms)
					g.done()
				}
			}()
		}
		sleep(time.Second)
		all := b.sendMany(4, ask{})
		sleep(300 * ms)
		require.True(t, all[0].done)
		require.True(t, all[1].done)
		require.False(t, all[2].done, "half of the slots are for the other")
		a.check()
		cancel()
		sleep(500 * ms)
		require.True(t, all[3].done)
		done(all...)
	})
}

func TestSetInFlightChangesSlotsThatAreShared(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := sharedSlots(t, 2, s)
		all := l.sendMany(6, ask{})
		sleep(100 * ms)
		require.True(t, all[1].done)
		require.False(t, all[2].done)
		l.setInFlight("slots", 4)
		sleep(2 * ms)
		requireGranted(t, all[3], 102*ms)
		require.False(t, all[4].done)
		l.setInFlight("slots", 1)
		l.check()
		done(all[:3]...)
		sleep(time.Second)
		require.False(t, all[4].done)
		at := l.now()
		done(all[3])
		requireGranted(t, all[4], at)
		sleep(time.Second)
		require.Equal(t, int64(1), s.asked(s.count() - 1).Parts[0].Held)
		l.check()
		done(all[4])
		done(all[5])
	})
}

func TestHoldOfSlotsReachesAllProcesses(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		a, b := sharedSlots(t, 2, s), sharedSlots(t, 2, s)
		a.hold("", time.Minute)
		sleep(10 * ms)
		r, rejected := b.send(ask{}), b.send(ask{MaxWait: ptr(time.Second)})
		sleep(2 * ms)
		requireRejected(t, rejected, 12*ms, bucket.ReasonHeld)
		sleep(time.Minute - 20*ms)
		require.False(t, r.done)
		sleep(50 * ms)
		require.True(t, r.done)
		require.GreaterOrEqual(t, r.at, time.Minute)
		b.hold("", time.Minute)
		b.Release("")
		sleep(2 * ms)
		now := a.send(ask{})
		sleep(2 * ms)
		require.True(t, now.done)
		done(r, now)
	})
}

func TestSlotsWithoutTheStore(t *testing.T) {
	for _, mode := range []supply.Without{supply.Nothing, supply.ButLocally, supply.Limit} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			overTrip(t, 2*ms, func(t *testing.T, s *trip) {
				l, other := sharedSlots(t, 6, s, withoutStore(mode)), sharedSlots(t, 6, s)
				theirs := other.send(ask{})
				sleep(2 * ms)
				first := l.send(ask{})
				sleep(2 * ms)
				requireGranted(t, first, 4*ms)
				s.set(errDown, nil)
				patient := l.sendMany(4, ask{})
				short := l.send(ask{MaxWait: ptr(time.Second)})
				sleep(ms)
				requireRejectedFor(t, short, 5*ms, errDown)
				sleep(3*time.Second - 1)
				require.False(t, patient[0].done)
				sleep(1)
				granted := map[supply.Without]int{supply.Nothing: 0, supply.ButLocally: 2, supply.Limit: 4}[mode] // a share is three slots
				for i, r := range patient {
					switch {
					case i < granted:
						requireGranted(t, r, 3*time.Second+5*ms)
					case mode == supply.Nothing:
						requireRejectedFor(t, r, 3*time.Second+5*ms, errDown)
					default:
						require.False(t, r.done)
					}
				}
				l.check()
				sleep(10 * time.Second)
				require.Equal(t, uint64(granted), l.StoreStates()[0].Counts.Alone)
				s.set(nil, nil)
				sleep(4 * time.Second)
				if mode == supply.ButLocally {
					require.False(t, patient[3].done, "other processes may have gone alone as well")
				}
				sleep(time.Second)
				for _, r := range patient {
					require.True(t, r.done)
				}
				require.NoError(t, l.StoreStates()[0].Err)
				held := 6 - freeSlots(t, s.Store, 6)
				require.Equal(t, map[supply.Without]int{supply.Nothing: 2, supply.ButLocally: 6, supply.Limit: 6}[mode], held, "those that went alone are counted")
				l.check()
				done(first, theirs)
				for _, r := range patient {
					if r.grant != nil {
						done(r)
					}
				}
			})
		})
	}
}

func TestRequestsOfAProcessThatWasCutOffAreCountedAgain(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := sharedSlots(t, 3, s)
		mine := l.sendMany(3, ask{})
		sleep(10 * ms)
		s.set(errDown, nil) // as if it were stopped
		sleep(14 * time.Second)
		other := sharedSlots(t, 3, s.Store)
		theirs := other.sendMany(2, ask{})
		require.True(t, theirs[1].done, "its slots are free")
		s.set(nil, nil)
		sleep(time.Second)
		require.Equal(t, -2, freeSlots(t, s.Store, 3))
		waits := other.send(ask{})
		done(mine[:2]...)
		sleep(time.Second)
		require.False(t, waits.done, "three are in flight")
		done(mine[2])
		sleep(2 * time.Second)
		require.False(t, waits.done, "other processes may have been cut off as well")
		sleep(time.Second)
		require.True(t, waits.done)
		done(append(theirs, waits)...)
	})
}

// A lossy is a Store that carries out every ask twice, and loses every other response.
type lossy struct {
	store.Store
	n int
}

func (s *lossy) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	if _, err := s.Store.Lease(ctx, asks); err != nil {
		return nil, err
	}
	leases, err := s.Store.Lease(ctx, asks)
	if s.n++; s.n%2 == 0 {
		return nil, errors.New("connection reset")
	}
	return leases, err
}

func TestAsksForSlotsThatAreRepeatedOrLostLeaveNoTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &lossy{Store: store.NewMemory()}
		l := sharedSlots(t, 5, s)
		for range 50 {
			all := l.sendMany(7, ask{})
			sleep(time.Second)
			for i, r := range all {
				require.Equal(t, i < 5, r.done)
			}
			require.Zero(t, freeSlots(t, s.Store, 5)+2) // two requests wait
			done(all[:5]...)
			sleep(time.Second)
			done(all[5:]...)
			sleep(2 * time.Second)
			require.Equal(t, 5, freeSlots(t, s.Store, 5))
		}
		l.check()
	})
}

func TestCancelledWaiterForASlotLeavesNoTrace(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := sharedSlots(t, 1, s)
		r := l.send(ask{})
		sleep(ms)
		r.cancel(nil) // while the store is asked
		sleep(300 * ms)
		require.ErrorIs(t, r.err, context.Canceled)
		require.Equal(t, 1, freeSlots(t, s.Store, 1))
		l.check()
	})
}

func TestSlotsAreAskedForWhenOtherLimitsLetTheRequestGo(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(1, time.Minute, named("own")), inFlight(3, named("slots"), shared(s)))
		all := l.sendMany(10, ask{})
		for i, r := range all {
			sleep(5 * ms)
			require.True(t, r.done, "%d", i)
			require.InDelta(t, time.Duration(i)*time.Minute, r.at, float64(2*ms))
			done(r)
			sleep(time.Second)
			require.Equal(t, 3, freeSlots(t, s.Store, 3), "no slot is kept while a request waits for a token")
			l.check()
			sleep(59*time.Second - 5*ms)
		}
		require.LessOrEqual(t, s.count(), 30)
	})
}

func TestSlotsAreAskedForAsSoonAsAnotherLimitCanPay(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, inFlight(3, named("slots"), shared(s)), tokenBucket(1, time.Hour, named("own")))
		first := l.send(ask{Costs: map[string]int64{"slots": 0, "own": 1}})
		second := l.send(ask{})
		sleep(time.Second)
		require.False(t, second.done)
		first.grant.cancel()
		sleep(2 * ms)
		requireGranted(t, second, 1002*ms)
	})
}

func TestSlotsAndTokensOfAStoreAreGrantedTogether(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, inFlight(3, named("slots"), shared(s)), tokenBucket(100, time.Second, withBurst(10), named("tokens"), shared(s)))
		all := l.sendMany(5, ask{})
		sleep(20 * ms)
		for i, r := range all {
			require.Equal(t, i < 3, r.done)
		}
		done(all[0])
		require.True(t, all[3].done)
		require.Len(t, s.asked(0).Parts, 2)
		done(all[1:4]...)
		done(all[4])
		l.check()
	})
}

func TestCallersTakeTurnsForSharedSlots(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, inFlight(1, named("slots"), shared(s), fair()))
		first := l.send(ask{Caller: "busy"})
		sleep(2 * ms)
		busy := l.sendMany(3, ask{Caller: "busy"})
		urgent, other := l.send(ask{Caller: "busy", Priority: 1}), l.send(ask{Caller: "other"})
		done(first)
		require.True(t, busy[0].done)
		done(busy[0])
		require.True(t, other.done)
		require.False(t, urgent.done)
		done(other)
		for _, r := range []*request{busy[1], busy[2], urgent} {
			require.True(t, r.done)
			done(r)
		}
	})
}

func TestShareOfSharedSlotsIsAPartOfTheirNumber(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, inFlight(10, withFraction(0.25), named("slots"), shared(s)))
		all := l.sendMany(3, ask{})
		sleep(10 * ms)
		require.True(t, all[1].done)
		require.False(t, all[2].done)
		require.Equal(t, int64(2), s.asked(0).Parts[0].Budget.N)
		require.LessOrEqual(t, len(s.asked(0).Parts[0].Holder), 64)
		require.IsType(t, (*lease.LeasedSlots)(nil), l.Limits[0].Single.Meter)
		done(all[:2]...)
		done(all[2])
	})
}
