package queue

import (
	"iter"
	"slices"
	"time"
)

const (
	VisitAtOnce = 1024 // no more buckets are visited under one lock
	visitTime   = int64(300 * time.Microsecond)
	visitBlind  = 16 // so many without waiters are visited before the clock is read again
)

// Visit calls visit under the lock for the buckets of some limits, and between without it, which reports whether to go on. Every
// bucket is visited that is kept all the while: those that are made meanwhile may be left out.
//
// The lock is held for visitTime at once, and for as long as it takes to judge the waiters of one more bucket. Shorter pieces would
// take longer: a sync.Mutex lets a caller that takes it again and again keep it from others for up to 1 ms each time.
func (l *Core) Visit(limits []*Limit, visit func(*Bucket, Instant), between func() bool) {
	l.visit(l.allLocked(limits), visit, between)
}

// visit visits some buckets, which are found under the lock.
func (l *Core) visit(some iter.Seq[*Bucket], visit func(*Bucket, Instant), between func() bool) {
	l.Mu.Lock()
	now, visited := l.NowLocked(), 0
	for b := range some {
		look := b.HasLines()
		visit(b, now)
		visited++
		look = look || visited%visitBlind == 0
		if visited < l.visitAtOnce && l.order.IsChecked() && (!look || int64(time.Since(l.Start))-now < visitTime) {
			continue
		}
		l.end()
		if !between() {
			return
		}
		l.pause()
		l.Mu.Lock() // others may have changed the maps: what is still to come of them is what is in them then
		now, visited = l.NowLocked(), 0
	}
	l.end()
	between()
}

// onward goes on.
func onward() bool { return true }

// allLimits returns the limits of keys and that of gates.
func (l *Core) allLimits() []*Limit { return append(slices.Clone(l.Limits), l.Gate) }
