package throttle

import (
	"errors"
	"fmt"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// SetRate changes the rate of a limit to n per period, for all its keys except those with a rate from [RateFor], for which see
// [Limiter.Refresh]. Waiters are planned again by the new rate, and rejected if that is too slow for them, before SetRate
// returns. The burst stays, and so does every balance; [Fraction] applies. A window counts what was granted before. It is an
// error if there is no such limit, if it is [Adaptive] or [InFlight], or if n or per is not positive; to stop all requests use
// [Limiter.Hold].
func (l *Limiter) SetRate(limit string, n int64, per time.Duration) error {
	l.mustBeMade()
	li, err := l.named(limit)
	if err != nil {
		return fmt.Errorf("throttle: SetRate: %w", err)
	}
	kind := l.policyOf(li).kind
	if !kind.can.Rated {
		return fmt.Errorf("throttle: SetRate(%q, %d, %v): a limit of kind %s has no rate to set", limit, n, per, kind.name)
	}
	r := meter.Rate{N: n, Per: per}
	if err := l.policyOf(li).check(r); err != nil {
		return join(fmt.Sprintf("throttle: SetRate(%q, %d, %v)", limit, n, per), err)
	}
	l.core.SetRate(li, r)
	return nil
}

// SetBurst changes how many tokens a [TokenBucket] holds when it is full, for all its keys. Balances stay, except that tokens
// above the new burst are lost. Waiters that cost more are rejected, unless [ClampCost] reduces their cost. It is an error if
// there is no such limit, if it has no burst, or if n is not positive.
func (l *Limiter) SetBurst(limit string, n int64) error {
	l.mustBeMade()
	li, err := l.named(limit)
	if err != nil {
		return fmt.Errorf("throttle: SetBurst: %w", err)
	}
	kind := l.policyOf(li).kind
	if !kind.bursts {
		return fmt.Errorf("throttle: SetBurst(%q, %d): a limit of kind %s has no burst", limit, n, kind.name)
	}
	if n <= 0 {
		return fmt.Errorf("throttle: SetBurst(%q, %d): a burst must be positive", limit, n)
	}
	if err := l.core.SetBurst(li, n); err != nil {
		return fmt.Errorf("throttle: SetBurst(%q, %d): %w", limit, n, err)
	}
	return nil
}

// SetInFlight changes how many requests an [InFlight] limit allows at a time, for all its keys except those with a number from
// [RateFor]. [Fraction] applies. More slots release waiters immediately. With fewer, requests in flight finish, and no request is
// sent until it fits below n; until then [BucketStats.Tokens] is negative. Waiters that take more than n are rejected, unless
// [ClampCost] reduces their cost. A [Shared] limit changes with the next call of the process to its store, so change all
// processes. It is an error if there is no such limit, if it is not an InFlight limit, or if n is not positive.
func (l *Limiter) SetInFlight(limit string, n int64) error {
	l.mustBeMade()
	li, err := l.named(limit)
	if err != nil {
		return fmt.Errorf("throttle: SetInFlight: %w", err)
	}
	kind := l.policyOf(li).kind
	if !kind.slots() {
		return fmt.Errorf("throttle: SetInFlight(%q, %d): a limit of kind %s has no slots", limit, n, kind.name)
	}
	if n <= 0 {
		return fmt.Errorf("throttle: SetInFlight(%q, %d): n must be positive; to stop all requests use Hold", limit, n)
	}
	l.core.SetSlots(li, n)
	return nil
}

// Refresh calls [RateFor] again for keys that have a bucket, so that a change of its rates takes effect: for the given keys, or
// for all keys if none are given. When Refresh returns, the rate of each key is one that RateFor returned after Refresh was
// called. This includes keys whose first request arrived in the meantime.
//
// Balances stay, except that tokens above a smaller burst are lost. A window counts what was granted before. The new rate takes
// effect immediately for waiters. Keys without a bucket are ignored, and so is "", which has the limit's own rate.
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
	var faults []error
	failed := 0
	l.core.Refresh(li, keys, func(err error) {
		if failed++; failed <= maxFaults {
			faults = append(faults, errors.Unwrap(err)) // without the name of the limit, which the error begins with
		}
	})
	if more := failed - len(faults); more > 0 {
		faults = append(faults, fmt.Errorf("and %d more keys", more))
	}
	return join(fmt.Sprintf("throttle: Refresh(%q)", limit), faults...)
}

// maxFaults is how many keys an error of Refresh names.
const maxFaults = 100

// Hold blocks all requests for key, in every limit, for duration d. The key "" stands for all requests of a Transport without keys, also
// in adaptive limits, which count them by host; a host holds only its own requests there. Waiters that can no longer be granted in
// time are rejected. Tokens still come in, up to the burst. Of several holds the longest counts. A d of 0 or less has no effect; a
// d above 146 years is 146 years. If there is no room for the key's bucket, a limit remembers up to 1,024 holds without one. Beyond
// that it holds all keys that have no bucket, and logs that. [Limiter.Release] ends the hold.
func (l *Limiter) Hold(key string, d time.Duration) {
	l.mustBeMade()
	if d <= 0 {
		return
	}
	for _, li := range l.core.Hold(key, min(int64(d), meter.MaxPer)) {
		l.observer.heldAll(li.Name, key, d)
	}
	l.observer.held(HoldEvent{Place: Place{Key: key}, For: d, Source: SourceCaller})
}

// HoldAll blocks all requests, whatever their keys, for duration d, as [Limiter.Hold] does for one key. It takes effect
// immediately. Waiters that can no longer be granted in time are rejected before HoldAll returns.
func (l *Limiter) HoldAll(d time.Duration) {
	l.mustBeMade()
	if d <= 0 {
		return
	}
	l.core.HoldAll(min(int64(d), meter.MaxPer))
	l.observer.held(HoldEvent{For: d, Source: SourceCaller, All: true})
}

// Release ends what [Limiter.Hold] set for key, in every limit. Waiters may be sent from now on, as tokens allow. Holds by
// HoldAll, a server or an [Adaptive] limit stay.
func (l *Limiter) Release(key string) {
	l.mustBeMade()
	l.core.Release(key)
}

// ReleaseAll ends what [Limiter.Hold] and [Limiter.HoldAll] set for any key. It may also end a Hold that is set at the same time.
func (l *Limiter) ReleaseAll() {
	l.mustBeMade()
	l.core.ReleaseAll()
}

// ForgetServer removes the limits that a server reported: holds, the pace after a refusal, refusals that no waiting ends, and quotas.
// key is a host, or a host and an account as in the keys of the limit "server". Requests that wait because of these limits may be sent
// from now on. [Limiter.Servers] still lists the quotas by name, with a Left of -1. The next report of the server counts again.
//
// It also removes what the server reported to a [ServerQuota], for all parts of the account; ends the pauses of [Adaptive] and
// [AdaptiveInFlight] limits; and ends the hold of a [Shared] limit because of a refusal, for all processes. The rates, and the numbers
// in flight, that such limits have learned stay: the client has found them by itself, and tests them all the time. Other processes keep
// what the server reported to them.
func (l *Limiter) ForgetServer(key string) {
	l.mustBeMade()
	l.core.ForgetReports(key)
}
