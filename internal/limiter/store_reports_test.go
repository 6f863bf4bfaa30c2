package limiter_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

// A faulty store cannot read the budgets of one key.
type faulty struct {
	*trip
	key string
}

func (s *faulty) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	leases, err := s.trip.Lease(ctx, asks)
	for i := range leases {
		if asks[i].Parts[0].Budget.Key == s.key {
			leases[i] = store.Lease{Err: errors.New("WRONGTYPE")}
		}
	}
	return leases, err
}

func TestAnUnreadableBudgetRejectsNoOtherAndIsReported(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		var events []supply.Event
		l := drive(t, tokenBucket(10, time.Second, named("calls"), shared(&faulty{s, "bad"}, withoutStore(supply.Limit))))
		l.onStore = func(e supply.Event) { events = append(events, e) }
		bad, good := l.send(ask{Key: "bad"}), l.send(ask{Key: "good"})
		sleep(4 * ms)
		require.True(t, good.done)
		require.NoError(t, good.err)
		require.False(t, bad.done)
		require.Len(t, events, 1)
		require.Equal(t, "bad", events[0].Key)
		require.Equal(t, []string{"calls"}, events[0].Limits)
		require.ErrorContains(t, events[0].Err, "WRONGTYPE")
		sleep(4 * time.Second)
		require.True(t, bad.done)
		require.NoError(t, bad.err, "all pass after the grace")
		st := l.StoreStates()[0]
		require.NoError(t, st.Err)
		require.Zero(t, st.Counts.Outages)
		require.NotZero(t, st.Counts.Faulty)
	})
}

func TestStoresReportLatencyOutagesAndRulesThatDiffer(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		strict := drive(t, tokenBucket(10, time.Second, named("calls"), shared(s)))
		requireSent(t, strict)
		var events []supply.Event
		l := drive(t, tokenBucket(600, time.Minute, named("calls"), shared(s)))
		l.onStore = func(e supply.Event) { events = append(events, e) }
		requireSent(t, l)
		requireSent(t, l)
		st := l.StoreStates()[0]
		require.NotZero(t, st.Counts.Differs)
		require.Len(t, events, 1, "once")
		require.ErrorIs(t, events[0].Err, store.ErrRule)
		require.EqualValues(t, st.Counts.Ok, st.Latency.Counts[1], "of 2 ms")
		require.Equal(t, time.Duration(st.Counts.Ok)*2*ms, st.Latency.Sum)
		s.set(errDown, nil)
		l.send(ask{Cost: 5, MaxWait: ptr(time.Second)})
		sleep(time.Second)
		require.EqualValues(t, 1, l.StoreStates()[0].Counts.Outages)
		require.Zero(t, strict.StoreStates()[0].Counts.Differs)
		s.set(nil, nil)
	})
}

func TestNothingLeasedAheadCostsOneCallForEachTokenAtMost(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(10, time.Second, named("calls"), shared(s, leaseAhead(0))))
		const keys, each = 20, 3
		for range each {
			for i := range keys {
				require.NoError(t, l.wait(t.Context(), ask{Key: strconv.Itoa(i)}))
			}
		}
		sleep(time.Minute)
		require.Len(t, s.calls, keys*each)
		for range 3 {
			l.sendMany(10, ask{Key: "hot"})
			sleep(time.Second)
		}
		require.LessOrEqual(t, len(s.calls), keys*each+3*2, "those that wait share calls")
	})
}

func requireSent(t *testing.T, l *driven) {
	t.Helper()
	r := l.send(ask{})
	sleep(time.Second)
	require.True(t, r.done)
	require.NoError(t, r.err)
}

func TestAProcessThatStartsInAnOutageHasItsPartOfTheExpectedProcesses(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		s.set(errDown, nil)
		l := drive(t, tokenBucket(100, time.Second, shared(s, withoutStore(supply.ButLocally), expectProcesses(4))))
		all := l.sendMany(50, ask{})
		sleep(time.Second + ms)
		sent := 0
		for _, r := range all {
			if r.done {
				require.NoError(t, r.err)
				sent++
			}
		}
		require.Equal(t, 25, sent)
	})
}
