package limiter

import (
	"iter"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// This file changes limits at run time.

// Resize changes the size of a limit, for all its keys.
func (l *Core) Resize(li *bucket.Limit, change func()) {
	l.set(li, func() {
		change()
		li.Size = li.BurstOf(li.Rate)
	}, func(b *bucket.Bucket, now meter.Instant) bool {
		if li.Frees && b.HasOwnRate() {
			return false
		}
		b.Meter.Resize(now, li.Size)
		return true
	})
}

// SetRate changes the rate of a limit, for all keys without a rate of their own.
func (l *Core) SetRate(li *bucket.Limit, r meter.Rate) {
	l.set(li, func() { li.Rate = r }, func(b *bucket.Bucket, now meter.Instant) bool {
		if b.HasOwnRate() {
			return false
		}
		b.SetTerms(li.Shared(li.Rate), li.Size, now)
		return true
	})
}

// set changes a limit, and then its buckets piece by piece. Of two calls at the same time the last change counts, because
// each is what the limit says when it is made.
func (l *Core) set(li *bucket.Limit, change func(), each func(*bucket.Bucket, meter.Instant) bool) {
	l.mu.Lock()
	li.Age(l.nowLocked())
	change()
	li.PerSecond = li.Shared(li.Rate).PerSecond()
	l.mu.Unlock()
	l.changeAll(li, each)
}

// ReplanAll plans the waiters of a limit again, piece by piece, after a hold has changed that concerns them.
func (l *Core) ReplanAll(li *bucket.Limit) {
	l.changeAll(li, func(b *bucket.Bucket, _ meter.Instant) bool { return b.HasLines() })
}

// changeAll changes the terms of all buckets of a limit, piece by piece.
func (l *Core) changeAll(li *bucket.Limit, each func(*bucket.Bucket, meter.Instant) bool) {
	l.change(l.allLocked([]*bucket.Limit{li}), each)
}

// change changes the terms of some buckets, piece by piece.
func (l *Core) change(some iter.Seq[*bucket.Bucket], each func(*bucket.Bucket, meter.Instant) bool) {
	l.visit(some, func(b *bucket.Bucket, now meter.Instant) {
		l.changeLocked(now, b, func() bool {
			changed := each(b, now)
			if changed {
				l.reclampLocked(b)
			}
			return changed
		})
	}, onward)
}

// changeLocked changes a bucket, and plans its waiters again if change reports that it did.
func (l *Core) changeLocked(now meter.Instant, b *bucket.Bucket, change func() bool) {
	l.dueLocked(now)
	if change() {
		l.replanLocked(b)
	}
	l.serveLocked(now)
}
