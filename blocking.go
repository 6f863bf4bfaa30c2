package throttle

import (
	"container/heap"
	"context"
	"encoding/binary"
	"iter"
	"math"
	"slices"
	"sync"
	"time"
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
	start    time.Time
	maxQueue int
	maxKeys  int
	dry      bool
	observer observer

	// mu guards all below, and every bucket, line and waiter. Nothing blocks under it, and no user code runs: what is
	// to be told to users is collected and told after. Whenever it is free:
	//   - every line has somebody in it, and is stopped at one of its buckets at least;
	//   - the first of the lines that are stopped at a bucket can't pay there now or, if it is starved, elsewhere;
	//   - a bucket at which a line is stopped for want of tokens has its timer set for the instant at which they are there.
	mu      sync.Mutex
	unix    int64   // Unix time, in ns, of instant 0
	synced  instant // when it is to be looked at anew; never: there are no fixed windows
	seq     uint64
	lines   map[string]*line
	dirty   []*bucket // to be looked at before mu is freed
	serial  uint64    // of the last bucket made
	idle    idleHeap  // all buckets but those of the key ""
	sweeper *time.Timer
	sweepAt instant // when sweeper fires; never: it does not
	counts  counts
	direct  counts // what was asked of the Limiter itself, not through a Transport
}

// An ask is a request as the Limiter sees it, but for its charges. They are handed on beside it: were they in it, they
// would have to be allocated, since some of it is kept for as long as the request waits.
type ask struct {
	priority int
	maxWait  time.Duration   // negative: no bound
	try      bool            // never to go before anybody who waits
	cancel   <-chan struct{} // Request.Cancel; nil: none
	counts   *counts
	observer *observer
}

// A charge is what an ask costs against one limit.
type charge struct {
	limit  *limit
	key    string
	cost   int64
	bucket *bucket
	rate   *rate // what RateFor said; nil: it was not asked
	paid   int64 // for giving it back, once it was granted
}

// charged appends what is to be paid in a limit.
func charged(charges []charge, li *limit, key string, cost int64) []charge {
	if len(charges) == cap(charges) {
		charges = slices.Grow(charges, 1)
	}
	charges = charges[:len(charges)+1] // field by field into what is zero already: this is on every request's way
	c := &charges[len(charges)-1]
	c.limit, c.key, c.cost = li, key, cost
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

// syncLocked learns the wall time, once a second, since it may be set or drift.
func (l *Limiter) syncLocked(now instant) {
	unix := time.Now().UnixNano() - now
	back := unix < l.unix-int64(time.Second)
	l.unix, l.synced = unix, now+int64(time.Second)
	if !back || l.dry {
		return
	}
	for _, li := range l.limits {
		for _, b := range li.all() {
			if w, ok := b.meter.(*fixedWindow); ok {
				w.index = min(w.index, w.indexAt(now))
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

// enter lets a go at once and returns nothing, or refuses it, or puts it in line and returns its waiter, for wait.
// The two are apart so that those who wait do it on a small stack.
func (l *Limiter) enter(ctx context.Context, charges []charge, a *ask) (*waiter, *Rejection, error) {
	if ctx.Err() != nil || a.cancel != nil && isClosed(a.cancel) {
		return nil, nil, causeOf(ctx)
	}
	l.mu.Lock()
	now := l.nowLocked()
	free, missing := findLocked(charges, now)
	if missing != nil {
		l.mu.Unlock()
		if err := askRates(charges); err != nil {
			return nil, nil, err
		}
		l.mu.Lock()
		now = l.nowLocked()
		free, missing = l.findAllLocked(charges, now)
	}
	if free {
		l.takeLocked(charges, a, now)
		l.mu.Unlock()
		a.observer.granted(ctx, 0, l.dry)
		return nil, nil, nil
	}
	if l.dry {
		waited, r := l.pretendLocked(ctx, charges, a, now, missing)
		l.mu.Unlock()
		a.observer.pretended(ctx, waited, r)
		return nil, nil, nil
	}
	w, r := l.lineUpLocked(ctx, charges, a, now, missing)
	l.mu.Unlock()
	switch {
	case r != nil:
		a.observer.rejected(ctx, r, 0, false)
	case w == nil:
		a.observer.granted(ctx, 0, false)
	}
	return w, r, nil
}

// takeLocked charges a, which may go now without waiting.
func (l *Limiter) takeLocked(charges []charge, a *ask, now instant) {
	for i := range charges {
		c := &charges[i]
		c.paid = c.bucket.meter.take(now, now, c.cost, false)
	}
	l.counts.granted++
	a.counts.granted++
}

// lineUpLocked decides about an ask that can't simply go: it is granted out of turn by its priority (neither result),
// refused, or put in line.
func (l *Limiter) lineUpLocked(ctx context.Context, charges []charge, a *ask, now instant, missing *charge) (*waiter, *Rejection) {
	if r := unpayable(charges, missing); r != nil {
		return nil, l.countLocked(a, r)
	}
	for i := range charges {
		l.markLocked(charges[i].bucket)
	}
	l.serveLocked(now) // those who are due go first
	by := a.bounds(ctx, now)
	ln := l.lines[string(lineID(make([]byte, 0, 64), charges))]
	if !a.try && (ln == nil || by.rank < ln.first.rank) && passesLocked(charges, by.rank, now) {
		l.takeLocked(charges, a, now)
		for i := range charges {
			l.markLocked(charges[i].bucket)
		}
		l.serveLocked(now)
		return nil, nil
	}
	due, i := planLocked(charges, ln, by.rank, now)
	binding := &charges[i]
	reason := by.judge(due, binding.bucket)
	if reason == 0 && ln != nil && ln.size >= l.maxQueue {
		reason = ReasonQueueFull
	}
	if reason != 0 {
		return nil, l.countLocked(a, by.reject(reason, binding.limit, binding.key, binding.cost, due, now))
	}
	w := &waiter{bounds: by, due: due, binding: i, passed: never, counts: a.counts, observer: a.observer}
	l.joinLocked(ln, w, charges, now)
	return w, nil
}

// judge returns why a request that would be granted at due must be refused; 0 if it need not.
func (b *bounds) judge(due instant, binding *bucket) Reason {
	switch {
	case due == never:
		return ReasonCost
	case due >= b.deadline:
		return ReasonDeadline
	case due <= b.expiry && b.expiry > b.arrived:
		return 0
	case binding.held > b.expiry:
		return ReasonHeld
	case b.expiry == b.arrived:
		return ReasonNoTokens
	}
	return ReasonMaxWait
}

// until returns how long it is until due: the longest Duration if that is never.
func until(due, now instant) time.Duration {
	if due == never {
		return math.MaxInt64
	}
	return time.Duration(due - now)
}

// reject returns the rejection of a request that could go at due.
func (b *bounds) reject(reason Reason, li *limit, key string, cost int64, due, now instant) *Rejection {
	r := &Rejection{Reason: reason, Limit: li.name, Key: key, Cost: cost, Wait: until(due, now)}
	if patience := min(b.expiry, b.deadline); patience < never {
		r.Patience = time.Duration(patience - b.arrived)
	}
	return r
}

// unpayable refuses what no bucket can be asked for: a charge that found no room for its bucket, or one below 0.
func unpayable(charges []charge, missing *charge) *Rejection {
	if missing != nil {
		return &Rejection{Reason: ReasonKeys, Limit: missing.limit.name, Key: missing.key, Cost: missing.cost, Wait: sweepEvery}
	}
	for _, c := range charges {
		if c.cost < 0 {
			return &Rejection{Reason: ReasonCost, Limit: c.limit.name, Key: c.key, Cost: c.cost, Wait: math.MaxInt64}
		}
	}
	return nil
}

// countLocked counts a rejection and hands it on.
func (l *Limiter) countLocked(a *ask, r *Rejection) *Rejection {
	l.counts.refused[r.Reason]++
	a.counts.refused[r.Reason]++
	return r
}

// pretendLocked is what a dry run does with an ask that would have to wait: it books it for when it would have gone.
// It returns what it would have been refused for, which the caller lets pass.
func (l *Limiter) pretendLocked(ctx context.Context, charges []charge, a *ask, now instant, missing *charge) (time.Duration, *Rejection) {
	if r := unpayable(charges, missing); r != nil {
		return 0, l.countLocked(a, r)
	}
	due, i := planLocked(charges, nil, now, now)
	binding := &charges[i]
	by := a.bounds(ctx, now)
	if reason := by.judge(due, binding.bucket); reason != 0 {
		return 0, l.countLocked(a, by.reject(reason, binding.limit, binding.key, binding.cost, due, now))
	}
	for i := range charges {
		c := &charges[i]
		c.bucket.meter.take(due, due, c.cost, true)
		c.bucket.since = due
	}
	l.counts.grantedAfter(due - now)
	a.counts.grantedAfter(due - now)
	return time.Duration(due - now), nil
}

// bounds returns what bounds the wait of an ask that came now.
func (a *ask) bounds(ctx context.Context, now instant) bounds {
	b := bounds{arrived: now, rank: rankOf(now, a.priority), expiry: never, deadline: never}
	if a.maxWait >= 0 {
		b.expiry = addInstant(now, int64(a.maxWait))
	}
	if d, ok := ctx.Deadline(); ok {
		b.deadline = addInstant(now, max(0, int64(time.Until(d))))
	}
	return b
}

// passesLocked reports whether all can pay now, and nobody who waits goes before one of that rank.
func passesLocked(charges []charge, rank, now instant) bool {
	for i := range charges {
		b := charges[i].bucket
		if b.ready(0, 0, charges[i].cost) > now || b.barsLocked(rank) {
			return false
		}
	}
	return true
}

// barsLocked reports whether somebody who is stopped here goes before one who came now with that rank.
func (b *bucket) barsLocked(rank instant) bool {
	return len(b.stopped) > 0 && b.stopped[0].line.first.rank <= rank
}

// planLocked returns when the charges could be paid if all goes on as it is now, and which of them is the last:
// exactly where a line has one limit only, else no later than it will be.
func planLocked(charges []charge, ln *line, rank, now instant) (due instant, binding int) {
	for i := range charges {
		c, ahead := &charges[i], int64(0)
		if ln != nil {
			ahead = ln.ahead(rank, math.MaxUint64, i)
		}
		if d := c.bucket.planLocked(ln, rank, ahead, c.cost, now); d > due {
			due, binding = d, i
		}
	}
	return due, binding
}

// planLocked is the same for a request in line, given the costs ahead of it there.
func (w *waiter) planLocked(ahead []int64, now instant) (due instant, binding *stop) {
	for i := range w.line.stops {
		s := &w.line.stops[i]
		if d := s.bucket.planLocked(w.line, w.rank, ahead[i], w.costs[i], now); binding == nil || d > due {
			due, binding = d, s
		}
	}
	return due, binding
}

// planLocked returns when this bucket could pay cost, once it has paid what is ahead in ln (nil: a line that is yet to
// be opened) and the first of the other lines that are stopped here.
func (b *bucket) planLocked(ln *line, rank instant, ahead, cost int64, now instant) instant {
	from := now
	if len(b.stopped) > 0 {
		from = 0 // who waits has what came in since
	}
	if b.barsLocked(rank) && b.stopped[0].line != ln {
		ahead = addCount(ahead, b.stopped[0].cost())
	}
	return max(now, b.ready(from, ahead, cost))
}

// joinLocked puts a waiter in its line, at its place.
func (l *Limiter) joinLocked(ln *line, w *waiter, charges []charge, now instant) {
	if ln == nil {
		ln = l.openLocked(charges, now)
	}
	n, room := len(charges), w.inline[:]
	if n > 1 {
		room = make([]int64, 3*n)
	}
	w.costs, w.sums, w.paid = room[:n], room[n:2*n], room[2*n:]
	for i := range charges {
		w.costs[i] = charges[i].cost
	}
	w.decided = make(chan struct{})
	w.seq = l.seq
	l.seq++
	l.counts.waiting++
	w.counts.waiting++
	ln.insert(w)
	if ln.first == w {
		l.headLocked(ln)
		l.tryLocked(ln, now)
		l.serveLocked(now)
	}
}

// rankOf returns the place in line of one who came now with that priority.
func rankOf(now instant, priority int) instant {
	const most = int(never / ageStep / 4)
	return now - int64(max(-most, min(priority, most)))*ageStep
}

// lineID appends to buf what tells the line of these charges from others.
func lineID(buf []byte, charges []charge) []byte {
	for i := range charges {
		buf = binary.NativeEndian.AppendUint64(buf, charges[i].bucket.serial)
	}
	return buf
}

// openLocked opens a line for these charges.
func (l *Limiter) openLocked(charges []charge, now instant) *line {
	ln := &line{id: string(lineID(nil, charges)), stops: make([]stop, len(charges))}
	for i := range charges {
		b := charges[i].bucket
		if len(b.lines) == 0 {
			b.since = now
		}
		s := &ln.stops[i]
		*s = stop{line: ln, bucket: b, index: i, lined: len(b.lines), pos: -1}
		b.lines = append(b.lines, s)
	}
	l.lines[ln.id] = ln
	return ln
}

// quitLocked takes w out of its line, which is not granted. Whoever it was in the way of can go from now on.
func (l *Limiter) quitLocked(w *waiter, now instant) {
	if w.line.first == w {
		for i := range w.line.stops {
			if s := &w.line.stops[i]; s.pos == 0 {
				s.bucket.since = now
			}
		}
	}
	w.at = now
	l.leaveLocked(w)
}

// leaveLocked takes w out of its line.
func (l *Limiter) leaveLocked(w *waiter) {
	ln := w.line
	wasFirst := ln.first == w
	ln.remove(w)
	l.counts.waiting--
	w.counts.waiting--
	switch {
	case ln.size == 0:
		l.closeLocked(ln)
	case wasFirst:
		l.headLocked(ln)
	}
}

// headLocked sees to a line that has another first request.
func (l *Limiter) headLocked(ln *line) {
	ln.starved = false
	for i := range ln.stops {
		s := &ln.stops[i]
		if s.pos >= 0 {
			heap.Fix(&s.bucket.stopped, s.pos)
		}
		l.markLocked(s.bucket)
	}
}

// closeLocked closes an empty line.
func (l *Limiter) closeLocked(ln *line) {
	for i := range ln.stops {
		s := &ln.stops[i]
		b := s.bucket
		s.set(false)
		last := b.lines[len(b.lines)-1]
		b.lines[s.lined], last.lined = last, s.lined
		b.lines[len(b.lines)-1] = nil
		b.lines = b.lines[:len(b.lines)-1]
		l.markLocked(b)
	}
	delete(l.lines, ln.id)
}

// markLocked notes that a bucket is to be served before mu is freed.
func (l *Limiter) markLocked(b *bucket) {
	if !b.dirty && (len(b.stopped) > 0 || b.armed != never) {
		b.dirty = true
		l.dirty = append(l.dirty, b)
	}
}

// serveLocked is what every change ends with, whatever it was: it grants what can go now, in order, and sets the
// timers for what can't.
func (l *Limiter) serveLocked(now instant) {
	for len(l.dirty) > 0 {
		b := l.dirty[len(l.dirty)-1]
		l.dirty = l.dirty[:len(l.dirty)-1]
		for len(b.stopped) > 0 && l.tryLocked(b.stopped[0].line, now) {
		}
		b.dirty = false
		l.armLocked(b, now)
	}
}

// tryLocked grants the first request of a line if it can go now, or notes where it is stopped, and reports whether
// that changed anything.
//
// A request is stopped at a bucket that can't pay it, or that another must be paid from before; there it bars those
// who come after it. It does not bar its other buckets, lest lines of different keys delay each other, unless it was
// passed over for long: each time that one bucket had saved up for it, others had emptied the next.
func (l *Limiter) tryLocked(ln *line, now instant) bool {
	w := ln.first
	due, stopped, freed, robbed := instant(0), 0, false, false
	for i := range ln.stops {
		s := &ln.stops[i]
		s.ready = s.bucket.ready(0, 0, w.costs[i])
		due = max(due, s.ready)
		if s.short = s.ready > now || s.barred(); s.short {
			stopped++
			robbed = robbed || s.pos < 0
		} else {
			freed = freed || s.pos >= 0
		}
	}
	if stopped == 0 {
		l.grantLocked(w, due, now)
		return true
	}
	if freed && robbed && now >= addInstant(w.passed, passOver) {
		ln.starved = true
	}
	if stopped < len(ln.stops) {
		w.passed = min(w.passed, now)
	}
	moved := false
	for i := range ln.stops {
		s := &ln.stops[i]
		if bar := s.short || ln.starved; bar != (s.pos >= 0) {
			moved = true
			if !bar && s.pos == 0 { // others may go from when this one could be paid
				s.bucket.since = max(s.ready, now-slack)
			}
			s.set(bar)
			l.markLocked(s.bucket)
		}
	}
	return moved
}

// grantLocked lets w go, which was due then. A timer is late now and then: those who were due in the meantime are
// charged as of when they were due, so that it costs no throughput; but what is older than slack is forfeited.
func (l *Limiter) grantLocked(w *waiter, due, now instant) {
	due = max(due, now-slack)
	for i := range w.line.stops {
		b := w.line.stops[i].bucket
		w.paid[i] = b.meter.take(due, now, w.costs[i], true)
		b.since = max(b.since, due) // for those it was in the way of
		l.markLocked(b)
	}
	w.verdict, w.at = granted, now
	l.counts.grantedAfter(now - w.arrived)
	w.counts.grantedAfter(now - w.arrived)
	l.leaveLocked(w)
	close(w.decided)
}

// armLocked sets a bucket's timer for the instant at which the first who is stopped there can pay.
func (l *Limiter) armLocked(b *bucket, now instant) {
	at := never
	if len(b.stopped) > 0 {
		if ready := b.ready(0, 0, b.stopped[0].cost()); ready > now {
			at = ready
		}
		if b.limit.kind == kindFixed {
			at = min(at, now+wallCheck)
		}
	}
	switch {
	case at == b.armed:
		return
	case at == never:
		b.timer.Stop()
	case b.timer == nil:
		b.timer = time.AfterFunc(time.Duration(at-now), func() { l.wake(b) })
	default:
		b.timer.Reset(time.Duration(at - now))
	}
	b.armed = at
}

// wake is what the timer of a bucket calls.
func (l *Limiter) wake(b *bucket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.armed = never
	l.markLocked(b)
	l.serveLocked(l.nowLocked())
}

// wait stands in line until w is decided; without a rejection or an error, it was granted. Should the context be over
// when it is granted, the context wins and all is given back: what can't be sent must not be charged.
func (l *Limiter) wait(ctx context.Context, cancel <-chan struct{}, w *waiter) (*Rejection, error) {
	w.observer.waits(ctx, w)
	err := l.stand(ctx, cancel, w)
	w.observer.waited(ctx, w, err)
	return w.rejection, err
}

// stand returns an error if the context has ended, and else leaves w decided.
func (l *Limiter) stand(ctx context.Context, cancel <-chan struct{}, w *waiter) error {
	var expired <-chan time.Time
	if w.expiry < never {
		t := time.NewTimer(time.Duration(w.expiry - w.arrived))
		defer t.Stop()
		expired = t.C
	}
	select {
	case <-w.decided:
		if ctx.Err() == nil && !isClosed(cancel) {
			return nil
		}
	case <-ctx.Done():
	case <-cancel:
	case <-expired:
		l.expire(w)
		return nil
	}
	return l.abandon(ctx, w)
}

// abandon takes back a request whose context is over, whatever has become of it; a refusal stays one.
func (l *Limiter) abandon(ctx context.Context, w *waiter) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	l.lookLocked(w.line, now)
	switch w.verdict {
	case refused:
		return nil
	case granted:
		w.counts.takeBack(w.at - w.arrived)
		l.counts.takeBack(w.at - w.arrived)
		for i := range w.line.stops {
			l.giveBackLocked(w.line.stops[i].bucket, w.paid[i], now, w.costs[i])
		}
	case waiting:
		l.quitLocked(w, now)
	}
	l.counts.canceled++
	w.counts.canceled++
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
	if w.verdict != waiting {
		return
	}
	ahead := make([]int64, len(w.costs))
	for i := range ahead {
		ahead[i] = w.line.ahead(w.rank, w.seq, i)
	}
	due, s := w.planLocked(ahead, now)
	l.rejectLocked(w, s, ReasonMaxWait, due, now)
	l.serveLocked(now)
}

// lookLocked grants what is due now in a line, before something changes.
func (l *Limiter) lookLocked(ln *line, now instant) {
	for i := range ln.stops {
		l.markLocked(ln.stops[i].bucket)
	}
	l.serveLocked(now)
}

// giveBackLocked gives back what was charged, to those who can go by it from now on.
func (l *Limiter) giveBackLocked(b *bucket, charged int64, now instant, cost int64) {
	b.meter.giveBack(charged, now, cost)
	b.since = now
	l.markLocked(b)
}

// rejectLocked refuses w, which is in line and could go at due.
func (l *Limiter) rejectLocked(w *waiter, s *stop, reason Reason, due, now instant) {
	w.verdict = refused
	w.rejection = w.reject(reason, s.bucket.limit, s.bucket.key, w.costs[s.index], due, now)
	l.counts.refused[reason]++
	w.counts.refused[reason]++
	l.quitLocked(w, now)
	close(w.decided)
}

// rejudgeLocked refuses all in a line who can't be granted in time any more, after a hold or another rate.
func (l *Limiter) rejudgeLocked(ln *line, now instant) {
	ahead := make([]int64, len(ln.stops))
	for w := ln.first; w != nil; {
		next := w.next()
		due, s := w.planLocked(ahead, now)
		if reason := w.judge(due, s.bucket); reason != 0 {
			l.rejectLocked(w, s, reason, due, now)
		} else {
			for i, cost := range w.costs {
				ahead[i] = addCount(ahead[i], cost)
			}
		}
		w = next
	}
}
