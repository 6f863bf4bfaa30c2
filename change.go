package throttle

import (
	"fmt"
	"iter"
	"time"
)

// This file changes limits at run time.

// SetRate changes the rate of a limit to n per period, for all its keys except those with a rate from [RateFor], for which
// see [Limiter.Refresh]. Waiters are granted by the new rate, or rejected if that is too late for them, before SetRate returns.
// The burst stays, and so does every balance; [Share] applies. A window counts what was granted before. It is an error if
// there is no such limit, if it is [Adaptive] or [InFlight], or if n or per is not positive; to stop all requests use
// [Limiter.Hold].
func (l *Limiter) SetRate(limit string, n int64, per time.Duration) error {
	l.mustBeMade()
	li, err := l.named(limit)
	if err != nil {
		return fmt.Errorf("throttle: SetRate: %w", err)
	}
	if li.kind == kindAIMD || li.kind == kindInFlight {
		return fmt.Errorf("throttle: SetRate(%q, %d, %v): a limit of kind %s has no rate to be set", limit, n, per, li.kind)
	}
	r := rate{N: n, Per: per}
	if err := li.check(r); err != nil {
		return join(fmt.Sprintf("throttle: SetRate(%q, %d, %v)", limit, n, per), err)
	}
	l.set(li, func() { li.rate = r }, func(b *bucket, now instant) bool {
		if b.ownRate {
			return false
		}
		b.setTermsLocked(li.shared(li.rate), li.size, now)
		return true
	})
	return nil
}

// SetBurst changes how many tokens a [TokenBucket] holds when it is full, for all its keys. Balances stay, except that tokens
// above the new burst are lost. Waiters that cost more are rejected, unless [ClampCost] reduces their cost. It is an error if
// there is no such limit, if it has no burst, or if n is not positive.
func (l *Limiter) SetBurst(limit string, n int64) error {
	l.mustBeMade()
	li, err := l.named(limit)
	if err != nil {
		return fmt.Errorf("throttle: SetBurst: %w", err)
	}
	if li.kind != kindBucket {
		return fmt.Errorf("throttle: SetBurst(%q, %d): a limit of kind %s has no burst", limit, n, li.kind)
	}
	if n <= 0 {
		return fmt.Errorf("throttle: SetBurst(%q, %d): a burst must be positive", limit, n)
	}
	if li.store != nil {
		b := li.budget("", li.shared(li.rate), li.part(min(n, maxCount)))
		if err := b.Check(); err != nil {
			return fmt.Errorf("throttle: SetBurst(%q, %d): %w", limit, n, err)
		}
	}
	l.resize(li, func() { li.burst = min(n, maxCount) })
	return nil
}

// SetInFlight changes how many requests an [InFlight] limit allows at a time, for all its keys. [Share] applies. More slots
// release waiters immediately. With fewer, requests in flight finish, and no request is sent until it fits below n; until
// then [BucketStats.Tokens] is negative. Waiters that take more than n are rejected, unless [ClampCost] reduces their cost.
// It is an error if there is no such limit, if it is not an InFlight limit, or if n is not positive.
func (l *Limiter) SetInFlight(limit string, n int64) error {
	l.mustBeMade()
	li, err := l.named(limit)
	if err != nil {
		return fmt.Errorf("throttle: SetInFlight: %w", err)
	}
	if li.kind != kindInFlight {
		return fmt.Errorf("throttle: SetInFlight(%q, %d): a limit of kind %s has no slots", limit, n, li.kind)
	}
	if n <= 0 {
		return fmt.Errorf("throttle: SetInFlight(%q, %d): n must be positive; to stop all requests use Hold", limit, n)
	}
	l.resize(li, func() { li.rate.N = min(n, maxCount) })
	return nil
}

// resize changes the size of a limit, for all its keys.
func (l *Limiter) resize(li *limit, change func()) {
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
	b.rate = r
	b.meter.Retune(now, r)
	b.meter.Resize(now, size)
}

// set changes a limit, and then its buckets piece by piece. Of two calls at the same time the last change counts, because
// each is what the limit says when it is made.
func (l *Limiter) set(li *limit, change func(), each func(*bucket, instant) bool) {
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
func (l *Limiter) pieces(li *limit) iter.Seq[[]*bucket] {
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
func (l *Limiter) change(buckets []*bucket, each func(*bucket, instant) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
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
func (l *Limiter) changeLocked(now instant, buckets []*bucket, change func(*bucket) bool) {
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

// replanLocked judges the waiters of buckets that have changed again.
func (l *Limiter) replanLocked(now instant, buckets ...*bucket) {
	var queues []*queue
	for _, b := range buckets {
		l.markLocked(b)
		for _, s := range b.lines {
			if s.line.starved { // it may bar others no more
				for i := range s.line.stops {
					l.markLocked(s.line.stops[i].bucket)
				}
			}
			if !s.line.queue.replanned {
				s.line.queue.replanned = true
				queues = append(queues, s.line.queue)
			}
		}
	}
	for _, q := range queues {
		q.replanned = false
		l.rejudgeLocked(q, now)
	}
}
