package limiter_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
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

const ms = time.Millisecond

func TestSharedRequestIsGrantedWithTheResponse(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(s, throttle.LeaseAhead(0)))))
		one := send(t, l, throttle.Ask{})
		require.False(t, one.done)
		checkInvariants(t, l)
		sleep(2*ms - 1)
		require.False(t, one.done)
		sleep(1)
		requireGranted(t, one, 2*ms)
		checkInvariants(t, l)
		require.Equal(t, 1, s.count())
		require.Empty(t, l.Stats().Rejected.Total())
	})
}

func TestSharedTokensOfManyRequestsTakeOneCall(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(s, throttle.LeaseAhead(0)))))
		first := send(t, l, throttle.Ask{})
		all := sendMany(t, l, 9, throttle.Ask{})
		sleep(4 * ms)
		requireGranted(t, first, 2*ms)
		for _, r := range all {
			requireGranted(t, r, 4*ms)
		}
		require.Equal(t, 2, s.count())
		waits := send(t, l, throttle.Ask{}) // the token is due at 101 ms by the store, and the response of 5 ms arrives at 6 ms
		sleep(time.Second)
		requireGranted(t, waits, 102*ms)
		checkInvariants(t, l)
	})
}

// While one response is booked, the store decides the asks of another call.
func TestRequestsForManyKeysTakeTwoCalls(t *testing.T) {
	for keys, want := range map[int][]int{15: {15}, 16: {8, 8}, 40: {20, 20}, 256: {128, 128}} {
		overTrip(t, 2*ms, func(t *testing.T, s *trip) {
			l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(s))))
			fly := *coreOf(l).CallStore()
			for round := range 2 { // also after calls that have landed
				flights := []*bucket.Supply{}
				*coreOf(l).CallStore() = func(s *bucket.Supply) { flights = append(flights, s) } // they leave when all requests have asked
				var wg sync.WaitGroup
				for i := range keys {
					wg.Go(func() { require.NoError(t, l.Wait(t.Context(), throttle.Ask{Key: strconv.Itoa(round*keys + i)})) })
				}
				synctest.Wait()
				assert.Len(t, flights, supply.MostCalls)
				*coreOf(l).CallStore() = fly
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
		limit := throttle.TokenBucket(10, time.Second, throttle.Name("calls"), throttle.Shared(s, throttle.LeaseAhead(0)))
		a, b := limiterOf(t, throttle.WithLimit(limit)), limiterOf(t, throttle.WithLimit(limit))
		sendMany(t, a, 6, throttle.Ask{})
		sleep(10 * ms)
		all := sendMany(t, b, 4, throttle.Ask{})
		sleep(10 * ms)
		for _, r := range all {
			require.True(t, r.done)
		}
		late := send(t, a, throttle.Ask{MaxWait: new(80 * ms)})
		sleep(10 * ms)
		requireRefused(t, late, 21*ms, throttle.ReasonMaxWait)
		checkInvariants(t, a)
		checkInvariants(t, b)
	})
}

func TestRequestWithoutAnyWaitWaitsForTheStoreAlone(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Shared(s, throttle.LeaseAhead(0)))))
		now := throttle.Ask{MaxWait: new(time.Duration)}
		a, b := send(t, l, now), send(t, l, now)
		require.False(t, b.done)
		sleep(time.Second)
		requireGranted(t, a, 2*ms)
		r := requireRefused(t, b, 2*ms, throttle.ReasonNoTokens)
		require.InDelta(t, time.Second, r.Wait, float64(3*ms))
		c := send(t, l, now)
		sleep(2 * ms)
		requireGranted(t, c, 1002*ms)
		requireRefused(t, send(t, l, now), 1002*ms, throttle.ReasonNoTokens) // as far as is known
	})
}

func TestTryGetsTheNextTimeWhatIsNotAtHand(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(s))))
		wait, ok := l.Try(throttle.Ask{Cost: 3})
		require.False(t, ok)
		require.Positive(t, wait)
		sleep(2 * ms)
		_, ok = l.Try(throttle.Ask{Cost: 3})
		require.True(t, ok)
		checkInvariants(t, l)
	})
}

func TestUnusedTokensReturnToTheStore(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		limit := throttle.TokenBucket(10, 1000*time.Hour, throttle.Name("calls"), throttle.Shared(s))
		a, b := limiterOf(t, throttle.WithLimit(limit)), limiterOf(t, throttle.WithLimit(limit))
		r := send(t, a, throttle.Ask{Cost: 10})
		sleep(2 * ms)
		r.grant.Cancel()
		waits := send(t, b, throttle.Ask{Cost: 5})
		sleep(time.Minute)
		require.True(t, waits.done)
		require.NoError(t, waits.err)
		require.Less(t, waits.at, 10*time.Second)
		checkInvariants(t, a)
		require.Equal(t, uint64(10), a.Stores()[0].Returned)
	})
}

// A store counts the processes of a budget by how long ago each of them asked for the last time.
func TestProcessThatAsksSeldomIsCountedOnce(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(s))))
		for i := range 5 {
			require.NoError(t, l.Wait(t.Context(), throttle.Ask{Key: "key"}))
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
		limit := throttle.TokenBucket(10, time.Second, throttle.Name("calls"), throttle.Shared(s, throttle.LeaseAhead(0)))
		a, b := limiterOf(t, throttle.WithLimit(limit)), limiterOf(t, throttle.WithLimit(limit))
		a.Hold("", time.Minute)
		sleep(10 * ms)
		r := send(t, b, throttle.Ask{})
		refused := send(t, b, throttle.Ask{MaxWait: new(time.Second)})
		sleep(2 * ms)
		require.False(t, r.done)
		requireRefused(t, refused, 12*ms, throttle.ReasonHeld)
		for bucket := range b.Buckets() {
			require.InDelta(t, 59*time.Second, time.Until(bucket.HeldUntil), float64(time.Second))
		}
		sleep(2 * time.Minute)
		require.True(t, r.done)
		require.GreaterOrEqual(t, r.at, time.Minute)
		require.Less(t, r.at, time.Minute+20*ms)
	})
}

// No tokens are kept or leased for requests that a hold of this process alone stops: after it, the processes have one burst.
func TestProcessesHaveOneBurstAfterHoldAll(t *testing.T) {
	for _, burst := range []int64{1, 10} {
		for _, held := range []time.Duration{time.Second, time.Minute} {
			overTrip(t, 2*ms, func(t *testing.T, s *trip) {
				ctx, cancel := context.WithCancel(t.Context())
				var all []*throttle.Limiter
				var mu sync.Mutex
				var granted []time.Time
				for range 8 {
					l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Burst(burst), throttle.Shared(s))))
					all = append(all, l)
					for range 8 {
						go func() {
							for l.Wait(ctx, throttle.Ask{}) == nil {
								mu.Lock()
								granted = append(granted, time.Now())
								mu.Unlock()
							}
						}()
					}
				}
				sleep(3 * time.Second)
				for _, l := range all {
					l.HoldAll(held)
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

// A fleet that shares the limit of a strict server gets it all again after one refusal, and no other.
func TestAFleetIsNotRefusedAgainAfterARefusal(t *testing.T) {
	for _, processes := range []int{1, 8, 32, 100} {
		overTrip(t, 2*ms, func(t *testing.T, s *trip) {
			const rate, burst = 20, 4 // of the server; the fleet has a burst of 2
			start := time.Now()
			ctx, cancel := context.WithCancel(t.Context())
			var mu sync.Mutex
			level, at, refused, accepted := float64(burst), start, 0, 0
			server := roundTripper(func(req *http.Request) (*http.Response, error) {
				time.Sleep(10 * ms)
				mu.Lock()
				defer mu.Unlock()
				now := time.Now()
				level, at = min(burst, level+rate*now.Sub(at).Seconds()), now
				resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}
				if level < 1 || refused == 0 && now.Sub(start) > 10*time.Second {
					refused++
					resp.StatusCode = http.StatusTooManyRequests
					resp.Header.Set("Retry-After", "2")
					return resp, nil
				}
				level--
				if now.Sub(start) > 20*time.Second {
					accepted++
				}
				return resp, nil
			})
			for range processes {
				tr, err := throttle.New(server, throttle.WithLimit(throttle.TokenBucket(rate, time.Second, throttle.Burst(2), throttle.Shared(s))))
				require.NoError(t, err)
				for range max(2, 64/processes) {
					go func() {
						for ctx.Err() == nil {
							req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://host/", nil)
							_, _ = tr.RoundTrip(req)
						}
					}()
				}
			}
			sleep(50 * time.Second)
			cancel()
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, 1, refused, "%d processes", processes)
			require.GreaterOrEqual(t, accepted, rate*30*98/100, "%d processes", processes)
		})
	}
}

func TestRetryAfterReachesAllProcesses(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		limit := throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Name("calls"), throttle.Shared(s, throttle.LeaseAhead(0))))
		refuses := roundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"10"}}, Body: http.NoBody, Request: req}, nil
		})
		transport, err := throttle.New(refuses, limit)
		require.NoError(t, err)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil)
		require.NoError(t, err)
		_, err = transport.RoundTrip(req)
		require.NoError(t, err)
		other := limiterOf(t, limit)
		sleep(10 * ms)
		r := send(t, other, throttle.Ask{})
		sleep(20 * time.Second)
		require.NoError(t, r.err)
		require.True(t, r.done)
		require.InDelta(t, 10500*ms, r.at, float64(510*ms)) // a hold is up to a tenth longer, at most a second
	})
}

func TestReleaseReachesAllProcesses(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		limit := throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Name("calls"), throttle.Shared(s, throttle.LeaseAhead(0))))
		a, b, c := limiterOf(t, limit), limiterOf(t, limit), limiterOf(t, limit)
		a.Hold("", time.Hour)
		sleep(10 * ms)
		first := send(t, a, throttle.Ask{})
		second := send(t, b, throttle.Ask{})
		sleep(10 * ms)
		c.Release("") // c does not know of the hold
		third := send(t, c, throttle.Ask{})
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
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Name("a"), throttle.Shared(s, throttle.LeaseAhead(0))), throttle.SlidingWindow(50, time.Second, throttle.Name("b"), throttle.Shared(s, throttle.LeaseAhead(0)))))
		all := sendMany(t, l, 20, throttle.Ask{})
		sleep(4 * ms)
		for i, r := range all {
			requireGranted(t, r, []time.Duration{4 * ms, 2 * ms}[map[bool]int{true: 1}[i == 0]])
		}
		require.Equal(t, 2, s.count())
		require.Len(t, s.calls[1], 1)
		require.Len(t, s.calls[1][0].Parts, 2)
		checkInvariants(t, l)
	})
}

func TestSharedLimitWithAMemoryLimitLeasesWhatCanBeUsed(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1000, time.Second, throttle.Name("fleet"), throttle.Shared(s)), throttle.TokenBucket(1, time.Second, throttle.Name("own"))))
		all := sendMany(t, l, 100, throttle.Ask{})
		sleep(99*time.Second + 10*ms)
		for i, r := range all {
			require.True(t, r.done, "%d", i)
			require.InDelta(t, time.Duration(i)*time.Second, r.at, float64(10*ms))
		}
		require.Less(t, l.Stores()[0].Leased, uint64(250))
		checkInvariants(t, l)
	})
}

func TestTokensThatAnotherLimitCanPayTakeOneCall(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1000, time.Second, throttle.Shared(s, throttle.LeaseAhead(0))), throttle.TokenBucket(5, time.Hour, throttle.Name("own"))))
		all := sendMany(t, l, 5, throttle.Ask{})
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
		limit := throttle.WithLimit(throttle.TokenBucket(1000, time.Hour, throttle.Shared(s, throttle.LeaseAhead(0))))
		l, other := limiterOf(t, limit), limiterOf(t, limit)
		send(t, l, throttle.Ask{})
		sleep(10 * ms)
		other.Hold("", time.Minute)
		sleep(10 * ms)
		waits := sendMany(t, l, 300, throttle.Ask{MaxWait: new(time.Second)})
		sleep(2 * ms) // the response tells of the hold
		for _, r := range waits {
			requireRefused(t, r, 22*ms, throttle.ReasonHeld)
		}
		sleep(time.Minute)
		send(t, other, throttle.Ask{Cost: 990})
		sleep(10 * ms)
		waits = sendMany(t, limiterOf(t, limit), 300, throttle.Ask{MaxWait: new(time.Second)})
		sleep(2 * ms) // its first response tells that nothing is left
		for _, r := range waits[20:] {
			requireRefused(t, r, 2*ms, throttle.ReasonMaxWait)
		}
	})
}

func TestUnusedTokensReturnToTheStoreAlsoWhenItIsNotAskedForMore(t *testing.T) {
	overTrip(t, 20*ms, func(t *testing.T, s *trip) {
		limit := throttle.WithLimit(throttle.TokenBucket(10, 1000*time.Hour, throttle.Shared(s, throttle.LeaseAhead(0))))
		l := limiterOf(t, limit)
		gone := send(t, l, throttle.Ask{Key: "a", Cost: 5})
		gone.cancel(nil)
		sleep(20 * ms)                                // its tokens come
		for _, key := range []string{"x", "y", "a"} { // two calls are under way, and a waits for one to return
			r := send(t, l, throttle.Ask{Key: key, Cost: 10})
			if key == "a" {
				r.cancel(nil)
			}
		}
		sleep(time.Second)
		r := send(t, limiterOf(t, limit), throttle.Ask{Key: "a", Cost: 10})
		sleep(time.Second)
		require.True(t, r.done)
	})
}

func TestOutagesHaveNames(t *testing.T) {
	for o, want := range map[throttle.Outage]string{throttle.OutageReject: "reject", throttle.OutageLocalShare: "local share", throttle.OutagePass: "pass", 9: "Outage(9)"} {
		assert.Equal(t, want, o.String())
	}
}

func TestSharedWithWhatItDoesNotFitIsAnError(t *testing.T) {
	s := store.NewMemory()
	for text, opt := range map[string]throttle.Option{
		"Shared(nil)":              throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(nil))),
		"a nil *limiter_test.trip": throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared((*trip)(nil)))),
		"a SharedOption is nil":    throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s, nil))),
		"kind adaptive":            throttle.WithLimit(throttle.Adaptive(throttle.AIMD{}, throttle.Shared(s))),
		"LeaseAhead(-1ns)":         throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s, throttle.LeaseAhead(-1)))),
		"LeaseAhead(2s)":           throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s, throttle.LeaseAhead(2*time.Second)))),
		"StoreTimeout(0s)":         throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s, throttle.StoreTimeout(0)))),
		"StoreGrace(-1ns)":         throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s, throttle.StoreGrace(-1)))),
		"WithoutStore(3)":          throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s, throttle.WithoutStore(3)))),
		"too large":                throttle.WithLimit(throttle.TokenBucket(math.MaxInt64, time.Nanosecond, throttle.Shared(s))),
		"cannot be compared":       throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(uncomparable{s, nil}))),
	} {
		_, err := throttle.NewLimiter(opt)
		require.ErrorContains(t, err, text)
	}
	_, err := throttle.New(nil, throttle.WithDryRun(), throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Shared(s))))
	require.ErrorContains(t, err, "WithDryRun")
}

type uncomparable struct {
	store.Store
	_ []int
}

// The window is exhausted at 1 ms by the store's clock, with the response of 2 ms.
func TestAnExhaustedSharedWindowAnswersByTheWaitOfItsStore(t *testing.T) {
	for _, fill := range []int64{3, 2} { // the response that granted the last token reports the wait, or the one that granted none
		overTrip(t, 2*ms, func(t *testing.T, s *trip) {
			l := limiterOf(t, throttle.WithLimit(throttle.SlidingWindow(3, 10*time.Second, throttle.Shared(s, throttle.LeaseAhead(0)))))
			send(t, l, throttle.Ask{Cost: fill})
			sleep(2 * ms)
			last := send(t, l, throttle.Ask{})
			sleep(2 * ms)
			if fill == 2 {
				requireGranted(t, last, 4*ms)
			} else {
				require.False(t, last.done)
			}
			calls := s.count()
			free := 10 * time.Second // when the first tokens come in again; the lower bound does not know how long the question took to get there
			for range 3 {
				wait, ok := l.Try(throttle.Ask{})
				require.False(t, ok)
				require.Equal(t, free-4*ms, wait)
			}
			now := send(t, l, throttle.Ask{MaxWait: new(time.Duration)})
			require.Equal(t, free-4*ms, requireRefused(t, now, 4*ms, throttle.ReasonNoTokens).Wait)
			ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
			defer cancel()
			requireRefused(t, sendUnder(ctx, l, throttle.Ask{}), 4*ms, throttle.ReasonDeadline)
			require.Equal(t, calls, s.count())
			patient := send(t, l, throttle.Ask{})
			sleep(11 * time.Second)
			require.True(t, patient.done)
			require.NoError(t, patient.err)
			require.LessOrEqual(t, patient.at, free+8*ms)
		})
	}
}

// TestAStoreFurtherAwayThanItsTimeoutIsReached has the default StoreTimeout of 250 ms. The response to a call that was given up
// shows how far away the store is, if the ask reached the store in time.
func TestAStoreFurtherAwayThanItsTimeoutIsReached(t *testing.T) {
	for _, takes := range []time.Duration{240 * ms, 300 * ms, 490 * ms} {
		overTrip(t, takes, func(t *testing.T, s *trip) {
			l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Shared(s))))
			for range 200 {
				require.NoError(t, l.Wait(t.Context(), throttle.Ask{}))
			}
			st := l.Stores()[0]
			require.True(t, st.Up)
			require.LessOrEqual(t, st.Failed, uint64(2), "only before the first response")
		})
	}
}
