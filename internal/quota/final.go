package quota

import (
	"unsafe"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	askEvery   = 60 * second    // in which one request asks whether a final refusal still holds
	finalStale = 86400 * second // for which it is remembered while no request asks
)

// A final is a refusal that no waiting ends. Requests are rejected, except one each minute, which asks whether it still holds. An
// accepted response to a request that was sent after the refusal ends it. It is not saved in a snapshot, because to ask costs one request.
type final struct {
	said  error         // what the server said
	since meter.Instant // when it said so first
	ask   meter.Instant // when the next request asks
	asker int64         // the number of the last request that asked; 0: none has
}

// Final returns since when a final refusal holds, when the next request asks whether it still does, and what the server said; nil: there
// is none.
func (a *Account) Final() (since, ask meter.Instant, said error) {
	if f := a.final; f != nil {
		return f.since, max(f.ask, a.Until()), f.said
	}
	return 0, 0, nil
}

// next returns when the n-th request from now on may leave, not before from; Never: the one before asks, and its response decides.
func (f *final) next(from meter.Instant, n int64) meter.Instant {
	switch {
	case f == nil:
		return from
	case n > 1:
		return meter.Never
	}
	return max(from, f.ask)
}

// refuseFinally takes a final refusal. The server may have asked for a wait, too: no request asks before its end.
func (g *Gate) refuseFinally(c *Change, h *Hints, rep *Report, now meter.Instant) {
	a := g.Account
	if h.Asked {
		a.Hold(now, int64(h.Wait))
	}
	if c.Late = OfAccount; a.refusedFinally(h.Final, rep.Number, now) {
		c.Final = h.Final
	}
}

// refusedFinally takes a final refusal of a request. It reports whether that is news: requests that were sent before the first one, or while
// another asks, say nothing more.
func (a *Account) refusedFinally(said error, number int64, now meter.Instant) (news bool) {
	f := a.final
	if f == nil {
		a.final = &final{said: said, since: now, ask: meter.AddInstant(now, askEvery)}
		return true
	}
	if number != f.asker {
		return false
	}
	f.said = said
	return true
}

// asks notes that a request is sent that asks.
func (f *final) asks(number int64, now meter.Instant) {
	if f != nil {
		f.ask, f.asker = meter.AddInstant(now, askEvery), number
	}
}

// unsent has another request ask, because that one was not sent.
func (f *final) unsent(number int64, now meter.Instant) {
	if f != nil && f.asker == number {
		f.ask, f.asker = now, 0
	}
}

// accepted takes the response to a request that did what was asked.
func (a *Account) accepted(sent meter.Instant) {
	if a.final != nil && sent > a.final.since {
		a.final = nil
	}
}

func (f *final) size() int {
	if f == nil {
		return 0
	}
	return int(unsafe.Sizeof(*f)) + len(f.said.Error()) + 64 // the error is about so much larger than its text
}

// A standing is what a refusal changes of an account, except for quotas.
type standing struct {
	barrier  barrier
	pace     pace
	asking   bool
	refusals int8
	host     barrier // of the server
}

func (a *Account) standing() standing {
	return standing{a.barrier, a.pace, a.asking, a.refusals, a.server.barrier}
}

// doubt keeps what a refusal is about to change until its body has been read; see [meter.Doubts]. The result reports whether it was
// undone.
func (a *Account) doubt(now, sent meter.Instant) func(now meter.Instant, as aimd.Outcome) bool {
	end := a.doubts.Open(now, a.standing())
	return func(now meter.Instant, as aimd.Outcome) bool {
		was := end(now, as != 0)
		if was == nil {
			return false
		}
		if a.server.set == a.set { // no other account has held the server since
			a.server.barrier = was.host
		}
		a.barrier, a.pace, a.asking, a.refusals = was.barrier, was.pace, was.asking, was.refusals
		if as == aimd.ClientError {
			a.bare.Accepted()
			a.answered(now, sent, true)
		}
		return true
	}
}
