package throttle

import (
	"iter"
	"slices"
)

// This file changes limits at run time.

// resize changes the size of a limit, for all its keys.
func (l *core) resize(li *limit, change func()) {
	l.set(li, func() {
		change()
		li.size = li.burstOf(li.rate)
	}, func(b *bucket, now instant) bool {
		b.meter.Resize(now, li.size)
		return true
	})
}

// setTermsLocked sets the rate and the size of a bucket.
func (b *bucket) setTermsLocked(r rate, size int64, now instant) {
	b.meter.Retune(now, r)
	b.meter.Resize(now, size)
}

// set changes a limit, and then its buckets piece by piece. Of two calls at the same time the last change counts, because
// each is what the limit says when it is made.
func (l *core) set(li *limit, change func(), each func(*bucket, instant) bool) {
	l.mu.Lock()
	change()
	l.mu.Unlock()
	for piece := range l.pieces(li) {
		l.change(piece, each)
	}
}

const (
	pieceBuckets = 256   // no more buckets are worked on under one lock
	pieceWaiters = 1_000 // nor more waiters, unless they wait for one bucket
)

// pieces yields the buckets of a limit, a few at a time. Those that are made meanwhile may be left out, and some may have been
// forgotten. The lock is free while one piece is worked on.
func (l *core) pieces(li *limit) iter.Seq[[]*bucket] {
	return func(yield func([]*bucket) bool) {
		l.mu.Lock()
		piece, waiters := make([]*bucket, 0, min(pieceBuckets, 1+len(li.buckets))), 0
		for _, b := range li.all() {
			piece, waiters = append(piece, b), waiters+b.waiting()
			if len(piece) < pieceBuckets && waiters < pieceWaiters {
				continue
			}
			l.mu.Unlock()
			if !yield(piece) {
				return
			}
			piece, waiters = piece[:0], 0
			l.mu.Lock() // others may have changed the map: what is still to come of it is what is in it then
		}
		l.mu.Unlock()
		if len(piece) > 0 {
			yield(piece)
		}
	}
}

// change changes the terms of buckets.
func (l *core) change(buckets []*bucket, each func(*bucket, instant) bool) {
	l.mu.Lock()
	defer l.unlockJudged()
	now := l.nowLocked()
	l.changeLocked(now, buckets, func(b *bucket) bool {
		changed := each(b, now)
		if changed {
			b.reclampLocked()
		}
		return changed
	})
}

// changeLocked changes buckets, and plans the waiters of those that change reports to have changed again.
func (l *core) changeLocked(now instant, buckets []*bucket, change func(*bucket) bool) {
	for _, b := range buckets {
		l.markLocked(b)
	}
	l.serveLocked(now) // what was due before is granted as it was planned
	changed := make([]*bucket, 0, len(buckets))
	for _, b := range buckets {
		if change(b) {
			changed = append(changed, b)
		}
	}
	l.replanLocked(now, changed...)
	l.serveLocked(now)
}

// replanLocked judges the waiters of buckets that have changed again. The caller frees mu by unlockJudged.
func (l *core) replanLocked(now instant, buckets ...*bucket) {
	for _, b := range buckets {
		if b.extra == nil {
			continue
		}
		l.markLocked(b)
		for _, s := range b.lines {
			if s.line.starved { // it may bar others no more
				for i := range s.line.stops {
					l.markLocked(s.line.stops[i].bucket)
				}
			}
			l.judgeAgainLocked(s.line.queue)
		}
	}
	l.judgeLocked(now)
}

// refreshing returns the number of a new Refresh. Rates for which RateFor was asked before are not used for new buckets.
func (l *core) refreshing(li *limit) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refreshes++
	li.refreshed = l.refreshes
	return l.refreshes
}

// piecesOf yields the buckets of these keys, a few at a time.
func (l *core) piecesOf(li *limit, keys []string) iter.Seq[[]*bucket] {
	return func(yield func([]*bucket) bool) {
		for some := range slices.Chunk(keys, pieceBuckets) {
			if !yield(l.find(li, some)) {
				return
			}
		}
	}
}

// find returns the buckets of these keys, as far as there are any.
func (l *core) find(li *limit, keys []string) (buckets []*bucket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		if b := li.buckets[key]; b != nil {
			buckets = append(buckets, b)
		}
	}
	return buckets
}
