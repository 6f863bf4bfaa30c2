package queue

import (
	"iter"
	"slices"
)

// This file changes limits at run time.

// Resize changes the size of a limit, for all its keys.
func (l *Core) Resize(li *Limit, change func()) {
	l.set(li, func() {
		change()
		li.Size = li.BurstOf(li.Rate)
	}, func(b *Bucket, now Instant) bool {
		b.Meter.Resize(now, li.Size)
		return true
	})
}

// SetRate changes the rate of a limit, for all keys without a rate of their own.
func (l *Core) SetRate(li *Limit, r Rate) {
	l.set(li, func() { li.Rate = r }, func(b *Bucket, now Instant) bool {
		if b.HasOwnRate() {
			return false
		}
		b.setTermsLocked(li.Shared(li.Rate), li.Size, now)
		return true
	})
}

// setTermsLocked sets the rate and the size of a bucket.
func (b *Bucket) setTermsLocked(r Rate, size int64, now Instant) {
	b.Meter.Retune(now, r)
	b.Meter.Resize(now, size)
}

// set changes a limit, and then its buckets piece by piece. Of two calls at the same time the last change counts, because
// each is what the limit says when it is made.
func (l *Core) set(li *Limit, change func(), each func(*Bucket, Instant) bool) {
	l.Mu.Lock()
	change()
	li.perSecond = li.Shared(li.Rate).PerSecond()
	l.Mu.Unlock()
	for piece := range l.Pieces(li) {
		l.Change(piece, each)
	}
}

const (
	PieceSize    = 64    // no more buckets are worked on under one lock
	PieceWaiters = 1_000 // nor more waiters, unless they wait for one bucket
)

// Pieces yields the buckets of some limits, a few at a time. Every bucket is among them that is kept all the while: those that
// are made meanwhile may be left out, and some may have been forgotten. The lock is free while one piece is worked on.
func (l *Core) Pieces(limits ...*Limit) iter.Seq[[]*Bucket] {
	return func(yield func([]*Bucket) bool) {
		piece, waiters := make([]*Bucket, 0, PieceSize), 0
		l.Mu.Lock()
		for b := range l.allLocked(limits) {
			piece, waiters = append(piece, b), waiters+b.Waiting()
			if len(piece) < PieceSize && waiters < PieceWaiters {
				continue
			}
			l.Mu.Unlock()
			if !yield(piece) {
				return
			}
			piece, waiters = piece[:0], 0
			l.Pause()
			l.Mu.Lock() // others may have changed the maps: what is still to come of them is what is in them then
		}
		l.Mu.Unlock()
		if len(piece) > 0 {
			yield(piece)
		}
	}
}

// Kept yields all buckets in the same way: those of keys, those of gates, and those of the key "".
func (l *Core) Kept() iter.Seq[[]*Bucket] { return l.Pieces(append(slices.Clone(l.Limits), l.Gate)...) }

// Change changes the terms of buckets.
func (l *Core) Change(buckets []*Bucket, each func(*Bucket, Instant) bool) {
	l.Mu.Lock()
	defer l.UnlockJudged()
	now := l.NowLocked()
	l.changeLocked(now, buckets, func(b *Bucket) bool {
		changed := each(b, now)
		if changed {
			b.reclampLocked()
		}
		return changed
	})
}

// changeLocked changes buckets, and plans the waiters of those that change reports to have changed again.
func (l *Core) changeLocked(now Instant, buckets []*Bucket, change func(*Bucket) bool) {
	for _, b := range buckets {
		l.MarkLocked(b)
	}
	l.ServeLocked(now) // what was due before is granted as it was planned
	changed := make([]*Bucket, 0, len(buckets))
	for _, b := range buckets {
		if change(b) {
			changed = append(changed, b)
		}
	}
	l.ReplanLocked(now, changed...)
	l.ServeLocked(now)
}

// ReplanLocked judges the waiters of buckets that have changed again. The caller frees Mu by UnlockJudged.
func (l *Core) ReplanLocked(now Instant, buckets ...*Bucket) {
	for _, b := range buckets {
		if b.Extra == nil {
			continue
		}
		l.MarkLocked(b)
		for _, s := range b.Lines {
			if s.Line.Starved { // it may bar others no more
				for i := range s.Line.Stops {
					l.MarkLocked(s.Line.Stops[i].Bucket)
				}
			}
			l.judgeAgainLocked(s.Line.Queue)
		}
	}
	l.judgeLocked(now)
}

// Refreshing returns the number of a new Refresh. Rates for which RateFor was asked before are not used for new buckets.
func (l *Core) Refreshing(li *Limit) uint64 {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.refreshes++
	li.refreshed = l.refreshes
	return l.refreshes
}

// Refresh gives buckets the rates of their own that the Refresh of that number asked for, except where RateFor was asked since.
func (l *Core) Refresh(buckets []*Bucket, rates map[*Bucket]Rate, nth uint64) {
	l.Change(buckets, func(b *Bucket, now Instant) bool {
		own, ok := rates[b]
		if !ok || b.Asked >= nth {
			return false
		}
		changed := b.Own != own
		if b.Asked, b.Own = nth, own; changed {
			r, size := b.Limit.Terms(own)
			b.setTermsLocked(r, size, now)
		}
		return changed
	})
}

// PiecesOf yields the buckets of these keys, a few at a time.
func (l *Core) PiecesOf(li *Limit, keys []string) iter.Seq[[]*Bucket] {
	return func(yield func([]*Bucket) bool) {
		for some := range slices.Chunk(keys, PieceSize) {
			if !yield(l.find(li, some)) {
				return
			}
		}
	}
}

// find returns the buckets of these keys, as far as there are any.
func (l *Core) find(li *Limit, keys []string) (buckets []*Bucket) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	for _, key := range keys {
		if b := li.Buckets[key]; b != nil {
			buckets = append(buckets, b)
		}
	}
	return buckets
}
