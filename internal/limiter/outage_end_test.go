package limiter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/store"
)

func TestAStoreThatIsOutOfReachIsAskedEverLessOften(t *testing.T) {
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
				asked := ask{Key: "a", MaxWait: new(time.Duration(0))}
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
				l.send(ask{Key: key, MaxWait: new(time.Duration(0))})
			}
			sleep(10 * time.Second)
			for range 3 {
				r := l.send(ask{Key: "a", MaxWait: new(time.Duration(0))})
				requireRejected(t, r, 10*time.Second, bucket.ReasonStore)
			}
			close(hangs)
		})
	}
}
