package throttle

import (
	"context"
	"slices"
	"time"
)

// A Source says what set a hold.
type Source string

const (
	SourceCaller   Source = "caller"   // [Limiter.Hold] or [Limiter.HoldAll]
	SourceServer   Source = "server"   // a response
	SourceAdaptive Source = "adaptive" // an [Adaptive] limit, because of a response
)

// HoldCounts counts holds by [Source]. A hold of several limits counts once.
type HoldCounts struct {
	Caller   uint64 `json:"caller"`
	Server   uint64 `json:"server"`
	Adaptive uint64 `json:"adaptive"`
}

// Hold blocks all requests for key, in every limit, for duration d. Waiters that can no longer be granted in time are rejected.
// Tokens still come in, up to the burst. The longest of several holds counts; 0 and less do nothing; more than 146
// years are 146 years. If there is no room for the key's bucket, a limit remembers 1,024 holds without; beyond that it holds
// all keys that have no bucket, and logs that. [Limiter.Release] ends it.
func (l *Limiter) Hold(key string, d time.Duration) {
	l.mustBeMade()
	if d <= 0 {
		return
	}
	l.mu.Lock()
	l.counts.holds.Caller++
	l.mu.Unlock()
	crowded := l.hold(key, min(int64(d), maxPer))
	for _, limit := range crowded {
		l.direct.observer.heldAll(limit, key, d)
	}
	l.direct.observer.held(HoldEvent{Key: key, For: d, Source: SourceCaller})
}

// hold returns the names of the limits that hold more than that key, because there was no room to remember it.
func (l *Limiter) hold(key string, d int64) (crowded []string) {
	for _, li := range l.limits {
		p := pending{charges: charged(make([]charge, 0, 1), li, key, 0)}
		if l.lockFor(&p) != nil {
			continue // no request of this key gets in either, and is told why
		}
		if !l.holdLocked(&p, d) {
			crowded = append(crowded, li.name)
		}
		l.mu.Unlock()
	}
	return crowded
}

// holdLocked holds the key of the one charge of p, and reports whether there was room to remember it.
func (l *Limiter) holdLocked(p *pending, d int64) bool {
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

// heldLocked counts a hold of a bucket by a server or an Adaptive limit, and returns what is told of it.
func (l *Limiter) heldLocked(ctx context.Context, b *bucket, held time.Duration, by *asker) HoldEvent {
	e := HoldEvent{Context: ctx, Key: b.key, For: held, Source: SourceAdaptive}
	if b.limit.gates {
		e.Source = SourceServer
		l.counts.holds.Server++
		by.counts.holds.Server++
	} else {
		l.counts.holds.Adaptive++
		by.counts.holds.Adaptive++
	}
	b.limit.counts.holds++
	b.limit.heldMost = max(b.limit.heldMost, b.heldAlone())
	return e
}

// HoldAll blocks all requests, whatever their keys, for duration d, as [Limiter.Hold] does for one key. It takes effect
// immediately. Waiters that can no longer be granted in time are rejected before HoldAll returns.
func (l *Limiter) HoldAll(d time.Duration) {
	l.mustBeMade()
	if d <= 0 {
		return
	}
	l.holdAll(min(int64(d), maxPer))
	for _, li := range l.limits {
		for piece := range l.pieces(li) {
			l.change(piece, func(b *bucket, _ instant) bool { return len(b.lines) > 0 })
		}
	}
	l.direct.observer.held(HoldEvent{For: d, Source: SourceCaller, All: true})
}

func (l *Limiter) holdAll(d int64) {
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
func (l *Limiter) inPieces(f func(b *bucket, now instant)) {
	for some := range slices.Chunk(l.kept(), pieceSize) {
		l.piece(some, f)
	}
}

func (l *Limiter) piece(some []*bucket, f func(b *bucket, now instant)) {
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

// Release ends what [Limiter.Hold] set for key, in every limit. Waiters may go from now on, as tokens allow. What HoldAll, a
// server or an [Adaptive] limit set stays.
func (l *Limiter) Release(key string) {
	l.mustBeMade()
	for _, li := range l.release(key) {
		l.recountHolds(li)
	}
}

// release returns the limits in which that hold was the last to end.
func (l *Limiter) release(key string) (last []*limit) {
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
func (l *Limiter) liftLocked(b *bucket, now instant) {
	if b.lift(now) {
		l.freeLocked(b, now)
		l.markLocked(b)
	}
}

// ReleaseAll ends what [Limiter.Hold] and [Limiter.HoldAll] set for any key. A Hold that is set meanwhile may be ended, too.
func (l *Limiter) ReleaseAll() {
	l.mustBeMade()
	l.releaseHeld()
	l.inPieces(func(b *bucket, now instant) {
		l.liftLocked(b, now)
		l.markLocked(b)
	})
	for _, li := range l.limits {
		l.recountHolds(li)
	}
}

func (l *Limiter) releaseHeld() {
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
func (l *Limiter) recountServersLocked() {
	if len(l.gates) > pieceSize {
		return
	}
	l.gate.heldMost = 0
	for _, b := range l.gates {
		l.gate.heldMost = max(l.gate.heldMost, b.heldAlone())
	}
}

// recountHolds finds when the last hold of a limit ends, after that one was lifted. Holds that are set meanwhile count.
func (l *Limiter) recountHolds(li *limit) {
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
