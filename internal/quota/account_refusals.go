package quota

import (
	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

// This file is what refusals change of an account.

// Until returns when the last hold ends.
func (a *Account) Until() meter.Instant { return max(a.held, a.server.held) }

// Guessed reports whether no server has asked for the end of the last hold.
func (a *Account) Guessed() bool { return a.guessed && a.held >= a.server.held }

// Hold holds the account. After a day, requests ask one by one whether a longer hold has ended.
func (a *Account) Hold(now meter.Instant, d int64) {
	until := a.held
	a.barrier.Hold(now, d)
	a.guessed = a.guessed && a.held == until
	a.asking = a.asking || d > longestHold
}

// Guess holds the account for a time that no server has asked for.
func (a *Account) Guess(now meter.Instant, d int64) {
	until := a.held
	a.barrier.Hold(now, d)
	a.guessed = a.guessed || a.held > until
}

// holdHost holds the account for d. Because one account may have provoked the response, it holds the server's others for a minute at
// most, unless requests to them were accepted during such a hold.
func (a *Account) holdHost(now meter.Instant, d int64) {
	a.Hold(now, d)
	if s := a.server; !a.local {
		s.Hold(now, min(d, othersMost))
		s.last, s.by = a.last, a
	}
}

// holdFor holds the account, and the others that the refusal concerns: those of the host, where the server may be closed to them, too, and those
// with the same keys that it counts separately, where it says that.
func (a *Account) holdFor(rep *Report, now meter.Instant, d int64) {
	switch {
	case rep.Hints.Host && rep.Verdict.Teaches():
		a.holdHost(now, d)
	case rep.Hints.Global && a.group != nil:
		for _, x := range a.group.accounts {
			x.Hold(now, d)
		}
	default:
		a.Hold(now, d)
	}
}

// holdQuotas stops the requests of the quotas that refused one.
func (a *Account) holdQuotas(figures []Figures, until meter.Instant) {
	for i := range figures {
		if figures[i].Refused {
			a.quota(until, figures[i].Name).holdUntil(until)
		}
	}
}

// takeBack undoes a hold, unless another hold has come since.
func (a *Account) takeBack(now meter.Instant, h hold) {
	if a.held != h.to {
		return
	}
	a.held, a.guessed = h.from, h.guessed
	if a.rate != nil {
		a.rate.Resume(now)
	}
}

// answered takes a response.
func (a *Account) answered(sent meter.Instant, v server.Verdict) {
	if !v.Accepted() {
		return
	}
	if sent > a.set && a.asking {
		a.asking, a.even.next = false, max(0, a.backoff.Last())
	}
	a.lately.Add(sent, 1, a.spacing())
	a.backoff.Accepted(sent)
}

// suspects reports whether a response that does not mention limits is a refusal because of one.
func (a *Account) suspects(h *Hints, now meter.Instant) bool {
	a.bare.Given = a.bare.Given || h.Given
	return a.bare.Refuses(h.Bare == Forbidden, now)
}

// refusedFinally takes a final refusal, and returns what the server said if that is news. The server may have asked for a wait, too: no
// request asks before its end.
func (a *Account) refusedFinally(rep *Report, now meter.Instant) (news error) {
	h := rep.Hints
	if h.Asked {
		a.Hold(now, int64(h.Wait))
	}
	if a.final == nil {
		a.setFinal(newFinal(h.Final, now))
		return h.Final
	}
	if a.final.saidAgain(h.Final, asker{a, rep.Number}) {
		return h.Final
	}
	return nil
}

// setFinal sets the final refusal of all accounts of the group.
func (a *Account) setFinal(f *final) {
	a.final = f
	if a.group != nil {
		for _, x := range a.group.accounts {
			x.final = f
		}
	}
}

// Final returns since when a final refusal holds, when the next request asks whether it still does, and what the server said; nil: there
// is none.
func (a *Account) Final() (since, ask meter.Instant, said error) {
	if f := a.final; f != nil {
		return f.since, max(f.ask, a.Until()), f.said
	}
	return 0, 0, nil
}

// doubt keeps what a refusal is about to change until its body has been read; see [meter.Doubts]. The result reports whether it was
// undone.
func (a *Account) doubt(now meter.Instant, rep *Report) func(now meter.Instant, as aimd.Outcome) bool {
	sent, learned := rep.Sent, func(meter.Instant, aimd.Outcome) bool { return false }
	if a.rate != nil {
		learned = a.rate.Doubt(now, rep.Number, sent, 1)
	}
	end := a.doubts.Open(now, standing{a.barrier, a.server.barrier, a.last, a.asking, a.guessed, a.even, a.rate, a.first, a.shown.copied()})
	return func(now meter.Instant, as aimd.Outcome) bool {
		learned(now, as)
		was := end(now, as != 0)
		if was == nil {
			return false
		}
		if a.server.set == a.set { // no other account has held the server since
			a.server.barrier = was.host
		}
		a.barrier, a.last, a.asking, a.guessed, a.even, a.shown = was.barrier, was.last, was.asking, was.guessed, was.even, was.shown
		if was.rate == nil || a.rate != nil { // else it has been forgotten since
			a.first = was.first
		}
		if was.rate == nil {
			a.rate = nil
		}
		if as == aimd.ClientError {
			a.bare.Accepted()
			a.answered(sent, server.Declined)
		}
		return true
	}
}
