package quota

import (
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	rest   = second      // a longer time without requests ends a stretch
	recent = 60 * second // after a refusal and the wait that it asked for; later, a rate that limits nothing is forgotten
)

// A stretch counts what a server accepted while requests were sent without a rest.
type stretch struct {
	last   meter.Instant // when the last request was sent
	since  meter.Instant // the beginning
	done   int64         // accepted since then
	before float64       // accepted per second before the last rest
}

func (s *stretch) take(due meter.Instant) {
	if due-s.last > rest {
		s.before = float64(s.done) * 1e9 / float64(max(due-s.since, second))
		s.since, s.done = due, 0
	}
	s.last = due
}

func (s *stretch) accepted(sentAt meter.Instant) {
	if sentAt >= s.since {
		s.done++
	}
}

// What is learned from refusals that no quota explains is a rate, because nothing else shows how many requests the server accepts. The
// next request after the first of them begins it, so that nothing is kept for hosts that are not used again.
type learned struct {
	meter   *aimd.Meter   // nil: nothing was learned
	earlier int64         // tickets up to that number belong to meters that were forgotten
	newest  int64         // ticket
	refused meter.Instant // the last refusal
	wait    int64         // for which it asked; 0: it did not say for how long
	begins  bool          // with the next request
	row     bool          // the last response was a refusal, too
}

// learn takes a refusal that no quota explains, and that asks to wait for d (0: it does not say for how long).
func (a *Account) learn(now meter.Instant, d int64) {
	a.refused, a.wait = now, d
	if a.meter != nil || a.adaptive || a.Off.Learn {
		return
	}
	if a.begins = true; d == 0 && a.own == 0 {
		a.Hold(now, aimd.FirstWait)
	}
}

// begin begins to learn with a request that is sent now. A client with limits of its own is trusted until a second refusal: at first,
// its requests are only spaced, because servers may refuse bursts.
func (a *Account) begin(now meter.Instant) {
	a.begins = false
	switch {
	case now-meter.AddInstant(a.refused, a.wait) > recent:
	case a.own > 0:
		a.meter = aimd.Spaced(now, a.own, a.dice.Uint64())
	default:
		p := aimd.Past{Since: a.stretch.since, Accepted: a.stretch.done, Before: a.stretch.before}
		a.meter = aimd.AfterRefusal(a.refused, p, a.wait, a.dice.Uint64())
	}
}

// take charges a request, and returns its ticket; 0: nothing limits it.
func (l *learned) take(due, now meter.Instant, waited bool) int64 {
	if l.meter == nil {
		return 0
	}
	l.newest = max(l.newest, l.earlier+l.meter.Take(due, now, 1, waited))
	return l.newest
}

// charge returns what the meter charged for a ticket. A ticket of an earlier meter has no charge.
func (l *learned) charge(ticket int64) (charged int64, ok bool) {
	return ticket - l.earlier, l.meter != nil && ticket > l.earlier+1
}

// answered takes the outcome of a request, and how long its response asks to wait.
func (l *learned) answered(now meter.Instant, ticket int64, sentAt meter.Instant, o aimd.Outcome, wait time.Duration) {
	if charged, ok := l.charge(ticket); ok {
		l.meter.Answered(now, charged, sentAt, 1, o, wait)
	}
	l.row = o == aimd.Throttled || o == aimd.Unavailable
	if l.idle(now) {
		l.forget()
	}
}

// returned takes a request that was not sent.
func (l *learned) returned(now meter.Instant, ticket int64) {
	if charged, ok := l.charge(ticket); ok {
		l.meter.GiveBack(charged, now, 1)
	}
}

func (l *learned) forget() { l.meter, l.begins, l.earlier = nil, false, (l.newest+1)&^1 }

// idle reports whether nothing is learned, or a rate that limits nothing any more.
func (l *learned) idle(now meter.Instant) bool {
	if now-meter.AddInstant(l.refused, l.wait) <= recent {
		return l.meter == nil && !l.begins
	}
	if l.meter == nil {
		return true
	}
	needed, _ := l.meter.Matters(now)
	return needed <= now && !l.meter.InUse(now)
}
