package throttle

import (
	"fmt"
	"iter"
	"slices"
)

// Refresh calls [RateFor] again for keys that have a bucket, so that a change of its rates takes effect: for the given keys, or
// for all keys if none are given. When it returns, the rate of each of them is one that RateFor returned after Refresh was
// called. This includes keys whose first request arrived in the meantime.
//
// Balances stay, except that tokens above a smaller burst are lost. A window counts what was granted before. Waiters are
// granted or rejected by the new rate immediately. A key without a bucket is ignored, and so is "", which has the limit's own
// rate.
//
// RateFor is called once for each key, by this goroutine and without a lock. If it returns an invalid rate, the key keeps the
// rate that it had, and the error says so; it names 100 keys at most. It is also an error if there is no such limit, or if the
// limit has no RateFor.
func (l *Limiter) Refresh(limit string, keys ...string) error {
	l.mustBeMade()
	li, err := l.named(limit)
	if err != nil {
		return fmt.Errorf("throttle: Refresh: %w", err)
	}
	if li.rateFor == nil {
		return fmt.Errorf("throttle: Refresh(%q): the limit has no RateFor", limit)
	}
	pieces := l.pieces(li)
	if len(keys) > 0 {
		pieces = l.piecesOf(li, slices.Compact(slices.Sorted(slices.Values(keys))))
	}
	nth := l.refreshing(li)
	var faults []error
	failed := 0
	for piece := range pieces {
		for _, err := range l.refresh(piece, nth) {
			if failed++; failed <= maxFaults {
				faults = append(faults, err)
			}
		}
	}
	if more := failed - len(faults); more > 0 {
		faults = append(faults, fmt.Errorf("and %d more keys", more))
	}
	return join(fmt.Sprintf("throttle: Refresh(%q)", limit), faults...)
}

// maxFaults is how many keys an error of Refresh names.
const maxFaults = 100

// refreshing returns the number of a new Refresh. Rates for which RateFor was asked before are not used for new buckets.
func (l *Limiter) refreshing(li *limit) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refreshes++
	li.refreshed = l.refreshes
	return l.refreshes
}

// piecesOf yields the buckets of these keys, a few at a time.
func (l *Limiter) piecesOf(li *limit, keys []string) iter.Seq[[]*bucket] {
	return func(yield func([]*bucket) bool) {
		for some := range slices.Chunk(keys, pieceBuckets) {
			if !yield(l.find(li, some)) {
				return
			}
		}
	}
}

// find returns the buckets of these keys, as far as there are any.
func (l *Limiter) find(li *limit, keys []string) (buckets []*bucket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		if b := li.buckets[key]; b != nil {
			buckets = append(buckets, b)
		}
	}
	return buckets
}

// refresh asks RateFor for the rates of buckets, and returns what is wrong with them. It sets those that are right, unless
// RateFor has been asked since.
func (l *Limiter) refresh(buckets []*bucket, nth uint64) (faults []error) {
	rates := make(map[*bucket]rate, len(buckets))
	for _, b := range buckets {
		if b.key == "" {
			continue
		}
		r, err := b.limit.askRate(b.key)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		rates[b] = r
	}
	l.change(buckets, func(b *bucket, now instant) bool {
		own, ok := rates[b]
		if !ok || b.asked >= nth {
			return false
		}
		r, size := b.limit.terms(own)
		changed := b.ownRate != (own != rate{}) || b.rate != r
		b.asked, b.ownRate = nth, own != rate{}
		if changed {
			b.setTermsLocked(r, size, now)
		}
		return changed
	})
	return faults
}
