package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

var errDown = errors.New("connection refused")

// requireRefusedFor checks when and why a request was rejected because of its store.
func requireRefusedFor(t *testing.T, r *request, at time.Duration, cause error) *throttle.Rejection {
	t.Helper()
	rejection := requireRefused(t, r, at, throttle.ReasonStore)
	require.ErrorIs(t, r.err, cause)
	require.ErrorIs(t, r.err, throttle.ErrThrottled)
	return rejection
}

func TestRequestsWaitForTheGraceOfAnOutage(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(s))))
		s.set(errDown, nil)
		patient := send(t, l, throttle.Ask{})
		short := send(t, l, throttle.Ask{MaxWait: new(3*time.Second - 1)})
		just := send(t, l, throttle.Ask{MaxWait: new(3*time.Second + ms)})
		long := send(t, l, throttle.Ask{MaxWait: new(3*time.Second + 2*ms)})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second+ms)
		defer cancel()
		late := sendUnder(ctx, l, throttle.Ask{})
		sleep(ms - 1)
		require.False(t, short.done)
		sleep(1) // the first call fails, and the grace begins
		requireRefusedFor(t, short, ms, errDown)
		requireRefusedFor(t, late, ms, errDown)
		requireRefusedFor(t, send(t, l, throttle.Ask{MaxWait: new(time.Duration)}), ms, errDown)
		require.False(t, patient.done)
		require.False(t, just.done)
		require.False(t, l.Stores()[0].Up)
		dear := requireRefused(t, send(t, l, throttle.Ask{Cost: 11}), ms, throttle.ReasonCost)
		require.EqualValues(t, int64(math.MaxInt64), dear.Wait, "whatever the store says")
		sleep(3*time.Second - 1)
		require.False(t, patient.done)
		require.False(t, long.done)
		sleep(1)
		r := requireRefusedFor(t, patient, 3*time.Second+ms, errDown)
		requireRefusedFor(t, long, 3*time.Second+ms, errDown)
		require.LessOrEqual(t, r.Wait, 375*ms)
		r = requireRefusedFor(t, send(t, l, throttle.Ask{}), 3*time.Second+ms, errDown)
		require.Contains(t, r.Error(), "the store is unreachable: connection refused")
		checkInvariants(t, l)
	})
}

func TestRequestsGoAgainWhenTheStoreIsInReachAgain(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		var events []throttle.StoreEvent
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Name("calls"), throttle.Shared(s))), throttle.WithHooks(throttle.Hooks{OnStore: func(e throttle.StoreEvent) { events = append(events, e) }}))
		sleep(time.Hour)
		s.set(errDown, nil)
		all := sendMany(t, l, 10, throttle.Ask{})
		sleep(time.Second)
		s.set(nil, nil)
		sleep(375*ms + 6*ms)
		for _, r := range all {
			require.True(t, r.done)
			require.NoError(t, r.err)
		}
		require.Len(t, events, 2)
		require.ErrorIs(t, events[0].Err, errDown)
		require.NoError(t, events[1].Err)
		require.Equal(t, []string{"calls"}, events[1].Limits)
		require.InDelta(t, time.Second, events[1].Down, float64(400*ms))
		st := l.Stores()[0]
		require.True(t, st.Up)
		require.EqualValues(t, s.count(), st.OK+st.Failed)
		require.NotZero(t, st.OK)
		require.NotZero(t, st.Failed)
		checkInvariants(t, l)
	})
}

// The goroutine that calls a store belongs to no request, so that no caller could recover a panic there.
func TestAPanicInTheGoroutineOfAStoreEndsNoProcess(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		var log strings.Builder
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(s))), throttle.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
			throttle.WithHooks(throttle.Hooks{OnStore: func(throttle.StoreEvent) { panic("hook") }}))
		s.set(errDown, nil)
		one := send(t, l, throttle.Ask{})
		sleep(time.Second)
		require.False(t, one.done)
		require.Contains(t, log.String(), `msg="throttle: OnStore panicked" panic=hook`)
		s.set(nil, nil)
		sleep(time.Second)
		require.NoError(t, one.err)
		require.True(t, one.done)
		checkInvariants(t, l)
	})
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(panicking{}))))
		r := send(t, l, throttle.Ask{MaxWait: new(time.Second)})
		sleep(time.Minute)
		require.True(t, r.done)
		require.ErrorContains(t, r.err, "the store panicked: broken")
	})
}

type panicking struct{}

func (panicking) Lease(context.Context, []store.Ask) ([]store.Lease, error) { panic("broken") }

func TestDeadlinesHoldWhileTheStoreHangs(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(s))))
		hangs := make(chan struct{})
		s.set(nil, hangs)
		before := send(t, l, throttle.Ask{MaxWait: new(100 * ms)}) // may wait for the response
		after := send(t, l, throttle.Ask{MaxWait: new(300 * ms)})
		patient := send(t, l, throttle.Ask{})
		sleep(250*ms - 1)
		require.False(t, after.done)
		sleep(1)
		require.ErrorIs(t, before.err, throttle.ErrThrottled)
		require.Equal(t, 250*ms, before.at)
		requireRefused(t, after, 250*ms, throttle.ReasonStore)
		sleep(2 * time.Second)
		require.Equal(t, supply.MostCalls, s.count(), "calls that hang pile up")
		require.Equal(t, supply.MostCalls, s.underWay())
		s.set(nil, nil)
		close(hangs)
		sleep(10 * ms)
		require.True(t, patient.done)
		require.NoError(t, patient.err)
		require.Zero(t, s.underWay())
		checkInvariants(t, l)
	})
}

func TestAnOvertakenRequestIsRejectedOnceItNeedsAStoreThatIsOutOfReach(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Burst(2), throttle.Shared(s, throttle.LeaseAhead(0)))))
		send(t, l, throttle.Ask{Key: "a", Cost: 2})
		sleep(2 * ms)
		waits := send(t, l, throttle.Ask{Key: "a", Cost: 2, MaxWait: new(500 * ms)})
		sleep(3 * ms) // the store has promised its tokens for 11 and 21 ms
		s.set(errDown, nil)
		send(t, l, throttle.Ask{Key: "b"})
		sleep(2 * ms)
		hangs := make(chan struct{})
		s.set(nil, hangs) // no further call fails soon
		sleep(6 * ms)
		requireGranted(t, send(t, l, throttle.Ask{Key: "a", Cost: 1, Priority: 1}), 13*ms)
		requireRefusedFor(t, waits, 13*ms, errDown)
		close(hangs)
	})
}

// Two calls are under way at most, so the store has not been asked for c yet.
func TestARequestWhoseStoreIsNotAskedYetIsRejectedAsAnOutageBegins(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(s))))
		s.set(errDown, nil)
		var all []*request
		for _, key := range []string{"a", "b", "c"} {
			all = append(all, send(t, l, throttle.Ask{Key: key, MaxWait: new(time.Second)}))
		}
		sleep(ms)
		for _, r := range all {
			requireRefusedFor(t, r, ms, errDown)
		}
		require.Equal(t, 2, s.count())
	})
}

func TestWrongSetUpIsAnErrorInEveryMode(t *testing.T) {
	for _, mode := range []throttle.Outage{throttle.OutageReject, throttle.OutageLocalShare, throttle.OutagePass} {
		t.Run(mode.String(), func(t *testing.T) {
			overTrip(t, 2*ms, func(t *testing.T, s *trip) {
				l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(s, throttle.WithoutStore(mode), throttle.LeaseAhead(0)))))
				err := fmt.Errorf("%w: NOPERM", store.ErrSetup)
				s.set(errDown, nil)
				first := send(t, l, throttle.Ask{})
				sleep(4 * time.Second)
				if mode == throttle.OutagePass {
					requireGranted(t, first, 3001*ms)
				}
				s.set(err, nil)
				for range 8 { // requests of which one probes
					send(t, l, throttle.Ask{})
					sleep(100 * ms)
				}
				requireRefusedFor(t, send(t, l, throttle.Ask{}), 4800*ms, store.ErrSetup)
				sleep(time.Minute)
				last := send(t, l, throttle.Ask{})
				sleep(ms)
				requireRefusedFor(t, last, 64801*ms, store.ErrSetup)
				s.set(nil, nil)
				sleep(time.Minute)
				ok := send(t, l, throttle.Ask{})
				sleep(2 * ms)
				require.NoError(t, ok.err)
				require.True(t, ok.done)
				st := l.Stores()[0]
				require.EqualValues(t, s.count(), st.OK+st.Failed+st.Setup)
				require.NotZero(t, st.Setup)
			})
		})
	}
}

func TestPassLetsAllRequestsPassAfterTheGrace(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Shared(s, throttle.WithoutStore(throttle.OutagePass)))))
		s.set(errDown, nil)
		first := send(t, l, throttle.Ask{})
		sleep(3*time.Second + ms - 1)
		require.False(t, first.done)
		sleep(1)
		requireGranted(t, first, 3*time.Second+ms)
		for range 100 {
			_, ok := l.Try(throttle.Ask{})
			require.True(t, ok)
		}
		require.Equal(t, uint64(101), l.Stores()[0].Alone)
		s.set(nil, nil)
		sleep(time.Second)
		one, other := send(t, l, throttle.Ask{}), send(t, l, throttle.Ask{MaxWait: new(time.Minute)})
		sleep(4 * ms)
		require.True(t, one.done)
		require.NoError(t, one.err, "what passed is not owed")
		requireRefused(t, other, other.at, throttle.ReasonMaxWait)
	})
}

func TestLocalShareGoesOnAtTheShareOfTheProcess(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		limit := throttle.TokenBucket(10, time.Second, throttle.Burst(1), throttle.Name("calls"), throttle.Shared(s, throttle.WithoutStore(throttle.OutageLocalShare), throttle.LeaseAhead(0)))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var all []*throttle.Limiter
		served := make([]atomic.Int64, 4)
		counts := func() (n []int64, sum int64) {
			for i := range served {
				n = append(n, served[i].Load())
				sum += n[i]
			}
			return n, sum
		}
		for i := range served {
			l := limiterOf(t, throttle.WithLimit(limit))
			all = append(all, l)
			go func() {
				for l.Wait(ctx, throttle.Ask{}) == nil {
					served[i].Add(1)
				}
			}()
		}
		sleep(30 * time.Second)
		_, sum := counts()
		require.InDelta(t, 300, sum, 5)
		s.set(errDown, nil)
		sleep(4 * time.Second) // what was promised, and the grace
		before, _ := counts()
		sleep(20 * time.Second)
		after, _ := counts()
		for i := range after {
			require.InDelta(t, 50, after[i]-before[i], 1, "its share of 10 per second is 2.5")
		}
		s.set(nil, nil)
		sleep(10 * time.Second)
		_, sum = counts()
		sleep(20 * time.Second)
		_, later := counts()
		require.InDelta(t, 200, later-sum, 5)
		for _, l := range all {
			checkInvariants(t, l)
			require.True(t, l.Stores()[0].Up)
		}
	})
}

func TestLocalShareOfAProcessThatNeverReachedTheStoreIsNothing(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.Pace(10, time.Second, throttle.Shared(s, throttle.WithoutStore(throttle.OutageLocalShare)))))
		s.set(errDown, nil)
		r := send(t, l, throttle.Ask{})
		sleep(time.Minute)
		requireRefusedFor(t, r, 3*time.Second+ms, errDown)
	})
}

func TestLocalShareOfANewKeyGoesByTheProcessesOfTheStore(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.Pace(10, time.Second, throttle.Shared(s, throttle.WithoutStore(throttle.OutageLocalShare)))))
		send(t, l, throttle.Ask{Key: "old"})
		sleep(10 * ms)
		s.set(errDown, nil)
		r := send(t, l, throttle.Ask{Key: "new"})
		sleep(4 * time.Second)
		require.True(t, r.done)
		require.NoError(t, r.err)
	})
}

// A part is a Store that fails for one key, or for all if that is empty.
type part struct {
	store.Store
	key string
	err error
}

func (s *part) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	if s.key == "" && s.err != nil {
		return nil, s.err
	}
	leases, err := s.Store.Lease(ctx, asks)
	for i := range leases {
		if s.err != nil && asks[i].Parts[0].Budget.Key == s.key {
			leases[i] = store.Lease{Err: s.err}
		}
	}
	return leases, err
}

func TestOutageOfOneKeyIsThatOfItsRequestsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &part{Store: store.NewMemory(), key: "a", err: errDown}
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1000, time.Second, throttle.Shared(s))))
		waits := send(t, l, throttle.Ask{Key: "a"})
		requireRefusedFor(t, send(t, l, throttle.Ask{Key: "a", MaxWait: new(time.Second)}), 0, errDown)
		for range 40 {
			b := send(t, l, throttle.Ask{Key: "b", MaxWait: new(time.Second)})
			sleep(100 * ms)
			require.NoError(t, b.err)
			require.True(t, b.done)
		}
		requireRefusedFor(t, waits, 3*time.Second, errDown)
		require.True(t, l.Stores()[0].Up)
	})
}

// A fool is a Store that breaks the rules.
type fool struct {
	answer func(asks []store.Ask) []store.Lease
}

func (s *fool) Lease(_ context.Context, asks []store.Ask) ([]store.Lease, error) {
	return s.answer(asks), nil
}

func TestResponseThatCannotBeIsAWrongSetUp(t *testing.T) {
	for name, answer := range map[string]func(asks []store.Ask) []store.Lease{
		"no lease": func([]store.Ask) []store.Lease { return nil },
		"no part":  func(asks []store.Ask) []store.Lease { return make([]store.Lease, len(asks)) },
		"too many": func([]store.Ask) []store.Lease {
			return []store.Lease{{Parts: []store.LeasedPart{{Tokens: 100, AtOnce: 100}}}}
		},
		"negative": func([]store.Ask) []store.Lease { return []store.Lease{{Parts: []store.LeasedPart{{Tokens: -1}}}} },
		"more at once": func([]store.Ask) []store.Lease {
			return []store.Lease{{Parts: []store.LeasedPart{{Tokens: 1, AtOnce: 2}}}}
		},
	} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1000, time.Second, throttle.Shared(&fool{answer}, throttle.WithoutStore(throttle.OutagePass)))))
			requireRefusedFor(t, send(t, l, throttle.Ask{}), 0, store.ErrSetup)
		})
	}
}

func TestStoreThatGrantsNothingWithoutAWaitIsNotAskedAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		s := &fool{func(asks []store.Ask) []store.Lease {
			n++
			return []store.Lease{{Parts: make([]store.LeasedPart, len(asks[0].Parts))}}
		}}
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1000, time.Second, throttle.Shared(s))))
		r := send(t, l, throttle.Ask{})
		sleep(100 * ms)
		require.InDelta(t, 100, n, 2)
		r.cancel(nil)
		sleep(time.Second)
	})
}

// A shard is a Store that grants no budgets of different keys together.
type shard struct {
	store.Store
	parts int // the most of an ask
}

func (s *shard) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	var together []store.Ask
	var places []int
	leases := make([]store.Lease, len(asks))
	for i, a := range asks {
		s.parts = max(s.parts, len(a.Parts))
		if len(a.Parts) == 2 && a.Parts[0].Budget.Key != a.Parts[1].Budget.Key {
			leases[i].Err = store.ErrApart
			continue
		}
		together, places = append(together, a), append(places, i)
	}
	some, err := s.Store.Lease(ctx, together)
	for j, i := range places {
		leases[i] = some[j]
	}
	return leases, err
}

func TestBudgetsInDifferentPlacesAreAskedForAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shard{Store: store.NewMemory()}
		shared := throttle.Shared(s)
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(20, time.Second, throttle.Burst(1), throttle.Name("a"), shared), throttle.TokenBucket(10, time.Second, throttle.Burst(1), throttle.Name("b"), shared)))
		for range 101 {
			r := send(t, l, throttle.Ask{Keys: map[string]string{"a": "x", "b": "y"}})
			for !r.done {
				sleep(ms)
			}
			require.NoError(t, r.err)
		}
		require.InDelta(t, 10*time.Second, time.Since(coreOf(l).Start), float64(300*ms))
		require.True(t, (*coreOf(l).Supplies())[0].Apart)
		checkInvariants(t, l)
		s.parts = 0
		send(t, l, throttle.Ask{Keys: map[string]string{"a": "z", "b": "z"}})
		require.Equal(t, 2, s.parts, "those of one key are in one place")
		sleep(time.Minute)
	})
}
