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
	// wallCheck is how often who waits for a fixed window looks whether the wall clock was set.
	wallCheck = int64(time.Minute)
	// passOver is for how long a request may be passed over before it bars all its buckets.
	passOver = int64(10 * time.Second)
)

// A Limiter is budgets without HTTP: for work that is not a request, and for several Transports that share.
// It is safe for concurrent use, has no goroutine of its own and need not be closed. It must be made by [NewLimiter].
type Limiter struct {
	limits   []*limit
	maxWait  time.Duration // of asks that say nothing else; negative: no bound
	maxQueue int
	maxKeys  int
	dry      bool
	tracks   bool      // some limit wants to know what becomes of requests
	slots    bool      // some limit is InFlight
	fair     *limit    // whose callers take turns; nil: none
	urgent   int       // the lowest priority for which limits keep a reserve; the lowest int: none does
	supplies []*supply // of the limits that are Shared; nil: there are none
	gate     *limit    // of the buckets in gates
	seed     maphash.Seed
	quotaOff quota.Rules // that tests switch off
	heard    atomic.Bool // some server has said something of its limits
	start    time.Time

	// mu guards all below, and every bucket, line and waiter. Nothing blocks under it, and no user code runs: what is
	// to be told to users is collected and told after. Whenever it is free:
	//   - every line has somebody in it, and is stopped at one of its buckets at least;
	//   - the first of the lines that are stopped at a bucket can't pay there now or, if it is starved, elsewhere;
	//   - a bucket at which a line is stopped for want of tokens has its timer set for the instant at which they are there,
	//     or earlier: what somebody else takes at a gate may move it later.
	mu        sync.Mutex
	unix      int64   // Unix time, in ns, of instant 0
	wallAt    instant // when the wall clock is to be looked at again; never: there are no fixed windows
	synced    instant // when syncLocked is to be called: at wallAt, or for a booking
	bookings  bookings
	seq       uint64
	judging   uint64 // counts rejudgeLocked
	callers   int    // with requests in line, where they take turns
	lines     map[string]*line
	queues    map[string]*queue
	dirty     []*bucket // to be looked at before mu is freed
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
	counts    counts  // not beside mu, on which others spin while it is written
	direct    asker   // whoever asks the Limiter itself, not through a Transport
}

// An ask is a request as the Limiter sees it, but for its charges. They are handed on beside it: were they in it, they
// would have to be allocated, since some of it is kept for as long as the request waits.
type ask struct {
	priority int
	caller   string          // where callers take turns
	weight   int64           // the same
	maxWait  time.Duration   // negative: no bound
	try      bool            // never to go before anybody who waits
	cancel   <-chan struct{} // Request.Cancel; nil: none
	by       *asker
}

// ask returns what one asks who would wait for so long, and says what the context does.
func (o *overrides) ask(maxWait time.Duration, by *asker) ask {
	if o.hasWait {
		maxWait = o.maxWait
	}
	return ask{priority: o.priority, maxWait: maxWait, by: by}
}

// An asker is a Transport, or whoever else asks a Limiter.
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
	paid   int64 // for giving it back and for reports, once it was granted

	outcome Outcome // as the limit's Classify has it; 0: as the answer has it
	kept    bool    // a slot that is given back by Grant.Done
	told    bool    // the body of the answer may tell what it cost
	booked  bool    // in Limiter.bookings: paid is not known yet
	settled bool    // guarded by the Limiter's mu, as cost is from then on
}

// charged appends what is to be paid in a limit, for which there is room.
func charged(charges []charge, li *limit, key string, cost int64) []charge {
	charges = charges[:len(charges)+1] // field by field into what is zero already: this is on every request's way
	c := &charges[len(charges)-1]
	c.limit, c.key, c.cost = li, key, min(cost, maxCount)
	if key == "" {
		c.bucket = li.single
	}
	return charges
}

// nowLocked reads the clock, once for each time that mu is taken.
func (l *Limiter) nowLocked() instant {
	now := instant(time.Since(l.start))
	if now >= l.synced {
		l.syncLocked(now)
	}
	return now
}

// syncLocked does what is due by the clock: it learns the wall time, once a second, because that may be set or drift, and
// books what a dry run has put off.
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

// A pending request is one that can't simply go.
type pending struct {
	ask     ask
	charges []charge
	rates   []rate // see askRates
	asked   uint64 // the number of the last Refresh before that
	receipt *Receipt
	caller  *caller       // once it was granted in its turn
	mark    mark          // once it was granted
	waited  time.Duration // the same
	refusal *Rejection    // where it is noted why it was refused; nil: it is made then
	gate    *gateKey      // nil: there is none to pass
	late    bool          // it is passed only by those who wait
}

// grant returns what was paid for it, once it was granted.
func (p *pending) grant(l *Limiter, by *asker) Grant {
	return Grant{limiter: l, by: by, caller: p.caller, more: p.charges, mark: p.mark, waited: p.waited, receipt: p.receipt, tracked: p.receipt != nil}
}

// pass lets a request go at once if it can. If not, and without an error, it is to be made pending. The two are apart so
// that those who wait do it on a small stack, which 100,000 of them would have to grow.
func (l *Limiter) pass(ctx context.Context, cancel <-chan struct{}, charges []charge, by *asker, g *gateKey, below bool) (m mark, ok bool, err error) {
	if ctx.Err() != nil || cancel != nil && isClosed(cancel) {
		return mark{}, false, causeOf(ctx)
	}
	if !l.mu.TryLock() {
		lockSoon(&l.mu)
	}
	now := instant(time.Since(l.start)) // as nowLocked does, but without a call
	if now >= l.synced {
		l.syncLocked(now)
	}
	if g != nil { // the last of the charges is that of the gate
		charges[len(charges)-1].bucket = l.gates[*g]
	}
	m, ok, _ = l.payLocked(charges, by, below, now)
	l.mu.Unlock()
	if ok && by.observer.hooks.OnGrant != nil {
		l.tellGranted(ctx, by, charges, 0, nil)
	}
	return m, ok, nil
}

// try lets a request go at once or refuses it, if all its buckets are there.
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

// pend makes a request pending that could not pass.
//
//go:noinline
func pend(charges []charge, a ask, g *gateKey, r *Receipt) *pending {
	p := &pending{ask: a, charges: slices.Clone(charges), receipt: r}
	if g != nil {
		p.gate, p.charges = new(*g), p.charges[:len(charges)-1]
	}
	return p
}

// lockSoon takes a lock that nobody holds for as long as it takes to park a goroutine and to wake it again.
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

// await lets a request go, by its priority or since it can by now, or refuses it, or lets it stand in line. What it returns
// of one that was let go takes the place of p, which is forgotten meanwhile: what waits is a waiter and a small stack, and
// nothing else.
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

// waited tells what has become of w. It is not inlined, for the sake of the stack that those who call it have waited on.
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

// lockFor takes the lock, once the rates are known of all buckets that are to be made for p. The error is what is wrong with
// a rate that RateFor told.
func (l *Limiter) lockFor(p *pending) error {
	for {
		l.mu.Lock()
		asked := p.askedLocked()
		if asked && !l.crowdedLocked(p.charges) {
			return nil
		}
		p.asked = l.refreshes
		l.mu.Unlock() // in between, others may have it
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
	var w *waiter // made before the lock is taken
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

// takeLocked charges what can be paid now, and goes without waiting.
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

// lineUpLocked decides about what can't simply go: w is put in line, or it is refused, or granted out of turn by its
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
	l.serveLocked(now) // those who are due go first
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

// announce tells that w begins to wait. Should that panic, nobody waits.
func (l *Limiter) announce(ctx context.Context, o *observer, w *waiter) {
	told := false
	defer func() {
		if !told {
			_ = l.abandon(ctx, w) // what its caller gets is the panic
		}
	}()
	o.waits(l.waitEvent(ctx, w))
	told = true
}

// waitEvent returns what is told of w when it begins to wait. It takes the lock because a smaller burst may be clamping the
// costs in line.
func (l *Limiter) waitEvent(ctx context.Context, w *waiter) WaitEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := w.stop().bucket
	return WaitEvent{Context: ctx, Limit: b.limit.name, Key: b.key, Cost: w.costs[w.binding], Wait: until(w.due, w.arrived)}
}

// stand stands in line until w is decided: without a rejection or an error, it was granted. Should the context be over
// when it is granted, the context wins and all is given back: what can't be sent must not be charged.
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

// abandon takes back a request whose context is over, whatever has become of it. A refusal stays one, also that of a request
// whose patience ends at the same instant: MaxWait is judged before the deadline.
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
		w.verdict = left // its patience may be over at the same time
		l.quitLocked(w, now)
	}
	l.counts.canceled++
	w.by.counts.canceled++
	w.stop().bucket.limit.counts.canceled++
	l.serveLocked(now)
	return causeOf(ctx)
}

// causeOf returns why a request is over, by its context or else by its Cancel.
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

// expire refuses a request whose patience is over, unless its turn comes at this very instant.
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
