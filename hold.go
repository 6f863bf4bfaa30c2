package throttle

import (
	"slices"
	"time"
)

// hold holds the key of the one charge of p. It reports whether there was room to remember it. If the rate of its bucket must be
// asked for first, nothing is held, and hold is to be called again.
func (l *core) hold(p *pending, d int64) (fits, asked bool) {
	if !l.lockIfAsked(p) {
		return false, false
	}
	defer l.unlockJudged()
	return l.holdLocked(p, d), true
}

// countHold counts a hold of a caller.
func (l *core) countHold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.holds.Caller++
}

// holdLocked holds the key of the one charge of p, and reports whether there was room to remember it.
func (l *core) holdLocked(p *pending, d int64) bool {
	c, now := &p.charges[0], l.nowLocked()
	c.limit.counts.holds++
	if !l.haveLocked(c, p.charges, rateAt(p.rates, 0), now) {
		return c.limit.keepHold(c.key, now+d, now)
	}
	l.changeLocked(now, []*bucket{c.bucket}, func(b *bucket) bool {
		b.hold(now, now+d)
		b.limit.heldMost = max(b.limit.heldMost, b.heldAlone())
		return true
	})
	return true
}

// A heldEvent says that a bucket is held because of a response.
type heldEvent struct {
	bucket *bucket
	by     time.Duration
}

// heldLocked counts a hold of a bucket by a server or an Adaptive limit.
func (l *core) heldLocked(b *bucket, by *counts) {
	if b.limit.gates {
		l.counts.holds.Server++
		by.holds.Server++
	} else {
		l.counts.holds.Adaptive++
		by.holds.Adaptive++
	}
	b.limit.counts.holds++
	b.limit.heldMost = max(b.limit.heldMost, b.heldAlone())
}

func (l *core) holdAll(d int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	l.counts.holds.Caller++
	for _, li := range l.limits {
		li.held = max(li.held, now+d)
		li.counts.holds++
	}
}

// inPieces calls f under the lock for every bucket that is kept, and serves waiters, in pieces between which others have the lock.
func (l *core) inPieces(f func(b *bucket, now instant)) {
	for some := range slices.Chunk(l.kept(), pieceSize) {
		l.piece(some, f)
	}
}

func (l *core) piece(some []*bucket, f func(b *bucket, now instant)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	for _, b := range some {
		if b.key == "" || b.place >= 0 {
			f(b, now)
		}
	}
	l.serveLocked(now)
}

// release returns the limits in which that hold was the last to end.
func (l *core) release(key string) (last []*limit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	for _, li := range l.limits {
		held := li.holds[key]
		delete(li.holds, key)
		if b := li.bucket(key); b != nil {
			held = max(held, b.heldAlone())
			l.liftLocked(b, now)
		}
		if held > now && held == li.heldMost {
			last = append(last, li)
		}
	}
	l.serveLocked(now)
	return last
}

// liftLocked ends a hold of a bucket. No waiter could have been granted before.
func (l *core) liftLocked(b *bucket, now instant) {
	if b.lift(now) {
		l.freeLocked(b, now)
		l.markLocked(b)
	}
}

// releaseAll ends what hold and holdAll did.
func (l *core) releaseAll() {
	l.releaseHeld()
	l.inPieces(func(b *bucket, now instant) {
		l.liftLocked(b, now)
		l.markLocked(b)
	})
}

func (l *core) releaseHeld() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	for _, li := range l.limits {
		li.held, li.holdNew = min(li.held, now), min(li.holdNew, now)
		clear(li.holds)
	}
}

// recountServersLocked finds when the last hold of a server ends, after one was taken back. With many gates that stays the end of
// the longest hold so far: under the lock there is no time to look at them all.
func (l *core) recountServersLocked() {
	if len(l.gates) > pieceSize {
		return
	}
	l.gate.heldMost = 0
	for _, b := range l.gates {
		l.gate.heldMost = max(l.gate.heldMost, b.heldAlone())
	}
}

// recountHolds finds when the last hold of a limit ends, after that one was lifted. Holds that are set meanwhile count.
func (l *core) recountHolds(li *limit) {
	l.mu.Lock()
	li.heldMost = li.holdNew
	for _, held := range li.holds {
		li.heldMost = max(li.heldMost, held)
	}
	l.mu.Unlock()
	l.inPieces(func(b *bucket, _ instant) {
		if b.limit == li {
			li.heldMost = max(li.heldMost, b.heldAlone())
		}
	})
}

// heldFor returns for how long yet all keys are held.
func (l *core) heldFor() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(max(0, l.limits[0].held-l.nowLocked()))
}
