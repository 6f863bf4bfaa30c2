package limiter

import (
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/allowance"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/server"
)

// This file takes reports of servers in a unit, such as tokens, to the limits of that unit. Quotas of requests, and refusals that no such
// limit explains, go to the gate.

// countsRequests is the unit of a refusal by a limit of the number of requests.
const countsRequests = "requests"

// A finding is what an answer shows of a refusal, before any bucket takes it.
type finding struct {
	refused bool           // by any limit of the server
	charge  int            // whose limit of a unit refused it; -1: there is none
	sure    bool           // the headers name that limit; otherwise the body may name another one
	verdict server.Verdict // on it
	ofPart  bool           // it is of one part of the requests for which a rate is learned
	wait    time.Duration
}

// findingOf finds out which limit of a unit refused a request: the first one, if no quota that is reported explains the refusal. It marks
// in the hints what limits of units take, so that the gate does not.
func findingOf(charges []Charge, a *Answer) finding {
	f := finding{charge: -1, verdict: a.verdict, ofPart: a.ofPart, wait: a.retryAfter()}
	h := a.Hints
	if h == nil {
		return f
	}
	f.refused = h.Limited || h.Bare != quota.NotBare
	first := slices.IndexFunc(charges, func(c Charge) bool { return c.Limit().Unit != "" })
	if first < 0 {
		return f
	}
	others := false // a quota that no limit of a unit takes explains it
	for i := range h.Quotas {
		q := &h.Quotas[i]
		c := chargeFor(charges, q)
		q.Covered = c >= 0
		switch {
		case !h.Limited || !q.Known || q.Advisory:
		case c < 0:
			others = others || q.Left <= 0
		case !f.sure && q.Left < max(1, charges[c].Cost):
			f.charge, f.sure = c, true
		}
	}
	if h.Limited && !f.sure && !others && !h.Host && h.Final == nil {
		f.charge = first
	}
	h.Explained, h.Guessed = f.charge >= 0, f.charge >= 0 && !f.sure
	return f
}

// chargeFor returns the charge whose limit is in the unit of a quota: of several, that of the longest unit, which is the most exact
// one; -1: there is none.
func chargeFor(charges []Charge, q *quota.QuotaHint) int {
	best := -1
	for i := range charges {
		unit := charges[i].Limit().Unit
		if unit == "" || unit != q.Unit && !strings.Contains(q.Name, unit) {
			continue
		}
		if best < 0 || len(unit) > len(charges[best].Limit().Unit) {
			best = i
		}
	}
	return best
}

// figuresFor appends what hints report to the limit of the i-th charge. What is reported of a unit as a whole is left out if its
// parts are reported, too.
func figuresFor(figures []allowance.Figures, charges []Charge, i int, h *quota.Hints) []allowance.Figures {
	for j := range h.Quotas {
		q := &h.Quotas[j]
		if !q.Covered || !q.Known || q.Left < 0 || q.Limit == 0 || q.Advisory || chargeFor(charges, q) != i || h.HasPart(q.Name) {
			continue
		}
		c := allowance.Figures{Name: q.Name, Limit: q.Limit, Left: q.Left, Reset: -1}
		switch {
		case q.Ends:
			c.Reset = int64(q.Reset)
		case q.Full > 0:
			c.Reset = int64(q.Full)
		}
		figures = append(figures, c)
	}
	return figures
}

// reportsFrom notes which host reports to limits in units of servers.
func reportsFrom(charges []Charge, host string) {
	for i := range charges {
		if c := &charges[i]; c.Limit().Unit != "" {
			if m := c.Bucket.Meter.(*allowance.Meter); m.Host != host {
				m.Host = strings.Clone(host)
			}
		}
	}
}

// reportUnitLocked takes a response to a request for the i-th charge, whose limit is in the unit of a server.
func (l *Core) reportUnitLocked(r *Request, charges []Charge, i int, a *Answer, f *finding, now meter.Instant) {
	c := &charges[i]
	if a.Unsent {
		l.endLocked(r, c, a, now)
		return
	}
	m := c.Bucket.Meter.(*allowance.Meter)
	if a.Hints != nil {
		var room [4]allowance.Figures
		figures := figuresFor(room[:0], charges, i, a.Hints)
		m.Report(c.Paid, now, figures, f.refused)
		if len(figures) > 0 || f.charge == i && f.sure {
			a.Named |= 1 << i
		}
	} else {
		m.Report(c.Paid, now, nil, f.refused)
	}
	switch {
	case f.charge >= 0 && !f.sure && a.Doubts != nil:
		a.Doubts.refused = append(a.Doubts.refused, refusedUnit{c.Bucket, c.Paid, f.charge == i})
	case f.charge == i:
		m.Refused(c.Paid, now, int64(a.retryAfter()), a.Hints.Unit == countsRequests)
	case f.refused:
		m.GiveBack(c.Paid, now, c.Cost)
	case !c.ByBody && !c.settled:
		m.End(c.Paid, now)
	}
	c.Limit().Counts.Ended++
	l.replanLocked(c.Bucket)
}

// reportUnitsLocked takes what the body of a response reports to the limits that are in the units of the server. The request has ended.
func (l *Core) reportUnitsLocked(a *Answer, now meter.Instant) {
	explained := a.Hints.Explained
	f := findingOf(a.Charges, a)
	if a.Hints.After.Limited { // refusedUnitsLocked has taken the refusal
		f.charge, a.Hints.Explained = -1, explained
	}
	for i := range a.Charges {
		c := &a.Charges[i]
		if c.Limit().Unit == "" {
			continue
		}
		var room [4]allowance.Figures
		figures := figuresFor(room[:0], a.Charges, i, a.Hints)
		if len(figures) == 0 {
			continue
		}
		a.Named |= 1 << i
		m := c.Bucket.Meter.(*allowance.Meter)
		m.Report(c.Paid, now, figures, f.refused)
		if f.charge == i {
			m.Refused(c.Paid, now, int64(a.retryAfter()), false)
		}
		l.replanLocked(c.Bucket)
	}
}

// settleUnitLocked ends a request for a charge whose limit is in the unit of a server, and has been settled. The server keeps its account,
// whatever was charged here.
func (l *Core) settleUnitLocked(r *Request, c *Charge, charged int64, now meter.Instant) {
	l.payForGhostLocked(r, c, now) // it is paid with the response, of which this is the beginning
	c.Bucket.Meter.Settle(c.Paid, now, charged, c.Cost)
	c.Limit().Counts.Settle(charged, c.Cost)
	if c.Limit().Fair {
		l.turnLocked(r.turn(), c.Bucket, c.Cost-charged)
	}
	l.replanLocked(c.Bucket)
}

// A refusedUnit is a request that the limit of a bucket may have refused.
type refusedUnit struct {
	bucket *bucket.Bucket
	n      int64 // what Take returned
	guess  bool  // unless the body names another unit
}

// refusedUnitsLocked takes a refusal whose body has been read: it may name the unit of the limit that refused the request. The gate
// takes it if that is none of those that the request was charged in.
func (l *Core) refusedUnitsLocked(a *Answer, now meter.Instant) {
	d := a.Doubts
	if d == nil || len(d.refused) == 0 {
		return
	}
	by := d.unit(a.Hints.Unit)
	a.Hints.Explained = by >= 0
	for i, x := range d.refused {
		if m := x.bucket.Meter.(*allowance.Meter); i == by && d.As == 0 {
			m.Refused(x.n, now, int64(a.retryAfter()), a.Hints.Unit == countsRequests)
		} else {
			m.GiveBack(x.n, now, 0)
		}
		l.replanLocked(x.bucket)
		l.freeLocked(x.bucket, now)
	}
	d.refused = nil
}

// unit returns the index of the limit that takes a refusal, by the unit that the body names, if it does; -1: none of these. One of
// requests, of which nothing is reported, is taken by the limit that is the guess, which counts requests as well.
func (d *Doubts) unit(name string) int {
	best, guess := -1, -1
	for i, x := range d.refused {
		unit := x.bucket.Limit.Unit
		if x.guess {
			guess = i
		}
		if (name == unit || strings.HasSuffix(name, "-"+unit)) && (best < 0 || len(unit) > len(d.refused[best].bucket.Limit.Unit)) {
			best = i
		}
	}
	if best < 0 && (name == "" || name == countsRequests) {
		return guess
	}
	return best
}

// LeaveUnsettled notes that the response to a request has ended, and does not say what the i-th charge did cost.
func (l *Core) LeaveUnsettled(r *Request, i int) {
	c := &r.Charges()[i]
	if c.Limit().Unit == "" {
		return
	}
	now := l.begin()
	defer l.end()
	if !c.settled && r.spent&wasReturned == 0 {
		c.Bucket.Meter.(*allowance.Meter).End(c.Paid, now)
		l.markLocked(c.Bucket)
		l.freeLocked(c.Bucket, now)
	}
}
