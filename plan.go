package throttle

import (
	"context"
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// judge returns why a request that would be granted at due must be rejected; 0 if it need not. MaxWait comes before the
// deadline, so that one client sees one kind of rejection, whatever deadlines its callers set.
//
// A request that waits for a response of a store may wait for longer than MaxWait, as long as it may be granted immediately.
func (b *bounds) judge(due, now instant, binding *bucket) reason {
	patience := max(b.expiry, min(now, b.arrived+b.respite))
	switch {
	case due == never:
		return reasonCost
	case binding.lent() != nil && b.isCutOff(due, binding.blockedUntil()):
		return reasonStore
	case due <= patience && (b.expiry > b.arrived || b.respite > 0):
		if due >= b.deadline {
			return reasonDeadline
		}
		return 0
	case binding.limit.gates || binding.heldUntil() > b.expiry:
		return reasonHeld
	case b.expiry == b.arrived:
		return reasonNoTokens
	}
	return reasonMaxWait
}

// isCutOff reports whether a request that waits for a store that is out of reach until then cannot wait so long.
func (b *bounds) isCutOff(due, until instant) bool {
	return until > 0 && due >= until && (until == shut || due > b.expiry || due >= b.deadline)
}

// until returns how long it is until due: the longest Duration if that is never.
func until(due, now instant) time.Duration {
	if due == never {
		return math.MaxInt64
	}
	return time.Duration(max(0, due-now))
}

// refuse returns the refusal of a request that could go at due.
func (b *bounds) refuse(reason reason, li *limit, key string, cost int64, due, now instant) refusal {
	r := refusal{reason: reason, limit: li, key: key, cost: cost, wait: until(due, now)}
	patience := b.expiry
	switch reason {
	case reasonMaxWait, reasonNoTokens, reasonHeld:
	case reasonDeadline:
		patience = b.deadline
	default:
		patience = min(b.expiry, b.deadline)
	}
	if patience < never {
		r.patience = time.Duration(patience - b.arrived)
	}
	return r
}

// soonest returns when a request that could go at due can go as things are now, if that is later and known. due is a lower bound
// where it depends on responses that have not come.
func (b *bucket) soonest(due instant, cost int64, below bool) instant {
	if _, ok := b.meter.(meter.Planner); ok {
		if ready := b.readyFor(below, cost); ready < never {
			return max(due, ready)
		}
	}
	if until := b.blockedUntil(); until > 0 && until <= due && due < never {
		return b.loan.out().again // the store is asked then
	}
	return due
}

// unpayable returns a charge that cannot be made at all, and why: there is no room for its bucket, or it is negative. due is when
// the request may be tried again.
func unpayable(charges []charge, missing *charge, now instant) (why reason, c *charge, due instant) {
	if missing != nil {
		return reasonKeys, missing, now + int64(sweepEvery)
	}
	for i := range charges {
		if c := &charges[i]; c.cost < 0 {
			return reasonCost, c, never
		}
	}
	return 0, nil, 0
}

// refuseLocked rejects a request that could go at due. It is not inlined, to keep the stack small on which its callers wait.
//
//go:noinline
func (l *core) refuseLocked(p *pending, by *bounds, reason reason, c *charge, due, now instant) {
	if p.refusal == nil {
		p.refusal = new(refusal)
	}
	*p.refusal = by.refuse(reason, c.limit, c.key, c.cost, due, now)
	if reason == reasonStore {
		p.refusal.err = c.bucket.loan.out().err
	}
	l.counts.refused[reason]++
	p.ask.by.refused[reason]++
	c.limit.counts.refused[reason]++
}

// bound sets what bounds the wait of an ask that came now. It is not the result, to keep the stack of its callers small.
func (l *core) bound(ctx context.Context, b *bounds, a *ask, charges []charge, now instant) {
	b.arrived, b.expiry, b.deadline = now, never, never
	b.place = place{rank: rankOf(now, a.priority), seq: math.MaxUint64, below: a.priority < l.urgent && reserved(charges)}
	if a.maxWait >= 0 {
		b.expiry = meter.AddInstant(now, int64(a.maxWait))
	}
	if d, ok := ctx.Deadline(); ok {
		b.deadline = meter.AddInstant(now, max(0, int64(time.Until(d))))
	}
}

// passesLocked reports whether all can pay now, and no request that waits goes before one in that place.
func passesLocked(charges []charge, p *place, now instant) bool {
	for i := range charges {
		b := charges[i].bucket
		if b.lent() != nil {
			b.loan.Advance(now)
		}
		if b.readyFor(p.below, charges[i].cost) > now || b.bars(p) {
			return false
		}
	}
	return true
}

// planLocked returns when the charges could be paid if nothing changes, and which of them is the last. It is exact where a line
// has one limit only (and, for a window, costs of 1, which fill it without gaps). Otherwise it is a lower bound.
func planLocked(charges []charge, q *queue, ln *line, p *place, now instant, most int) (due instant, binding int) {
	for i := range charges {
		c := &charges[i]
		urgent, ahead := q.ahead(ln, p, i, now, most)
		if ln != nil {
			ahead = meter.AddCount(ahead, ln.ahead(p, i))
		}
		if d := c.bucket.planLocked(q, ln, p, urgent, ahead, c.cost, now); d > due {
			due, binding = d, i
		}
	}
	return due, binding
}

// planLocked is the same for a request in line, given the costs ahead of it.
func (w *waiter) planLocked(urgent, ahead []int64, now instant) (due instant, binding *stop) {
	for i := range w.line.stops {
		s := &w.line.stops[i]
		if d := s.bucket.planLocked(w.line.queue, w.line, &w.place, urgent[i], ahead[i], w.costs[i], now); binding == nil || d > due {
			due, binding = d, s
		}
	}
	return due, binding
}

// planLocked returns when this bucket could pay cost, once it has paid what is ahead in the queue and in ln (nil: a line
// that is yet to be opened), and the first of the other lines that are stopped here.
func (b *bucket) planLocked(q *queue, ln *line, p *place, urgent, ahead, cost int64, now instant) instant {
	from := now
	if b.extra != nil && len(b.stopped) > 0 {
		from = 0 // waiters own the tokens that came in since
	}
	if b.bars(p) {
		if first := b.stopped[0].line; first != ln && (first.queue != q || !first.isOpen(now)) {
			ahead = meter.AddCount(ahead, b.stopped[0].cost())
		}
	}
	return max(now, b.planFor(p.below, from, urgent, ahead, cost))
}

// rankOf returns the rank of a request that came now with that priority.
func rankOf(now instant, priority int) instant {
	const most = int(never / ageStep / 4)
	return now - int64(max(-most, min(priority, most)))*ageStep
}

// rejectLocked rejects a waiter that could go at due.
func (l *core) rejectLocked(w *waiter, s *stop, reason reason, due, now instant) {
	w.verdict = refused
	due = s.bucket.soonest(due, w.costs[s.index], w.below)
	r := w.refuse(reason, s.bucket.limit, s.bucket.key, w.costs[s.index], due, now)
	if reason == reasonStore {
		r.err = s.bucket.loan.out().err
	}
	w.refusal = &r
	l.counts.refused[reason]++
	w.by.refused[reason]++
	s.bucket.limit.counts.refused[reason]++
	l.quitLocked(w, now)
	close(w.decided)
}
