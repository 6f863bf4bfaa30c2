package limiter

import (
	"context"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// Read returns the counters of a User, or of all requests if it is nil, with the callers that wait and the buckets that are kept.
func (l *Core) Read(of *User) (c bucket.Counts, callers, buckets int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c = l.counts
	if of != nil {
		c = of.counts
	}
	return c, l.order.Callers(), l.keys.Len()
}

// Look calls look under the lock for all buckets that say anything, a few at a time, and between without it, which reports
// whether to go on.
func (l *Core) Look(look func(b *bucket.Bucket, now meter.Instant), between func() bool) {
	l.visitAll(l.allLimits(), func(b *bucket.Bucket, now meter.Instant) {
		if l.showsLocked(b, now) {
			look(b, now)
		}
	}, between)
}

// LookAt calls f under the lock for the bucket of a key. It reports false, and does not, if no bucket is kept, or it says nothing.
func (l *Core) LookAt(li *bucket.Limit, key string, f func(b *bucket.Bucket, now meter.Instant)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, b := l.nowLocked(), li.Bucket(key)
	if b == nil || !l.showsLocked(b, now) {
		return false
	}
	f(b, now)
	return true
}

// LookAtLimits calls f under the lock for every limit, and last for Gate. keys is how many buckets are kept besides that of the key "",
// callers how many callers wait, if they take turns there.
func (l *Core) LookAtLimits(f func(li *bucket.Limit, keys, callers int, now meter.Instant)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	for _, li := range l.Limits {
		callers := 0
		if li == l.Fair {
			callers = l.order.Callers()
		}
		f(li, li.Keys(), callers, now)
	}
	l.Gate.Counts.Evicted = l.servers.Evicted
	f(l.Gate, l.servers.Len(), 0, now)
}

// showsLocked reports whether a bucket says anything: not that of a key "" that nothing has used where requests have keys, a gate
// that stops no request, or a bucket that was forgotten.
func (l *Core) showsLocked(b *bucket.Bucket, now meter.Instant) bool {
	switch {
	case b.Limit.Gates:
		g := b.Meter.(*quota.Gate)
		return g.IsKept() && !g.Open(now)
	case b.Key != "":
		return b.IsKept()
	case b.Limit.Keyed || b.Limit.Open || b.Limit.Keys() > 0:
		_, full := b.Matters(now)
		return max(full, b.Limit.AllHeldUntil()) > now
	}
	return true
}

// Most returns the largest cost that a bucket can ever pay.
func (l *Core) Most(b *bucket.Bucket) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return b.Meter.Most()
}

// DueOf returns when w was decided, or when it would be granted if nothing else happened; Never: that depends on a response.
func (l *Core) DueOf(w *Waiter) meter.Instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.verdict != waiting {
		return w.at
	}
	due, _ := l.order.Plan(&w.in, l.nowLocked())
	return due
}

// RefusalOf returns why w was rejected; nil: it was not, so far.
func (l *Core) RefusalOf(w *Waiter) *Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.refusal
}

// WaitsFor returns what w waits for last, as far as is known, and since when. It reports false if w does not wait.
func (l *Core) WaitsFor(w *Waiter) (at Place, since, due meter.Instant, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.verdict != waiting {
		return at, 0, 0, false
	}
	due, binding := l.order.Plan(&w.in, l.nowLocked())
	return placeOf(context.Background(), w.bucketAt(binding)), w.arrived, due, true
}
