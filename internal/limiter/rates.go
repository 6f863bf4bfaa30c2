package limiter

import (
	"cmp"
	"slices"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// This file asks users' functions for the rates of keys, without the lock.

// beginRated is begin once the rates are known of all buckets that are to be made for charges, as of the last Refresh of their
// limits. Which ones these are is found out under the lock that it returns with, because a bucket may be forgotten whenever the lock is free.
//
// It returns a rate for each charge: zero is the limit's own, and a negative one says that there is none for the key, and err why. There
// are no rates if none had to be asked for.
func (l *Core) beginRated(charges []Charge) (now meter.Instant, rates []meter.Rate, err error) {
	var asked uint64 // the number of the last Refresh before that
	for {
		now = l.begin()
		switch {
		case isUnrated(charges, rates != nil, asked):
			asked = l.refreshes
			l.end()
			rates, err = l.askRates(charges)
		case l.crowdedLocked(charges, now):
			l.end() // other goroutines may take mu in between
		default:
			return now, rates, err
		}
	}
}

// isUnrated reports whether a rate is still to be asked for.
func isUnrated(charges []Charge, hasRates bool, asked uint64) bool {
	for i := range charges {
		c := &charges[i]
		if (!hasRates || asked < c.Limit().Refreshed) && c.Limit().Asks && c.Key != "" && !c.find() {
			return true
		}
	}
	return false
}

// askRates asks for the rates of charges. The error is the first one.
func (l *Core) askRates(charges []Charge) (rates []meter.Rate, err error) {
	rates = make([]meter.Rate, len(charges))
	for i := range charges {
		c := &charges[i]
		if !c.Limit().Asks || c.Key == "" {
			continue
		}
		r, fault := l.rate(c.Limit(), c.Key)
		if fault != nil {
			r.N, err = -1, cmp.Or(err, fault)
		}
		rates[i] = r
	}
	return rates, err
}

// rateAt returns the rate of a charge.
func rateAt(rates []meter.Rate, i int) meter.Rate {
	if i < len(rates) {
		return rates[i]
	}
	return meter.Rate{}
}

// Refresh asks for the rates of a limit again, for these keys or for all if there are none, so that a change of them takes effect.
// Rates that were asked for before are not used for new buckets. It calls fault without the lock for each key without a rate, which
// keeps the rate that it had.
func (l *Core) Refresh(li *bucket.Limit, keys []string, fault func(error)) {
	pieces := l.pieces(li)
	if len(keys) > 0 {
		pieces = l.piecesOf(li, slices.Compact(slices.Sorted(slices.Values(keys))))
	}
	nth := l.refreshing(li)
	for piece := range pieces {
		rates := make(map[*bucket.Bucket]meter.Rate, len(piece))
		for _, b := range piece {
			if b.Key == "" {
				continue
			}
			if r, err := l.rate(li, b.Key); err != nil {
				fault(err)
			} else {
				rates[b] = r
			}
		}
		l.change(slices.Values(piece), func(b *bucket.Bucket, now meter.Instant) bool {
			own, ok := rates[b]
			return ok && b.Refresh(own, nth, now)
		})
	}
}

// refreshing returns the number of a new Refresh.
func (l *Core) refreshing(li *bucket.Limit) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refreshes++
	li.Refreshed = l.refreshes
	return l.refreshes
}
