package queue

import (
	"time"
)

// Hold holds the key of the charges of p, one in each limit, for d. It returns the limits that had no room to remember it. If the
// rates of buckets must be asked for first, nothing is held, and Hold is to be called again.
func (l *Core) Hold(p *Pending, d int64) (crowded []*Limit, asked bool) {
	if !l.lockIfAsked(p) {
		return nil, false
	}
	defer l.end()
	now := l.NowLocked()
	var held []*Bucket
	for i := range p.Charges {
		c, rate := &p.Charges[i], rateAt(p.Rates, i)
		c.Limit.Counts.Holds++
		switch {
		case c.findLocked():
			held = append(held, c.bucket)
		case rate.N < 0: // no request of this key gets in either
		case l.haveLocked(c, p.Charges, rate, now):
			held = append(held, c.bucket)
		case !c.Limit.keepHold(c.Key, now+d, now):
			crowded = append(crowded, c.Limit)
		}
	}
	l.Counts.Holds.Caller++
	l.dueLocked(now)
	for _, b := range held {
		b.hold(now, now+d)
		b.Limit.HeldMost = max(b.Limit.HeldMost, b.HeldAlone())
	}
	l.replanLocked(now, held...)
	return crowded, true
}

// A HeldEvent says that a bucket is held because of a response.
type HeldEvent struct {
	Bucket *Bucket
	By     time.Duration
	Forgot string // for lack of room; see Core.boundLocked
}

// heldLocked counts a hold of a bucket by a server or an Adaptive limit.
func (l *Core) heldLocked(b *Bucket, by *Counts) {
	if b.Limit.Gates {
		l.Counts.Holds.Server++
		by.Holds.Server++
	} else {
		l.Counts.Holds.Adaptive++
		by.Holds.Adaptive++
	}
	b.Limit.Counts.Holds++
	b.Limit.HeldMost = max(b.Limit.HeldMost, b.HeldAlone())
}

func (l *Core) HoldAll(d int64) {
	now := l.begin()
	defer l.end()
	l.Counts.Holds.Caller++
	for _, li := range l.Limits {
		li.Held = max(li.Held, now+d)
		li.Counts.Holds++
	}
}

// Release returns the limits in which that hold was the last to end.
func (l *Core) Release(key string) (last []*Limit) {
	now := l.begin()
	defer l.end()
	for _, li := range l.Limits {
		held := li.Holds[key]
		delete(li.Holds, key)
		if b := li.bucket(key); b != nil {
			held = max(held, b.HeldAlone())
			l.liftLocked(b, now)
		}
		if held > now && held == li.HeldMost {
			last = append(last, li)
		}
	}
	return last
}

// liftLocked ends a hold of a bucket. No waiter could have been granted before.
func (l *Core) liftLocked(b *Bucket, now Instant) {
	if b.lift(now) {
		l.freeLocked(b, now)
		l.markLocked(b)
	}
}

// ReleaseAll ends what hold and HoldAll did.
func (l *Core) ReleaseAll() {
	l.releaseHeld()
	l.Visit(l.allLimits(), func(b *Bucket, now Instant) {
		l.liftLocked(b, now)
		l.markLocked(b)
		l.serveLocked(now)
	}, onward)
}

func (l *Core) releaseHeld() {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	now := l.NowLocked()
	for _, li := range l.Limits {
		li.Held, li.holdNew = min(li.Held, now), min(li.holdNew, now)
		clear(li.Holds)
	}
}

// recountServersLocked finds when the last hold of a server ends, after one was taken back. With many gates that stays the end of
// the longest hold so far: under the lock there is no time to look at them all.
func (l *Core) recountServersLocked() {
	if len(l.Gates) > PieceSize {
		return
	}
	l.Gate.HeldMost = 0
	for _, b := range l.Gates {
		l.Gate.HeldMost = max(l.Gate.HeldMost, b.HeldAlone())
	}
}

// RecountHolds finds when the last hold of a limit ends, after that one was lifted. Holds that are set meanwhile count.
func (l *Core) RecountHolds(li *Limit) {
	l.Mu.Lock()
	li.HeldMost = li.holdNew
	for _, held := range li.Holds {
		li.HeldMost = max(li.HeldMost, held)
	}
	l.Mu.Unlock()
	l.Visit([]*Limit{li}, func(b *Bucket, _ Instant) { li.HeldMost = max(li.HeldMost, b.HeldAlone()) }, onward)
}

// HeldFor returns for how long from now on all keys are held.
func (l *Core) HeldFor() (d time.Duration, now Instant) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	now = l.NowLocked()
	return time.Duration(max(0, l.Limits[0].Held-now)), now
}
