package throttle

import (
	"iter"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/queue"
)

// gateCount returns the number of gates. The sweeper may be the last to have written the map, so it takes the lock.
func (l *Limiter) gateCount() int {
	l.core.Mu.Lock()
	defer l.core.Mu.Unlock()
	return len(l.core.Gates)
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
func checkInvariants(t *testing.T, l *Limiter) {
	t.Helper()
	l.core.Mu.Lock()
	defer l.core.Mu.Unlock()
	now := meter.Instant(time.Since(l.core.Start))
	require.Empty(t, l.core.Dirty)
	waiting := 0
	for id, ln := range l.core.Lines {
		require.Equal(t, id, ln.Id)
		waiting += ln.Size
		holds(t, slices.Contains(ln.Queue.Lines, ln), "a queue does not have its line")
		checkLine(t, l, ln)
	}
	for id, q := range l.core.Queues {
		require.Equal(t, id, q.Id)
		require.NotEmpty(t, q.Lines)
		checkQueue(t, q)
	}
	require.Equal(t, waiting, l.core.Counts.Waiting)
	kept, callers := 0, 0
	for _, li := range l.core.Limits {
		kept += len(li.Buckets)
		for key, b := range everyBucket(li) {
			holds(t, key == b.Key, "a bucket is kept under another key")
			checkBucket(t, l, b, now)
			callers += checkTurns(t, l, b)
		}
	}
	require.Equal(t, l.core.Callers, callers)
	require.Equal(t, kept, l.core.Keys.Size())
	require.Equal(t, len(l.core.Gates), l.core.GateKeys.Size())
	for _, k := range []*queue.Keeper{&l.core.Keys, &l.core.GateKeys} {
		for busy, h := range map[bool]queue.BucketHeap{false: k.Idle, true: k.Busy} {
			for i, b := range h {
				holds(t, i == int(b.Place) && busy == b.Busy, "a bucket is not where it says")
				holds(t, h.First() <= b.LookAt, "not a heap")
				holds(t, b == keptFor(l, b), "a bucket is in a keeper that is not kept")
			}
		}
	}
	for _, b := range l.core.Gates {
		checkBucket(t, l, b, now)
	}
	checkHosts(t, l)
	checkLimits(t, l, now)
}

// everyBucket yields the buckets of a limit.
func everyBucket(li *queue.Limit) iter.Seq2[string, *queue.Bucket] {
	return func(yield func(string, *queue.Bucket) bool) {
		if !yield("", li.Single) {
			return
		}
		maps.All(li.Buckets)(yield)
	}
}

// checkQueue checks what a queue knows of its lines.
func checkQueue(t *testing.T, q *queue.Queue) {
	t.Helper()
	size, vocal := 0, 0
	var sizes [2]int
	var totals [2][]int64
	for nth, ln := range q.Lines {
		require.Same(t, q, ln.Queue)
		require.Equal(t, nth, ln.Nth)
		size += ln.Size
		if ln.Vocal {
			vocal++
		}
		class, c := 0, q.Class(ln.Below)
		if ln.Below {
			class = 1
		}
		sizes[class] += ln.Size
		totals[class] = append(totals[class], make([]int64, q.Stops()-len(totals[class]))...)
		require.LessOrEqual(t, c.Tightest, ln.Root.Tightest)
		for i := range q.Stops() {
			totals[class][i] = meter.AddCount(totals[class][i], ln.Root.Sums()[i])
			require.GreaterOrEqual(t, c.Mosts[i], ln.Root.Mosts()[i])
		}
		for w := ln.First; w != nil; w = w.Next() {
			require.False(t, c.Latest.Before(&w.Place))
		}
	}
	require.Equal(t, q.Size, size)
	require.Equal(t, q.Vocal, vocal)
	for class, c := range q.Classes {
		require.Equal(t, sizes[class], c.Size)
		for i := range totals[class] {
			require.Equal(t, totals[class][i], c.Totals[i].Count())
		}
	}
}

// checkLimits checks what is known of each limit against its buckets.
func checkLimits(t *testing.T, l *Limiter, now meter.Instant) {
	t.Helper()
	for _, li := range append(slices.Clone(l.core.Limits), l.core.Gate) {
		buckets := slices.Collect(maps.Values(l.core.Gates))
		if !li.Gates {
			buckets = buckets[:0]
			for _, b := range everyBucket(li) {
				buckets = append(buckets, b)
			}
		}
		s := l.limitStatsLocked(li, now)
		waiting, inFlight := 0, 0
		for _, b := range buckets {
			waiting += b.Waiting()
			inFlight += l.bucketStatsLocked(b, now).InFlight
			holds(t, li.HeldMost >= b.HeldAlone(), "a hold ends after the last one of its limit")
		}
		require.Equal(t, waiting, s.Waiting, li.Name)
		require.Equal(t, inFlight, s.InFlight, li.Name)
		require.LessOrEqual(t, s.Returned, s.Charged, li.Name)
		require.LessOrEqual(t, s.Undone, s.Granted, li.Name)
		require.LessOrEqual(t, s.Granted, l.core.Counts.Granted, li.Name)
		require.Equal(t, s.Delayed, sum(s.Waits.Counts[:]), li.Name)
	}
}

func sum(counts []uint64) (n uint64) {
	for _, count := range counts {
		n += count
	}
	return n
}

// fullAt returns the instant from which a bucket is as good as new.
func fullAt(m meter.Meter) meter.Instant {
	_, full := m.Matters(0)
	return full
}

// keptFor returns the bucket that is kept in the place of b.
func keptFor(l *Limiter, b *queue.Bucket) *queue.Bucket {
	if g, ok := b.Meter.(*queue.GateBucket); ok {
		return l.core.Gates[g.Key]
	}
	if b.Key == "" {
		return b.Limit.Single
	}
	return b.Limit.Buckets[b.Key]
}

// checkHosts checks that hosts and parties are kept for gates alone.
func checkHosts(t *testing.T, l *Limiter) {
	t.Helper()
	gates := 0
	for _, h := range l.core.Hosts {
		require.NotEmpty(t, h.Parties)
		for _, p := range h.Parties {
			require.Same(t, h, p.Host)
			require.NotEmpty(t, p.Gates)
			gates += len(p.Gates)
			lined, stopped := 0, 0
			for b := range p.Gates {
				require.Same(t, p, b.Meter.(*queue.GateBucket).Party)
				require.Same(t, b, keptFor(l, b))
				if len(b.Lines) > 0 {
					lined++
					require.Same(t, b, p.Lists[queue.LinedGates][b.Meter.(*queue.GateBucket).At[queue.LinedGates]-1])
				}
				if len(b.Stopped) > 0 {
					stopped++
					require.Same(t, b, p.Lists[queue.StoppedGates][b.Meter.(*queue.GateBucket).At[queue.StoppedGates]-1])
				}
			}
			require.Len(t, p.Lists[queue.LinedGates], lined)
			require.Len(t, p.Lists[queue.StoppedGates], stopped)
			require.True(t, p.Vocal || p.Account.Silent(), "a party whose server has told something counts as silent")
		}
	}
	require.Len(t, l.core.Gates, gates)
}

// checkLine checks that a line is not empty, and stopped somewhere.
func checkLine(t *testing.T, l *Limiter, ln *queue.Line) {
	t.Helper()
	waiters, _, err := ln.Check()
	require.NoError(t, err)
	require.NotEmpty(t, waiters)
	stopped := 0
	for i := range ln.Stops {
		s := &ln.Stops[i]
		b := s.Bucket
		holds(t, ln == s.Line && i == s.Index && s == b.Lines[s.Lined], "a stop is not where it says")
		holds(t, b == keptFor(l, b), "a request waits for a bucket that was forgotten")
		if s.Pos >= 0 {
			stopped++
			holds(t, s == b.Stopped[s.Pos], "a stop is not where it says")
		}
	}
	require.Positive(t, stopped)
	require.True(t, !ln.Starved || stopped == len(ln.Stops), "a starved line bars all its buckets")
	require.True(t, !ln.Starved || ln.First.Passed < meter.Never, "no request was passed over")
	for _, w := range waiters {
		holds(t, w.Verdict == queue.Waiting, "a request in line is decided")
	}
}

// checkBucket checks that the first request that is stopped at a bucket cannot go, and that its timer is set for when it can.
func checkBucket(t *testing.T, l *Limiter, b *queue.Bucket, now meter.Instant) {
	t.Helper()
	if b.Extra == nil {
		return
	}
	holds(t, !b.Dirty, "a bucket was not served")
	waiting := 0
	for i, s := range b.Lines {
		holds(t, i == s.Lined && s.Line == l.core.Lines[s.Line.Id], "a stop is not where it says")
		waiting += s.Line.Size
	}
	holds(t, waiting == b.Waiting(), "a bucket counts other waiters than its lines")
	for i, s := range b.Stopped {
		holds(t, i == s.Pos && b == s.Bucket, "a stop is not where it says")
		holds(t, !b.Before(s.Line, b.Stopped[0].Line), "not a heap")
	}
	if b.Loan != nil {
		checkLoan(t, b, now)
		return
	}
	if len(b.Stopped) == 0 {
		holds(t, b.Armed == meter.Never, "a timer is set for no waiter")
		return
	}
	top := b.Stopped[0]
	ready := top.ReadyAt()
	switch {
	case b.Limit.Wall: // it looks at the wall clock before
		require.Greater(t, b.Armed, now)
		require.LessOrEqual(t, b.Armed, now+queue.WallCheck)
		require.True(t, ready <= now || b.Armed <= ready, "the timer is not set for the first request that is stopped here")
	case b.Limit == l.core.Gate && ready > now && ready < meter.Never: // what others of its party took may have moved it later
		require.LessOrEqual(t, b.Armed, ready, "the timer is not set for the first request that is stopped here")
	case ready > now && ready < meter.Never:
		require.Equal(t, ready, b.Armed, "the timer is not set for the first request that is stopped here")
	default:
		require.Equal(t, meter.Never, b.Armed)
	}
	if ready > now {
		return
	}
	require.True(t, top.Line.Starved, "the first request that is stopped here can go")
	require.True(t, slices.ContainsFunc(top.Line.Stops, func(s queue.Stop) bool {
		return s.ReadyAt() > now || s.Barred()
	}), "the first request that is stopped here can go")
}

// checkLoan checks that a shared bucket asks its store in time, and that the first request that is stopped there is not forgotten.
func checkLoan(t *testing.T, b *queue.Bucket, now meter.Instant) {
	t.Helper()
	n := b.Loan
	require.Same(t, b.Meter, n.Borrower)
	require.Equal(t, n.Queued, slices.Contains(n.Supply.Asking, b))
	require.GreaterOrEqual(t, n.Supply.Calls, 0)
	require.LessOrEqual(t, n.Supply.Calls, queue.MaxCalls)
	require.LessOrEqual(t, n.Supply.Late, queue.MaxCalls)
	require.Greater(t, b.Armed, now)
	if ask := n.AskAt(now, b.DemandLocked(now)); ask < meter.Never && !n.Queued {
		require.LessOrEqual(t, b.Armed, max(ask, n.Outage.Again), "the store is not asked in time")
	}
	if len(b.Stopped) > 0 {
		if ready := b.Ready(0, 0, b.Stopped[0].Cost()); ready > now && ready < meter.Never {
			require.LessOrEqual(t, b.Armed, ready, "the timer is not set for the first request that is stopped here")
		}
	}
}
