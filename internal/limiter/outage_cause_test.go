package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// An obedient store has no response, and returns when its context ends.
type obedient struct{}

func (obedient) Lease(ctx context.Context, _ []store.Ask) ([]store.Lease, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestAStoreThatReturnsAtTheEndOfTheContextDidNotRespond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(obedient{}))))
		r := send(t, l, throttle.Ask{MaxWait: new(time.Second)})
		sleep(250 * ms)
		requireRefused(t, r, 250*ms, throttle.ReasonStore)
		require.ErrorContains(t, r.err, "the store is unreachable: throttle: no response from the store within 250ms")
		sleep(time.Minute)
	})
}

// A request that is rejected because of its store may ask again when the store is asked again, also if promised tokens of other
// requests are available.
func TestTheWaitOfARejectionIsUntilTheStoreIsAskedAgain(t *testing.T) {
	for _, cause := range []error{errDown, store.ErrSetup} {
		overTrip(t, 2*ms, func(t *testing.T, s *trip) {
			l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Burst(1), throttle.Shared(s, throttle.StoreGrace(0)))))
			all := sendMany(t, l, 10, throttle.Ask{})
			sleep(4 * ms) // some tokens are promised
			s.set(cause, nil)
			sleep(time.Second)
			rejected := 0
			for _, r := range all {
				if r.err != nil {
					rejected++
					refusal := requireRefusedFor(t, r, r.at, cause)
					require.LessOrEqual(t, refusal.Wait, 375*ms)
					require.NotZero(t, refusal.Wait)
				}
			}
			require.Positive(t, rejected)
			require.Less(t, rejected, 9)
		})
	}
}

// The deadline of a call is not that of the request: its caller still has time.
func TestTheDeadlineOfACallIsNotThatOfTheRequest(t *testing.T) {
	for _, cause := range []error{context.DeadlineExceeded, fmt.Errorf("read: %w", context.DeadlineExceeded), context.Canceled} {
		for _, key := range []string{"a", ""} { // of one budget, and of the store
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(&part{Store: store.NewMemory(), key: key, err: cause}))))
				r := send(t, l, throttle.Ask{Key: "a", MaxWait: new(time.Second)})
				sleep(ms)
				rejection := requireRefused(t, r, 0, throttle.ReasonStore)
				require.False(t, rejection.Timeout())
				require.NotErrorIs(t, r.err, context.DeadlineExceeded)
				require.NotErrorIs(t, r.err, context.Canceled)
				require.ErrorContains(t, r.err, cause.Error())
				sleep(time.Minute)
			})
		}
	}
}

func TestARejectionBecauseOfAWrongSetupDoesNotSayThatTheStoreIsOutOfReach(t *testing.T) {
	err := fmt.Errorf("%w: %w", store.ErrSetup, errors.New("NOAUTH Authentication required"))
	r := &throttle.Rejection{Reason: throttle.ReasonStore, Limit: "calls", Err: err}
	require.EqualError(t, r, `throttle: limit "calls": the store of shared limits is set up wrongly: NOAUTH Authentication required`)
}
