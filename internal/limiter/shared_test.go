package limiter_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

// A trip is a Store in memory that is some way off: a call takes a while, and may fail or hang.
type trip struct {
	store.Store
	mu    sync.Mutex
	takes time.Duration // half of it on the way there
	err   error         // of every call
	hangs chan struct{} // calls return when it is closed, whatever their context says; nil: they do not hang
	calls [][]store.Ask
	open  int // calls that have not returned
}

func newTrip(takes time.Duration) *trip { return &trip{Store: store.NewMemory(), takes: takes} }

// overTrip runs a test in a bubble, over a store that is so far off.
func overTrip(t *testing.T, takes time.Duration, f func(t *testing.T, s *trip)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newTrip(takes)
		f(t, s)
		sleep(time.Minute)
		for s.underWay() > 0 { // an outage that lasts is tried again and again, at random instants
			sleep(ms)
		}
	})
}

func (s *trip) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	s.mu.Lock()
	s.calls = append(s.calls, asks)
	s.open++
	takes, hangs := s.takes, s.hangs
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.open--
	}()
	if hangs != nil {
		<-hangs
		return nil, errors.New("it hung")
	}
	time.Sleep(takes / 2)
	s.mu.Lock()
	err := s.err
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	leases, err := s.Store.Lease(ctx, asks)
	time.Sleep(takes - takes/2)
	return leases, err
}

// set changes how calls end from now on.
func (s *trip) set(err error, hangs chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err, s.hangs = err, hangs
}

func (s *trip) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// underWay returns how many calls have not returned.
func (s *trip) underWay() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

func TestSharedRequestIsGrantedWithTheResponse(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(10, time.Second, shared(s, leaseAhead(0))))
		one := l.send(ask{})
		require.False(t, one.done)
		l.check()
		sleep(2*ms - 1)
		require.False(t, one.done)
		sleep(1)
		requireGranted(t, one, 2*ms)
		l.check()
		require.Equal(t, 1, s.count())
		require.Empty(t, l.counts().rejected())
	})
}

func TestSharedTokensOfManyRequestsTakeOneCall(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(10, time.Second, shared(s, leaseAhead(0))))
		first := l.send(ask{})
		all := l.sendMany(9, ask{})
		sleep(4 * ms)
		requireGranted(t, first, 2*ms)
		for _, r := range all {
			requireGranted(t, r, 4*ms)
		}
		require.Equal(t, 2, s.count())
		waits := l.send(ask{}) // the token is due at 101 ms by the store, and the response of 5 ms arrives at 6 ms
		sleep(time.Second)
		requireGranted(t, waits, 102*ms)
		l.check()
	})
}

// While one response is booked, the store decides the asks of another call.
func TestRequestsForManyKeysTakeTwoCalls(t *testing.T) {
	for keys, want := range map[int][]int{15: {15}, 16: {8, 8}, 40: {20, 20}, 256: {128, 128}} {
		overTrip(t, 2*ms, func(t *testing.T, s *trip) {
			l := drive(t, tokenBucket(10, time.Second, shared(s)))
			for round := range 2 { // also after calls that have landed
				flights := []*bucket.Supply{}
				fly := l.SetCallStore(func(s *bucket.Supply) { flights = append(flights, s) }) // they leave when all requests have asked
				var wg sync.WaitGroup
				for i := range keys {
					wg.Go(func() { require.NoError(t, l.wait(t.Context(), ask{Key: strconv.Itoa(round*keys + i)})) })
				}
				synctest.Wait()
				assert.Len(t, flights, supply.MostCalls)
				l.SetCallStore(fly)
				for _, s := range flights {
					fly(s)
				}
				wg.Wait()
				var asks []int
				for _, call := range s.calls {
					asks = append(asks, len(call))
				}
				require.Equal(t, want, asks)
				sleep(time.Minute)
				s.calls = nil
			}
		})
	}
}

func TestLimitersShareABudget(t *testing.T) {
	overTrip(t, ms, func(t *testing.T, s *trip) {
		limit := tokenBucket(10, time.Second, named("calls"), shared(s, leaseAhead(0)))
		a, b := drive(t, limit), drive(t, limit)
		a.sendMany(6, ask{})
		sleep(10 * ms)
		all := b.sendMany(4, ask{})
		sleep(10 * ms)
		for _, r := range all {
			require.True(t, r.done)
		}
		late := a.send(ask{MaxWait: ptr(80 * ms)})
		sleep(10 * ms)
		requireRejected(t, late, 21*ms, bucket.ReasonMaxWait)
		a.check()
		b.check()
	})
}

func TestRequestWithoutAnyWaitWaitsForTheStoreAlone(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(1, time.Second, shared(s, leaseAhead(0))))
		now := ask{MaxWait: new(time.Duration)}
		a, b := l.send(now), l.send(now)
		require.False(t, b.done)
		sleep(time.Second)
		requireGranted(t, a, 2*ms)
		r := requireRejected(t, b, 2*ms, bucket.ReasonNoTokens)
		require.InDelta(t, time.Second, r.Wait, float64(3*ms))
		c := l.send(now)
		sleep(2 * ms)
		requireGranted(t, c, 1002*ms)
		requireRejected(t, l.send(now), 1002*ms, bucket.ReasonNoTokens) // as far as is known
	})
}

func TestTryGetsTheNextTimeWhatIsNotAtHand(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(10, time.Second, shared(s)))
		wait, ok := l.try(ask{Cost: 3})
		require.False(t, ok)
		require.Positive(t, wait)
		sleep(2 * ms)
		_, ok = l.try(ask{Cost: 3})
		require.True(t, ok)
		l.check()
	})
}

func TestUnusedTokensReturnToTheStore(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		limit := tokenBucket(10, 1000*time.Hour, named("calls"), shared(s))
		a, b := drive(t, limit), drive(t, limit)
		r := a.send(ask{Cost: 10})
		sleep(2 * ms)
		r.grant.cancel()
		waits := b.send(ask{Cost: 5})
		sleep(time.Minute)
		require.True(t, waits.done)
		require.NoError(t, waits.err)
		require.Less(t, waits.at, 10*time.Second)
		a.check()
		require.Equal(t, uint64(10), a.StoreStates()[0].Counts.Returned)
	})
}

// A store counts the processes of a budget by how long ago each of them asked for the last time.
func TestProcessThatAsksSeldomIsCountedOnce(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(10, time.Second, shared(s)))
		for i := range 5 {
			require.NoError(t, l.wait(t.Context(), ask{Key: "key"}))
			if i > 0 {
				require.Equal(t, 3*time.Second, s.calls[i][0].Parts[0].Since.Round(10*ms))
			}
			sleep(3 * time.Second)
		}
		require.Len(t, s.calls, 5)
	})
}

func TestHoldReachesAllProcesses(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		limit := tokenBucket(10, time.Second, named("calls"), shared(s, leaseAhead(0)))
		a, b := drive(t, limit), drive(t, limit)
		a.hold("", time.Minute)
		sleep(10 * ms)
		r := b.send(ask{})
		rejected := b.send(ask{MaxWait: ptr(time.Second)})
		sleep(2 * ms)
		require.False(t, r.done)
		requireRejected(t, rejected, 12*ms, bucket.ReasonHeld)
		for _, v := range b.views() {
			require.InDelta(t, 59*time.Second, v.HeldUntil-b.now(), float64(time.Second))
		}
		sleep(2 * time.Minute)
		require.True(t, r.done)
		require.GreaterOrEqual(t, r.at, time.Minute)
		require.Less(t, r.at, time.Minute+20*ms)
	})
}

// The request was promised a token long before it is due.
func TestAHoldReachesARequestThatWaitsForItsToken(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		limit := tokenBucket(1, 20*time.Second, withBurst(1), named("calls"), shared(s, leaseAhead(0)))
		a, b := drive(t, limit), drive(t, limit)
		a.send(ask{})
		sleep(10 * ms)
		r := b.send(ask{})
		sleep(12 * time.Second)
		a.hold("", time.Minute)
		sleep(2 * time.Minute)
		require.True(t, r.done)
		require.GreaterOrEqual(t, r.at, 72*time.Second)
	})
}

// No tokens are kept or leased for requests that a hold of this process alone stops: after it, the processes have one burst.
func TestProcessesHaveOneBurstAfterHoldAll(t *testing.T) {
	for _, burst := range []int64{1, 10} {
		for _, held := range []time.Duration{time.Second, time.Minute} {
			overTrip(t, 2*ms, func(t *testing.T, s *trip) {
				ctx, cancel := context.WithCancel(t.Context())
				var all []*driven
				var mu sync.Mutex
				var granted []time.Time
				for range 8 {
					l := drive(t, tokenBucket(100, time.Second, withBurst(burst), shared(s)))
					all = append(all, l)
					for range 8 {
						go func() {
							for l.wait(ctx, ask{}) == nil {
								mu.Lock()
								granted = append(granted, time.Now())
								mu.Unlock()
							}
						}()
					}
				}
				sleep(3 * time.Second)
				for _, l := range all {
					l.holdAll(held)
				}
				end := time.Now().Add(held)
				sleep(held + time.Second)
				cancel()
				mu.Lock()
				defer mu.Unlock()
				first, sum := 0, 0
				for _, at := range granted {
					if !at.Before(end) {
						sum++
						if at.Before(end.Add(10 * ms)) {
							first++
						}
					}
				}
				require.LessOrEqual(t, first, int(burst)+1, "burst %d, held for %v", burst, held)
				require.InDelta(t, 100+burst, sum, 2)
			})
		}
	}
}

func TestReleaseReachesAllProcesses(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		limit := limits(tokenBucket(10, time.Second, named("calls"), shared(s, leaseAhead(0))))
		a, b, c := drive(t, limit), drive(t, limit), drive(t, limit)
		a.hold("", time.Hour)
		sleep(10 * ms)
		first := a.send(ask{})
		second := b.send(ask{})
		sleep(10 * ms)
		c.Release("") // c does not know of the hold
		third := c.send(ask{})
		sleep(10 * ms)
		c.Release("")
		sleep(7 * time.Second)
		for _, r := range []*request{first, second, third} {
			require.True(t, r.done)
			require.NoError(t, r.err)
			require.Less(t, r.at, 6300*ms) // the store is asked again after 3.75 to 6.25 s
		}
	})
}

func TestSeveralSharedLimitsAreGrantedTogether(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(100, time.Second, named("a"), shared(s, leaseAhead(0))), slidingWindow(50, time.Second, named("b"), shared(s, leaseAhead(0))))
		all := l.sendMany(20, ask{})
		sleep(4 * ms)
		for i, r := range all {
			requireGranted(t, r, []time.Duration{4 * ms, 2 * ms}[map[bool]int{true: 1}[i == 0]])
		}
		require.Equal(t, 2, s.count())
		require.Len(t, s.calls[1], 1)
		require.Len(t, s.calls[1][0].Parts, 2)
		l.check()
	})
}

func TestSharedLimitWithAMemoryLimitLeasesWhatCanBeUsed(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(1000, time.Second, named("fleet"), shared(s)), tokenBucket(1, time.Second, named("own")))
		all := l.sendMany(100, ask{})
		sleep(99*time.Second + 10*ms)
		for i, r := range all {
			require.True(t, r.done, "%d", i)
			require.InDelta(t, time.Duration(i)*time.Second, r.at, float64(10*ms))
		}
		require.Less(t, l.StoreStates()[0].Counts.Leased, uint64(250))
		l.check()
	})
}

func TestTokensThatAnotherLimitCanPayTakeOneCall(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(1000, time.Second, shared(s, leaseAhead(0))), tokenBucket(5, time.Hour, named("own")))
		all := l.sendMany(5, ask{})
		sleep(4 * ms)
		requireGranted(t, all[0], 2*ms) // the others came when the store had been asked
		for _, r := range all[1:] {
			requireGranted(t, r, 4*ms)
		}
		require.Equal(t, 2, s.count())
	})
}

// So many requests are checked again only when there is news that delays all of them.
func TestHundredsOfRequestsAreRejectedAsTheStoreDelaysThem(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		limit := limits(tokenBucket(1000, time.Hour, shared(s, leaseAhead(0))))
		l, other := drive(t, limit), drive(t, limit)
		l.send(ask{})
		sleep(10 * ms)
		other.hold("", time.Minute)
		sleep(10 * ms)
		waits := l.sendMany(300, ask{MaxWait: ptr(time.Second)})
		sleep(2 * ms) // the response reports the hold
		for _, r := range waits {
			requireRejected(t, r, 22*ms, bucket.ReasonHeld)
		}
		sleep(time.Minute)
		other.send(ask{Cost: 990})
		sleep(10 * ms)
		waits = drive(t, limit).sendMany(300, ask{MaxWait: ptr(time.Second)})
		sleep(2 * ms) // by its first response, nothing is left
		for _, r := range waits[20:] {
			requireRejected(t, r, 2*ms, bucket.ReasonMaxWait)
		}
	})
}

func TestUnusedTokensReturnToTheStoreAlsoWhenItIsNotAskedForMore(t *testing.T) {
	overTrip(t, 20*ms, func(t *testing.T, s *trip) {
		limit := limits(tokenBucket(10, 1000*time.Hour, shared(s, leaseAhead(0))))
		l := drive(t, limit)
		gone := l.send(ask{Key: "a", Cost: 5})
		gone.cancel(nil)
		sleep(20 * ms)                                // its tokens come
		for _, key := range []string{"x", "y", "a"} { // two calls are under way, and a waits for one to return
			r := l.send(ask{Key: key, Cost: 10})
			if key == "a" {
				r.cancel(nil)
			}
		}
		sleep(time.Second)
		r := drive(t, limit).send(ask{Key: "a", Cost: 10})
		sleep(time.Second)
		require.True(t, r.done)
	})
}

// The window is exhausted at 1 ms by the store's clock, with the response of 2 ms.
func TestTheWaitForAnExhaustedSharedWindowIsThatOfItsStore(t *testing.T) {
	for _, fill := range []int64{3, 2} { // the response that granted the last token reports the wait, or the one that granted none
		overTrip(t, 2*ms, func(t *testing.T, s *trip) {
			l := drive(t, slidingWindow(3, 10*time.Second, shared(s, leaseAhead(0))))
			l.send(ask{Cost: fill})
			sleep(2 * ms)
			last := l.send(ask{})
			sleep(2 * ms)
			if fill == 2 {
				requireGranted(t, last, 4*ms)
			} else {
				require.False(t, last.done)
			}
			calls := s.count()
			free := 10 * time.Second // when the first tokens come in again; the lower bound does not know how long the question took to get there
			for range 3 {
				wait, ok := l.try(ask{})
				require.False(t, ok)
				require.Equal(t, free-4*ms, wait)
			}
			now := l.send(ask{MaxWait: new(time.Duration)})
			require.Equal(t, free-4*ms, requireRejected(t, now, 4*ms, bucket.ReasonNoTokens).Wait)
			ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
			defer cancel()
			requireRejected(t, l.sendUnder(ctx, ask{}), 4*ms, bucket.ReasonDeadline)
			require.Equal(t, calls, s.count())
			patient := l.send(ask{})
			sleep(11 * time.Second)
			require.True(t, patient.done)
			require.NoError(t, patient.err)
			require.LessOrEqual(t, patient.at, free+8*ms)
		})
	}
}

// The timeout is 250 ms. The response to a call that was given up
// shows how far away the store is, if the ask reached the store in time.
func TestAStoreFurtherAwayThanItsTimeoutIsReached(t *testing.T) {
	for _, takes := range []time.Duration{240 * ms, 300 * ms, 490 * ms} {
		overTrip(t, takes, func(t *testing.T, s *trip) {
			l := drive(t, tokenBucket(100, time.Second, shared(s)))
			for range 200 {
				require.NoError(t, l.wait(t.Context(), ask{}))
			}
			st := l.StoreStates()[0]
			require.NoError(t, st.Err)
			require.LessOrEqual(t, st.Counts.Failed, uint64(2), "only before the first response")
		})
	}
}
