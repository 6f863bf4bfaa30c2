package throttle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/lease"
)

// A flight is a call of a store. The Limiter's mu guards it, except for what is asked.
type flight struct {
	supply  *supply
	sent    instant
	asks    []lease.Ask
	buckets []*bucket // of all parts of all asks, in order
	apart   bool      // the store has some of the parts in different places
	over    bool      // its response was booked, or it was given up
}

// An outcome is the response to one part.
type outcome struct {
	lease.LeasedPart
	err error
}

// fly calls a store until there is nothing to ask for. A call that takes too long is given up: what it asked for is asked for
// again, by other calls, whenever it returns.
func (l *Limiter) fly(s *supply) {
	for f := l.board(s); f != nil; f = l.board(s) {
		ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
		stop := context.AfterFunc(ctx, func() {
			l.land(f, nil, fmt.Errorf("throttle: no response from the store within %v", s.timeout), true)
		})
		outcomes, err := f.call(ctx)
		stop()
		cancel()
		if !l.land(f, outcomes, err, false) {
			return
		}
	}
}

// board collects what is to be asked for; nil: nothing, or the store must not be called now.
func (l *Limiter) board(s *supply) *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	f, most := &flight{supply: s, sent: now}, maxAsks
	if s.outage.err != nil {
		most = 1
		if now < s.outage.again {
			most = 0
		}
	}
	for len(s.asking) > 0 && len(f.asks) < most {
		b := s.asking[0]
		s.asking[0], s.asking = nil, s.asking[1:]
		b.loan.queued = false
		if f.ask(b, now) == 0 {
			l.markLocked(b)
		}
	}
	l.serveLocked(now)
	if len(f.asks) == 0 {
		s.calls--
		l.callLocked(s, now)
		return nil
	}
	return f
}

// ask adds an ask for a bucket, and for the others that the first request there waits for. It returns the number of parts.
func (f *flight) ask(b *bucket, now instant) int {
	var parts []lease.Part
	add := func(b *bucket) {
		if d := b.demandLocked(now); b.loan.AskAt(now, d) <= now {
			parts = append(parts, b.loan.Ask(now, d))
			f.buckets = append(f.buckets, b)
		}
	}
	add(b)
	if len(parts) > 0 && len(b.stopped) > 0 {
		top := b.stopped[0]
		for i := range top.line.stops {
			if s := &top.line.stops[i]; s != top && s.pos == 0 && s.isAskedWith(top) {
				add(s.bucket)
			}
		}
	}
	if len(parts) > 0 {
		f.asks = append(f.asks, lease.Ask{Parts: parts})
	}
	return len(parts)
}

// call asks the store. It asks for each part alone where the store has them in different places.
func (f *flight) call(ctx context.Context) ([]outcome, error) {
	outcomes, err := f.try(ctx, f.asks)
	if err != nil {
		return nil, err
	}
	var apart []lease.Ask
	var places []int
	i := 0
	for _, ask := range f.asks {
		for _, part := range ask.Parts {
			if len(ask.Parts) > 1 && errors.Is(outcomes[i].err, lease.ErrApart) {
				apart, places = append(apart, lease.Ask{Parts: []lease.Part{part}}), append(places, i)
			}
			i++
		}
	}
	if len(apart) == 0 {
		return outcomes, nil
	}
	f.apart = true
	again, err := f.try(ctx, apart)
	for j, i := range places {
		if err != nil {
			outcomes[i] = outcome{err: err}
		} else {
			outcomes[i] = again[j]
		}
	}
	return outcomes, nil
}

// try calls the store and checks that its response fits what was asked.
func (f *flight) try(ctx context.Context, asks []lease.Ask) (outcomes []outcome, err error) {
	leases, err := f.supply.store.Lease(ctx, asks)
	if err != nil {
		return nil, err
	}
	if len(leases) != len(asks) {
		return nil, fmt.Errorf("%w: it returned %d leases for %d asks", lease.ErrSetup, len(leases), len(asks))
	}
	for i := range asks {
		err := leases[i].Err
		if n, want := len(leases[i].Parts), len(asks[i].Parts); err == nil && n != want {
			err = fmt.Errorf("%w: it returned %d parts for an ask of %d", lease.ErrSetup, n, want)
		}
		for j := range asks[i].Parts {
			o := outcome{err: err}
			if err == nil {
				o.LeasedPart = leases[i].Parts[j]
				o.err = o.Check(&asks[i].Parts[j])
			}
			outcomes = append(outcomes, o)
		}
	}
	return outcomes, nil
}

// land books the response of a call, or that there is none. It reports false if the call was given up before.
func (l *Limiter) land(f *flight, outcomes []outcome, err error, givenUp bool) bool {
	ok, queued, event := l.landOnce(f, outcomes, err, givenUp)
	for some := range slices.Chunk(queued, 64) { // the store is out of reach: some waiters cannot wait so long
		l.replanSome(some)
	}
	if event != nil {
		l.direct.observer.storeChanged(*event)
	}
	return ok
}

func (l *Limiter) landOnce(f *flight, outcomes []outcome, err error, givenUp bool) (ok bool, queued []*bucket, event *StoreEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, now := f.supply, l.nowLocked()
	switch {
	case f.over && !givenUp: // it returns late
		s.late--
		s.outage.again = min(s.outage.again, now) // the store may be in reach again
		l.callLocked(s, now)
		return false, nil, nil
	case f.over:
		return false, nil, nil
	case givenUp:
		s.late++
		s.calls--
	}
	f.over = true
	for _, b := range f.buckets {
		l.markLocked(b)
	}
	l.serveLocked(now) // what is due goes first, as it was planned
	was := s.outage
	s.note(err, now)
	if was.err == nil && s.outage.err != nil {
		queued = slices.Clone(s.asking)
	}
	s.apart = s.apart || f.apart
	l.landPartsLocked(f, outcomes, err, now)
	l.serveLocked(now)
	l.callLocked(s, now)
	return true, queued, s.event(&was, now)
}

// note records how a call ended.
func (s *supply) note(err error, now instant) {
	switch {
	case err == nil:
		s.stats.OK++
		s.outage = outage{}
		return
	case errors.Is(err, lease.ErrSetup):
		s.stats.Setup++
	default:
		s.stats.Failed++
	}
	s.outage.fail(err, now)
}

// landPartsLocked books the parts of a response, or that there is none.
func (l *Limiter) landPartsLocked(f *flight, outcomes []outcome, err error, now instant) {
	i := 0
	for _, ask := range f.asks {
		for _, part := range ask.Parts {
			o := outcome{err: err}
			if err == nil {
				o = outcomes[i]
			}
			b := f.buckets[i]
			news := b.loan.land(f.sent, now, &part, &o, err == nil)
			l.freeLocked(b, now)
			if news || b.fewWait() {
				l.replanLocked(now, b)
			} else {
				l.markLocked(b)
			}
			i++
		}
	}
}

// maxRejudged is how many lines and requests are judged again after each response about their bucket. Where more wait, they are
// judged again when there is news that delays all of them.
const maxRejudged = 256

func (b *bucket) fewWait() bool { return len(b.lines) <= maxRejudged && b.waiting() <= maxRejudged }

// land books one part, and reports whether requests may have to wait for longer than planned for another reason than that
// other processes took tokens. Where only this part failed, the outage is that of its bucket.
func (n *loan) land(sent, now instant, part *lease.Part, o *outcome, alone bool) (news bool) {
	s := n.supply
	for _, r := range part.Back {
		s.stats.Returned += uint64(r.Tokens)
	}
	if o.err == nil {
		s.stats.Leased += uint64(o.Tokens)
		s.processes = max(1, o.Processes)
		n.outage, n.wanted = outage{}, 0
		held, known := n.HeldUntil(), n.Processes() > 0
		n.Booked(sent, now, *part, o.LeasedPart)
		return !known || n.HeldUntil() > held
	}
	n.Failed(now, now)
	n.wanted = 0
	if alone {
		n.outage.fail(o.err, now)
	}
	if n.IsAlone() && n.out().isSetup() {
		n.Alone(now, nil, false, nil)
	}
	n.look(now)
	return true
}

// replanSome judges the requests again that wait for these buckets, if their store is out of reach.
func (l *Limiter) replanSome(buckets []*bucket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	for _, b := range buckets {
		if b.loan.out() != nil {
			b.loan.look(now)
			l.replanLocked(now, b)
		}
	}
	l.serveLocked(now)
}

// A StoreEvent reports that a [Store] went out of reach, is in reach again, or is set up wrongly.
type StoreEvent struct {
	Limits []string      // the names of the limits that use it
	Err    error         // why it is out of reach; with ErrStoreSetup in its chain, the set-up is wrong; nil: it is in reach
	Down   time.Duration // for how long it was out of reach; 0 when it went
}

// event returns what has changed since was; nil: nothing.
func (s *supply) event(was *outage, now instant) *StoreEvent {
	e := &StoreEvent{Limits: s.limits, Err: s.outage.err}
	switch {
	case (was.err == nil) == (e.Err == nil) && was.isSetup() == s.outage.isSetup():
		return nil
	case was.err != nil:
		e.Down = time.Duration(now - was.since)
	}
	return e
}

// StoreStats are the state and the counters of a [Store] in one Limiter: of the calls for all limits that use it in the same
// way.
type StoreStats struct {
	Limits []string `json:"limits"` // the names of the limits
	Up     bool     `json:"up"`     // the latest call succeeded, or there was none
	Err    error    `json:"-"`      // of the latest call, if it failed

	// Counters
	OK       uint64 `json:"ok"`       // calls that succeeded
	Failed   uint64 `json:"failed"`   // calls that failed because the store was out of reach
	Setup    uint64 `json:"setup"`    // calls that failed because of a wrong set-up
	Leased   uint64 `json:"leased"`   // tokens that the store granted
	Returned uint64 `json:"returned"` // tokens that were given back
	Alone    uint64 `json:"alone"`    // tokens used without the store, by LocalShare or Pass
}

// Stores returns the state of each [Store], in the order of the limits that use them. It returns nothing without a [Shared]
// limit.
func (l *Limiter) Stores() []StoreStats {
	l.mustBeMade()
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]StoreStats, len(l.supplies))
	for i, s := range l.supplies {
		all[i] = s.stats
		all[i].Limits, all[i].Up, all[i].Err = slices.Clone(s.limits), s.outage.err == nil, s.outage.err
	}
	return all
}
