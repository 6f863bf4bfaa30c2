package throttle

import (
	"fmt"
	"slices"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/queue"
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
	if !li.Asks {
		return fmt.Errorf("throttle: Refresh(%q): the limit has no RateFor", limit)
	}
	pieces := l.core.Pieces(li)
	if len(keys) > 0 {
		pieces = l.core.PiecesOf(li, slices.Compact(slices.Sorted(slices.Values(keys))))
	}
	nth := l.core.Refreshing(li)
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
func (l *Limiter) refresh(buckets []*queue.Bucket, nth uint64) (faults []error) {
	rates := make(map[*queue.Bucket]meter.Rate, len(buckets))
	for _, b := range buckets {
		if b.Key == "" {
			continue
		}
		r, err := l.policyOf(b.Limit).askRate(b.Key)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		rates[b] = r
	}
	l.core.Refresh(buckets, rates, nth)
	return faults
}

// askRates asks the users' RateFor for the rates of a request's charges. The zero rate is the limit's own. It is called without
// the lock.
func (l *Limiter) askRates(p *queue.Pending) (err error) {
	rates := make([]meter.Rate, len(p.Charges))
	for i := range p.Charges {
		c := &p.Charges[i]
		if !c.Limit.Asks || c.Key == "" {
			continue
		}
		if rates[i], err = l.policyOf(c.Limit).askRate(c.Key); err != nil {
			return fmt.Errorf("throttle: limit %q: %w", c.Limit.Name, err)
		}
	}
	p.Rates = rates
	return nil
}

// askRate asks RateFor for the rate of a key, which is not "".
func (p *policy) askRate(key string) (meter.Rate, error) {
	n, per := p.rateFor(key)
	r := meter.Rate{N: n, Per: per}
	if r == (meter.Rate{}) {
		return r, nil
	}
	if err := p.check(r); err != nil {
		return r, join(fmt.Sprintf("RateFor(%q) = %d, %v (0, 0 keeps the limit's rate)", key, n, per), err)
	}
	return r, nil
}
