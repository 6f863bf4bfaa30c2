package throttle

import (
	"context"
	"hash/maphash"
	"time"
)

// A Limiter holds budgets without HTTP: for work that is not a request, and for several Transports that share budgets. It is
// safe for concurrent use, runs no background goroutine and need not be closed. Make one with [NewLimiter].
type Limiter struct {
	policies []policy      // of all limits, in order; the last one is that of gates
	maxWait  time.Duration // the default of asks; negative: no bound
	tracks   bool          // some limit needs the outcome or the response of requests
	slots    bool          // some limit is InFlight
	seed     maphash.Seed
	core           // beside direct, because both are written under the lock
	direct   asker // for callers of the Limiter itself, without a Transport
}

// await grants a request that can be paid by now or that its priority lets overtake, rejects it, or lets it wait. The pending
// that it returns replaces p, which is garbage meanwhile: a waiting request takes a waiter and a small stack, and nothing else.
func (l *Limiter) await(ctx context.Context, p *pending, by *asker) (*pending, *Rejection, error) {
	cancel := p.ask.cancel
	w, v := l.decide(ctx, p)
	for v == unasked {
		if err := l.askRates(p); err != nil {
			return nil, nil, err
		}
		w, v = l.decide(ctx, p)
	}
	if v != waiting {
		return p, l.decided(ctx, p, by, v), nil
	}
	if o := by.observer; o.hooks.OnWait != nil || o.log != nil {
		l.announce(ctx, o, w)
	}
	return l.waited(ctx, w, by, l.stand(ctx, cancel, w))
}

// decided reports to the observer what became of a request that does not wait.
func (l *Limiter) decided(ctx context.Context, p *pending, by *asker, v verdict) *Rejection {
	if v == granted {
		l.tellGranted(ctx, by, p.charges, p.pretended, p.binding)
		return nil
	}
	r := rejected(p.refusal)
	by.observer.rejected(ctx, r, 0, l.dry)
	if l.dry {
		p.charges = nil // it is sent, but nothing is charged for it
		return nil
	}
	return r
}

// waited reports the fate of w to the observer. It is not inlined, to keep the stack small on which its caller waited.
//
//go:noinline
func (l *Limiter) waited(ctx context.Context, w *waiter, by *asker, err error) (p *pending, r *Rejection, _ error) {
	if w.refusal != nil {
		r = rejected(w.refusal)
	}
	if err != nil || r != nil {
		by.observer.waited(ctx, w, r, err)
		return nil, r, err
	}
	p = w.granted()
	l.tellGranted(ctx, by, p.charges, p.waited, w.stop().bucket)
	return p, nil, nil
}

// lockFor takes the lock when the rates of all buckets are known that must be made for p. The error describes an invalid rate
// of RateFor.
func (l *Limiter) lockFor(p *pending) error {
	for !l.lockIfAsked(p) {
		if err := l.askRates(p); err != nil {
			return err
		}
	}
	return nil
}

// announce reports that w begins to wait. If a hook panics, w does not wait.
func (l *Limiter) announce(ctx context.Context, o *observer, w *waiter) {
	told := false
	defer func() {
		if !told {
			_ = l.abandon(ctx, w) // its caller gets the panic
		}
	}()
	b, cost := l.waitsFor(w)
	o.waits(WaitEvent{Context: ctx, Limit: b.limit.name, Key: b.key, Cost: cost, Wait: until(w.due, w.arrived)})
	told = true
}

// grantOf returns the Grant of a request that was granted.
func (l *Limiter) grantOf(p *pending, by *asker) Grant {
	return Grant{limiter: l, by: by, waited: p.waited, grant: grant{mark: p.mark, caller: p.caller, more: p.charges}}
}

// ask returns the ask of a request with that default of MaxWait, and the overrides of its context.
func (o *overrides) ask(maxWait time.Duration, by *asker) ask {
	return ask{priority: o.priority, maxWait: o.patience(maxWait), by: &by.counts}
}

// patience returns how long a request may wait, given the default; negative: there is no bound.
func (o *overrides) patience(maxWait time.Duration) time.Duration {
	if o.hasWait {
		return o.maxWait
	}
	return maxWait
}

// An asker is a Transport, or the Limiter itself.
type asker struct {
	counts   counts // guarded by the Limiter's mu
	observer *observer
}
