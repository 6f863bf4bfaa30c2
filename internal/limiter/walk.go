package limiter

import (
	"iter"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	visitMost  = 1024 // no more buckets are visited under one lock
	visitTime  = int64(300 * time.Microsecond)
	visitBlind = 16 // buckets without waiters that are visited before the clock is read again
)

// visitAll calls visit under the lock for the buckets of some limits, and between without it, which reports whether to go on.
// Every bucket is visited that is kept all the while. Buckets that are made meanwhile may be left out.
//
// The lock is held for visitTime at once, and for as long as it takes to check the waiters of one more bucket. Shorter pieces
// would take longer: a sync.Mutex lets a caller that takes it again and again keep it from others for up to 1 ms each time.
func (l *Core) visitAll(limits []*bucket.Limit, visit func(*bucket.Bucket, meter.Instant), between func() bool) {
	l.visit(l.allLocked(limits), visit, between)
}

// visit visits some buckets, which are found under the lock.
func (l *Core) visit(some iter.Seq[*bucket.Bucket], visit func(*bucket.Bucket, meter.Instant), between func() bool) {
	now, visited := l.begin(), 0
	for b := range some {
		look := b.Waiting() > 0
		visit(b, now)
		visited++
		look = look || visited%visitBlind == 0
		if visited < l.visitAtOnce && l.order.IsChecked() && (!look || int64(time.Since(l.Start))-now < visitTime) {
			continue
		}
		l.end()
		if !between() {
			return
		}
		l.pause()
		now, visited = l.begin(), 0 // the maps may have changed: the rest of the visit is of what they have now
	}
	l.end()
	between()
}

// onward continues a visit.
func onward() bool { return true }

// allLimits returns the limits of keys and that of gates.
func (l *Core) allLimits() []*bucket.Limit { return append(slices.Clone(l.Limits), l.Gate) }

// pieces yields the buckets that visitAll visits, a few at a time and without the lock: for work that calls users' functions.
// Some may have been forgotten.
func (l *Core) pieces(limits ...*bucket.Limit) iter.Seq[[]*bucket.Bucket] {
	return func(yield func([]*bucket.Bucket) bool) {
		piece, waiters := make([]*bucket.Bucket, 0, pieceSize), 0
		l.mu.Lock()
		for b := range l.allLocked(limits) {
			piece, waiters = append(piece, b), waiters+b.Waiting()
			if len(piece) < pieceSize && waiters < pieceWaiters {
				continue
			}
			l.mu.Unlock()
			if !yield(piece) {
				return
			}
			piece, waiters = piece[:0], 0
			l.pause()
			l.mu.Lock() // see visit
		}
		l.mu.Unlock()
		if len(piece) > 0 {
			yield(piece)
		}
	}
}

// piecesOf yields the buckets of these keys, a few at a time.
func (l *Core) piecesOf(li *bucket.Limit, keys []string) iter.Seq[[]*bucket.Bucket] {
	return func(yield func([]*bucket.Bucket) bool) {
		for some := range slices.Chunk(keys, pieceSize) {
			if !yield(l.find(li, some)) {
				return
			}
		}
	}
}

// find returns the buckets of these keys, as far as there are any.
func (l *Core) find(li *bucket.Limit, keys []string) (buckets []*bucket.Bucket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		if b := li.Bucket(key); b != nil && key != "" {
			buckets = append(buckets, b)
		}
	}
	return buckets
}

const (
	pieceSize    = 64    // no more buckets are in one piece
	pieceWaiters = 1_000 // nor more waiters, unless they wait for one bucket
)
