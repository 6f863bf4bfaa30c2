package limiter_test

import (
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// sharedSlots returns a Limiter for n requests in flight over a store.
func sharedSlots(t *testing.T, n int64, s store.Store, opts ...throttle.SharedOption) *throttle.Limiter {
	t.Helper()
	return limiterOf(t, throttle.WithLimit(throttle.InFlight(n, throttle.Name("slots"), throttle.Shared(s, opts...))))
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
		r.grant.Done()
	}
	synctest.Wait()
}

func TestSharedSlotsAreTakenWithTheResponse(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := sharedSlots(t, 3, s)
		first := send(t, l, throttle.Ask{})
		others := sendMany(t, l, 3, throttle.Ask{})
		sleep(2*ms - 1)
		require.False(t, first.done)
		sleep(1)
		requireGranted(t, first, 2*ms)
		sleep(2 * ms)
		requireGranted(t, others[1], 4*ms)
		require.False(t, others[2].done)
		require.Equal(t, 2, s.count())
		checkInvariants(t, l)
		sleep(ms)
		done(first)
		requireGranted(t, others[2], 5*ms) // the slot passes from one to the other without the store
		require.Equal(t, 3, l.Limits()[0].InFlight)
		checkInvariants(t, l)
		done(others...)
		sleep(ms)
		now := send(t, l, throttle.Ask{MaxWait: new(time.Duration)})
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
			var fleet []*throttle.Limiter
			for i := range processes {
				l := sharedSlots(t, n, s)
				fleet = append(fleet, l)
				for range callers {
					wg.Go(func() {
						for {
							g, err := l.Acquire(ctx, throttle.Ask{})
							if err != nil {
								return
							}
							count(1)
							time.Sleep(40*ms + time.Duration(rand.Int64N(int64(20*ms))))
							count(-1)
							g.Done()
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
				checkInvariants(t, l)
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
		sendMany(t, a, 3, throttle.Ask{})
		sleep(4 * time.Second)
		require.Equal(t, 3, s.count()) // the asks were carried out at 1 ms, 3 ms and 3.003 s
		s.set(errDown, nil)            // for the store, that is the end of the process
		sleep(9003*ms - time.Nanosecond)
		require.Zero(t, freeSlots(t, s.Store, 3))
		sleep(time.Nanosecond)
		require.Equal(t, 13003*ms, time.Since(coreOf(a).Start))
		require.Equal(t, 3, freeSlots(t, s.Store, 3))
	})
}

func TestSlotsAreRenewedEveryThreeSeconds(t *testing.T) {
	overTrip(t, 0, func(t *testing.T, s *trip) {
		l := sharedSlots(t, 3, s)
		r := send(t, l, throttle.Ask{})
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

// ask returns the first ask of a call.
func (s *trip) ask(call int) store.Ask {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[call][0]
}

// armedAt returns when the timer of a bucket fires.
func armedAt(l *throttle.Limiter, key string) meter.Instant {
	coreOf(l).Lock()
	defer coreOf(l).Unlock()
	return coreOf(l).Armed(coreOf(l).Limits[0].Bucket(key))
}

func TestIdleProcessReturnsAllSlotsAndLeavesNothingBehind(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := sharedSlots(t, 5, s)
		all := sendMany(t, l, 5, throttle.Ask{Key: "tenant"})
		sleep(10 * ms)
		done(all...)
		require.Equal(t, 0, int(s.ask(0).Parts[0].Held))
		sleep(210 * ms)
		require.Zero(t, s.underWay())
		require.Equal(t, meter.Never, armedAt(l, "tenant"))
		last := s.ask(s.count() - 1).Parts[0]
		require.Zero(t, last.Held)
		require.Zero(t, last.Want)
		sleep(2 * time.Second)
		require.Zero(t, l.Limits()[0].Keys)
	})
}

func TestRequestThatMayNotWaitTakesASlotWithTheResponseOrNone(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		a, b := sharedSlots(t, 2, s), sharedSlots(t, 2, s)
		now := throttle.Ask{MaxWait: new(time.Duration)}
		one, two, three := send(t, a, now), send(t, a, now), send(t, a, now)
		sleep(10 * ms)
		requireGranted(t, one, 2*ms)
		requireGranted(t, two, 4*ms)
		requireRefused(t, three, 4*ms, throttle.ReasonNoTokens)
		other := send(t, b, now)
		sleep(2 * ms)
		requireRefused(t, other, 12*ms, throttle.ReasonNoTokens)
		requireRefused(t, send(t, b, now), 12*ms, throttle.ReasonNoTokens) // as far as is known
		sleep(30 * ms)
		done(one, two)
		sleep(300 * ms)
		again := send(t, b, now)
		sleep(2 * ms)
		requireGranted(t, again, 344*ms)
		wait, ok := b.Try(throttle.Ask{})
		require.False(t, ok)
		require.Equal(t, time.Duration(math.MaxInt64), wait)
		require.ErrorContains(t, b.Wait(t.Context(), throttle.Ask{}), "use Acquire")
		checkInvariants(t, a)
		checkInvariants(t, b)
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
					g, err := a.Acquire(ctx, throttle.Ask{})
					if err != nil {
						return
					}
					time.Sleep(50 * ms)
					g.Done()
				}
			}()
		}
		sleep(time.Second)
		all := sendMany(t, b, 4, throttle.Ask{})
		sleep(300 * ms)
		require.True(t, all[0].done)
		require.True(t, all[1].done)
		require.False(t, all[2].done, "half of the slots are for the other")
		checkInvariants(t, a)
		cancel()
		sleep(500 * ms)
		require.True(t, all[3].done)
		done(all...)
	})
}

func TestSetInFlightChangesSlotsThatAreShared(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := sharedSlots(t, 2, s)
		all := sendMany(t, l, 6, throttle.Ask{})
		sleep(100 * ms)
		require.True(t, all[1].done)
		require.False(t, all[2].done)
		require.NoError(t, l.SetInFlight("slots", 4))
		sleep(2 * ms)
		requireGranted(t, all[3], 102*ms)
		require.False(t, all[4].done)
		require.NoError(t, l.SetInFlight("slots", 1))
		checkInvariants(t, l)
		done(all[:3]...)
		sleep(time.Second)
		require.False(t, all[4].done)
		at := time.Since(coreOf(l).Start)
		done(all[3])
		requireGranted(t, all[4], at)
		sleep(time.Second)
		require.Equal(t, int64(1), s.ask(s.count() - 1).Parts[0].Held)
		checkInvariants(t, l)
		done(all[4])
		done(all[5])
	})
}

func TestHoldOfSlotsReachesAllProcesses(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		a, b := sharedSlots(t, 2, s), sharedSlots(t, 2, s)
		a.Hold("", time.Minute)
		sleep(10 * ms)
		r, refused := send(t, b, throttle.Ask{}), send(t, b, throttle.Ask{MaxWait: new(time.Second)})
		sleep(2 * ms)
		requireRefused(t, refused, 12*ms, throttle.ReasonHeld)
		sleep(time.Minute - 20*ms)
		require.False(t, r.done)
		sleep(50 * ms)
		require.True(t, r.done)
		require.GreaterOrEqual(t, r.at, time.Minute)
		b.Hold("", time.Minute)
		b.Release("")
		sleep(2 * ms)
		now := send(t, a, throttle.Ask{})
		sleep(2 * ms)
		require.True(t, now.done)
		done(r, now)
	})
}

func TestSlotsWithoutTheStore(t *testing.T) {
	for _, mode := range []throttle.Outage{throttle.OutageReject, throttle.OutageLocalShare, throttle.OutagePass} {
		t.Run(mode.String(), func(t *testing.T) {
			overTrip(t, 2*ms, func(t *testing.T, s *trip) {
				l, other := sharedSlots(t, 6, s, throttle.WithoutStore(mode)), sharedSlots(t, 6, s)
				theirs := send(t, other, throttle.Ask{})
				sleep(2 * ms)
				first := send(t, l, throttle.Ask{})
				sleep(2 * ms)
				requireGranted(t, first, 4*ms)
				s.set(errDown, nil)
				patient := sendMany(t, l, 4, throttle.Ask{})
				short := send(t, l, throttle.Ask{MaxWait: new(time.Second)})
				sleep(ms)
				requireRefusedFor(t, short, 5*ms, errDown)
				sleep(3*time.Second - 1)
				require.False(t, patient[0].done)
				sleep(1)
				granted := map[throttle.Outage]int{throttle.OutageReject: 0, throttle.OutageLocalShare: 2, throttle.OutagePass: 4}[mode] // a share is three slots
				for i, r := range patient {
					switch {
					case i < granted:
						requireGranted(t, r, 3*time.Second+5*ms)
					case mode == throttle.OutageReject:
						requireRefusedFor(t, r, 3*time.Second+5*ms, errDown)
					default:
						require.False(t, r.done)
					}
				}
				checkInvariants(t, l)
				sleep(10 * time.Second)
				require.Equal(t, uint64(granted), l.Stores()[0].Alone)
				s.set(nil, nil)
				sleep(4 * time.Second)
				if mode == throttle.OutageLocalShare {
					require.False(t, patient[3].done, "other processes may have gone alone as well")
				}
				sleep(time.Second)
				for _, r := range patient {
					require.True(t, r.done)
				}
				require.True(t, l.Stores()[0].Up)
				held := 6 - freeSlots(t, s.Store, 6)
				require.Equal(t, map[throttle.Outage]int{throttle.OutageReject: 2, throttle.OutageLocalShare: 6, throttle.OutagePass: 6}[mode], held, "those that went alone are counted")
				checkInvariants(t, l)
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
		mine := sendMany(t, l, 3, throttle.Ask{})
		sleep(10 * ms)
		s.set(errDown, nil) // as if it were stopped
		sleep(14 * time.Second)
		other := sharedSlots(t, 3, s.Store)
		theirs := sendMany(t, other, 2, throttle.Ask{})
		require.True(t, theirs[1].done, "its slots are free")
		s.set(nil, nil)
		sleep(time.Second)
		require.Equal(t, -2, freeSlots(t, s.Store, 3))
		waits := send(t, other, throttle.Ask{})
		done(mine[:2]...)
		sleep(time.Second)
		require.False(t, waits.done, "three are in flight")
		done(mine[2])
		sleep(2 * time.Second)
		require.False(t, waits.done, "other processes may have been cut off as well")
		sleep(300 * ms)
		require.True(t, waits.done)
		done(append(theirs, waits)...)
	})
}

// A lossy is a Store that carries every ask out twice, and loses every other response.
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
			all := sendMany(t, l, 7, throttle.Ask{})
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
		checkInvariants(t, l)
	})
}

func TestCancelledWaiterForASlotLeavesNoTrace(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := sharedSlots(t, 1, s)
		r := send(t, l, throttle.Ask{})
		sleep(ms)
		r.cancel(nil) // while the store is asked
		sleep(300 * ms)
		require.ErrorIs(t, r.err, context.Canceled)
		require.Equal(t, 1, freeSlots(t, s.Store, 1))
		checkInvariants(t, l)
	})
}

func TestSlotsAreAskedForWhenOtherLimitsLetTheRequestGo(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Minute, throttle.Name("own")), throttle.InFlight(3, throttle.Name("slots"), throttle.Shared(s))))
		all := sendMany(t, l, 10, throttle.Ask{})
		for i, r := range all {
			sleep(5 * ms)
			require.True(t, r.done, "%d", i)
			require.InDelta(t, time.Duration(i)*time.Minute, r.at, float64(2*ms))
			done(r)
			sleep(time.Second)
			require.Equal(t, 3, freeSlots(t, s.Store, 3), "no slot is kept while a request waits for a token")
			checkInvariants(t, l)
			sleep(59*time.Second - 5*ms)
		}
		require.LessOrEqual(t, s.count(), 30)
	})
}

func TestSlotsAreAskedForAsSoonAsAnotherLimitCanPay(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.InFlight(3, throttle.Name("slots"), throttle.Shared(s)), throttle.TokenBucket(1, time.Hour, throttle.Name("own"))))
		first := send(t, l, throttle.Ask{Costs: map[string]int64{"slots": 0, "own": 1}})
		second := send(t, l, throttle.Ask{})
		sleep(time.Second)
		require.False(t, second.done)
		first.grant.Cancel()
		sleep(2 * ms)
		requireGranted(t, second, 1002*ms)
	})
}

func TestSlotsAndTokensOfAStoreAreGrantedTogether(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.InFlight(3, throttle.Name("slots"), throttle.Shared(s)), throttle.TokenBucket(100, time.Second, throttle.Burst(10), throttle.Name("tokens"), throttle.Shared(s))))
		all := sendMany(t, l, 5, throttle.Ask{})
		sleep(20 * ms)
		for i, r := range all {
			require.Equal(t, i < 3, r.done)
		}
		done(all[0])
		require.True(t, all[3].done)
		require.Len(t, s.ask(0).Parts, 2)
		done(all[1:4]...)
		done(all[4])
		checkInvariants(t, l)
	})
}

func TestCallersTakeTurnsForSharedSlots(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.InFlight(1, throttle.Name("slots"), throttle.Shared(s), throttle.FairBy(func(*http.Request) string { return "" }))))
		first := send(t, l, throttle.Ask{Caller: "busy"})
		sleep(2 * ms)
		busy := sendMany(t, l, 3, throttle.Ask{Caller: "busy"})
		urgent, other := send(t, l, throttle.Ask{Caller: "busy", Priority: 1}), send(t, l, throttle.Ask{Caller: "other"})
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

func TestSharedSlotComesBackWithTheBodyOrTheHeaders(t *testing.T) {
	for name, opts := range map[string][]throttle.LimitOption{"with the body": nil, "with the headers": {throttle.UntilHeaders()}} {
		within(t, name, func(t *testing.T) {
			base := roundTripper(func(req *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("some body")), Request: req}, nil
			})
			tr, err := throttle.New(base, throttle.WithLimit(throttle.InFlight(2, append(opts, throttle.Name("slots"), throttle.Shared(store.NewMemory()))...)))
			require.NoError(t, err)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil)
			require.NoError(t, err)
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			want := 1
			if opts != nil {
				want = 0
			}
			require.Equal(t, want, tr.Limiter().Limits()[0].InFlight)
			require.NoError(t, resp.Body.Close())
			require.Zero(t, tr.Limiter().Limits()[0].InFlight)
			s := tr.Limiter().Snapshot()
			require.Empty(t, stateOf(t, s).Buckets)
			sleep(time.Second)
		})
	}
}

func TestSharedSlotsWithWhatTheyDoNotFitAreAnError(t *testing.T) {
	s := store.NewMemory()
	for text, opts := range map[string][]throttle.Option{
		"LeaseAhead(10ms) does not fit a limit of kind in-flight": {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(s, throttle.LeaseAhead(10*ms))))},
		"RateFor does not fit a limit of kind in-flight":          {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(s), throttle.RateFor(func(string) (int64, time.Duration) { return 0, 0 })))},
		"WithDryRun":              {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(s))), throttle.WithDryRun()},
		"InFlight(0)":             {throttle.WithLimit(throttle.InFlight(0, throttle.Shared(s)))},
		"StoreTimeout(0s)":        {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(s, throttle.StoreTimeout(0))))},
		"Shared(nil): a store":    {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(nil)))},
		"Settle does not fit":     {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(s), throttle.Settle(func(*http.Request, *http.Response) (int64, bool) { return 0, false })))},
		"Burst(3) does not fit":   {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(s), throttle.Burst(3)))},
		"Initial(1) does not fit": {throttle.WithLimit(throttle.InFlight(2, throttle.Shared(s), throttle.Initial(1)))},
	} {
		_, err := throttle.New(nil, opts...)
		require.ErrorContains(t, err, text)
	}
}

func TestShareOfSharedSlotsIsAPartOfTheirNumber(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.InFlight(10, throttle.Fraction(0.25), throttle.Name("slots"), throttle.Shared(s))))
		all := sendMany(t, l, 3, throttle.Ask{})
		sleep(10 * ms)
		require.True(t, all[1].done)
		require.False(t, all[2].done)
		require.Equal(t, int64(2), s.ask(0).Parts[0].Budget.N)
		require.LessOrEqual(t, len(s.ask(0).Parts[0].Holder), 64)
		require.IsType(t, (*lease.LeasedSlots)(nil), coreOf(l).Limits[0].Single.Meter)
		done(all[:2]...)
		done(all[2])
	})
}
