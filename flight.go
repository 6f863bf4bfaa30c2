package throttle

import (
	"errors"
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

// board collects what is to be asked for; nil: nothing, or the store must not be called now.
func (l *core) board(s *supply) *flight {
	l.mu.Lock()
	defer l.unlockJudged()
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

func (l *core) landOnce(f *flight, outcomes []outcome, err error, givenUp bool) (ok bool, queued []*bucket, event *storeEvent) {
	l.mu.Lock()
	defer l.unlockJudged()
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
		s.counts.ok++
		s.outage = outage{}
		return
	case errors.Is(err, lease.ErrSetup):
		s.counts.setup++
	default:
		s.counts.failed++
	}
	s.outage.fail(err, now)
}

// landPartsLocked books the parts of a response, or that there is none. Requests that can go are granted before the others are
// judged again: mostly none are left.
func (l *core) landPartsLocked(f *flight, outcomes []outcome, err error, now instant) {
	i := 0
	for _, ask := range f.asks {
		for _, part := range ask.Parts {
			o := outcome{err: err}
			if err == nil {
				o = outcomes[i]
			}
			b := f.buckets[i]
			b.loan.news = b.loan.land(f.sent, now, &part, &o, err == nil)
			l.freeLocked(b, now)
			l.markLocked(b)
			i++
		}
	}
	l.serveLocked(now)
	for _, b := range f.buckets {
		if len(b.lines) > 0 && (b.loan.news || b.fewWait()) {
			l.replanLocked(now, b)
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
		s.counts.returned += uint64(r.Tokens)
	}
	if o.err == nil {
		s.counts.leased += uint64(o.Tokens)
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
func (l *core) replanSome(buckets []*bucket) {
	l.mu.Lock()
	defer l.unlockJudged()
	now := l.nowLocked()
	for _, b := range buckets {
		if b.loan.out() != nil {
			b.loan.look(now)
			l.replanLocked(now, b)
		}
	}
	l.serveLocked(now)
}

// A storeEvent says that a store went out of reach, is in reach again, or is set up wrongly; see [StoreEvent].
type storeEvent struct {
	Limits []string
	Err    error
	Down   time.Duration
}

// event returns what has changed since was; nil: nothing.
func (s *supply) event(was *outage, now instant) *storeEvent {
	e := &storeEvent{Limits: s.limits, Err: s.outage.err}
	switch {
	case (was.err == nil) == (e.Err == nil) && was.isSetup() == s.outage.isSetup():
		return nil
	case was.err != nil:
		e.Down = time.Duration(now - was.since)
	}
	return e
}

// A storeState is what is known of a store.
type storeState struct {
	limits []string // which never change
	err    error    // of the latest call
	counts storeCounts
}

// storeStates returns the state of each store.
func (l *core) storeStates() []storeState {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]storeState, len(l.supplies))
	for i, s := range l.supplies {
		all[i] = storeState{s.limits, s.outage.err, s.counts}
	}
	return all
}
