package supply

import (
	"time"

	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// A Lease is the part of a bucket whose budget is in a store.
type Lease[B any] struct {
	lease.Meter
	Wanted int64 // a cost that could not be paid and does not wait: the store is asked for it once

	of     B
	supply *Supply[B]
	queued bool // in supply.asking
	latest count
	outage Outage // of this budget alone, while the store decides about others
}

// Lease returns the lease of a bucket.
func (s *Supply[B]) Lease(to B, b lease.Meter) *Lease[B] {
	return &Lease[B]{Meter: b, of: to, supply: s}
}

// IsQueued reports whether the store is to be asked with one of the next calls.
func (n *Lease[B]) IsQueued() bool { return n.queued }

// Of returns the bucket.
func (n *Lease[B]) Of() B { return n.of }

// Supply returns the store.
func (n *Lease[B]) Supply() *Supply[B] { return n.supply }

// Due puts the lease among those for which the store is asked, if it is to be asked now. It returns when to look at it again.
func (n *Lease[B]) Due(now meter.Instant, d lease.Demand, waits bool) (at meter.Instant, asks bool) {
	at = meter.Never
	if out := n.Out(); out != nil && waits && now < n.graceEnd(out) {
		at = n.graceEnd(out)
	}
	if n.queued {
		return at, false
	}
	if ask := n.AskAt(now, d); ask > now {
		if d.From > now {
			at = min(at, d.From)
		}
		return min(at, max(ask, n.outage.again)), false
	}
	if n.outage.again > now {
		return min(at, n.outage.again), false
	}
	n.queued = true
	n.supply.asking = append(n.supply.asking, n)
	return at, true
}

// Leave gives back everything that is not used, now and whenever there is more.
func (n *Lease[B]) Leave(now meter.Instant) {
	n.Wanted = 0
	n.Meter.Leave(now)
}

// RetryAt returns when the store may be asked again.
func (n *Lease[B]) RetryAt() meter.Instant {
	if n.outage.err != nil {
		return n.outage.again
	}
	return 0
}

// Out returns the outage of the budget or of its store; nil: there is none.
func (n *Lease[B]) Out() *Outage {
	switch {
	case n.outage.err != nil:
		return &n.outage
	case n.supply.outage.err != nil:
		return &n.supply.outage
	}
	return nil
}

// graceEnd returns the end of the grace. A process that knows how many there are by its terms alone, because it has never reached
// the store, has its share immediately.
func (n *Lease[B]) graceEnd(o *Outage) meter.Instant {
	if s := n.supply; s.Without == ButLocally && s.Processes > 0 && !s.worked {
		return o.since
	}
	return meter.AddInstant(o.since, int64(n.supply.Grace))
}

// Update brings the lease up to date with an outage: when the grace has passed, another meter may pay. An outage that no call
// has looked at for long is forgotten, so that the next request finds out.
func (n *Lease[B]) Update(now meter.Instant) {
	s := n.supply
	idle := int64(max(s.Grace, time.Second) + s.Timeout)
	if n.outage.err != nil && !n.queued && now-n.outage.again > idle {
		n.outage = Outage{}
	}
	if s.outage.err != nil && len(s.asking)+s.calls+s.late == 0 && now-s.outage.again > idle {
		s.outage = Outage{}
	}
	o := n.Out()
	if o == nil {
		return
	}
	if o.over = now >= n.graceEnd(o); !o.over || o.isSetup() || n.IsAlone() {
		return
	}
	switch s.Without {
	case ButLocally:
		if processes := n.processes(o); processes > 0 {
			n.Alone(now, n.Local(now, processes), true, &s.Counts.Alone)
		}
	case Limit:
		n.Alone(now, meter.Unlimited{}, false, &s.Counts.Alone)
	}
}

// processes returns how many processes share the budget in an outage; 0: it is not known. A response that came longer than
// store.MaxSince before the outage does not count: others may have come since.
func (n *Lease[B]) processes(o *Outage) int {
	most := n.supply.Processes
	for _, c := range []count{n.latest, n.supply.latest} {
		if c.n > 0 && o.since-c.at <= int64(store.MaxSince) {
			return max(most, c.n)
		}
	}
	return most
}

// BlockedUntil returns until when requests wait for a store that is unreachable: Shut if they do not, 0 if it is reachable or
// another meter pays.
func (n *Lease[B]) BlockedUntil() meter.Instant {
	switch o := n.Out(); {
	case o == nil:
		return 0
	case o.isSetup():
		return Shut
	case n.IsAlone():
		return 0
	case o.over:
		return Shut
	default:
		return n.graceEnd(o)
	}
}
