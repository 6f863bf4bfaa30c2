package queue

import (
	"errors"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/lease"
)

// A Flight is a call of a store. Core.Mu guards it, except for what is asked.
type Flight struct {
	Supply  *Supply
	sent    Instant
	Asks    []lease.Ask
	parts   []lease.Part // of all asks, in order
	buckets []*Bucket    // of all parts
	Apart   bool         // the store has some of the parts in different places
	over    bool         // its response was booked, or it was given up
}

// An Outcome is the response to one part.
type Outcome struct {
	lease.LeasedPart
	Err error
}

// Board collects what is to be asked for; nil: nothing, or the store must not be called now.
func (l *Core) Board(s *Supply) *Flight {
	l.Mu.Lock()
	defer l.UnlockJudged()
	now := l.NowLocked()
	most := maxAsks
	if s.outage.err != nil {
		most = 1
		if now < s.outage.again {
			most = 0
		}
	}
	if many := len(s.asking); s.aloft == 0 && many >= splitFrom {
		most = min(most, (many+1)/2) // another call takes the rest: the store decides those while the first response is booked
	}
	n := min(len(s.asking), most)
	f := &Flight{Supply: s, sent: now, Asks: make([]lease.Ask, 0, n), parts: make([]lease.Part, 0, n), buckets: make([]*Bucket, 0, n)}
	for len(s.asking) > 0 && len(f.Asks) < most {
		b := s.asking[0]
		s.asking[0], s.asking = nil, s.asking[1:]
		b.loan.queued = false
		if f.ask(b, now) == 0 {
			l.MarkLocked(b)
		}
	}
	l.ServeLocked(now)
	if len(f.Asks) == 0 {
		s.calls--
		l.callLocked(s, now)
		return nil
	}
	s.aloft++
	l.callLocked(s, now)
	return f
}

// ask adds an ask for a bucket, and for the others that the first request there waits for. It returns the number of parts.
func (f *Flight) ask(b *Bucket, now Instant) int {
	first := len(f.parts)
	f.askPart(b, now)
	if w := b.first(); w != nil && len(f.parts) > first {
		for i := range w.in.Costs {
			if other := w.bucket(i); other != b && other.isAskedWith(b) && other.first() == w {
				f.askPart(other, now)
			}
		}
	}
	parts := f.parts[first:len(f.parts):len(f.parts)]
	if len(parts) > 0 {
		f.Asks = append(f.Asks, lease.Ask{Parts: parts})
	}
	return len(parts)
}

func (f *Flight) askPart(b *Bucket, now Instant) {
	if d := b.demandLocked(now); b.loan.AskAt(now, d) <= now {
		f.parts = append(f.parts, b.loan.Ask(now, d))
		f.buckets = append(f.buckets, b)
	}
}

// Parts returns the number of parts of all asks.
func (f *Flight) Parts() int { return len(f.parts) }

// LandOnce books the response of a call, or that there is none. It reports false if the call was given up before. The store has
// gone out of reach if it returns buckets: some waiters there cannot wait so long.
func (l *Core) LandOnce(f *Flight, outcomes []Outcome, err error, givenUp bool) (ok bool, queued []*Bucket, event *storeEvent) {
	l.Mu.Lock()
	defer l.UnlockJudged()
	s, now := f.Supply, l.NowLocked()
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
	s.aloft--
	for _, b := range f.buckets {
		if b.Armed <= now {
			l.MarkLocked(b)
		}
	}
	l.DueLocked(now)
	l.order.Backdate(f.sent) // a response may be late, as a timer may
	was := s.outage
	s.note(err, now)
	if was.err == nil && s.outage.err != nil {
		queued = slices.Clone(s.asking)
	}
	s.Apart = s.Apart || f.Apart
	l.landPartsLocked(f, outcomes, err, now)
	l.ServeLocked(now)
	l.callLocked(s, now)
	return true, queued, s.event(&was, now)
}

// note records how a call ended.
func (s *Supply) note(err error, now Instant) {
	switch {
	case err == nil:
		s.counts.Ok++
		s.outage = outage{}
		return
	case errors.Is(err, lease.ErrSetup):
		s.counts.Setup++
	default:
		s.counts.Failed++
	}
	s.outage.fail(err, now)
}

// landPartsLocked books the parts of a response, or that there is none. Requests that can go are granted before the others are
// judged again: mostly none are left.
func (l *Core) landPartsLocked(f *Flight, outcomes []Outcome, err error, now Instant) {
	failed := Outcome{Err: err}
	for i, b := range f.buckets {
		o := &failed
		if err == nil {
			o = &outcomes[i]
		}
		b.loan.news = b.loan.land(f.sent, now, &f.parts[i], o, err == nil)
		l.freeLocked(b, now)
		l.MarkLocked(b)
	}
	l.ServeLocked(now)
	for _, b := range f.buckets {
		if b.HasLines() && (b.loan.news || b.fewWait()) {
			l.ReplanLocked(now, b)
		}
	}
}

// maxRejudged is how many requests are judged again after each response about their bucket. Where more wait, they are
// judged again when there is news that delays all of them.
const maxRejudged = 256

func (b *Bucket) fewWait() bool { return b.Waiting() <= maxRejudged }

// land books one part, and reports whether requests may have to wait for longer than planned for another reason than that
// other processes took tokens. Where only this part failed, the outage is that of its bucket.
func (n *loan) land(sent, now Instant, part *lease.Part, o *Outcome, alone bool) (news bool) {
	s := n.supply
	for _, r := range part.Back {
		s.counts.Returned += uint64(r.Tokens)
	}
	if o.Err == nil {
		s.counts.Leased += uint64(o.Tokens)
		s.processes = max(1, o.Processes)
		n.outage, n.wanted = outage{}, 0
		held, known := n.HeldUntil(), n.Processes() > 0
		n.Booked(sent, now, *part, o.LeasedPart)
		return !known || n.HeldUntil() > held
	}
	n.Failed(now, now)
	n.wanted = 0
	if alone {
		n.outage.fail(o.Err, now)
	}
	if n.IsAlone() && n.out().isSetup() {
		n.Alone(now, nil, false, nil)
	}
	n.look(now)
	return true
}

// ReplanSome judges the requests again that wait for these buckets, if their store is out of reach.
func (l *Core) ReplanSome(buckets []*Bucket) {
	l.Mu.Lock()
	defer l.UnlockJudged()
	now := l.NowLocked()
	for _, b := range buckets {
		if b.loan.out() != nil {
			b.loan.look(now)
			l.ReplanLocked(now, b)
		}
	}
	l.ServeLocked(now)
}

// A storeEvent says that a store went out of reach, is in reach again, or is set up wrongly; see [StoreEvent].
type storeEvent struct {
	Limits []string
	Err    error
	Down   time.Duration
}

// event returns what has changed since was; nil: nothing.
func (s *Supply) event(was *outage, now Instant) *storeEvent {
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
	Limits []string // which never change
	Err    error    // of the latest call
	Counts storeCounts
}

// StoreStates returns the state of each store.
func (l *Core) StoreStates() []storeState {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	all := make([]storeState, len(l.Supplies))
	for i, s := range l.Supplies {
		all[i] = storeState{s.limits, s.outage.err, s.counts}
	}
	return all
}
