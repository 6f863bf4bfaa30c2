package throttle

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// An ask is a request as the Limiter sees it, without its charges. Charges are a separate argument because parts of an ask are
// kept while the request waits, and as a part of it they would have to be allocated.
type ask struct {
	priority int
	caller   string          // where callers take turns
	weight   int64           // the same
	maxWait  time.Duration   // negative: no bound
	try      bool            // it never overtakes a waiter
	cancel   <-chan struct{} // Request.Cancel; nil: none
	by       *counts
}

// A pending request could not be granted immediately.
type pending struct {
	ask     ask
	gate    *gateKey // nil: there is none to pass
	late    bool     // only a waiter passes it
	charges []charge
	rates   []rate // by charge, as RateFor said; the zero rate is the limit's own; nil: nothing was asked
	asked   uint64 // the number of the last Refresh before that

	// Once it is decided:
	refusal   *refusal      // where it is stored; nil: it is allocated
	mark      mark          // of the grant
	caller    *caller       // of a grant in its turn
	waited    time.Duration // before the grant
	pretended time.Duration // for which it would have waited without a dry run
	binding   *bucket       // for this bucket then
	room      refusal
}

// pass grants a request if all limits can pay now. If they cannot, and there is no error, the caller makes the request pending.
// The two functions are separate so that requests wait on a small stack: there may be 100,000 of them.
func (l *core) pass(ctx context.Context, cancel <-chan struct{}, charges []charge, by *counts, g *gateKey, below bool) (m mark, ok bool, err error) {
	if ctx.Err() != nil || cancel != nil && isClosed(cancel) {
		return mark{}, false, causeOf(ctx)
	}
	if !l.mu.TryLock() {
		lockSoon(&l.mu)
	}
	now := instant(time.Since(l.start)) // as nowLocked does, without a call
	if now >= l.synced {
		l.syncLocked(now)
	}
	if g != nil { // the last charge is that of the gate
		charges[len(charges)-1].bucket = l.gates[*g]
	}
	m, ok, missing := l.payLocked(charges, by, below, now)
	if missing >= 0 {
		m, ok = l.makeAndPayLocked(charges, by, below, now)
	}
	l.mu.Unlock()
	return m, ok, nil
}

// try grants or rejects a request immediately, and stores why it is rejected. Nothing is decided if a bucket is missing, or if other
// requests wait and it is not one of Try.
func (l *core) try(charges []charge, a *ask, r *refusal) (m mark, v verdict) {
	if !l.mu.TryLock() {
		lockSoon(&l.mu)
	}
	now, below := l.nowLocked(), a.priority < l.urgent
	m, ok, missing := l.payLocked(charges, a.by, below, now)
	if missing >= 0 && l.canMakeLocked(charges) {
		m, ok, _ = l.payAllLocked(charges, nil, a.by, below, now)
		missing = -1
	}
	if !ok && missing < 0 && clampLocked(charges, below) {
		m, ok, _ = l.payLocked(charges, a.by, below, now)
	}
	switch {
	case ok:
		v = granted
	case missing >= 0 || l.dry:
		v = unasked
	case l.denyLocked(charges, a.by, below, now, r):
		v = refused
	case a.try:
		m, v = l.tryInLineLocked(charges, a, r, now)
	default:
		v = unasked
	}
	l.mu.Unlock()
	return m, v
}

// tryInLineLocked decides about a request that may neither wait nor overtake the requests that wait. It is not inlined, because most
// calls of try need none of its stack.
//
//go:noinline
func (l *core) tryInLineLocked(charges []charge, a *ask, r *refusal, now instant) (mark, verdict) {
	p := pending{ask: *a, charges: charges, refusal: r}
	v := l.lineUpLocked(context.Background(), &p, nil, nil, now)
	return p.mark, v
}

// pend makes a request pending.
//
//go:noinline
func pend(charges []charge, a ask, g *gateKey) *pending {
	p := &pending{ask: a, charges: slices.Clone(charges)}
	p.refusal = &p.room
	if g != nil {
		p.gate, p.charges = new(*g), p.charges[:len(charges)-1]
	}
	return p
}

// lockSoon takes a lock that is never held for as long as it takes to park a goroutine and to wake it again.
// [sync.Mutex] itself does not spin while other goroutines are ready to run.
func lockSoon(mu *sync.Mutex) {
	const spins = 20
	for range spins {
		if mu.TryLock() {
			return
		}
	}
	mu.Lock()
}

// lockIfAsked takes the lock if the rates of all buckets are known that must be made for p, and reports whether it did.
func (l *core) lockIfAsked(p *pending) bool {
	for {
		l.mu.Lock()
		if !p.askedLocked() {
			p.asked = l.refreshes
			l.mu.Unlock()
			return false
		}
		if !l.crowdedLocked(p.charges) {
			return true
		}
		l.mu.Unlock() // other goroutines may take it in between
	}
}

// decide grants a request that can be paid by now or that its priority lets overtake, rejects it, or lets it wait as w. If the
// rates of its buckets must be asked for first, the verdict is unasked, and decide is to be called again.
func (l *core) decide(ctx context.Context, p *pending) (w *waiter, v verdict) {
	a := &p.ask
	if a.maxWait != 0 || l.supplies != nil { // allocated before the lock is taken
		w = &waiter{passed: never, by: a.by, decided: make(chan struct{})}
		if l.fair != nil {
			w.seat = &seat{name: a.caller, weight: max(1, a.weight)}
		}
	}
	if !l.lockIfAsked(p) {
		return nil, unasked
	}
	defer l.mu.Unlock()
	now := l.nowLocked()
	if p.gate != nil && !p.late {
		l.passLocked(p, now)
	}
	m, ok, missing := l.payAllLocked(p.charges, p.rates, a.by, a.priority < l.urgent, now)
	switch {
	case ok:
		p.mark = m
		return nil, granted
	case l.dry:
		return nil, l.pretendLocked(ctx, p, now, missing)
	case p.late && missing == nil && w != nil:
		l.passLocked(p, now)
	}
	if w == nil && missing == nil && l.denyPendingLocked(p, now) {
		return nil, refused
	}
	return w, l.lineUpLocked(ctx, p, missing, w, now)
}

// takeLocked makes charges that can be paid now, for a request that does not wait.
func (l *core) takeLocked(charges []charge, by *counts, now instant) mark {
	for i := range charges {
		c := &charges[i]
		c.paid = c.bucket.meter.Take(now, now, c.cost, false)
		c.limit.counts.took(c.cost)
	}
	by.granted++
	l.counts.granted++
	return mark{now, l.counts.sent()}
}

// lineUpLocked decides about a request that could not be granted immediately: it waits as w, is rejected, or overtakes by its
// priority.
func (l *core) lineUpLocked(ctx context.Context, p *pending, missing *charge, w *waiter, now instant) verdict {
	a, charges := &p.ask, p.charges
	var by bounds
	l.bound(ctx, &by, a, charges, now)
	if reason, c, due := unpayable(charges, missing, now); reason != 0 {
		l.refuseLocked(p, &by, reason, c, due, now)
		return refused
	}
	l.markAllLocked(charges)
	l.tidyLocked(charges, a, by.below, now)
	l.serveLocked(now) // requests that are due go first
	if l.supplies != nil {
		by.respite = respite(charges, a.try, by.expiry, now)
	}
	q, ln := l.lineOf(charges, by.below)
	by.tag = l.tagLocked(charges, a, &by.place)
	if !a.try && (ln == nil || by.before(&ln.first.place)) && passesLocked(charges, &by.place, now) {
		p.mark = l.takeLocked(charges, a.by, now)
		p.caller = l.passedLocked(charges, a, &by.place, now)
		l.markAllLocked(charges)
		l.serveLocked(now)
		return granted
	}
	due, i := planLocked(charges, q, ln, &by.place, now, maxAhead)
	reason := by.judge(due, now, charges[i].bucket)
	if reason == 0 && min(by.expiry, by.deadline) < never && q != nil && len(q.lines) > maxAhead {
		due, i = planLocked(charges, q, ln, &by.place, now, len(q.lines))
		reason = by.judge(due, now, charges[i].bucket)
	}
	binding := &charges[i]
	if reason == 0 && q != nil && q.size >= l.maxQueue {
		reason = reasonQueueFull
	}
	if reason != 0 {
		l.refuseLocked(p, &by, reason, binding, binding.bucket.soonest(due, binding.cost, by.below), now)
		if l.supplies != nil {
			l.wantLocked(charges, now)
		}
		return refused
	}
	w.bounds, w.due, w.binding = by, due, uint16(i)
	l.joinLocked(ln, w, charges, now)
	return waiting
}

// waitsFor returns the bucket that w waits for, and what w costs there. It takes the lock because a smaller burst may be
// clamping the costs of waiters.
func (l *core) waitsFor(w *waiter) (b *bucket, cost int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return w.stop().bucket, w.costs[w.binding]
}

// stand waits until w is decided: without a rejection or an error, it was granted. If the context is over by then, the context
// wins and all tokens are given back: a request that cannot be sent must not be charged.
func (l *core) stand(ctx context.Context, cancel <-chan struct{}, w *waiter) error {
	var patience *time.Timer
	if last := w.last(); last < never {
		patience = time.AfterFunc(time.Duration(last-w.arrived), func() { l.expire(w) })
	}
	select {
	case <-w.decided:
	case <-ctx.Done():
	case <-cancel:
	}
	if patience != nil {
		patience.Stop()
	}
	if ctx.Err() != nil || cancel != nil && isClosed(cancel) {
		return l.abandon(ctx, w)
	}
	return nil
}

// abandon takes back a request whose context is over, granted or not. A rejection stays one, also if MaxWait ends at the same
// instant: MaxWait is judged before the deadline.
func (l *core) abandon(ctx context.Context, w *waiter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	l.lookLocked(w.line, now)
	if w.verdict == waiting && w.expiry <= now {
		l.expireLocked(w, now)
	}
	switch w.verdict {
	case refused:
		return nil
	case granted:
		w.by.undone++
		l.counts.undone++
		for i := range w.line.stops {
			w.line.stops[i].bucket.limit.counts.undone++
			l.giveBackLocked(w.line.stops[i].bucket, w.paid()[i], now, w.costs[i])
			if w.seat != nil {
				l.turnLocked(w.seat.caller, w.line.stops[i].bucket, -w.costs[i], now)
			}
		}
	case waiting:
		w.verdict = left // its MaxWait may end at the same time
		if len(w.costs) > 1 {
			_, s := l.planAgainLocked(w, now)
			w.binding = uint16(s.index)
		}
		l.quitLocked(w, now)
	}
	l.counts.canceled++
	w.by.canceled++
	w.stop().bucket.limit.counts.canceled++
	l.serveLocked(now)
	return causeOf(ctx)
}

// causeOf returns why a request is over: the cause of its context, or its Cancel.
func causeOf(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return errCanceled
}

// errCanceled is returned when Request.Cancel was closed while the request waited.
var errCanceled = fmt.Errorf("throttle: request canceled while waiting: %w", context.Canceled)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// expire rejects a request at the end of its MaxWait, unless it can be granted at this very instant.
func (l *core) expire(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	l.lookLocked(w.line, now)
	if w.verdict == waiting {
		l.expireLocked(w, now)
	}
}

func (l *core) expireLocked(w *waiter, now instant) {
	due, s := l.planAgainLocked(w, now)
	reason := reasonMaxWait
	if w.expiry == w.arrived { // it has waited for a store
		reason = reasonNoTokens
	}
	l.rejectLocked(w, s, reason, due, now)
	l.serveLocked(now)
}

// planAgainLocked plans a request in line as things are now.
func (l *core) planAgainLocked(w *waiter, now instant) (due instant, binding *stop) {
	urgent, ahead := make([]int64, len(w.costs)), make([]int64, len(w.costs))
	for i := range ahead {
		urgent[i], ahead[i] = w.line.queue.ahead(w.line, &w.place, i, now, maxAhead)
		ahead[i] = meter.AddCount(ahead[i], w.line.ahead(&w.place, i))
	}
	return w.planLocked(urgent, ahead, now)
}
