package limiter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// This file is about dry runs, in which requests are sent that would have to wait, or would be rejected.

// When a request was sent decides what its response means.
func TestARequestOfADryRunKnowsWhenItWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, dryRun(), tokenBucket(1, time.Hour))
		sleep(5 * time.Second)
		for _, maxWait := range []time.Duration{0, 2 * time.Hour, time.Minute} { // it is granted, would wait, and would be rejected
			g, err := l.acquire(t.Context(), ask{MaxWait: &maxWait})
			require.NoError(t, err)
			require.Equal(t, meter.Instant(5*time.Second), g.At)
		}
		require.EqualValues(t, 1, l.counts().rejected())
		require.Equal(t, 1, l.counts().Waiting)
	})
}

// A limit of requests in flight counts those that are really in flight, whether they would be rejected or not. The Core counts what would
// have happened.
func TestADryRunCountsWhatIsReallyInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, dryRun(), tokenBucket(1, 10*time.Second), inFlight(5))
		first, err := l.acquire(t.Context(), ask{})
		require.NoError(t, err)
		second, err := l.acquire(t.Context(), ask{MaxWait: ptr(15 * time.Second)})
		require.NoError(t, err)
		sleep(time.Second)
		first.done()
		second.done()
		require.Equal(t, 1, l.counts().Waiting)
		l.setRate("bucket", 1, time.Minute) // the second one would be too late
		require.EqualValues(t, 1, l.counts().Granted)
		require.EqualValues(t, 1, l.counts().Rejected[bucket.ReasonMaxWait])
		require.EqualValues(t, 1, l.limit("bucket").Counts.Granted)
		slots := l.limit("in-flight")
		require.EqualValues(t, 2, slots.Counts.Granted)
		require.EqualValues(t, 2, slots.Counts.Returned)
		require.Zero(t, slots.InFlight())
		l.check()
	})
}
