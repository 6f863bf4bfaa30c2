package limiter

import (
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/server"
)

// Hold holds a key in each limit, for d. It returns the limits that had no room to remember that, and hold all keys without a bucket.
func (l *Core) Hold(key string, d int64) (crowded []*bucket.Limit) {
	crowded = l.hold(key, d)
	l.replanUnkeyed(key)
	return crowded
}

func (l *Core) hold(key string, d int64) (crowded []*bucket.Limit) {
	var r Request
	for _, li := range l.Limits {
		r.Add(li, key, 0)
	}
	charges := r.Charges()
	now, rates, _ := l.beginRated(charges)
	defer l.end()
	var held []*bucket.Bucket
	for i := range charges {
		c, rate := &charges[i], rateAt(rates, i)
		c.Limit().Counts.Holds++
		switch {
		case c.find():
			held = append(held, c.Bucket)
		case rate.N < 0: // no request of this key gets in either
		case l.haveLocked(c, charges, rate, now):
			held = append(held, c.Bucket)
		case !c.Limit().KeepHold(c.Key, now+d, now):
			crowded = append(crowded, c.Limit())
		}
	}
	l.counts.Holds.Caller++
	for _, b := range held {
		b.Hold(now, now+d)
	}
	l.replanLocked(held...)
	return crowded
}

// heldLocked counts a hold of a bucket by a server or an Adaptive limit.
func (l *Core) heldLocked(b *bucket.Bucket, u *User) {
	if b.Limit.Gates {
		l.counts.Holds.Server++
		u.counts.Holds.Server++
	} else {
		l.counts.Holds.Adaptive++
		u.counts.Holds.Adaptive++
	}
	b.Limit.Counts.Holds++
	b.NoteHold()
}

// heldByLocked counts and returns the holds of a bucket that a report has set.
func (l *Core) heldByLocked(b *bucket.Bucket, c *quota.Change, u *User, now meter.Instant) (holds []held) {
	a := b.Meter.(*quota.Gate).Account
	v := a.LastRefusal(now).Verdict // which the response itself need not be: an error may prolong a hold
	if c.Until > 0 {
		holds = append(holds, held{b, Hold{By: time.Duration(c.Until - now), Server: true, Guessed: c.Guessed, Verdict: v}})
	}
	if c.Final != nil {
		_, ask, _ := a.Final()
		guessed := a.Until() < ask || a.Guessed()
		holds = append(holds, held{b, Hold{By: time.Duration(ask - now), Server: true, Guessed: guessed, Verdict: server.Final, Final: c.Final}})
	}
	for range holds {
		l.heldLocked(b, u)
	}
	return holds
}

// HoldAll holds all keys in each limit, for d.
func (l *Core) HoldAll(d int64) {
	l.holdAll(d)
	for _, li := range l.Limits {
		l.replanAll(li)
	}
}

func (l *Core) holdAll(d int64) {
	now := l.begin()
	defer l.end()
	l.counts.Holds.Caller++
	for _, li := range l.Limits {
		li.HoldAll(now + d)
		li.Counts.Holds++
	}
}

// Release ends the holds of a key by Hold.
func (l *Core) Release(key string) {
	l.recountHolds(l.release(key)...)
	l.replanUnkeyed(key)
}

// release ends the holds of a key, and returns the limits in which such a hold was the last one to end.
func (l *Core) release(key string) (last []*bucket.Limit) {
	now := l.begin()
	defer l.end()
	for _, li := range l.Limits {
		held := li.Release(key)
		if b := li.Bucket(key); b != nil {
			held = max(held, b.HeldAlone())
			l.liftLocked(b, now)
		}
		if held > now && held == li.KeysHeldUntil() {
			last = append(last, li)
		}
	}
	return last
}

// replanUnkeyed plans the waiters without a key again that are counted by host, after a hold of the key "" has changed: it holds them, too.
func (l *Core) replanUnkeyed(key string) {
	for _, li := range l.Limits {
		if key == "" && li.Hosted {
			l.replanAll(li)
		}
	}
}

// liftLocked ends the hold of a bucket, if there is one. Its waiters can be granted from now on.
func (l *Core) liftLocked(b *bucket.Bucket, now meter.Instant) {
	if b.Lift(now) {
		l.freeLocked(b, now)
		l.markLocked(b)
	}
}

// ReleaseAll ends all holds by Hold and HoldAll.
func (l *Core) ReleaseAll() {
	l.releaseHeld()
	l.visitAll(l.allLimits(), func(b *bucket.Bucket, now meter.Instant) {
		l.liftLocked(b, now)
		l.markLocked(b)
		l.serveLocked(now)
	}, onward)
	l.recountHolds(l.Limits...)
	l.replanUnkeyed("")
}

func (l *Core) releaseHeld() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	for _, li := range l.Limits {
		li.ReleaseAll(now)
	}
}

// recountServersLocked finds when the last hold by a server ends, after one was taken back. With many gates it leaves the end of the
// longest hold so far, because under the lock there is no time to look at all of them.
func (l *Core) recountServersLocked() {
	if l.servers.Len() > pieceSize {
		return
	}
	l.Gate.Recount()
	for g := range l.servers.All() {
		ownerOf(g).NoteHold()
	}
}

// recountHeldLocked finds when the last hold of a limit ends, in the same way, after one of a shared budget has ended early.
func (l *Core) recountHeldLocked(li *bucket.Limit) {
	if li.Keys() > pieceSize {
		return
	}
	li.Recount()
	for b := range li.All() {
		b.NoteHold()
	}
}

// recountHolds finds when the last hold of each limit ends, after the last one was lifted. Holds that are set meanwhile count.
func (l *Core) recountHolds(limits ...*bucket.Limit) {
	for _, li := range limits {
		l.mu.Lock()
		li.Recount()
		l.mu.Unlock()
		l.visitAll([]*bucket.Limit{li}, func(b *bucket.Bucket, _ meter.Instant) { b.NoteHold() }, onward)
	}
}
