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
		li.size = li.BurstOf(li.Rate)
	}, func(b *Bucket, now Instant) bool {
		b.Meter.Resize(now, li.size)
		return true
	})
}

// SetRate changes the rate of a limit, for all keys without a rate of their own.
func (l *Core) SetRate(li *Limit, r Rate) {
	l.set(li, func() { li.Rate = r }, func(b *Bucket, now Instant) bool {
		if b.hasOwnRate() {
			return false
		}
		b.setTermsLocked(li.Shared(li.Rate), li.size, now)
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
	l.ChangeAll(li, each)
}

// ChangeAll changes the terms of all buckets of a limit, piece by piece.
func (l *Core) ChangeAll(li *Limit, each func(*Bucket, Instant) bool) {
	l.change(l.allLocked([]*Limit{li}), each)
}

// change changes the terms of some buckets, piece by piece.
func (l *Core) change(some iter.Seq[*Bucket], each func(*Bucket, Instant) bool) {
	l.visit(some, func(b *Bucket, now Instant) {
		l.changeLocked(now, b, func() bool {
			changed := each(b, now)
			if changed {
				l.reclampLocked(b)
			}
			return changed
		})
	}, onward)
}

const (
	PieceSize    = 64    // no more buckets are in one piece
	PieceWaiters = 1_000 // nor more waiters, unless they wait for one bucket
)

// Pieces yields the buckets that Visit visits, a few at a time and without the lock: for work that calls users' functions. Some may
// have been forgotten.
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
			l.pause()
			l.Mu.Lock() // others may have changed the maps: what is still to come of them is what is in them then
		}
		l.Mu.Unlock()
		if len(piece) > 0 {
			yield(piece)
		}
	}
}

// changeLocked changes a bucket, and plans its waiters again if change reports that it did.
func (l *Core) changeLocked(now Instant, b *Bucket, change func() bool) {
	l.dueLocked(now)
	if change() {
		l.replanLocked(now, b)
	}
	l.serveLocked(now)
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
	l.change(slices.Values(buckets), func(b *Bucket, now Instant) bool {
		own, ok := rates[b]
		if !ok || b.asked >= nth {
			return false
		}
		changed := b.own != own
		if b.asked, b.own = nth, own; changed {
			r, size := b.Limit.terms(own)
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
