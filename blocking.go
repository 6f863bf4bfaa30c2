package throttle

import (
	"context"
	"hash/maphash"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/quota"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	// slack is how late a timer may be without costing throughput.
	slack = int64(20 * time.Millisecond)
	// ageStep is what one step of priority is worth.
	ageStep = int64(10 * time.Second)
	// wallCheck is how often a waiter of a fixed window checks whether the wall clock was set.
	wallCheck = int64(time.Minute)
	// passOver is how long a request may be passed over before it bars all its buckets.
	passOver = int64(10 * time.Second)
)

// A Limiter holds budgets without HTTP: for work that is not a request, and for several Transports that share budgets. It is
// safe for concurrent use, runs no background goroutine and need not be closed. Make one with [NewLimiter].
type Limiter struct {
	limits   []*limit
	maxWait  time.Duration // the default of asks; negative: no bound
	maxQueue int
	maxKeys  int
	dry      bool
	tracks   bool      // some limit needs the outcome of requests
	slots    bool      // some limit is InFlight
	fair     *limit    // whose callers take turns; nil: none
	urgent   int       // the lowest priority for which limits keep a reserve; the lowest int: none does
	supplies []*supply // of the limits that are Shared; nil: there are none
	gate     *limit    // of the buckets in gates
	seed     maphash.Seed
	quotaOff quota.Rules // that tests switch off
	heard    atomic.Bool // some server has sent rate-limit information
	start    time.Time

	// mu guards all fields below, and every bucket, line and waiter. Nothing blocks and no user code runs while it is held:
	// events for users are collected under it and delivered afterwards. Whenever mu is free:
	//   - every line has a waiter, and is stopped at one of its buckets at least;
	//   - the first of the lines that are stopped at a bucket cannot pay there now or, if it is starved, elsewhere;
	//   - a bucket at which a line is stopped because tokens are missing has its timer set for the instant at which they
	//     arrive, or earlier: a request of another line may have moved that instant at a gate.
	mu        sync.Mutex
	unix      int64   // Unix time, in ns, of instant 0
	wallAt    instant // when to read the wall clock again; never: there are no fixed windows
	synced    instant // when to call syncLocked: at wallAt, or for a booking
	bookings  bookings
	seq       uint64
	judging   uint64 // counts rejudgeLocked
	callers   int    // with waiting requests, where callers take turns
	lines     map[string]*line
	queues    map[string]*queue
	dirty     []*bucket // to be served before mu is freed
	serial    uint64    // of the last bucket made
	refreshes uint64    // calls of Refresh
	gates     map[gateKey]*bucket
	hosts     map[string]*host
	gatesPeak int    // the most since the map was made
	hostsPeak int    // the same
	keys      keeper // of all buckets except those of the key ""
	gateKeys  keeper // and of those of gates
	sweeper   *time.Timer
	sweepAt   instant // when sweeper fires; never: it does not
	counts    counts  // not beside mu, because other goroutines spin on mu while it is written
	direct    asker   // for callers of the Limiter itself, without a Transport
}

// An ask is a request as the Limiter sees it, without its charges. Charges are a separate argument because parts of an ask are
// kept while the request waits, and as a part of it they would have to be allocated.
type ask struct {
	priority int
	caller   string          // where callers take turns
	weight   int64           // the same
	maxWait  time.Duration   // negative: no bound
	try      bool            // it never overtakes a waiter
	cancel   <-chan struct{} // Request.Cancel; nil: none
	by       *asker
}

// ask returns the ask of a request with that default of MaxWait, and the overrides of its context.
func (o *overrides) ask(maxWait time.Duration, by *asker) ask {
	if o.hasWait {
		maxWait = o.maxWait
	}
	return ask{priority: o.priority, maxWait: maxWait, by: by}
}

// An asker is a Transport, or the Limiter itself.
type asker struct {
	counts   counts // guarded by the Limiter's mu
	observer *observer
}

// A charge is what an ask costs against one limit.
type charge struct {
	limit  *limit
	key    string
	cost   int64
	bucket *bucket
	paid   int64 // what refunds and reports need, once it was granted

	outcome Outcome // by the limit's Classify; 0: by the response
	kept    bool    // a slot that Grant.Done gives back
	told    bool    // the body of the response may tell the cost
	booked  bool    // in Limiter.bookings: paid is not known yet
	settled bool    // guarded by the Limiter's mu, as cost is from then on
}

// charged appends a charge, for which there must be room.
func charged(charges []charge, li *limit, key string, cost int64) []charge {
	charges = charges[:len(charges)+1] // field by field into zeroed memory, because every request comes here
	c := &charges[len(charges)-1]
	c.limit, c.key, c.cost = li, key, min(cost, maxCount)
	if key == "" {
		c.bucket = li.single
	}
	return charges
}

// nowLocked reads the clock. It is called once for each time that mu is taken.
func (l *Limiter) nowLocked() instant {
	now := instant(time.Since(l.start))
	if now >= l.synced {
		l.syncLocked(now)
	}
	return now
}

// syncLocked does what is due by the clock: it reads the wall time once a second, because the wall clock may be set or drift,
// and makes the charges that a dry run has put off.
func (l *Limiter) syncLocked(now instant) {
	if now >= l.wallAt {
		l.lookAtWallLocked(now)
	}
	l.bookLocked(now)
	l.synced = min(l.wallAt, l.bookings.first())
}

func (l *Limiter) lookAtWallLocked(now instant) {
	unix := time.Now().UnixNano() - now
	back := unix < l.unix-int64(time.Second)
	l.unix, l.wallAt = unix, now+int64(time.Second)
	if !back || l.dry {
		return
	}
	for _, li := range l.limits {
		for _, b := range li.all() {
			if w, ok := b.meter.(*meter.FixedWindow); ok {
				w.SetBack(now)
			}
		}
	}
}

// all yields the buckets of a limit.
func (li *limit) all() iter.Seq2[string, *bucket] {
	return func(yield func(string, *bucket) bool) {
		if !yield("", li.single) {
			return
		}
		for key, b := range li.buckets {
			if !yield(key, b) {
				return
			}
		}
	}
}

// A pending request could not be granted immediately.
type pending struct {
	ask     ask
	charges []charge
	rates   []rate // see askRates
	asked   uint64 // the number of the last Refresh before that
	receipt *Receipt
	caller  *caller       // once it was granted in its turn
	mark    mark          // once it was granted
	waited  time.Duration // the same
	refusal *Rejection    // where the rejection is stored; nil: it is allocated
	gate    *gateKey      // nil: there is none to pass
	late    bool          // only a waiter passes it
}

// grant returns the Grant of a request that was granted.
func (p *pending) grant(l *Limiter, by *asker) Grant {
	return Grant{limiter: l, by: by, caller: p.caller, more: p.charges, mark: p.mark, waited: p.waited, receipt: p.receipt, tracked: p.receipt != nil}
}

// pass grants a request if all limits can pay now. If they cannot, and there is no error, the caller makes the request pending.
// The two functions are separate so that requests wait on a small stack: there may be 100,000 of them.
func (l *Limiter) pass(ctx context.Context, cancel <-chan struct{}, charges []charge, by *asker, g *gateKey, below bool) (m mark, ok bool, err error) {
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
	m, ok, _ = l.payLocked(charges, by, below, now)
	l.mu.Unlock()
	if ok && by.observer.hooks.OnGrant != nil {
		l.tellGranted(ctx, by, charges, 0, nil)
	}
	return m, ok, nil
}

// try grants or rejects a request immediately, if all its buckets exist.
func (l *Limiter) try(charges []charge, a *ask) (m mark, r Rejection, known bool) {
	if !l.mu.TryLock() {
		lockSoon(&l.mu)
	}
	now, below := l.nowLocked(), a.priority < l.urgent
	m, ok, missing := l.payLocked(charges, a.by, below, now)
	switch {
	case missing >= 0 || !ok && l.dry:
		l.mu.Unlock()
		return m, r, false
	case !ok && clampLocked(charges, below):
		m, ok, _ = l.payLocked(charges, a.by, below, now)
	}
	if !ok {
		p := pending{ask: *a, charges: charges, refusal: &r}
		l.lineUpLocked(context.Background(), &p, nil, nil, now)
	}
	l.mu.Unlock()
	switch o := a.by.observer; {
	case r.Reason == 0 && o.hooks.OnGrant != nil:
		l.tellGranted(context.Background(), a.by, charges, 0, nil)
	case r.Reason != 0 && (o.hooks.OnReject != nil || o.log != nil):
		told := r
		o.rejected(context.Background(), &told, 0, false)
	}
	return m, r, true
}

// pend makes a request pending.
//
//go:noinline
func pend(charges []charge, a ask, g *gateKey, r *Receipt) *pending {
	p := &pending{ask: a, charges: slices.Clone(charges), receipt: r}
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

// await grants a request that can be paid by now or that its priority lets overtake, rejects it, or lets it wait. The pending
// that it returns replaces p, which is garbage meanwhile: a waiting request takes a waiter and a small stack, and nothing else.
func (l *Limiter) await(ctx context.Context, p *pending) (*pending, *Rejection, error) {
	cancel := p.ask.cancel
	w, r, err := l.lineUp(ctx, p)
	if w == nil {
		return p, r, err
	}
	if o := w.by.observer; o.hooks.OnWait != nil || o.log != nil {
		l.announce(ctx, o, w)
	}
	return l.waited(ctx, w, l.stand(ctx, cancel, w))
}

// waited reports the fate of w to the observer. It is not inlined, to keep the stack small on which its caller waited.
//
//go:noinline
func (l *Limiter) waited(ctx context.Context, w *waiter, err error) (*pending, *Rejection, error) {
	if err != nil || w.rejection != nil {
		w.by.observer.waited(ctx, w, err)
		return nil, w.rejection, err
	}
	p := &pending{charges: w.charges(), receipt: w.receipt, waited: time.Duration(w.at - w.arrived)}
	if w.seat != nil {
		p.caller = w.seat.caller
	}
	p.mark.at = w.at
	l.tellGranted(ctx, w.by, p.charges, p.waited, w.stop().bucket)
	return p, nil, nil
}

// lockFor takes the lock when the rates of all buckets are known that must be made for p. The error describes an invalid rate
// of RateFor.
func (l *Limiter) lockFor(p *pending) error {
	for {
		l.mu.Lock()
		asked := p.askedLocked()
		if asked && !l.crowdedLocked(p.charges) {
			return nil
		}
		p.asked = l.refreshes
		l.mu.Unlock() // other goroutines may take it in between
		if asked {
			continue
		}
		rates, err := askRates(p.charges)
		if err != nil {
			return err
		}
		p.rates = rates
	}
}

func (l *Limiter) lineUp(ctx context.Context, p *pending) (*waiter, *Rejection, error) {
	a := &p.ask
	var w *waiter // allocated before the lock is taken
	if a.maxWait != 0 || l.supplies != nil {
		w = &waiter{passed: never, by: a.by, receipt: p.receipt, decided: make(chan struct{})}
		if l.fair != nil {
			w.seat = &seat{name: a.caller, weight: max(1, a.weight)}
		}
	}
	if err := l.lockFor(p); err != nil {
		return nil, nil, err
	}
	now := l.nowLocked()
	if p.gate != nil && !p.late {
		l.passLocked(p, now)
	}
	m, ok, missing := l.payAllLocked(p.charges, p.rates, a, now)
	if ok {
		p.mark = m
		l.mu.Unlock()
		l.tellGranted(ctx, a.by, p.charges, 0, nil)
		return nil, nil, nil
	}
	if l.dry {
		waited, binding := l.pretendLocked(ctx, p, now, missing)
		l.mu.Unlock()
		l.tellPretended(ctx, p, waited, binding)
		return nil, nil, nil
	}
	if p.late && missing == nil && w != nil {
		l.passLocked(p, now)
	}
	waits := l.lineUpLocked(ctx, p, missing, w, now)
	l.mu.Unlock()
	switch {
	case waits:
		return w, nil, nil
	case p.refusal != nil:
		a.by.observer.rejected(ctx, p.refusal, 0, false)
		return nil, p.refusal, nil
	}
	l.tellGranted(ctx, a.by, p.charges, 0, nil)
	return nil, nil, nil
}

// takeLocked makes charges that can be paid now, for a request that does not wait.
func (l *Limiter) takeLocked(charges []charge, by *asker, now instant) mark {
	for i := range charges {
		c := &charges[i]
		c.paid = c.bucket.meter.Take(now, now, c.cost, false)
		c.limit.counts.took(c.cost)
	}
	by.counts.granted++
	l.counts.granted++
	return mark{now, l.counts.sent()}
}

// lineUpLocked decides about a request that could not be granted immediately: it waits as w, is rejected, or overtakes by its
// priority.
func (l *Limiter) lineUpLocked(ctx context.Context, p *pending, missing *charge, w *waiter, now instant) (waits bool) {
	a, charges := &p.ask, p.charges
	var by bounds
	l.bound(ctx, &by, a, charges, now)
	if reason, c, due := unpayable(charges, missing, now); reason != 0 {
		l.refuseLocked(p, &by, reason, c, due, now)
		return false
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
		return false
	}
	due, i := planLocked(charges, q, ln, &by.place, now, maxAhead)
	reason := by.judge(due, now, charges[i].bucket)
	if reason == 0 && min(by.expiry, by.deadline) < never && q != nil && len(q.lines) > maxAhead {
		due, i = planLocked(charges, q, ln, &by.place, now, len(q.lines))
		reason = by.judge(due, now, charges[i].bucket)
	}
	binding := &charges[i]
	if reason == 0 && q != nil && q.size >= l.maxQueue {
		reason = ReasonQueueFull
	}
	if reason != 0 {
		l.refuseLocked(p, &by, reason, binding, binding.bucket.soonest(due, binding.cost, by.below), now)
		if l.supplies != nil {
			l.wantLocked(charges, now)
		}
		return false
	}
	w.bounds, w.due, w.binding = by, due, uint16(i)
	l.joinLocked(ln, w, charges, now)
	return true
}

// announce reports that w begins to wait. If a hook panics, w does not wait.
func (l *Limiter) announce(ctx context.Context, o *observer, w *waiter) {
	told := false
	defer func() {
		if !told {
			_ = l.abandon(ctx, w) // its caller gets the panic
		}
	}()
	o.waits(l.waitEvent(ctx, w))
	told = true
}

// waitEvent returns the event of a request that begins to wait. It takes the lock because a smaller burst may be clamping the
// costs of waiters.
func (l *Limiter) waitEvent(ctx context.Context, w *waiter) WaitEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := w.stop().bucket
	return WaitEvent{Context: ctx, Limit: b.limit.name, Key: b.key, Cost: w.costs[w.binding], Wait: until(w.due, w.arrived)}
}

// stand waits until w is decided: without a rejection or an error, it was granted. If the context is over by then, the context
// wins and all tokens are given back: a request that cannot be sent must not be charged.
func (l *Limiter) stand(ctx context.Context, cancel <-chan struct{}, w *waiter) error {
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
func (l *Limiter) abandon(ctx context.Context, w *waiter) error {
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
		w.by.counts.undone++
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
		l.quitLocked(w, now)
	}
	l.counts.canceled++
	w.by.counts.canceled++
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

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// expire rejects a request at the end of its MaxWait, unless it can be granted at this very instant.
func (l *Limiter) expire(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	l.lookLocked(w.line, now)
	if w.verdict == waiting {
		l.expireLocked(w, now)
	}
}

func (l *Limiter) expireLocked(w *waiter, now instant) {
	urgent, ahead := make([]int64, len(w.costs)), make([]int64, len(w.costs))
	for i := range ahead {
		urgent[i], ahead[i] = w.line.queue.ahead(w.line, &w.place, i, now, maxAhead)
		ahead[i] = meter.AddCount(ahead[i], w.line.ahead(&w.place, i))
	}
	due, s := w.planLocked(urgent, ahead, now)
	reason := ReasonMaxWait
	if w.expiry == w.arrived { // it has waited for a store
		reason = ReasonNoTokens
	}
	l.rejectLocked(w, s, reason, due, now)
	l.serveLocked(now)
}
