package quota

import (
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

const rateOver = 10 * second // over which a rate was accepted lately

// Shown is what refusals have shown of a server, besides its rate.
type shown struct {
	chance server.Chance
	spell  spell
}

// known returns what refusals have shown, and makes it if there was none.
func (a *Account) known() *shown {
	if a.shown == nil {
		a.shown = new(shown)
	}
	return a.shown
}

// byChance reports whether refusals are by chance, as far as is known.
func (a *Account) byChance() bool { return a.shown != nil && a.shown.chance.On() }

// A first is the first refusal of a rate that is to be learned.
type first struct {
	known bool
	sent  meter.Instant // when the request was sent
	wait  int64         // for which it asked; 0: it did not
	bare  bool          // it was a 503 that did not mention a limit
	held  int64         // for which requests wait all the same
	began bool          // the rate began with one that was accepted before
	lone  bool          // no other one was refused with it, and nothing explains it: it may be by chance
}

// learn takes what a response shows of the rate. The first refusal that no report explains begins a learned rate, from the next request on.
// If the client has limits of its own, that happens only once they are known to be too high.
func (a *Account) learn(g *Gate, rep *Report, now meter.Instant) {
	o, after := rep.outcome(), rep.Hints != nil && rep.Hints.After != nil
	if after && (o != aimd.Throttled || rep.Hints.After.verdict.Refused()) { // the headers have shown it
		return
	}
	wait := a.backoff.Asked(int64(rep.Wait))
	if o == aimd.Throttled && a.own.trusted() {
		if wrong := a.even.refused(rep.Sent, now, a.Until(), a.backoff.Last()); a.rate == nil && !wrong {
			rep.Learned(server.TooMany)
			return
		}
	}
	if a.rate == nil {
		if (o == aimd.Throttled && !rep.isTried() || a.endless(rep)) && !a.first.known {
			a.first = first{known: true, sent: rep.Sent, wait: wait, bare: rep.Hints.Bare == Unavailable, lone: o == aimd.Throttled}
			if wait == 0 && o == aimd.Throttled {
				a.first.held = a.few(now)
				a.Guess(now, a.first.held)
			}
		} else if o == aimd.Throttled {
			a.first.lone = false
		}
		a.first.wait = max(a.first.wait, wait)
		return
	}
	m := a.rate
	if h := rep.Hints; h != nil && h.Bare == Unavailable && rep.Verdict != server.Declined && !rep.Own.Adaptive && !rep.Own.Slots {
		o = aimd.Unavailable
	}
	switch rep.Chance {
	case server.IsChance:
		m.Unlearn(now)
	case server.IsNone:
		m.Relearn(now)
	}
	number := max(0, rep.Number) // of one that was sent before there was an account it is less
	if after {
		m.Belied(now, number, rep.Sent, 1, time.Duration(wait))
	} else {
		m.Answered(now, number, rep.Sent, 1, o, time.Duration(wait))
	}
	if rep.Chance == server.IsTried {
		m.Trial(now)
	}
	if gap, until := m.Silent(); gap > 0 {
		if rep.Learned(server.Closed); until > a.held {
			a.held, a.set, a.guessed = until, now, true
		}
	}
	if o == aimd.OK {
		m.Room(now, g.Room(now))
	}
}

// endless reports whether a refusal is due to a quota of which nothing is left, and it is not known until when. Then one request at a time asks.
// Once something is left, all that wait would be sent at that instant, if no rate bounded them.
func (a *Account) endless(rep *Report) bool {
	return rep.Verdict == server.Exhausted && rep.Wait == 0 && rep.Hints.Wait == 0 && !rep.Own.Covered() && slices.ContainsFunc(rep.figures, func(c Figures) bool {
		return c.Refused && c.Reset == meter.Never && a.knows(c.Name)
	})
}

// few returns how long eight requests take at the rate that was accepted: for that, the first refusal stops requests that asks for no wait.
func (a *Account) few(now meter.Instant) int64 {
	return max(int64(min(8e9/a.lately.Over(rateOver).Rate(now), float64(second))), second/8)
}

// start returns what is known of an account of which a request was refused.
func (a *Account) start() (s aimd.Start) {
	f := &a.first
	s = aimd.Start{Sent: f.sent, Wait: f.wait, Held: f.held, Bare: f.bare, Given: a.lately.Over(rateOver), Number: a.sent, Backoff: a.backoff}
	s.Lone = f.lone && s.Given.N > 0
	if a.own.trusted() {
		s.Own = a.even.most
	}
	return s
}

// outcome returns what a response says of the rate that is learned.
func (r *Report) outcome() aimd.Outcome {
	switch {
	case r.Verdict == server.Done:
		return aimd.OK
	case r.Verdict == server.Declined:
		return aimd.ClientError
	case !r.Verdict.Teaches(), r.Own.Adaptive, r.Own.Slots && r.Wait == 0: // a limit that learns decides
		return aimd.Ignore
	}
	return aimd.Throttled
}

// learned returns the rate that is learned, and why it is as it is.
func (a *Account) learned(now meter.Instant) (rate float64, why Why) {
	s := a.start()
	rate, known := s.Rate(now)
	ceiling, gap := 0.0, int64(0)
	last := a.backoff.Last()
	switch {
	case a.rate == nil && now-max(a.heard, a.Until()) > second, a.rate != nil && a.rate.Idle(now, a.unused(now, now-last)):
		return 0, NoRate // the next request shows nothing of it
	case a.rate != nil:
		rate, known = a.rate.PerSecond(now), a.first.began
		ceiling, _, _ = a.rate.Bounds(now)
		gap, _ = a.rate.Silent()
	}
	switch {
	case gap > 0:
		return 1e9 / float64(gap), Asking
	case now < a.even.until && rate >= a.even.most:
		return a.even.most, OwnLimit
	case ceiling > 0:
		return rate, Between
	case known:
		return rate, AsBefore
	}
	return rate, Finding
}

// unlearn forgets what refusals have shown of the rate.
func (a *Account) unlearn() { a.rate, a.first, a.even = nil, first{}, evenly{most: a.even.most} }

// ready returns when the rate allows a request; sure is false if that depends on a response. A waiter's stack has no room for more.
//
//go:noinline
func (a *Account) ready(from meter.Instant) (at meter.Instant, sure bool) {
	if at = a.rate.Ready(from, 0, 1); at == meter.Never {
		return from, false
	}
	return at, true
}

// rateMatters is [Gate.Matters] of what refusals have shown of the rate.
//
//go:noinline
func (a *Account) rateMatters(now meter.Instant) (must, full meter.Instant) {
	if a.rate != nil {
		must, full = a.rate.Matters(now)
		if a.rate.Idle(now, true) { // it is forgotten
			full = max(must, meter.AddInstant(max(a.heard, a.Until(), a.backoff.Last()+a.rate.Gap()), second))
		}
		return must, full
	}
	must = meter.AddInstant(max(a.Until(), a.set), a.backoff.Most()) // the next refusal lengthens the wait
	return must, must
}

// spacing returns the time that is left between two requests; 0: none is.
func (a *Account) spacing() int64 {
	if a.rate == nil {
		return 0
	}
	return a.rate.Gap()
}

// copied returns what stays as it is when this changes.
func (s *shown) copied() *shown {
	if s == nil {
		return nil
	}
	own := *s
	return &own
}

// number numbers a request that is sent.
func (a *Account) number(due, now meter.Instant, waited bool, rested int64) {
	if !a.first.known { // as for most
		a.sent++
		return
	}
	a.learnedNumber(due, now, waited, rested)
}

// learnedNumber is number once a refusal is known.
//
//go:noinline
func (a *Account) learnedNumber(due, now meter.Instant, waited bool, rested int64) {
	switch {
	case a.rate != nil && !waited && a.rate.Idle(now, a.unused(due, rested)):
		a.rate, a.first = nil, first{}
	case a.rate == nil && due >= a.Until(): // one that asks whether a hold concerns it does not count
		s := a.start()
		for _, g := range a.gates {
			s.InFlight += g.inFlight
		}
		a.rate, a.first.began = aimd.Begin(due, &s, a.dice.Uint64())
	}
	if a.rate == nil {
		a.sent++
		return
	}
	a.sent = a.rate.Take(due, now, 1, waited)
}

// unused reports whether a request could have been sent for longer than a second, and none was.
func (a *Account) unused(due meter.Instant, rested int64) bool {
	return rested > second && due-max(a.heard, a.Until(), due-rested+a.rate.Gap()) > second
}

// moves takes that a gate moves to another account, with the requests in flight.
func (a *Account) moves(to *Account, g *Gate, now meter.Instant) {
	if more := a.sent - to.sent; more > 0 {
		to.sent = a.sent
		to.units.skip(more)
	}
	if a.rate != nil {
		a.rate.Left(now, g.inFlight)
	}
	if to.rate != nil {
		to.rate.Number(to.sent)
		to.rate.Left(now, -g.inFlight)
	}
}
