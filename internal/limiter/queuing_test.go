package limiter_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/store"
)

// A crowded store has calls that wait for their turn.
type crowded struct {
	store.Store
	queuing atomic.Bool
	turn    chan struct{}
	ended   error // why the latest call ended
}

func (s *crowded) Queuing() bool { return s.queuing.Load() }

func (s *crowded) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	select {
	case <-s.turn:
		s.ended = nil
		return s.Store.Lease(ctx, asks)
	case <-ctx.Done():
		s.ended = context.Cause(ctx)
		return nil, fmt.Errorf("%w: %w", store.ErrLate, s.ended)
	}
}

// A call that waits for its turn is not given up, and each request waits for it for as long as it may. When turns are not taken any more,
// the store is unreachable.
func TestRequestsWaitForTheTurnOfACallAsLongAsTheyMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &crowded{Store: store.NewMemory(), turn: make(chan struct{})}
		l := drive(t, tokenBucket(10, time.Second, shared(s)))
		s.queuing.Store(true)
		impatient, patient := l.send(ask{MaxWait: ptr(100 * ms)}), l.send(ask{MaxWait: ptr(2 * time.Second)})
		ctx, cancel := context.WithTimeout(t.Context(), 700*ms)
		defer cancel()
		late, any := l.sendUnder(ctx, ask{}), l.send(ask{})
		sleep(250*ms - 1)
		require.False(t, impatient.done)
		sleep(1)
		requireRejected(t, impatient, 250*ms, bucket.ReasonMaxWait)
		sleep(450*ms - 1)
		require.False(t, late.done)
		sleep(1)
		require.ErrorIs(t, late.err, context.DeadlineExceeded)
		sleep(1300*ms - 1)
		require.False(t, patient.done)
		sleep(1)
		requireRejected(t, patient, 2*time.Second, bucket.ReasonMaxWait)
		require.NoError(t, l.StoreStates()[0].Err)
		sleep(10 * time.Second)
		s.turn <- struct{}{}
		synctest.Wait()
		requireGranted(t, any, 12*time.Second)

		sleep(time.Minute)
		s.queuing.Store(true)
		last := l.send(ask{Key: "another", MaxWait: ptr(time.Second)})
		sleep(500*ms - 1)
		s.queuing.Store(false)
		require.NoError(t, l.StoreStates()[0].Err)
		sleep(1)
		requireRejected(t, last, l.now(), bucket.ReasonStore)
		require.Error(t, l.StoreStates()[0].Err)
		require.Equal(t, context.DeadlineExceeded, s.ended)
		close(s.turn)
		sleep(10 * time.Second)
		l.check()
	})
}
