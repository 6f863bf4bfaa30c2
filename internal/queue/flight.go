package queue

import (
	"time"

	"github.com/httpthrottle/throttle/internal/supply"
)

// A Flight is a call of a store. Core.Mu guards it, except for what is asked.
type Flight struct {
	*supply.Call[*Bucket]
	Supply *Supply
}

// An Outcome is the response to one part.
type Outcome = supply.Outcome

// Board collects what is to be asked for; nil: nothing, or the store must not be called now.
func (l *Core) Board(s *Supply) *Flight {
	now := l.begin()
	defer l.end()
	f := &Flight{s.Collect(now), s}
	for n := f.Next(); n != nil; n = f.Next() {
		if f.ask(n.Of(), now) == 0 {
			l.markLocked(n.Of())
		}
	}
	sent := f.Send()
	l.callLocked(s, now)
	if !sent {
		return nil
	}
	return f
}

// ask adds an ask for a bucket, and for the others that the first request there waits for. It returns the number of parts.
func (f *Flight) ask(b *Bucket, now Instant) int {
	if w := b.first(); f.Add(b.loan, b.demandLocked(now)) && w != nil {
		for i := range w.in.Costs {
			if other := w.bucket(i); other != b && other.isAskedWith(b) && other.first() == w {
				f.Add(other.loan, other.demandLocked(now))
			}
		}
	}
	return f.End()
}

// LandOnce books the response of a call, or that there is none. It reports false if the call was given up before. The store has
// become unreachable if it returns buckets: some waiters there cannot wait so long.
func (l *Core) LandOnce(f *Flight, outcomes []Outcome, err error, givenUp bool) (ok bool, queued []*Bucket, events []supply.Event) {
	now := l.begin()
	defer l.end()
	s := f.Supply
	if !f.Return(givenUp, now) {
		l.callLocked(s, now)
		return false, nil, nil
	}
	l.order.Backdate(f.Sent()) // a response may be late, as a timer may
	if !givenUp {
		s.latency.Add(time.Duration(now - f.Sent()))
	}
	up := s.Err() == nil
	if event := f.Note(detached(err), now); event != nil {
		events = append(events, *event)
	}
	if up && s.Err() != nil {
		queued = s.Asking()
	}
	events = append(events, l.landPartsLocked(f, outcomes, err, now)...)
	l.callLocked(s, now)
	return true, queued, events
}

// landPartsLocked books the parts of a response, or that there is none. Requests that can go are granted before the others are
// judged again: mostly none are left.
func (l *Core) landPartsLocked(f *Flight, outcomes []Outcome, err error, now Instant) (events []supply.Event) {
	failed := Outcome{Err: detached(err)}
	news := make([]bool, f.Parts())
	for i := range news {
		o := &failed
		if err == nil {
			o = &outcomes[i]
			o.Err = detached(o.Err)
		}
		var event *supply.Event
		if news[i], event = f.Book(i, o, err == nil, now); event != nil {
			events = append(events, *event)
		}
		b := f.Of(i)
		l.freeLocked(b, now)
		l.markLocked(b)
	}
	l.serveLocked(now)
	for i := range news {
		if b := f.Of(i); b.HasLines() && (news[i] || b.fewWait()) {
			l.replanLocked(now, b)
		}
	}
	return events
}

// maxRejudged is how many requests are judged again after each response about their bucket. Where more wait, they are
// judged again when there is news that delays all of them.
const maxRejudged = 256

func (b *Bucket) fewWait() bool { return b.Waiting() <= maxRejudged }

// ReplanSome judges the requests again that wait for these buckets, if their store is unreachable.
func (l *Core) ReplanSome(buckets []*Bucket) {
	now := l.begin()
	defer l.end()
	for _, b := range buckets {
		if b.loan.Out() != nil {
			b.loan.Look(now)
			l.replanLocked(now, b)
		}
	}
}

// A storeState is what is known of a store.
type storeState struct {
	Limits  []string // which never change
	Err     error    // of the latest call
	Counts  supply.Counts
	Latency WaitCounts
}

// StoreStates returns the state of each store.
func (l *Core) StoreStates() []storeState {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	all := make([]storeState, len(l.supplies))
	for i, s := range l.supplies {
		all[i] = storeState{s.Limits, s.Err(), s.Counts, s.latency}
	}
	return all
}
