package limiter

import (
	"errors"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

// collect collects what is to be asked for; nil: nothing, or the store must not be called now.
func (l *Core) collect(s *bucket.Supply) *bucket.Call {
	now := l.begin()
	defer l.end()
	f := &bucket.Call{Call: s.Collect(now), Supply: s}
	for n := f.Next(); n != nil; n = f.Next() {
		if f.Ask(n.Of(), now) == 0 {
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

// book books the response of a call, or that there is none. It reports false if the call was given up before. The store has
// become unreachable if it returns buckets: some waiters there cannot wait so long.
func (l *Core) book(f *bucket.Call, outcomes []supply.Outcome, err error, givenUp bool) (ok bool, queued []*bucket.Bucket, events []supply.Event) {
	now := l.begin()
	defer l.end()
	s := f.Supply
	if !givenUp && (err == nil || errors.Is(err, store.ErrLate)) {
		f.Arrived(now)
	}
	if !f.Return(givenUp, now) {
		if !givenUp {
			l.bookLateLocked(f, outcomes, err, now)
		}
		l.callLocked(s, now)
		return false, nil, nil
	}
	l.order.Backdate(f.Sent()) // a response may be late, as a timer may
	if !givenUp {
		s.Latency.Add(time.Duration(now - f.Sent()))
	}
	up := s.Err() == nil
	if event := f.Note(detached(err), now); event != nil {
		events = append(events, *event)
	}
	if up && s.Err() != nil {
		queued = s.Asking()
	}
	events = append(events, l.bookPartsLocked(f, outcomes, err, now)...)
	l.callLocked(s, now)
	return true, queued, events
}

// bookPartsLocked books the parts of a response, or that there is none. Requests that can go are granted before the others are checked
// again, because then few are left.
func (l *Core) bookPartsLocked(f *bucket.Call, outcomes []supply.Outcome, err error, now meter.Instant) (events []supply.Event) {
	failed := supply.Outcome{Err: detached(err)}
	news := make([]bool, f.Parts())
	for i := range news {
		o := &failed
		if err == nil {
			o = &outcomes[i]
			o.Err = detached(o.Err)
		}
		var event *supply.Event
		b := f.Of(i)
		held := b.HeldAlone()
		if news[i], event = f.Book(i, o, err == nil, now); event != nil {
			events = append(events, *event)
		}
		if b.NoteHold(); b.HeldAlone() < held { // other processes hold budgets, too, and end holds
			l.recountHeldLocked(b.Limit)
		}
		l.freeLocked(b, now)
		l.markLocked(b)
	}
	l.serveLocked(now)
	for i := range news {
		if b := f.Of(i); b.Waiting() > 0 && (news[i] || b.FewWait()) {
			l.replanLocked(b)
		}
	}
	return events
}

// bookLateLocked returns to the store what it has granted to a call that was given up. A bucket that was forgotten returns nothing.
func (l *Core) bookLateLocked(f *bucket.Call, outcomes []supply.Outcome, err error, now meter.Instant) {
	for i := range f.Parts() {
		o := supply.Outcome{Err: err}
		if err == nil {
			o = outcomes[i]
		}
		if b := f.Of(i); b.Key == "" || b.IsKept() {
			f.Late(i, &o, now)
			l.markLocked(b)
		}
	}
}

// replanSome checks the requests again that wait for these buckets, if their store is unreachable.
func (l *Core) replanSome(buckets []*bucket.Bucket) {
	now := l.begin()
	defer l.end()
	for _, b := range buckets {
		if b.Leased().Out() != nil {
			b.Leased().Update(now)
			l.replanLocked(b)
		}
	}
}

// StoreStates returns the state of each store.
func (l *Core) StoreStates() []bucket.StoreState {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	all := make([]bucket.StoreState, len(l.supplies))
	for i, s := range l.supplies {
		processes, age := s.Latest(now)
		all[i] = bucket.StoreState{Limits: s.Limits, Err: s.Err(), Counts: s.Counts, Latency: s.Latency, Processes: processes, Age: age}
	}
	return all
}
