package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

var errDown = errors.New("connection refused")

// requireRejectedFor checks when and why a request was rejected because of its store.
func requireRejectedFor(t *testing.T, r *request, at time.Duration, cause error) *rejection {
	t.Helper()
	rejection := requireRejected(t, r, at, bucket.ReasonStore)
	require.ErrorIs(t, r.err, cause)
	require.ErrorIs(t, r.err, errRejected)
	return rejection
}

func TestRequestsWaitForTheGraceOfAnOutage(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(10, time.Second, shared(s)))
		s.set(errDown, nil)
		patient := l.send(ask{})
		short := l.send(ask{MaxWait: ptr(3*time.Second - 1)})
		just := l.send(ask{MaxWait: ptr(3*time.Second + ms)})
		long := l.send(ask{MaxWait: ptr(3*time.Second + 2*ms)})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second+ms)
		defer cancel()
		late := l.sendUnder(ctx, ask{})
		sleep(ms - 1)
		require.False(t, short.done)
		sleep(1) // the first call fails, and the grace begins
		requireRejectedFor(t, short, ms, errDown)
		requireRejectedFor(t, late, ms, errDown)
		requireRejectedFor(t, l.send(ask{MaxWait: new(time.Duration)}), ms, errDown)
		require.False(t, patient.done)
		require.False(t, just.done)
		require.Error(t, l.StoreStates()[0].Err)
		dear := requireRejected(t, l.send(ask{Cost: 11}), ms, bucket.ReasonCost)
		require.EqualValues(t, int64(math.MaxInt64), dear.Wait, "whatever the store says")
		sleep(3*time.Second - 1)
		require.False(t, patient.done)
		require.False(t, long.done)
		sleep(1)
		r := requireRejectedFor(t, patient, 3*time.Second+ms, errDown)
		requireRejectedFor(t, long, 3*time.Second+ms, errDown)
		require.LessOrEqual(t, r.Wait, 375*ms)
		r = requireRejectedFor(t, l.send(ask{}), 3*time.Second+ms, errDown)
		require.ErrorContains(t, r, "connection refused")
		l.check()
	})
}

func TestRequestsAreGrantedWhenTheStoreIsReachableAgain(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		var events []supply.Event
		l := drive(t, tokenBucket(10, time.Second, named("calls"), shared(s)))
		l.onStore = func(e supply.Event) { events = append(events, e) }
		sleep(time.Hour)
		s.set(errDown, nil)
		all := l.sendMany(10, ask{})
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
		st := l.StoreStates()[0]
		require.NoError(t, st.Err)
		require.EqualValues(t, s.count(), st.Counts.Ok+st.Counts.Failed)
		require.NotZero(t, st.Counts.Ok)
		require.NotZero(t, st.Counts.Failed)
		l.check()
	})
}

// The goroutine that calls a store belongs to no request, so that no caller could recover a panic there.
func TestAStoreThatPanicsIsUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(10, time.Second, shared(panicking{})))
		r := l.send(ask{MaxWait: ptr(time.Second)})
		sleep(time.Minute)
		require.True(t, r.done)
		require.ErrorContains(t, r.err, "the store panicked: broken")
	})
}

type panicking struct{}

func (panicking) Lease(context.Context, []store.Ask) ([]store.Lease, error) { panic("broken") }

func TestDeadlinesHoldWhileTheStoreHangs(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(10, time.Second, shared(s)))
		hangs := make(chan struct{})
		s.set(nil, hangs)
		before := l.send(ask{MaxWait: ptr(100 * ms)}) // may wait for the response
		after := l.send(ask{MaxWait: ptr(300 * ms)})
		patient := l.send(ask{})
		sleep(250*ms - 1)
		require.False(t, after.done)
		sleep(1)
		require.ErrorIs(t, before.err, errRejected)
		require.Equal(t, 250*ms, before.at)
		requireRejected(t, after, 250*ms, bucket.ReasonStore)
		sleep(2 * time.Second)
		require.Equal(t, supply.MostCalls, s.count(), "calls that hang pile up")
		require.Equal(t, supply.MostCalls, s.underWay())
		s.set(nil, nil)
		close(hangs)
		sleep(10 * ms)
		require.True(t, patient.done)
		require.NoError(t, patient.err)
		require.Zero(t, s.underWay())
		l.check()
	})
}

func TestAnOvertakenRequestIsRejectedOnceItNeedsAnUnreachableStore(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(100, time.Second, withBurst(2), shared(s, leaseAhead(0))))
		l.send(ask{Key: "a", Cost: 2})
		sleep(2 * ms)
		waits := l.send(ask{Key: "a", Cost: 2, MaxWait: ptr(500 * ms)})
		sleep(3 * ms) // the store has promised its tokens for 11 and 21 ms
		s.set(errDown, nil)
		l.send(ask{Key: "b"})
		sleep(2 * ms)
		hangs := make(chan struct{})
		s.set(nil, hangs) // no further call fails soon
		sleep(6 * ms)
		requireGranted(t, l.send(ask{Key: "a", Cost: 1, Priority: 1}), 13*ms)
		requireRejectedFor(t, waits, 13*ms, errDown)
		close(hangs)
	})
}

// Two calls are under way at most, so the store has not been asked for c yet.
func TestARequestWhoseStoreIsNotAskedYetIsRejectedAsAnOutageBegins(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(10, time.Second, shared(s)))
		s.set(errDown, nil)
		var all []*request
		for _, key := range []string{"a", "b", "c"} {
			all = append(all, l.send(ask{Key: key, MaxWait: ptr(time.Second)}))
		}
		sleep(ms)
		for _, r := range all {
			requireRejectedFor(t, r, ms, errDown)
		}
		require.Equal(t, 2, s.count())
	})
}

func TestAWrongSetupIsAnErrorInEveryMode(t *testing.T) {
	for _, mode := range []supply.Without{supply.Nothing, supply.ButLocally, supply.Limit} {
		t.Run(fmt.Sprint(mode), func(t *testing.T) {
			overTrip(t, 2*ms, func(t *testing.T, s *trip) {
				l := drive(t, tokenBucket(10, time.Second, shared(s, withoutStore(mode), leaseAhead(0))))
				err := fmt.Errorf("%w: NOPERM", store.ErrSetup)
				s.set(errDown, nil)
				first := l.send(ask{})
				sleep(4 * time.Second)
				if mode == supply.Limit {
					requireGranted(t, first, 3001*ms)
				}
				s.set(err, nil)
				for range 8 { // requests of which one probes
					l.send(ask{})
					sleep(100 * ms)
				}
				requireRejectedFor(t, l.send(ask{}), 4800*ms, store.ErrSetup)
				sleep(time.Minute)
				last := l.send(ask{})
				sleep(ms)
				requireRejectedFor(t, last, 64801*ms, store.ErrSetup)
				s.set(nil, nil)
				sleep(time.Minute)
				ok := l.send(ask{})
				sleep(2 * ms)
				require.NoError(t, ok.err)
				require.True(t, ok.done)
				st := l.StoreStates()[0]
				require.EqualValues(t, s.count(), st.Counts.Ok+st.Counts.Failed+st.Counts.Setup)
				require.NotZero(t, st.Counts.Setup)
			})
		})
	}
}

func TestPassLetsAllRequestsPassAfterTheGrace(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(1, time.Hour, shared(s, withoutStore(supply.Limit))))
		s.set(errDown, nil)
		first := l.send(ask{})
		sleep(3*time.Second + ms - 1)
		require.False(t, first.done)
		sleep(1)
		requireGranted(t, first, 3*time.Second+ms)
		for range 100 {
			_, ok := l.try(ask{})
			require.True(t, ok)
		}
		require.Equal(t, uint64(101), l.StoreStates()[0].Counts.Alone)
		s.set(nil, nil)
		sleep(time.Second)
		one, other := l.send(ask{}), l.send(ask{MaxWait: ptr(time.Minute)})
		sleep(4 * ms)
		require.True(t, one.done)
		require.NoError(t, one.err, "what passed is not owed")
		requireRejected(t, other, other.at, bucket.ReasonMaxWait)
	})
}

func TestLocalShareGoesOnAtTheShareOfTheProcess(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		limit := tokenBucket(10, time.Second, withBurst(1), named("calls"), shared(s, withoutStore(supply.ButLocally), leaseAhead(0)))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var all []*driven
		served := make([]atomic.Int64, 4)
		counts := func() (n []int64, sum int64) {
			for i := range served {
				n = append(n, served[i].Load())
				sum += n[i]
			}
			return n, sum
		}
		for i := range served {
			l := drive(t, limit)
			all = append(all, l)
			go func() {
				for l.wait(ctx, ask{}) == nil {
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
			l.check()
			require.NoError(t, l.StoreStates()[0].Err)
		}
	})
}

func TestLocalShareOfAProcessThatNeverReachedTheStoreIsNothing(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, pace(10, time.Second, shared(s, withoutStore(supply.ButLocally))))
		s.set(errDown, nil)
		r := l.send(ask{})
		sleep(time.Minute)
		requireRejectedFor(t, r, 3*time.Second+ms, errDown)
	})
}

func TestLocalShareOfANewKeyGoesByTheProcessesOfTheStore(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, pace(10, time.Second, shared(s, withoutStore(supply.ButLocally))))
		l.send(ask{Key: "old"})
		sleep(10 * ms)
		s.set(errDown, nil)
		r := l.send(ask{Key: "new"})
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
		l := drive(t, tokenBucket(1000, time.Second, shared(s)))
		waits := l.send(ask{Key: "a"})
		requireRejectedFor(t, l.send(ask{Key: "a", MaxWait: ptr(time.Second)}), 0, errDown)
		for range 40 {
			b := l.send(ask{Key: "b", MaxWait: ptr(time.Second)})
			sleep(100 * ms)
			require.NoError(t, b.err)
			require.True(t, b.done)
		}
		requireRejectedFor(t, waits, 3*time.Second, errDown)
		require.NoError(t, l.StoreStates()[0].Err)
	})
}

// An unruly is a Store that breaks the rules.
type unruly struct {
	answer func(asks []store.Ask) []store.Lease
}

func (s *unruly) Lease(_ context.Context, asks []store.Ask) ([]store.Lease, error) {
	return s.answer(asks), nil
}

func TestAnImpossibleResponseIsAWrongSetup(t *testing.T) {
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
			l := drive(t, tokenBucket(1000, time.Second, shared(&unruly{answer}, withoutStore(supply.Limit))))
			requireRejectedFor(t, l.send(ask{}), 0, store.ErrSetup)
		})
	}
}

func TestStoreThatGrantsNothingWithoutAWaitIsNotAskedAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		s := &unruly{func(asks []store.Ask) []store.Lease {
			n++
			return []store.Lease{{Parts: make([]store.LeasedPart, len(asks[0].Parts))}}
		}}
		l := drive(t, tokenBucket(1000, time.Second, shared(s)))
		r := l.send(ask{})
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
		shared := shared(s)
		l := drive(t, tokenBucket(20, time.Second, withBurst(1), named("a"), shared), tokenBucket(10, time.Second, withBurst(1), named("b"), shared))
		for range 101 {
			r := l.send(ask{Keys: map[string]string{"a": "x", "b": "y"}})
			for !r.done {
				sleep(ms)
			}
			require.NoError(t, r.err)
		}
		require.InDelta(t, 10*time.Second, l.now(), float64(300*ms))
		require.True(t, l.Limits[0].Supply.Apart)
		l.check()
		s.parts = 0
		l.send(ask{Keys: map[string]string{"a": "z", "b": "z"}})
		require.Equal(t, 2, s.parts, "those of one key are in one place")
		sleep(time.Minute)
	})
}
