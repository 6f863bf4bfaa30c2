package quota

import "github.com/httpthrottle/throttle/internal/meter"

// A Report is a response, or that there is none.
type Report struct {
	Reading
	Sent     meter.Instant // when the request was granted
	Number   int64         // of the request; see [Gate.Take]
	Accepted bool          // the server did what was asked, or could not for a reason that has nothing to do with limits
	Done     bool          // the server did what was asked
	Doubtful bool          // the body of the response may say that it is no refusal
	Own      Own
}

// Own says what limits requests besides the server.
type Own struct {
	Rate     float64 // the lowest rate of the client's own limits, in such requests per second; 0: none has a rate
	Fastest  float64 // the highest
	Adaptive bool    // a limit learns its rate, and decides about a refusal of the request itself
	Slots    bool    // a limit learns how many requests may be in flight: a refusal without a wait says that these were too many
}

// Learns reports whether a limit learns from refusals.
func (o *Own) Learns() bool { return o.Adaptive || o.Slots }

func (g *Gate) apply(rep *Report, now meter.Instant) (c Change) {
	a, h := g.Account, rep.Hints
	if h == nil {
		h = new(Hints)
	}
	a.used = now
	if h.After == nil {
		a.Cover(&rep.Own)
	}
	explained, wait := g.Explains(&rep.Reading), int64(g.Wait(&rep.Reading, now))
	c.Explained = explained
	g.weigh(h, rep, explained, now)
	if h.Limited {
		a.byRefusal = true
		if h.After == nil || !h.After.Limited {
			a.Limited++
		}
	}
	waiting := len(a.waiting) > 0 // if not, there is nothing to plan again
	until, open, unnamed := a.Until(), waiting && g.Payable(now, 1), a.Knows(Unnamed)
	if h.After == nil {
		g.answered(rep, now)
	}
	for i := range rep.claims {
		q := g.Under(now, rep.claims[i].Name)
		q.report(now, rep.Sent, rep.Number, h.Limited, &rep.claims[i])
		if h.Wait > 0 && wait == 0 && rep.claims[i].Refused && (h.Asked || q.refills() == 0) { // the reset of a quota that refills is when it is full
			q.hold(now, int64(h.Wait), rep.claims[i].Reset)
		}
	}
	if !unnamed {
		a.adopt(now)
	}
	switch {
	case rep.Doubtful && (h.Limited || h.Bare != NotBare):
		c.Doubt = a.doubt(now, rep.Sent)
	case h.Limited && h.Final == nil:
		a.doubts.Stand()
	}
	h.from = a.Held()
	switch {
	case rep.Done:
		a.accepted(rep.Sent)
	case h.Final != nil:
		g.refuseFinally(&c, h, rep, now)
	case h.Limited:
		c.Lifted = g.refuse(h, rep, wait, explained, now)
	case a.final != nil && rep.Number == a.final.asker: // those that waited for its response are too late
		c.Late = OfAccount
	}
	h.to = a.Held()
	if a.Until() > until {
		c.Until = a.Until()
	}
	switch {
	case c.Until > 0 && h.Host:
		c.Late = OfHost
	case c.Until > 0, open && !g.Payable(now, 1), h.Final != nil:
		c.Late = OfAccount
	}
	return c
}

// weigh decides whether a bare response is a refusal. A limit of the client that learns has its own rules for that.
func (g *Gate) weigh(h *Hints, rep *Report, explained bool, now meter.Instant) {
	bare := &g.Account.bare
	switch {
	case h.After != nil:
	case h.Bare != NotBare && explained:
		h.Limited, rep.Accepted = true, false
	case h.Bare == NotBare && rep.Accepted:
		bare.Accepted()
	case h.Bare != NotBare && !rep.Own.Learns():
		bare.Given = bare.Given || h.Given
		h.Limited = bare.Refuses(h.Bare == Forbidden, now)
		rep.Accepted = false // as far as is known
	}
}

// refuse takes a refusal. If a limit of the client learns its rate, that limit decides about it. It reports whether a hold was taken
// back.
func (g *Gate) refuse(h *Hints, rep *Report, d int64, explained bool, now meter.Instant) (lifted bool) {
	a := g.Account
	switch {
	case h.Host && d > 0 && rep.Own.Adaptive:
		a.HoldHost(now, d)
	case rep.Own.Adaptive && !explained: // decides about it
	case explained && rep.named && d > 0 && !h.Global:
		g.holdQuotas(rep.claims, now+min(d, longestHold))
		if first := h.After; first != nil {
			a.TakeBack(first.from, first.to)
			return true
		}
	case d > 0:
		a.Refused(now, rep.Sent, d, h.Host && !explained, explained)
	case explained && h.Wait == 0:
		a.emptied(now, rep.Sent, rep.claims)
	case !explained && !rep.Own.Slots: // a limit that learns slots decides
		a.Backoff(now, rep.Sent, h.Bare)
	}
	return false
}

// holdQuotas stops the requests of the quotas that refused one.
func (g *Gate) holdQuotas(claims []Claim, until meter.Instant) {
	for i := range claims {
		if claims[i].Refused {
			q := g.Account.quota(until, claims[i].Name)
			q.held, q.try = max(q.held, until), max(q.try, q.retry(until))
		}
	}
}
