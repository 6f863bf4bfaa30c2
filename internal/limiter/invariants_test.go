package limiter_test

import (
	"iter"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// check checks what holds of a Core whenever its lock is free and no timer is late.
func (l *driven) check() {
	l.t.Helper()
	require.NoError(l.t, l.Check())
	l.Lock()
	defer l.Unlock()
	for _, li := range append(slices.Clone(l.Limits), l.Gate) {
		l.checkLimitLocked(li)
	}
}

// checkLimitLocked checks what is known of a limit against its buckets.
func (l *driven) checkLimitLocked(li *bucket.Limit) {
	l.t.Helper()
	c := &li.Counts
	waiting, inFlight := 0, 0
	for b := range l.bucketsLocked(li) {
		waiting += b.Waiting()
		if m, ok := b.Meter.(meter.Flier); ok {
			inFlight += int(m.InFlight())
		}
		l.holds(li.KeysHeldUntil() >= b.HeldAlone(), "a hold ends after the last one of its limit")
	}
	require.Equal(l.t, waiting, c.Waiting, li.Name)
	require.Equal(l.t, inFlight, li.InFlight(), li.Name)
	require.LessOrEqual(l.t, c.Returned, c.Charged, li.Name)
	require.LessOrEqual(l.t, c.Undone, c.Granted, li.Name)
	if !l.dry || !li.Reported { // see TestADryRunCountsWhatIsReallyInFlight
		require.LessOrEqual(l.t, c.Granted, l.Counts().Granted, li.Name)
	}
	require.Equal(l.t, c.Delayed, sum(c.Waits.Counts[:]), li.Name)
}

// bucketsLocked yields all buckets of a limit.
func (l *driven) bucketsLocked(li *bucket.Limit) iter.Seq[*bucket.Bucket] {
	return func(yield func(*bucket.Bucket) bool) {
		for b := range li.All() {
			if !yield(b) {
				return
			}
		}
		if !li.Gates {
			yield(li.Single)
			return
		}
		for g := range l.Servers().All() {
			if !yield(g.Owner.(*bucket.Bucket)) {
				return
			}
		}
	}
}

// holds fails the test if a condition does not hold. It is much faster than require, and the checks here are made after every
// step of many tests.
func (l *driven) holds(ok bool, what string) {
	if !ok {
		l.t.Helper()
		require.Fail(l.t, what)
	}
}

func sum(counts []uint64) (n uint64) {
	for _, count := range counts {
		n += count
	}
	return n
}

// A watch finds counters that fall.
type watch struct{ last map[string][]uint64 }

// look compares all counters of a Core with those of the last call. Many tests call it after every step.
func (w *watch) look(l *driven) {
	l.t.Helper()
	c := l.counts()
	l.holds(c.Undone <= c.Granted, "more was undone than granted")
	all := []uint64{c.Granted, c.Delayed, c.Canceled, c.Undone, uint64(c.Waited), c.ServerRefused, c.Holds.Caller, c.Holds.Server, c.Holds.Adaptive}
	w.compare(l, "all limits", append(all, c.Rejected[:]...))
	l.Lock()
	defer l.Unlock()
	for _, li := range append(slices.Clone(l.Limits), l.Gate) {
		c := &li.Counts
		w.compare(l, li.Name, slices.Concat(
			[]uint64{c.Granted, c.Charged, c.Returned, c.Ended, c.Undone, c.Delayed, c.Canceled, c.Holds, c.Evicted, uint64(c.Waits.Sum)},
			c.Waits.Counts[:], c.Rejected[:], c.Retunes[:]))
	}
}

func (w *watch) compare(l *driven, of string, now []uint64) {
	l.t.Helper()
	for i, n := range w.last[of] {
		if now[i] < n {
			require.Fail(l.t, "a counter fell", "%s: counter %d, from %d to %d", of, i, n, now[i])
		}
	}
	if w.last == nil {
		w.last = make(map[string][]uint64)
	}
	w.last[of] = now
}
