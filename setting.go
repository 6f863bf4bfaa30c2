package throttle

import (
	"fmt"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file changes limits at run time.

// SetRate changes the rate of a limit to n per period, for all its keys except those with a rate from [RateFor], for which
// see [Limiter.Refresh]. Waiters are granted by the new rate, or rejected if that is too late for them, before SetRate returns.
// The burst stays, and so does every balance; [Share] applies. A window counts what was granted before. It is an error if
// there is no such limit, if it is [Adaptive] or [InFlight], or if n or per is not positive; to stop all requests use
// [Limiter.Hold].
func (l *Limiter) SetRate(limit string, n int64, per time.Duration) error {
	l.mustBeMade()
	li, err := l.named(limit)
	if err != nil {
		return fmt.Errorf("throttle: SetRate: %w", err)
	}
	kind := l.policyOf(li).kind
	if kind == kindAIMD || kind == kindInFlight {
		return fmt.Errorf("throttle: SetRate(%q, %d, %v): a limit of kind %s has no rate to be set", limit, n, per, kind)
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
	if kind != kindBucket {
		return fmt.Errorf("throttle: SetBurst(%q, %d): a limit of kind %s has no burst", limit, n, kind)
	}
	if n <= 0 {
		return fmt.Errorf("throttle: SetBurst(%q, %d): a burst must be positive", limit, n)
	}
	if li.Store != nil {
		b := li.Budget("", li.Shared(li.Rate), li.Part(min(n, meter.MaxCount)))
		if err := b.Check(); err != nil {
			return fmt.Errorf("throttle: SetBurst(%q, %d): %w", limit, n, err)
		}
	}
	l.core.Resize(li, func() { li.Burst = min(n, meter.MaxCount) })
	return nil
}

// SetInFlight changes how many requests an [InFlight] limit allows at a time, for all its keys. [Share] applies. More slots
// release waiters immediately. With fewer, requests in flight finish, and no request is sent until it fits below n; until
// then [BucketStats.Tokens] is negative. Waiters that take more than n are rejected, unless [ClampCost] reduces their cost.
// A process tells the store of a [Shared] limit with its next call, so change all processes. It is an error if there is no such
// limit, if it is not an InFlight limit, or if n is not positive.
func (l *Limiter) SetInFlight(limit string, n int64) error {
	l.mustBeMade()
	li, err := l.named(limit)
	if err != nil {
		return fmt.Errorf("throttle: SetInFlight: %w", err)
	}
	kind := l.policyOf(li).kind
	if kind != kindInFlight {
		return fmt.Errorf("throttle: SetInFlight(%q, %d): a limit of kind %s has no slots", limit, n, kind)
	}
	if n <= 0 {
		return fmt.Errorf("throttle: SetInFlight(%q, %d): n must be positive; to stop all requests use Hold", limit, n)
	}
	l.core.Resize(li, func() { li.Rate.N = min(n, meter.MaxCount) })
	return nil
}
