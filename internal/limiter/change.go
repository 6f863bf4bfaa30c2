package limiter

import (
	"iter"
	"slices"

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
	l.ChangeAll(li, each)
}

// ChangeAll changes the terms of all buckets of a limit, piece by piece.
func (l *Core) ChangeAll(li *bucket.Limit, each func(*bucket.Bucket, meter.Instant) bool) {
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

// Refreshing returns the number of a new Refresh. Rates for which RateFor was asked before are not used for new buckets.
func (l *Core) Refreshing(li *bucket.Limit) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refreshes++
	li.Refreshed = l.refreshes
	return l.refreshes
}

// Refresh gives buckets the rates of their own that the Refresh of that number asked for, except where RateFor was asked since.
func (l *Core) Refresh(buckets []*bucket.Bucket, rates map[*bucket.Bucket]meter.Rate, nth uint64) {
	l.change(slices.Values(buckets), func(b *bucket.Bucket, now meter.Instant) bool {
		own, ok := rates[b]
		return ok && b.Refresh(own, nth, now)
	})
}
