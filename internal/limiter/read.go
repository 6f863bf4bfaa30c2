package limiter

import (
	"context"
	"slices"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/server"
)

// Counters returns the counters of a User, or of all requests if it is nil, with the callers that wait and the buckets that are kept.
func (l *Core) Counters(of *User) (c bucket.Counts, callers, buckets int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c = l.counts
	if of != nil {
		c = of.counts
	}
	return c, l.order.Callers(), l.keys.Len()
}

// LookAtBuckets calls look under the lock for all buckets that say anything, a few at a time, and between without it, which reports
// whether to go on.
func (l *Core) LookAtBuckets(look func(b *bucket.Bucket, now meter.Instant), between func() bool) {
	l.visitAll(l.allLimits(), func(b *bucket.Bucket, now meter.Instant) {
		if l.showsLocked(b, now) {
			look(b, now)
		}
	}, between)
}

// LookAtBucket calls f under the lock for the bucket of a key. It reports false, and does not, if no bucket is kept, or it says nothing.
func (l *Core) LookAtBucket(li *bucket.Limit, key string, f func(b *bucket.Bucket, now meter.Instant)) bool {
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

// NeedsAllOf reports whether a request that is about to wait needs a bucket that can pay no more than n at all.
func (l *Core) NeedsAllOf(w *Waiter, b *bucket.Bucket, n int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	same := func(c Charge) bool { return c.Limit() == b.Limit && c.Key == b.Key }
	return b.Meter.Most() <= n && slices.ContainsFunc(w.charges, same)
}

// RejectionOf returns why w was rejected; nil: it was not, so far.
func (l *Core) RejectionOf(w *Waiter) *Rejection {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.rejection
}

// WaitsFor returns what w waits for last, as far as is known, why the server stops it there, if it does, since when it waits, and when it will
// probably be granted. Due is Never if that is not known, because it depends on a response. If it reports false, w does not wait any more. Then
// due is when it was decided, or Never if another Core was first.
func (l *Core) WaitsFor(w *Waiter) (at Place, why server.Verdict, since, due meter.Instant, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case w.verdict != waiting:
		return at, 0, 0, w.at, false
	case w.Claim != nil && w.Claim.winner.Load() != nil:
		return at, 0, 0, meter.Never, false
	}
	var binding int
	now := l.nowLocked()
	if w.Claim != nil { // other Cores may grant it sooner, so only a bound can be said
		due, binding = l.order.Plan(&w.in, now)
	} else {
		due, binding = l.order.Expect(&w.in, now)
	}
	b := w.bucketAt(binding)
	return placeOf(context.Background(), b), b.Cause(now).Verdict, w.arrived, due, true
}

// Earliest returns when w can be granted at the earliest, or when it was decided; Never: that is not known, or another Core was first.
func (l *Core) Earliest(w *Waiter) meter.Instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case w.verdict != waiting:
		return w.at
	case w.Claim != nil && w.Claim.winner.Load() != nil:
		return meter.Never
	}
	due, _ := l.order.Plan(&w.in, l.nowLocked())
	return due
}

// Began returns what is known of a request that has begun to wait, and not afterwards: how many others waited before it or, where their costs
// differ, at the same bucket, and why the server stops it.
func (l *Core) Began(w *Waiter) (ahead int, why quota.Cause) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.verdict != waiting {
		return 0, why
	}
	b, cost := w.bucket(), w.in.Costs[w.in.Binding]
	now := l.nowLocked()
	ahead = b.Waiting() - 1
	if all, _, alike := l.order.Ahead(&w.in, now); alike && cost > 0 {
		ahead = int(all[w.in.Binding] / cost)
	}
	return ahead, b.Cause(now)
}

// DelayOf returns for what and for how long a request has waited that has begun to. It reports false if it still does, or another Core has
// granted it.
func (l *Core) DelayOf(w *Waiter) (at Place, waited int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.verdict == waiting || w.Claim != nil && w.verdict != granted {
		return at, 0, false
	}
	return placeOf(context.Background(), w.bucket()), w.at - w.arrived, true
}
