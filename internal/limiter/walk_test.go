package limiter_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
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
	l.LookAtBuckets(func(b *bucket.Bucket, now meter.Instant) {
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

// A visit of all buckets frees the lock after a short time, and stops when between returns false.
func TestAVisitOfAllBucketsIsInShortPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Hour))
		for i := range 100 {
			l.try(ask{Key: fmt.Sprint(i)})
		}
		visit := func(each time.Duration, most int) (pieces []int) {
			n := 0
			l.LookAtBuckets(func(*bucket.Bucket, meter.Instant) { n++; time.Sleep(each) }, func() bool {
				l.checkUnlocked()
				pieces, n = append(pieces, n), 0
				return len(pieces) < most
			})
			return pieces
		}
		require.Equal(t, []int{100}, visit(0, 9))
		require.Equal(t, []int{32, 32, 32, 4}, visit(10*time.Microsecond, 9), "the clock is read after each 16")
		require.Equal(t, []int{32, 32}, visit(10*time.Microsecond, 2))
	})
}

// Many buckets, and many waiters, are changed a few at a time.
func TestWorkUnderTheLockIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, slidingWindow(1, time.Hour))
		for i := range 2*limiter.PieceSize + 9 {
			require.True(t, func() bool { _, ok := l.try(ask{Key: fmt.Sprint(i)}); return ok }())
		}
		sizes := func() (all []int) {
			for piece := range l.Pieces(l.Limits[0]) {
				l.checkUnlocked()
				all = append(all, len(piece))
			}
			return all
		}
		require.Equal(t, []int{limiter.PieceSize, limiter.PieceSize, 10}, sizes())
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 6 {
			for range limiter.PieceWaiters / 2 {
				go func() { _ = l.wait(ctx, ask{Key: fmt.Sprint(i)}) }()
			}
		}
		synctest.Wait()
		waiting := 0
		for piece := range l.Pieces(l.Limits[0]) {
			n := 0
			for _, b := range piece {
				n += b.Waiting()
			}
			require.LessOrEqual(t, n, limiter.PieceWaiters)
			waiting += n
		}
		require.Equal(t, 3*limiter.PieceWaiters, waiting)
		cancel()
	})
}
