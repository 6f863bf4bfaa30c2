package throttle

import (
	"fmt"
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
	if !li.asks {
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

// refresh asks RateFor for the rates of buckets, and returns what is wrong with them. It sets those that are right, unless
// RateFor has been asked since.
func (l *Limiter) refresh(buckets []*bucket, nth uint64) (faults []error) {
	rates := make(map[*bucket]rate, len(buckets))
	for _, b := range buckets {
		if b.key == "" {
			continue
		}
		r, err := l.policyOf(b.limit).askRate(b.key)
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
		changed := b.own != own
		b.asked, b.own = nth, own
		if changed {
			b.setTermsLocked(r, size, now)
		}
		return changed
	})
	return faults
}

// askRates asks the users' RateFor for the rates of a request's charges. The zero rate is the limit's own. It is called without
// the lock.
func (l *Limiter) askRates(p *pending) (err error) {
	rates := make([]rate, len(p.charges))
	for i := range p.charges {
		c := &p.charges[i]
		if !c.limit.asks || c.key == "" {
			continue
		}
		if rates[i], err = l.policyOf(c.limit).askRate(c.key); err != nil {
			return fmt.Errorf("throttle: limit %q: %w", c.limit.name, err)
		}
	}
	p.rates = rates
	return nil
}

// askRate asks RateFor for the rate of a key, which is not "".
func (p *policy) askRate(key string) (rate, error) {
	n, per := p.rateFor(key)
	r := rate{N: n, Per: per}
	if r == (rate{}) {
		return r, nil
	}
	if err := p.check(r); err != nil {
		return r, join(fmt.Sprintf("RateFor(%q) = %d, %v (0, 0 keeps the limit's rate)", key, n, per), err)
	}
	return r, nil
}
