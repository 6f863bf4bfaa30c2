package throttle

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// gateCount returns the number of gates. The sweeper may be the last to have written the map, so it takes the lock.
func (l *Limiter) gateCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.gates)
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
	l.mu.Lock()
	defer l.mu.Unlock()
	now := instant(time.Since(l.start))
	require.Empty(t, l.dirty)
	waiting := 0
	for id, ln := range l.lines {
		require.Equal(t, id, ln.id)
		waiting += ln.size
		holds(t, slices.Contains(ln.queue.lines, ln), "a queue does not have its line")
		checkLine(t, l, ln)
	}
	for id, q := range l.queues {
		require.Equal(t, id, q.id)
		require.NotEmpty(t, q.lines)
		checkQueue(t, q)
	}
	require.Equal(t, waiting, l.counts.waiting)
	kept, callers := 0, 0
	for _, li := range l.limits {
		kept += len(li.buckets)
		for key, b := range li.all() {
			holds(t, key == b.key, "a bucket is kept under another key")
			checkBucket(t, l, b, now)
			callers += checkTurns(t, l, b)
		}
	}
	require.Equal(t, l.callers, callers)
	require.Equal(t, kept, l.keys.size())
	require.Equal(t, len(l.gates), l.gateKeys.size())
	for _, k := range []*keeper{&l.keys, &l.gateKeys} {
		for busy, h := range map[bool]bucketHeap{false: k.idle, true: k.busy} {
			for i, b := range h {
				holds(t, i == int(b.place) && busy == b.busy, "a bucket is not where it says")
				holds(t, h.first() <= b.lookAt, "not a heap")
				holds(t, b == keptFor(l, b), "a bucket is in a keeper that is not kept")
			}
		}
	}
	for _, b := range l.gates {
		checkBucket(t, l, b, now)
	}
	checkHosts(t, l)
	checkLimits(t, l, now)
}

// checkQueue checks what a queue knows of its lines.
func checkQueue(t *testing.T, q *queue) {
	t.Helper()
	size, vocal := 0, 0
	var sizes [2]int
	var totals [2][]int64
	for nth, ln := range q.lines {
		require.Same(t, q, ln.queue)
		require.Equal(t, nth, ln.nth)
		size += ln.size
		if ln.vocal {
			vocal++
		}
		class, c := 0, q.class(ln.below)
		if ln.below {
			class = 1
		}
		sizes[class] += ln.size
		totals[class] = append(totals[class], make([]int64, q.stops()-len(totals[class]))...)
		require.LessOrEqual(t, c.tightest, ln.root.tightest)
		for i := range q.stops() {
			totals[class][i] = meter.AddCount(totals[class][i], ln.root.sums()[i])
			require.GreaterOrEqual(t, c.mosts[i], ln.root.mosts()[i])
		}
		for w := ln.first; w != nil; w = w.next() {
			require.False(t, c.latest.before(&w.place))
		}
	}
	require.Equal(t, q.size, size)
	require.Equal(t, q.vocal, vocal)
	for class, c := range q.classes {
		require.Equal(t, sizes[class], c.size)
		for i := range totals[class] {
			require.Equal(t, totals[class][i], c.totals[i].count())
		}
	}
}

// checkLimits checks what is known of each limit against its buckets.
func checkLimits(t *testing.T, l *Limiter, now instant) {
	t.Helper()
	for _, li := range append(slices.Clone(l.limits), l.gate) {
		buckets := slices.Collect(maps.Values(l.gates))
		if !li.gates {
			buckets = buckets[:0]
			for _, b := range li.all() {
				buckets = append(buckets, b)
			}
		}
		s := l.limitStatsLocked(li, now)
		waiting, inFlight := 0, 0
		for _, b := range buckets {
			waiting += b.waiting()
			inFlight += l.bucketStatsLocked(b, now).InFlight
			holds(t, li.heldMost >= b.heldAlone(), "a hold ends after the last one of its limit")
		}
		require.Equal(t, waiting, s.Waiting, li.name)
		require.Equal(t, inFlight, s.InFlight, li.name)
		require.LessOrEqual(t, s.Returned, s.Charged, li.name)
		require.LessOrEqual(t, s.Undone, s.Granted, li.name)
		require.LessOrEqual(t, s.Granted, l.counts.granted, li.name)
		require.Equal(t, s.Delayed, sum(s.Waits.Counts[:]), li.name)
	}
}

func sum(counts []uint64) (n uint64) {
	for _, count := range counts {
		n += count
	}
	return n
}

// fullAt returns the instant from which a bucket is as good as new.
func fullAt(m meter.Meter) instant {
	_, full := m.Matters(0)
	return full
}

// keptFor returns the bucket that is kept in the place of b.
func keptFor(l *Limiter, b *bucket) *bucket {
	if g, ok := b.meter.(*gateBucket); ok {
		return l.gates[g.key]
	}
	if b.key == "" {
		return b.limit.single
	}
	return b.limit.buckets[b.key]
}

// checkHosts checks that hosts and parties are kept for gates alone.
func checkHosts(t *testing.T, l *Limiter) {
	t.Helper()
	gates := 0
	for _, h := range l.hosts {
		require.NotEmpty(t, h.parties)
		for _, p := range h.parties {
			require.Same(t, h, p.host)
			require.NotEmpty(t, p.gates)
			gates += len(p.gates)
			lined, stopped := 0, 0
			for b := range p.gates {
				require.Same(t, p, b.meter.(*gateBucket).party)
				require.Same(t, b, keptFor(l, b))
				if len(b.lines) > 0 {
					lined++
					require.Same(t, b, p.lists[linedGates][b.meter.(*gateBucket).at[linedGates]-1])
				}
				if len(b.stopped) > 0 {
					stopped++
					require.Same(t, b, p.lists[stoppedGates][b.meter.(*gateBucket).at[stoppedGates]-1])
				}
			}
			require.Len(t, p.lists[linedGates], lined)
			require.Len(t, p.lists[stoppedGates], stopped)
			require.True(t, p.vocal || p.account.Silent(), "a party whose server has told something counts as silent")
		}
	}
	require.Len(t, l.gates, gates)
}

// checkLine checks that a line is not empty, and stopped somewhere.
func checkLine(t *testing.T, l *Limiter, ln *line) {
	t.Helper()
	waiters, _ := checkTree(t, ln)
	require.NotEmpty(t, waiters)
	stopped := 0
	for i := range ln.stops {
		s := &ln.stops[i]
		b := s.bucket
		holds(t, ln == s.line && i == s.index && s == b.lines[s.lined], "a stop is not where it says")
		holds(t, b == keptFor(l, b), "a request waits for a bucket that was forgotten")
		if s.pos >= 0 {
			stopped++
			holds(t, s == b.stopped[s.pos], "a stop is not where it says")
		}
	}
	require.Positive(t, stopped)
	require.True(t, !ln.starved || stopped == len(ln.stops), "a starved line bars all its buckets")
	require.True(t, !ln.starved || ln.first.passed < never, "no request was passed over")
	for _, w := range waiters {
		holds(t, w.verdict == waiting, "a request in line is decided")
	}
}

// checkBucket checks that the first request that is stopped at a bucket cannot go, and that its timer is set for when it can.
func checkBucket(t *testing.T, l *Limiter, b *bucket, now instant) {
	t.Helper()
	if b.extra == nil {
		return
	}
	holds(t, !b.dirty, "a bucket was not served")
	for i, s := range b.lines {
		holds(t, i == s.lined && s.line == l.lines[s.line.id], "a stop is not where it says")
	}
	for i, s := range b.stopped {
		holds(t, i == s.pos && b == s.bucket, "a stop is not where it says")
		holds(t, !b.before(s.line, b.stopped[0].line), "not a heap")
	}
	if b.loan != nil {
		checkLoan(t, b, now)
		return
	}
	if len(b.stopped) == 0 {
		holds(t, b.armed == never, "a timer is set for no waiter")
		return
	}
	top := b.stopped[0]
	ready := top.readyAt()
	switch {
	case b.limit.wall: // it looks at the wall clock before
		require.Greater(t, b.armed, now)
		require.LessOrEqual(t, b.armed, now+wallCheck)
		require.True(t, ready <= now || b.armed <= ready, "the timer is not set for the first request that is stopped here")
	case b.limit == l.gate && ready > now && ready < never: // what others of its party took may have moved it later
		require.LessOrEqual(t, b.armed, ready, "the timer is not set for the first request that is stopped here")
	case ready > now && ready < never:
		require.Equal(t, ready, b.armed, "the timer is not set for the first request that is stopped here")
	default:
		require.Equal(t, never, b.armed)
	}
	if ready > now {
		return
	}
	require.True(t, top.line.starved, "the first request that is stopped here can go")
	require.True(t, slices.ContainsFunc(top.line.stops, func(s stop) bool {
		return s.readyAt() > now || s.barred()
	}), "the first request that is stopped here can go")
}

// checkLoan checks that a shared bucket asks its store in time, and that the first request that is stopped there is not forgotten.
func checkLoan(t *testing.T, b *bucket, now instant) {
	t.Helper()
	n := b.loan
	require.Same(t, b.meter, n.Borrower)
	require.Equal(t, n.queued, slices.Contains(n.supply.asking, b))
	require.GreaterOrEqual(t, n.supply.calls, 0)
	require.LessOrEqual(t, n.supply.calls, maxCalls)
	require.LessOrEqual(t, n.supply.late, maxCalls)
	require.Greater(t, b.armed, now)
	if ask := n.AskAt(now, b.demandLocked(now)); ask < never && !n.queued {
		require.LessOrEqual(t, b.armed, max(ask, n.outage.again), "the store is not asked in time")
	}
	if len(b.stopped) > 0 {
		if ready := b.ready(0, 0, b.stopped[0].cost()); ready > now && ready < never {
			require.LessOrEqual(t, b.armed, ready, "the timer is not set for the first request that is stopped here")
		}
	}
}
