package limiter_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
)

// The walk takes the lock for at most 1,024 buckets: what changes all of them after the first piece is seen in the next one.
func TestBucketsAreLookedAtInPieces(t *testing.T) {
	l := drive(t, tokenBucket(1000, time.Hour))
	const keys = 10_000
	for i := range keys {
		_, ok := l.try(ask{Key: fmt.Sprint(i)})
		require.True(t, ok)
	}
	n, before := 0, 0
	l.Look(func(b *bucket.Bucket, now meter.Instant) {
		if n++; b.HeldUntil() <= now {
			before++
		}
	}, func() bool {
		l.checkUnlocked()
		l.holdAll(time.Hour)
		return true
	})
	require.InDelta(t, keys, n, 1)
	require.LessOrEqual(t, before, limiter.VisitMost)
	require.Positive(t, before)
}
