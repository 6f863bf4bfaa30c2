package throttle

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
)

// Enqueue takes a place in the queue for an Ask, without waiting. The error is a [*Rejection] if the Ask is rejected on arrival, or an
// error that names unknown limits of the Ask.
//
// Unlike a reservation of package x/time/rate, the place is no promise: a new rate, a hold or the cancellation of another request moves it.
func (l *Limiter) Enqueue(ask Ask) (*Ticket, error) {
	l.mustBeMade()
	ctx := context.Background()
	g, w, err := l.acquire(ctx, noOverrides, &ask)
	if err != nil {
		return nil, err
	}
	if w != nil {
		switch waits, err := l.core.Enqueue(ctx, w); {
		case err != nil:
			return nil, err
		case waits:
			return &Ticket{limiter: l, waiter: w, decided: w.Decided()}, nil
		}
		g = l.grantOf(w)
	}
	decided := make(chan struct{})
	close(decided)
	return &Ticket{limiter: l, grant: g, decided: decided}, nil
}

// A Ticket is a place in the queue of a Limiter, from [Limiter.Enqueue]. Its owner does other work meanwhile, and then calls Wait, or
// Cancel if it does not need the tokens. If it calls neither, the tokens are spent, and a slot of an [InFlight] limit stays taken.
type Ticket struct {
	limiter *Limiter
	grant   *Grant          // granted on arrival; nil: it had to wait
	waiter  *limiter.Waiter // nil: it was granted on arrival
	decided <-chan struct{}
	by      *Transport  // whose request it is; nil: it is of the Limiter itself
	waits   bool        // of a Transport: it was not decided on arrival
	used    atomic.Bool // Wait, RoundTrip or Cancel was called
}

var (
	errTicketUsed      = errors.New("throttle: Wait or Cancel of this Ticket was called before")
	errTicketOfRequest = errors.New("throttle: the Ticket is of a request: call its RoundTrip")
)

// Decided returns a channel that is closed when the Ticket is granted, or rejected at the end of its MaxWait or because it can no
// longer be granted in time. Wait then returns immediately.
func (t *Ticket) Decided() <-chan struct{} { return t.decided }

// Due returns when the Ticket was granted or rejected or, until then, when it is expected to be granted. The expected time is exact
// with one limit. With several limits, and with [Adaptive] or [InFlight], it is the earliest possible time. Due returns the zero time
// if no time is known. [Ticket.Waiting] returns when it will probably be granted.
func (t *Ticket) Due() time.Time {
	core := t.limiter.core
	var due meter.Instant
	if t.waiter != nil {
		due = core.Earliest(t.waiter)
	} else {
		due = t.grant.request.At
	}
	return t.limiter.timeOf(due)
}

// Waiting returns what the Ticket waits for. It reports false if it does not wait any more.
func (t *Ticket) Waiting() (Waiting, bool) { return t.limiter.waiting(t.waiter) }

// Wait waits until the Ticket is granted. The error is a [*Rejection], or the cause of a context that has ended, which cancels the Ticket.
// Of the values in the context, only that of [ContextWithReceipt] applies. A second call, and a call after Cancel, return an error.
func (t *Ticket) Wait(ctx context.Context) (*Grant, error) {
	if t.by != nil {
		return nil, errTicketOfRequest
	}
	if t.used.Swap(true) {
		return nil, errTicketUsed
	}
	g := t.grant
	if t.waiter == nil {
		if err := limiter.Ended(ctx, nil); err != nil {
			g.Cancel()
			return nil, err
		}
	} else {
		if err := t.limiter.core.Await(ctx, nil, t.waiter); err != nil {
			return nil, err
		}
		g = t.limiter.grantOf(t.waiter)
	}
	g.deliver(ctx, overridesOf(ctx).receipt)
	return g, nil
}

// Cancel gives up the place in the queue or, if the Ticket was granted, returns the tokens, as [Grant.Cancel] does. Waiters behind it
// move up immediately. A call after Wait or Cancel has no effect.
func (t *Ticket) Cancel() {
	switch {
	case t.used.Swap(true):
	case t.waiter == nil:
		t.grant.Cancel()
	default:
		t.leave()
	}
}

// leave gives up the place of a Ticket.
func (t *Ticket) leave() {
	if t.by == nil || t.waits || t.waiter.Claim.Winner() == t.waiter { // it has a place
		t.limiter.core.Leave(t.waiter)
	}
}
