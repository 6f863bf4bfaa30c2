package queue

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// An Ask is a request as the Limiter sees it, without its charges. Charges are a separate argument because parts of an ask are
// kept while the request waits, and as a part of it they would have to be allocated.
type Ask struct {
	Priority int
	Caller   string          // where callers take turns
	Weight   int64           // of the caller there
	MaxWait  time.Duration   // negative: no bound
	Try      bool            // it never overtakes a waiter
	Cancel   <-chan struct{} // Request.Cancel; nil: none
	By       *Counts
}

// A Pending request could not be granted immediately.
type Pending struct {
	Ask   Ask
	Gate  *GateKey // nil: there is none to pass
	Late  bool     // only a waiter passes it
	Rates []Rate   // by charge, as RateFor said; the zero rate is the limit's own; negative: RateFor has none for this key; nil: nothing was asked
	asked uint64   // the number of the last Refresh before that

	// Once it is decided:
	Paid
	Refusal   *Refusal      // where it is stored; nil: it is allocated
	Pretended time.Duration // for which it would have waited without a dry run
	Binding   *Bucket       // for this bucket then
	Room      Refusal
}

// A Paid is what remains of a request that was granted. Before, it is what the request is to pay.
type Paid struct {
	Charges []Charge
	Mark    Mark          // of the grant
	Caller  *Caller       // of a grant in its turn
	Waited  time.Duration // before the grant
}

// Pass grants a request if all limits can pay now, and its gate if it has one: the charge of the gate comes behind the others,
// for which there must be room. If they cannot, the caller makes the request pending. The two functions are separate so that
// requests wait on a small stack: there may be 100,000 of them.
func (l *Core) Pass(p *Paid, by *Counts, g *GateKey) (ok bool) {
	l.Mu.Lock()
	now := l.NowLocked()
	if g != nil {
		gate := l.findGateLocked(g, now)
		if gate == nil { // Decide makes it
			l.Mu.Unlock()
			return false
		}
		p.pass(gate)
	}
	ok, missing := l.payLocked(p, by, now)
	if missing {
		ok = l.makeAndPayLocked(p, by, now)
	}
	l.Mu.Unlock()
	if !ok && g != nil { // Decide passes the gate again
		p.Charges = p.Charges[:len(p.Charges)-1]
	}
	return ok
}

// Try grants or rejects a request immediately, and stores why it is rejected. Nothing is decided if a bucket is missing, or if other
// requests wait and the request is not behind them: one that is behind them never overtakes.
func (l *Core) Try(p *Paid, by *Counts, priority int, behind bool, r *Refusal) (v Verdict) {
	l.Mu.Lock()
	now := l.NowLocked()
	ok, missing := l.payLocked(p, by, now)
	switch {
	case ok:
		v = Granted
	case !missing && l.denyLocked(p.Charges, by, now, r):
		v = Refused
	default:
		v = l.tryAgainLocked(p, by, priority, behind, missing, r, now)
	}
	l.Mu.Unlock()
	return v
}

// tryAgainLocked is Try where buckets are missing, costs are to be clamped or requests wait.
func (l *Core) tryAgainLocked(p *Paid, by *Counts, priority int, behind, missing bool, r *Refusal, now Instant) (v Verdict) {
	ok := false
	if missing && l.canMakeLocked(p.Charges) {
		ok, _ = l.payAllLocked(p, nil, by, now)
		missing = false
	} else if !missing && clampLocked(p.Charges) {
		ok, _ = l.payLocked(p, by, now)
	}
	switch {
	case ok:
		return Granted
	case missing || l.Dry:
		return Unasked
	case l.denyLocked(p.Charges, by, now, r):
		return Refused
	case !behind:
		return Unasked
	}
	pending := &Pending{Ask: Ask{Priority: priority, Try: true, By: by}, Paid: Paid{Charges: slices.Clone(p.Charges)}}
	pending.Refusal = &pending.Room
	v = l.lineUpLocked(context.Background(), pending, nil, nil, now) // it grants no Try
	l.serveLocked(now)
	*r = pending.Room
	return v
}

// Pend makes a request pending.
func Pend(charges []Charge, a Ask, g *GateKey) *Pending {
	p := &Pending{Ask: a, Paid: Paid{Charges: slices.Clone(charges)}}
	p.Refusal = &p.Room
	if g != nil {
		p.Gate = new(*g)
	}
	return p
}

// lockIfAsked takes the lock if the rates of all buckets are known that must be made for p, and reports whether it did.
func (l *Core) lockIfAsked(p *Pending) bool {
	for {
		l.Mu.Lock()
		if !p.askedLocked() {
			p.asked = l.refreshes
			l.Mu.Unlock()
			return false
		}
		if !l.crowdedLocked(p.Charges) {
			return true
		}
		l.Mu.Unlock() // other goroutines may take it in between
	}
}

// Decide grants a request that can be paid by now or that its priority lets overtake, rejects it, or lets it wait as w. If the
// rates of its buckets must be asked for first, the verdict is unasked, and decide is to be called again.
func (l *Core) Decide(ctx context.Context, p *Pending) (w *Waiter, v Verdict) {
	a := &p.Ask
	if a.MaxWait != 0 || l.supplies != nil { // allocated before the lock is taken
		w = &Waiter{by: a.By, decided: make(chan struct{})}
	}
	if !l.lockIfAsked(p) {
		return nil, Unasked
	}
	defer l.end()
	now := l.NowLocked()
	if p.Gate != nil && !p.Late {
		l.passLocked(p, now)
	}
	ok, missing := l.payAllLocked(&p.Paid, p.Rates, a.By, now)
	switch {
	case ok:
		return nil, Granted
	case l.Dry:
		return nil, l.pretendLocked(ctx, p, now, missing)
	case p.Late && missing == nil && w != nil:
		l.passLocked(p, now)
	}
	if w == nil && missing == nil && l.denyPendingLocked(p, now) {
		return nil, Refused
	}
	return w, l.lineUpLocked(ctx, p, missing, w, now)
}

// takeLocked makes charges that can be paid now, for a request that does not wait.
func (l *Core) takeLocked(charges []Charge, by *Counts, now Instant) Mark {
	for i := range charges {
		c := &charges[i]
		c.paid = c.bucket.Meter.Take(now, now, c.cost, false)
		c.Limit.Counts.took(c.cost)
	}
	return l.grantedLocked(by, now)
}

// grantedLocked counts a request that is granted now, and did not wait.
func (l *Core) grantedLocked(by *Counts, now Instant) Mark {
	by.Granted++
	l.Counts.Granted++
	return Mark{now, l.Counts.sent()}
}

// lineUpLocked decides about a request that could not be granted immediately: it waits as w, is rejected, or overtakes by its
// priority.
func (l *Core) lineUpLocked(ctx context.Context, p *Pending, missing *Charge, w *Waiter, now Instant) Verdict {
	a, charges := &p.Ask, p.Charges
	if w == nil {
		w = new(Waiter)
	}
	by := &w.Bounds
	bound(ctx, by, a, now)
	if reason, c, due := unpayable(charges, missing, now); reason != 0 {
		l.refuseLocked(p, by, reason, c, due, now)
		return Refused
	}
	l.dueLocked(now) // requests that are due go first
	if l.supplies != nil {
		by.respite = respite(charges, a.Try, by.Expiry, now)
	}
	w.enter(charges, a)
	due, i := l.order.Plan(&w.in, now)
	reason := by.Judge(due, now, charges[i].bucket)
	if reason == 0 && l.order.Alike(&w.in) >= l.MaxQueue {
		reason = ReasonQueueFull
	}
	if reason == 0 || due <= now && !a.Try { // it may overtake
		w.Due, w.in.Binding = due, i
		switch granted := l.joins(p, w, now); {
		case granted:
			return Granted
		case reason == 0:
			return Waiting
		}
		w.Verdict = left
		l.quitLocked(w, now)
	}
	l.refuseLocked(p, by, reason, &charges[i], charges[i].bucket.soonest(due, charges[i].cost), now)
	if l.supplies != nil {
		l.wantLocked(charges)
	}
	return Refused
}

// joins has w wait, and reports whether it is granted immediately. Then p says what it has paid.
func (l *Core) joins(p *Pending, w *Waiter, now Instant) bool {
	w.joining = true
	l.joinLocked(w, now)
	l.dueLocked(now)
	w.joining = false
	if w.Verdict != Granted {
		return false
	}
	for i := range p.Charges {
		p.Charges[i].paid = w.paid()[i]
	}
	p.Mark, p.Caller = l.grantedLocked(p.Ask.By, now), w.caller()
	return true
}

// WaitsFor returns the bucket that w waits for, and what w costs there. It takes the lock because a smaller burst may be
// clamping the costs of waiters.
func (l *Core) WaitsFor(w *Waiter) (b *Bucket, cost int64) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return w.Bucket(), w.in.Costs[w.in.Binding]
}

// Stand waits until w is decided: without a rejection or an error, it was granted. If the context is over by then, the context
// wins and all tokens are given back: a request that cannot be sent must not be charged.
func (l *Core) Stand(ctx context.Context, cancel <-chan struct{}, w *Waiter) error {
	var patience *time.Timer
	if last := w.last(); last < Never {
		patience = time.AfterFunc(time.Duration(last)-time.Since(l.Start), func() { l.Expire(w) })
	}
	select {
	case <-w.decided:
	case <-ctx.Done():
	case <-cancel:
	}
	if patience != nil {
		patience.Stop()
	}
	if ctx.Err() != nil || cancel != nil && IsClosed(cancel) {
		return l.Abandon(ctx, w)
	}
	return nil
}

// Abandon takes back a request whose context is over, granted or not. A rejection stays one, also if MaxWait ends at the same
// instant: MaxWait is judged before the deadline.
func (l *Core) Abandon(ctx context.Context, w *Waiter) error {
	now := l.begin()
	defer l.end()
	if w.Verdict == Waiting && w.Expiry <= now {
		l.expireLocked(w, now)
	}
	switch w.Verdict {
	case Refused:
		return nil
	case Granted:
		w.by.Undone++
		l.Counts.Undone++
		c := w.caller()
		for i, cost := range w.in.Costs {
			b := w.bucket(i)
			b.Limit.Counts.Undone++
			l.giveBackLocked(b, w.paid()[i], now, cost)
			l.turnLocked(c, b, -cost)
		}
	case Waiting:
		w.Verdict = left // its MaxWait may end at the same time
		_, w.in.Binding = l.order.Plan(&w.in, now)
		l.quitLocked(w, now)
	}
	l.Counts.Canceled++
	w.by.Canceled++
	w.Bucket().Limit.Counts.Canceled++
	return CauseOf(ctx)
}

// CauseOf returns why a request is over: the cause of its context, or its Cancel.
func CauseOf(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return errCanceled
}

// errCanceled is returned when Request.Cancel was closed while the request waited.
var errCanceled = fmt.Errorf("throttle: request canceled while waiting: %w", context.Canceled)

// IsClosed reports whether a channel is closed, on which nothing is sent.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Expire rejects a request at the end of its MaxWait, unless it can be granted at this very instant.
func (l *Core) Expire(w *Waiter) {
	now := l.begin()
	defer l.end()
	if w.Verdict == Waiting {
		l.expireLocked(w, now)
	}
}

func (l *Core) expireLocked(w *Waiter, now Instant) {
	due, i := l.order.Plan(&w.in, now)
	reason := ReasonMaxWait
	if w.Expiry == w.Arrived { // it has waited for a store
		reason = ReasonNoTokens
	}
	l.rejectLocked(w, i, reason, due, now)
}
