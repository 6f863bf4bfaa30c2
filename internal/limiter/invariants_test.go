package limiter_test

import (
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// gateCount returns the number of gates. The sweeper may be the last to have written the map, so it takes the lock.
func gateCount(l *throttle.Limiter) int {
	coreOf(l).Lock()
	defer coreOf(l).Unlock()
	return coreOf(l).Servers().Len()
}

// holds fails the test if a condition does not hold. It is much faster than require, and the checks here are made after every
// step of many tests.
func holds(t *testing.T, ok bool, what string) {
	if !ok {
		t.Helper()
		require.Fail(t, what)
	}
}

// checkInvariants checks what holds of a Limiter whenever its mu is free and no timer is late.
func checkInvariants(t *testing.T, l *throttle.Limiter) {
	t.Helper()
	require.NoError(t, coreOf(l).Check())
	coreOf(l).Lock()
	defer coreOf(l).Unlock()
	checkLimits(t, l, meter.Instant(time.Since(coreOf(l).Start)))
}

// everyBucket yields the buckets of a limit.
func everyBucket(li *bucket.Limit) iter.Seq2[string, *bucket.Bucket] {
	return func(yield func(string, *bucket.Bucket) bool) {
		if !yield("", li.Single) {
			return
		}
		for b := range li.All() {
			if !yield(b.Key, b) {
				return
			}
		}
	}
}

// checkLimits checks what is known of each limit against its buckets.
func checkLimits(t *testing.T, l *throttle.Limiter, now meter.Instant) {
	t.Helper()
	for _, li := range append(slices.Clone(coreOf(l).Limits), coreOf(l).Gate) {
		var buckets []*bucket.Bucket
		if li.Gates {
			for g := range coreOf(l).Servers().All() {
				buckets = append(buckets, g.Owner.(*bucket.Bucket))
			}
		} else {
			buckets = append(slices.Collect(li.All()), li.Single)
		}
		c := &li.Counts
		waiting, inFlight := 0, 0
		for _, b := range buckets {
			waiting += b.Waiting()
			if m, ok := b.Meter.(meter.Flier); ok {
				inFlight += int(m.InFlight())
			}
			holds(t, li.KeysHeldUntil() >= b.HeldAlone(), "a hold ends after the last one of its limit")
		}
		require.Equal(t, waiting, c.Waiting, li.Name)
		require.Equal(t, inFlight, li.InFlight(), li.Name)
		require.LessOrEqual(t, c.Returned, c.Charged, li.Name)
		require.LessOrEqual(t, c.Undone, c.Granted, li.Name)
		require.LessOrEqual(t, c.Granted, coreOf(l).Counts().Granted, li.Name)
		require.Equal(t, c.Delayed, sum(c.Waits.Counts[:]), li.Name)
	}
}

func sum(counts []uint64) (n uint64) {
	for _, count := range counts {
		n += count
	}
	return n
}
