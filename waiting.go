package throttle

import (
	"context"
	"time"

	"github.com/httpthrottle/throttle/internal/queue"
)

// await grants a request that can be paid by now or that its priority lets overtake, rejects it, or lets it wait. What
// it returns replaces p, which is garbage while the request waits: that takes a waiter and a small stack, and nothing else.
func (l *Limiter) await(ctx context.Context, p *queue.Pending, by *asker) (*queue.Paid, *Rejection, error) {
	cancel := p.Ask.Cancel
	w, v := l.core.Decide(ctx, p)
	for v == queue.Unasked {
		if err := l.askRates(p); err != nil {
			return nil, nil, err
		}
		w, v = l.core.Decide(ctx, p)
	}
	if v != queue.Waiting {
		return &p.Paid, l.decided(ctx, p, by, v), nil
	}
	if o := by.observer; o.hooks.OnWait != nil || o.log != nil {
		l.announce(ctx, o, w)
	}
	return l.waited(ctx, w, by, l.core.Stand(ctx, cancel, w))
}

// decided reports to the observer what became of a request that does not wait.
func (l *Limiter) decided(ctx context.Context, p *queue.Pending, by *asker, v queue.Verdict) *Rejection {
	if v == queue.Granted {
		l.tellGranted(ctx, by, p.Charges, p.Pretended, p.Binding)
		return nil
	}
	r := rejected(p.Refusal)
	by.observer.rejected(ctx, r, 0, l.core.Dry)
	if l.core.Dry {
		p.Charges = nil // it is sent, but nothing is charged for it
		return nil
	}
	return r
}

// waited reports the fate of w to the observer. It is not inlined, to keep the stack small on which its caller waited.
//
//go:noinline
func (l *Limiter) waited(ctx context.Context, w *queue.Waiter, by *asker, err error) (p *queue.Paid, r *Rejection, _ error) {
	if w.Refusal != nil {
		r = rejected(w.Refusal)
	}
	if err != nil || r != nil {
		by.observer.waited(ctx, w, r, err)
		return nil, r, err
	}
	p = w.Granted()
	l.tellGranted(ctx, by, p.Charges, p.Waited, w.Stop().Bucket)
	return p, nil, nil
}

// announce reports that w begins to wait. If a hook panics, w does not wait.
func (l *Limiter) announce(ctx context.Context, o *observer, w *queue.Waiter) {
	told := false
	defer func() {
		if !told {
			_ = l.core.Abandon(ctx, w) // its caller gets the panic
		}
	}()
	b, cost := l.core.WaitsFor(w)
	o.waits(WaitEvent{Context: ctx, Limit: b.Limit.Name, Key: b.Key, Cost: cost, Wait: queue.Until(w.Due, w.Arrived)})
	told = true
}

// grantOf returns the Grant of a request that was granted.
func (l *Limiter) grantOf(p *queue.Paid, by *asker) Grant {
	return Grant{limiter: l, by: by, waited: p.Waited, grant: queue.Grant{Mark: p.Mark, Caller: p.Caller, More: p.Charges}}
}

// ask returns the ask of a request with that default of MaxWait, and the overrides of its context.
func (o *overrides) ask(maxWait time.Duration, by *asker) queue.Ask {
	return queue.Ask{Priority: o.priority, MaxWait: o.patience(maxWait), By: &by.counts}
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
	counts   queue.Counts // guarded by the Limiter's mu
	observer *observer
}
