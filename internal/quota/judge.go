package quota

import (
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

// This file is what a response means. It is decided before the response changes anything.

// Judge decides what a response means. It does nothing if that was decided before.
func (g *Gate) Judge(rep *Report, now meter.Instant) {
	if rep.Verdict != server.NoVerdict {
		return
	}
	a, h := g.Account, rep.Hints
	if h == nil {
		h = new(Hints)
	}
	if rep.Own.Adaptive && a.isPart() {
		rep.Own.Adaptive, rep.Own.Slots, rep.Own.Number, rep.Parts = false, false, false, true
	}
	if h.After == nil {
		a.cover(&rep.Own)
	}
	if rep.lacks = g.lacks(&rep.Reading, now); !rep.lacks && g.isFar(&rep.Reading, now) {
		h.Wait = 0 // another limit, of which nothing is reported, refused the request
	}
	rep.Wait = g.wait(&rep.Reading, now)
	switch {
	case h.Final != nil && !rep.Done:
		rep.Verdict = server.Final
	case h.Explained, rep.lacks:
		rep.Verdict, rep.Wait = server.Exhausted, 0
	case g.explains(&rep.Reading):
		rep.Verdict = server.Exhausted
	case h.Limited:
		rep.Verdict = rep.tooMuch()
	case h.Bare != NotBare && !rep.Own.Learns(): // a limit that learns has its own rules for that
		if rep.Verdict = server.Nothing; a.suspects(h, now) {
			rep.Verdict = rep.tooMuch()
		}
	case rep.Done:
		rep.Verdict = server.Done
	case rep.Accepted:
		rep.Verdict = server.Declined
	default:
		rep.Verdict = server.Nothing
	}
	if h.Bare == NotBare && h.After == nil && rep.Verdict.Accepted() {
		a.bare.Accepted()
	}
	g.tests(rep, h, now)
}

// tests decides whether a refusal is one by chance. One that something explains which the server has reported is not. A refusal that
// asks the client to wait begins no trial, because nothing can be sent at once then.
func (g *Gate) tests(rep *Report, h *Hints, now meter.Instant) {
	a := g.Account
	if !rep.Verdict.Teaches() && (rep.Verdict != server.Exhausted || !h.Guessed) {
		return
	}
	if l := learnerOf(rep); h.After == nil && (!rep.Own.Adaptive || h.Wait == 0 || a.byChance()) {
		rep.Chance = a.known().chance.Refused(now, rep.Sent, rep.Number, a.sent, l)
		if rep.Chance == server.IsChance || rep.Chance == server.IsTried {
			a.asking = false
		}
	}
	if a.byChance() {
		rep.Verdict, rep.Wait = server.ByChance, g.wait(&rep.Reading, now)
	}
}

// isTried reports whether a refusal begins a trial, so that it holds nothing, and no rate is learned from it.
func (r *Report) isTried() bool { return r.Chance == server.IsTried && r.Hints.Wait == 0 }

// learnerOf returns what learns from a refusal.
func learnerOf(rep *Report) server.Learner {
	switch {
	case rep.Hints.Guessed:
		return server.Guess
	case rep.Own.Slots && !rep.Own.Adaptive:
		return server.Slots
	case rep.Hints.Wait == 0:
		return server.Rate
	}
	return server.Asked
}

// explains reports whether an empty quota explains a refusal, so that it is no news of a rate that is learned: one that accepted responses
// have reported before, or that the refusal names.
func (g *Gate) explains(r *Reading) bool {
	h, a := r.Hints, g.Account
	if h == nil || !h.Limited && h.Bare == NotBare {
		return false
	}
	if !r.empty {
		return slices.ContainsFunc(g.quotas, func(q *quota) bool { return q.believed() && q.left == 0 })
	}
	is := func(c Figures) bool { return g.emptied(&c) != nil }
	return r.named && !a.own.Adaptive && h.Wait > 0 || slices.ContainsFunc(r.figures, is)
}

// wait returns for how long a refusal asks the client to stay away; 0: it does not say, or no longer than until the end of the window of an
// empty quota, which stops requests by itself. A refusal after that end shows that it was wrong, unless others have used up the
// next window.
func (g *Gate) wait(r *Reading, now meter.Instant) time.Duration {
	h := r.Hints
	if h == nil || slices.ContainsFunc(r.figures, func(c Figures) bool {
		q := g.emptied(&c)
		return q != nil && (!h.Asked && q.backoff == 0 || q.reset > now || q.others() > 0) && c.Reset >= meter.AddInstant(now, int64(h.Wait)-rounding)
	}) {
		return 0
	}
	return h.Wait
}

// isFar reports whether a refusal asks for no wait but the reset of a quota that is far from empty: more is left than what has no response
// yet can have used. Then that quota is not the reason.
func (g *Gate) isFar(r *Reading, now meter.Instant) bool {
	h := r.Hints
	return h != nil && h.Wait > 0 && !h.Asked && !r.empty && slices.ContainsFunc(r.figures, func(c Figures) bool {
		return c.Reset == meter.AddInstant(now, int64(h.Wait)) && g.hasMore(&c, now)
	})
}

// hasMore reports whether a quota has more left than what has no response yet can have used.
func (g *Gate) hasMore(c *Figures, now meter.Instant) bool {
	q := g.Account.find(c.Name)
	switch {
	case !c.Counted:
		return g.Account.units != nil // these know what requests cost, and were not found to lack it
	case q == nil:
		return c.Left-c.Reserve > g.inFlight
	}
	return min(c.Left, q.remaining(now))-c.Reserve > q.inFlight*(1+q.others())
}

// emptied returns the quota of which a refusal reports that nothing is left, if accepted responses have reported it.
func (g *Gate) emptied(c *Figures) *quota {
	q := g.Account.find(c.Name)
	if q == nil || !q.served || !c.Refused {
		return nil
	}
	return q
}
