package limiter_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/httpthrottle/throttle"
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
		var events []StoreEvent
		l := limiterOf(t, WithLimit(TokenBucket(10, time.Second, Name("calls"), Shared(&faulty{s, "bad"}, WithoutStore(OutagePass)))),
			WithHooks(Hooks{OnStore: func(e StoreEvent) { events = append(events, e) }}))
		bad, good := send(t, l, Ask{Key: "bad"}), send(t, l, Ask{Key: "good"})
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
		strict := limiterOf(t, WithLimit(TokenBucket(10, time.Second, Name("calls"), Shared(s))))
		requireSent(t, strict)
		var events []StoreEvent
		l := limiterOf(t, WithLimit(TokenBucket(600, time.Minute, Name("calls"), Shared(s))), WithHooks(Hooks{OnStore: func(e StoreEvent) { events = append(events, e) }}))
		requireSent(t, l)
		requireSent(t, l)
		st := l.Stores()[0]
		require.NotZero(t, st.Differs)
		require.Len(t, events, 1, "once")
		require.ErrorIs(t, events[0].Err, store.ErrRule)
		require.EqualValues(t, st.OK, st.Latency.Counts[1], "of 2 ms")
		require.Equal(t, time.Duration(st.OK)*2*ms, st.Latency.Sum)
		s.set(errDown, nil)
		send(t, l, Ask{Cost: 5, MaxWait: new(time.Second)})
		sleep(time.Second)
		require.EqualValues(t, 1, l.Stores()[0].Outages)
		require.Zero(t, strict.Stores()[0].Differs)
		s.set(nil, nil)
	})
}

func TestNothingLeasedAheadCostsOneCallForEachTokenAtMost(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := limiterOf(t, WithLimit(TokenBucket(10, time.Second, Name("calls"), Shared(s, LeaseAhead(0)))))
		const keys, each = 20, 3
		for range each {
			for i := range keys {
				require.NoError(t, l.Wait(t.Context(), Ask{Key: strconv.Itoa(i)}))
			}
		}
		sleep(time.Minute)
		require.Len(t, s.calls, keys*each)
		for range 3 {
			sendMany(t, l, 10, Ask{Key: "hot"})
			sleep(time.Second)
		}
		require.LessOrEqual(t, len(s.calls), keys*each+3*2, "those that wait share calls")
	})
}

func requireSent(t *testing.T, l *Limiter) {
	t.Helper()
	r := send(t, l, Ask{})
	sleep(time.Second)
	require.True(t, r.done)
	require.NoError(t, r.err)
}

func TestAProcessThatStartsInAnOutageHasItsPartOfTheExpectedProcesses(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		s.set(errDown, nil)
		l := limiterOf(t, WithLimit(TokenBucket(100, time.Second, Shared(s, WithoutStore(OutageLocalShare), ExpectProcesses(4)))))
		all := sendMany(t, l, 50, Ask{})
		sleep(time.Second + ms)
		sent := 0
		for _, r := range all {
			if r.done {
				require.NoError(t, r.err)
				sent++
			}
		}
		require.Equal(t, 25, sent)
		_, err := NewLimiter(WithLimit(TokenBucket(1, time.Second, Shared(s, ExpectProcesses(-1)))))
		require.ErrorContains(t, err, "ExpectProcesses(-1)")
	})
}
