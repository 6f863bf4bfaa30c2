package quota

import (
	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
)

// This file is what refusals change of an account.

// Until returns when the last hold ends.
func (a *Account) Until() meter.Instant { return max(a.held, a.server.held) }

// Hold holds the account. After a day, requests ask one by one whether a longer hold has ended.
func (a *Account) Hold(now meter.Instant, d int64) {
	a.barrier.Hold(now, d)
	a.asking = a.asking || d > longestHold
}

// guess holds the account for d, for which the server has not asked.
func (a *Account) guess(now meter.Instant, d int64) {
	held := a.held
	a.Hold(now, d)
	a.held = max(held, a.backoff.Until(a.held, 1))
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

// holdFor holds the account, and the others that the refusal concerns.
func (a *Account) holdFor(r *refusal, d int64) {
	switch {
	case r.host && r.kind == Refused:
		a.holdHost(r.at, d)
	case r.all && a.group != nil:
		for _, x := range a.group.accounts {
			x.Hold(r.at, d)
		}
	default:
		a.Hold(r.at, d)
	}
}

// isNews reports whether a refused request was sent after the last hold, so that it shows that this was too short. Other refusals are of
// the event that began the hold, or of a request that did not wait for it, because it asked whether the hold concerns it.
func (a *Account) isNews(r *refusal) bool {
	return r.sent > max(a.set, a.server.set) && r.sent >= a.Until()
}

// refused takes a refusal that asks for a wait. If a quota explains it, the rate was right; otherwise a pace begins.
func (a *Account) refused(r *refusal) {
	news := a.isNews(r)
	if news {
		a.row.add(r.sent, a.lately.Over(closureOver))
	}
	a.holdFor(r, r.wait)
	switch {
	case r.kind == Exhausted:
	case news:
		a.begin(r, r.wait, a.Until())
	default: // the other refusals of an event may ask for more
		a.pace.putOff(r.at, a.Until())
		a.pace.joined()
	}
}

// backOff takes a refusal without a known wait. It holds the account for as long as eight requests take at the rate that was accepted,
// from 1/8 s to 1 s, times two for each refusal before it in the row, at most 64 s, or as what is known of closures shows. Bare refusals in
// a row set no hold: they mostly come from a server that is down, which shows nothing about its limit.
//
// The first refusal of a client with limits of its own sets no hold, but from then on requests are sent evenly, because some servers
// refuse requests that come too close together.
func (a *Account) backOff(r *refusal) {
	if !a.isNews(r) {
		a.pace.joined()
		return
	}
	n := int(a.refusals)
	if a.own.Rate > 0 {
		a.pace.space(r.at, a.backoff.Last())
		n--
	}
	a.row.add(r.sent, a.lately.Over(closureOver))
	switch {
	case n < 0:
		a.set = r.at
	case r.bare != NotBare && a.asking:
		a.set, a.pace.next = r.at, meter.AddInstant(r.at, a.backoff.Wait(second, r.bare == Unavailable))
	default:
		few := min(8e9/max(a.pace.rate, a.lately.Over(rateOver).Rate(r.at)), float64(second))
		wait := min(max(int64(few), second/8)<<n, second<<longestBack)
		a.guess(r.at, a.row.wait(r.at, a.backoff.Wait(wait, false)))
		a.begin(r, wait, a.Until())
	}
}

// emptied takes a refusal because of quotas of which nothing is left. If it is not known until when, one request at a time asks. Requests
// resume evenly once something is left: all that wait would be sent at that instant otherwise.
func (a *Account) emptied(r *refusal, figures []Figures) {
	asks := r.at
	for i := range figures {
		if q := a.find(figures[i].Name); figures[i].Refused && q.reset == meter.Never {
			asks = max(asks, q.try)
		}
	}
	if asks > r.at && r.sent > a.set {
		a.set = r.at
		a.begin(r, second, asks)
	}
}

// begin begins a pace at the end of a wait.
func (a *Account) begin(r *refusal, wait int64, end meter.Instant) {
	a.pace.refused(r, wait, end, a.lately.Over(rateOver), &a.own, a.backoff.Last())
}

// holdQuotas stops the requests of the quotas that refused one.
func (a *Account) holdQuotas(figures []Figures, until meter.Instant) {
	for i := range figures {
		if figures[i].Refused {
			a.quota(until, figures[i].Name).holdUntil(until)
		}
	}
}

// takeBack undoes a hold, and the pace after it, unless another hold has come since. It reports that.
func (a *Account) takeBack(h hold) bool {
	if a.held == h.to {
		a.held, a.pace.rate, a.pace.next = h.from, 0, h.from
	}
	return true
}

// answered takes a response.
func (a *Account) answered(now, sent meter.Instant, kind Kind) {
	a.pace.heard = now
	if !kind.accepted() {
		return
	}
	if sent > a.set {
		a.row.accepted(sent, a.Until())
		if a.asking {
			a.asking, a.pace.next = false, max(0, a.backoff.Last())
		}
	}
	a.lately.Add(sent, 1, a.pace.spacing(sent))
	a.pace.accepted(sent)
	a.backoff.Accepted(sent)
}

// suspects returns what a response means that refuses without a word about limits.
func (a *Account) suspects(h *Hints, now meter.Instant) Kind {
	a.bare.Given = a.bare.Given || h.Given
	if a.bare.Refuses(h.Bare == Forbidden, now) {
		return Refused
	}
	return Nothing
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
func (a *Account) doubt(now, sent meter.Instant) func(now meter.Instant, as aimd.Outcome) bool {
	end := a.doubts.Open(now, standing{a.barrier, a.pace, a.row.copied(), a.server.barrier})
	return func(now meter.Instant, as aimd.Outcome) bool {
		was := end(now, as != 0)
		if was == nil {
			return false
		}
		if a.server.set == a.set { // no other account has held the server since
			a.server.barrier = was.host
		}
		a.barrier, a.pace, a.row = was.barrier, was.pace, was.row
		if as == aimd.ClientError {
			a.bare.Accepted()
			a.answered(now, sent, Declined)
		}
		return true
	}
}
