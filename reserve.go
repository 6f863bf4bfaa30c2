package throttle

import (
	"fmt"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file is what a limit keeps back for urgent requests. The others are below: they stand in lines of their own, which never
// bar an urgent request at a limit with a reserve.

// Reserve keeps a fraction of the limit, above 0 and below 1, back for urgent requests: those of that priority or a higher one
// ([ContextWithPriority]). A request of a lower priority is sent only if fraction × capacity remains afterwards. The capacity is
// the burst of a [TokenBucket], the n of a window, and the slots of an [InFlight] limit; the reserve is rounded up, and leaves
// one token at least. A request of a lower priority that costs more than the rest can never be paid.
//
// In a token bucket the reserve is a level: without urgent requests, the others still get the full rate. In a window or in
// slots it is unused without urgent requests. In an [Adaptive] limit it is that fraction of the burst, and of the requests in
// flight, half of them at most, while the server is slow. The same fraction is kept of every quota that a server tells (see
// [WithServerHints]); the largest fraction of the limits counts.
//
// Urgent requests that wait go before all others at limits with a Reserve and at a server's quotas. So if they use the full
// rate, the others wait for as long. All limits of a Limiter must have the same priority for Reserve, and [Pace] has nothing
// to keep back, nor a limit that is [Shared], because a store leases tokens without knowing what they are for: these are errors
// from [New].
func Reserve(fraction float64, priority int) LimitOption {
	return limitOption(func(l *Limit) {
		l.rule.Reserve, l.rule.Urgent = fraction, priority
		switch {
		case !(fraction > 0 && fraction < 1):
			l.rule.Reserve = 0
			l.fault("Reserve(%v, %d): the fraction is not above 0 and below 1", fraction, priority)
		case l.kind == kindPace:
			l.fault("Reserve(%v, %d) does not fit a limit of kind %s, which has no burst to keep back", fraction, priority, l.kind)
		}
	})
}

// checkReserve returns what is wrong with the reserve of a limit.
func (l *Limit) checkReserve() error {
	switch {
	case l.rule.Reserve == 0:
		return nil
	case l.rule.Store != nil:
		return fmt.Errorf("Reserve(%v, %d) does not work with Shared: a store leases tokens without knowing what they are for", l.rule.Reserve, l.rule.Urgent)
	case l.kind == kindAIMD || l.kind == kindPace:
		return nil
	}
	capacity := l.rule.BurstOf(l.rule.Rate)
	if l.rule.Windowed {
		capacity = l.rule.Part(l.rule.Rate.N)
	}
	if float64(capacity-meter.Reserved(capacity, l.rule.Reserve)) > float64(capacity)*(1-l.rule.Reserve)+1e-9 {
		return fmt.Errorf("Reserve(%v, %d) of %d leaves no token to other requests", l.rule.Reserve, l.rule.Urgent, capacity)
	}
	return nil
}

// checkReserves returns an error if the reserves of several limits are not for the same requests.
func checkReserves(limits []Limit) error {
	var first *Limit
	for i := range limits {
		switch l := &limits[i]; {
		case l.rule.Reserve == 0:
		case first == nil:
			first = l
		case l.rule.Urgent != first.rule.Urgent:
			return fmt.Errorf("WithLimit: Reserve for priority %d in limit %q and for %d in limit %q: a Limiter has one queue for urgent requests",
				first.rule.Urgent, first.rule.Name, l.rule.Urgent, l.rule.Name)
		}
	}
	return nil
}
