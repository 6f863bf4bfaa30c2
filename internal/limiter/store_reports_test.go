package limiter_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
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
		var events []throttle.StoreEvent
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Name("calls"), throttle.Shared(&faulty{s, "bad"}, throttle.WithoutStore(throttle.OutagePass)))),
			throttle.WithHooks(throttle.Hooks{OnStore: func(e throttle.StoreEvent) { events = append(events, e) }}))
		bad, good := send(t, l, throttle.Ask{Key: "bad"}), send(t, l, throttle.Ask{Key: "good"})
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
		st := l.Stores()[0]
		require.True(t, st.Up)
		require.Zero(t, st.Outages)
		require.NotZero(t, st.Faulty)
	})
}

func TestStoresReportLatencyOutagesAndRulesThatDiffer(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		strict := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Name("calls"), throttle.Shared(s))))
		requireSent(t, strict)
		var events []throttle.StoreEvent
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(600, time.Minute, throttle.Name("calls"), throttle.Shared(s))), throttle.WithHooks(throttle.Hooks{OnStore: func(e throttle.StoreEvent) { events = append(events, e) }}))
		requireSent(t, l)
		requireSent(t, l)
		st := l.Stores()[0]
		require.NotZero(t, st.Differs)
		require.Len(t, events, 1, "once")
		require.ErrorIs(t, events[0].Err, store.ErrRule)
		require.EqualValues(t, st.OK, st.Latency.Counts[1], "of 2 ms")
		require.Equal(t, time.Duration(st.OK)*2*ms, st.Latency.Sum)
		s.set(errDown, nil)
		send(t, l, throttle.Ask{Cost: 5, MaxWait: new(time.Second)})
		sleep(time.Second)
		require.EqualValues(t, 1, l.Stores()[0].Outages)
		require.Zero(t, strict.Stores()[0].Differs)
		s.set(nil, nil)
	})
}

func TestNothingLeasedAheadCostsOneCallForEachTokenAtMost(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Name("calls"), throttle.Shared(s, throttle.LeaseAhead(0)))))
		const keys, each = 20, 3
		for range each {
			for i := range keys {
				require.NoError(t, l.Wait(t.Context(), throttle.Ask{Key: strconv.Itoa(i)}))
			}
		}
		sleep(time.Minute)
		require.Len(t, s.calls, keys*each)
		for range 3 {
			sendMany(t, l, 10, throttle.Ask{Key: "hot"})
			sleep(time.Second)
		}
		require.LessOrEqual(t, len(s.calls), keys*each+3*2, "those that wait share calls")
	})
}

func requireSent(t *testing.T, l *throttle.Limiter) {
	t.Helper()
	r := send(t, l, throttle.Ask{})
	sleep(time.Second)
	require.True(t, r.done)
	require.NoError(t, r.err)
}

func TestAProcessThatStartsInAnOutageHasItsPartOfTheExpectedProcesses(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		s.set(errDown, nil)
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Shared(s, throttle.WithoutStore(throttle.OutageLocalShare), throttle.ExpectProcesses(4)))))
		all := sendMany(t, l, 50, throttle.Ask{})
		sleep(time.Second + ms)
		sent := 0
		for _, r := range all {
			if r.done {
				require.NoError(t, r.err)
				sent++
			}
		}
		require.Equal(t, 25, sent)
		_, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Shared(s, throttle.ExpectProcesses(-1)))))
		require.ErrorContains(t, err, "ExpectProcesses(-1)")
	})
}
