package limiter_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
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
		l := drive(t, tokenBucket(10, time.Second, shared(obedient{})))
		r := l.send(ask{MaxWait: ptr(time.Second)})
		sleep(250 * ms)
		requireRejected(t, r, 250*ms, bucket.ReasonStore)
		require.ErrorContains(t, r.err, "throttle: no response from the store within 250ms")
		sleep(time.Minute)
	})
}

// A request that is rejected because of its store may ask again when the store is asked again, also if promised tokens of other
// requests are available.
func TestTheWaitOfARejectionIsUntilTheStoreIsAskedAgain(t *testing.T) {
	for _, cause := range []error{errDown, store.ErrSetup} {
		overTrip(t, 2*ms, func(t *testing.T, s *trip) {
			l := drive(t, tokenBucket(100, time.Second, withBurst(1), shared(s, storeGrace(0))))
			all := l.sendMany(10, ask{})
			sleep(4 * ms) // some tokens are promised
			s.set(cause, nil)
			sleep(time.Second)
			rejected := 0
			for _, r := range all {
				if r.err != nil {
					rejected++
					rejection := requireRejectedFor(t, r, r.at, cause)
					require.LessOrEqual(t, rejection.Wait, 375*ms)
					require.NotZero(t, rejection.Wait)
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
				l := drive(t, tokenBucket(10, time.Second, shared(&part{Store: store.NewMemory(), key: key, err: cause})))
				r := l.send(ask{Key: "a", MaxWait: ptr(time.Second)})
				sleep(ms)
				requireRejected(t, r, 0, bucket.ReasonStore)
				require.NotErrorIs(t, r.err, context.DeadlineExceeded)
				require.NotErrorIs(t, r.err, context.Canceled)
				require.ErrorContains(t, r.err, cause.Error())
				sleep(time.Minute)
			})
		}
	}
}

func TestAnUnreachableStoreIsAskedLessAndLessOften(t *testing.T) {
	overTrip(t, 2*ms, func(t *testing.T, s *trip) {
		l := drive(t, tokenBucket(10, time.Second, shared(s)))
		s.set(errDown, nil)
		l.send(ask{})
		for _, wait := range []time.Duration{25 * ms, 50 * ms, 100 * ms, 200 * ms, 250 * ms, 250 * ms} {
			calls, after := s.count(), time.Duration(0)
			sleep(ms) // the call fails
			for ; s.count() == calls; after += ms {
				sleep(ms)
			}
			require.GreaterOrEqual(t, after, wait)
			require.LessOrEqual(t, after, wait*3/2+ms)
		}
	})
}

// A request that may not wait finds out whether the store is reachable again, once no call has for three seconds and a timeout.
func TestAnOutageIsForgottenWhenNoCallWasMadeForLong(t *testing.T) {
	for _, key := range []string{"a", ""} { // of one budget, and of the store
		for after, ok := range map[time.Duration]bool{3250 * ms: false, 3290 * ms: true} {
			synctest.Test(t, func(t *testing.T) {
				s := &part{Store: store.NewMemory(), key: key, err: errDown}
				l := drive(t, tokenBucket(10, time.Second, shared(s)))
				asked := ask{Key: "a", MaxWait: ptr(time.Duration(0))}
				requireRejectedFor(t, l.send(asked), 0, errDown)
				s.err = nil
				sleep(after)
				require.Equal(t, ok, l.send(asked).err == nil)
				sleep(time.Minute)
			})
		}
	}
}

func TestAnOutageIsNotForgottenWhileCallsHang(t *testing.T) {
	for _, keys := range [][]string{{"a"}, {"a", "b", "c", "d"}} { // with one late call and another under way, and with two and asks that wait for them
		overTrip(t, 2*ms, func(t *testing.T, s *trip) {
			l := drive(t, tokenBucket(10, time.Second, shared(s)))
			hangs := make(chan struct{})
			s.set(nil, hangs)
			for _, key := range keys {
				l.send(ask{Key: key, MaxWait: ptr(time.Duration(0))})
			}
			sleep(10 * time.Second)
			for range 3 {
				r := l.send(ask{Key: "a", MaxWait: ptr(time.Duration(0))})
				requireRejected(t, r, 10*time.Second, bucket.ReasonStore)
			}
			close(hangs)
		})
	}
}
