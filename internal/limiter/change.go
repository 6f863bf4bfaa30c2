package limiter

import (
	"iter"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// This file changes limits at run time.

// SetRate changes the rate of a limit, for all keys without a rate of their own.
func (l *Core) SetRate(li *bucket.Limit, r meter.Rate) {
	l.mu.Lock()
	l.setRateLocked(li, r)
	l.mu.Unlock()
	l.changeAll(li, func(b *bucket.Bucket, now meter.Instant) bool {
		if b.HasOwnRate() {
			return false
		}
		b.SetTerms(li.Shared(li.Rate), li.Size, now)
		return true
	})
}

// SetSlots changes how many slots a limit that Frees has, for all keys without a number of their own.
func (l *Core) SetSlots(li *bucket.Limit, n int64) {
	l.mu.Lock()
	l.setRateLocked(li, meter.Rate{N: min(n, meter.MaxCount), Per: li.Rate.Per})
	li.Size = li.BurstOf(li.Rate)
	l.mu.Unlock()
	l.changeAll(li, func(b *bucket.Bucket, now meter.Instant) bool {
		if b.HasOwnRate() {
			return false
		}
		b.Meter.Resize(now, li.Size)
		return true
	})
}

// SetBurst changes the burst of a limit, for all keys. It is an error if the store of the limit cannot have it.
func (l *Core) SetBurst(li *bucket.Limit, n int64) error {
	if err := l.setBurst(li, min(n, meter.MaxCount)); err != nil {
		return err
	}
	l.changeAll(li, func(b *bucket.Bucket, now meter.Instant) bool {
		b.Meter.Resize(now, li.Size)
		return true
	})
	return nil
}

func (l *Core) setBurst(li *bucket.Limit, n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if li.Store != nil {
		b := li.Budget("", li.Shared(li.Rate), li.Part(n))
		if err := b.Check(); err != nil {
			return err
		}
	}
	li.Age(l.nowLocked())
	li.Burst = n
	li.Size = li.BurstOf(li.Rate)
	return nil
}

// setRateLocked changes the rate of a limit, but not yet of its buckets. Each of them gets the rate that the limit has when the bucket is
// changed, so that the last of several calls at the same time counts.
func (l *Core) setRateLocked(li *bucket.Limit, r meter.Rate) {
	li.Age(l.nowLocked())
	li.Rate, li.PerSecond = r, li.Shared(r).PerSecond()
}

// replanAll plans the waiters of a limit again, piece by piece, after a hold has changed that concerns them.
func (l *Core) replanAll(li *bucket.Limit) {
	l.changeAll(li, func(b *bucket.Bucket, _ meter.Instant) bool { return b.Waiting() > 0 })
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
