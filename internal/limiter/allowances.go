package limiter

import (
	"strings"

	"github.com/httpthrottle/throttle/internal/allowance"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// This file is how what servers report in a unit comes to the limits of that unit.

// A taken is what the limits of units take of a response.
type taken struct {
	by      int  // the charge whose limit refused the request; -1: none did
	sure    bool // what the headers report says so
	refused bool
}

// takeLocked decides which limit refused a request, and marks in the hints what limits of units take, so that the gate does not.
func takeLocked(charges []Charge, h *quota.Hints) (t taken) {
	t.by = -1
	if h == nil {
		return t
	}
	t.refused = h.Limited || h.Bare != quota.NotBare
	first, other := -1, false
	for i := range charges {
		if charges[i].Limit.Unit != "" && first < 0 {
			first = i
		}
	}
	if first < 0 {
		return t
	}
	for i := range h.Quotas {
		q := &h.Quotas[i]
		j := chargeFor(charges, q)
		q.Covered = j >= 0
		switch {
		case !h.Limited || !q.Known || q.Advisory:
		case j < 0:
			other = other || q.Left <= 0
		case t.by < 0 && (q.Left <= 0 || q.Left < charges[j].Cost):
			t.by, t.sure = j, true
		}
	}
	if t.by < 0 && h.Limited && !other && !h.Host && h.Final == nil {
		t.by = first
	}
	h.Explained = t.by >= 0
	return t
}

// chargeFor returns the index of the charge whose limit is in the unit of a quota: of several, that with the longest name; -1: there is none.
func chargeFor(charges []Charge, q *quota.QuotaHint) int {
	best := -1
	for i := range charges {
		unit := charges[i].Limit.Unit
		if unit == "" || unit != q.Unit && !strings.Contains(q.Name, unit) {
			continue
		}
		if best < 0 || len(unit) > len(charges[best].Limit.Unit) {
			best = i
		}
	}
	return best
}

// claimsFor returns what hints report to the limit of a charge. What is reported of a unit as a whole is left out if its parts are reported, too.
func claimsFor(room []allowance.Claim, charges []Charge, i int, h *quota.Hints) []allowance.Claim {
	if h == nil {
		return nil
	}
	for j := range h.Quotas {
		q := &h.Quotas[j]
		if !q.Known || q.Left < 0 || q.Limit == 0 || q.Advisory || !q.Covered || chargeFor(charges, q) != i || hasPart(h, q) {
			continue
		}
		c := allowance.Claim{Name: q.Name, Unit: q.Unit, Limit: q.Limit, Left: q.Left, Reset: -1}
		if q.Ends {
			c.Reset = int64(q.Reset)
		}
		room = append(room, c)
	}
	return room
}

// hasPart reports whether hints report a part of a quota, such as input-tokens of tokens.
func hasPart(h *quota.Hints, of *quota.QuotaHint) bool {
	for i := range h.Quotas {
		if head, ok := strings.CutSuffix(h.Quotas[i].Name, of.Name); ok && strings.HasSuffix(head, "-") {
			return true
		}
	}
	return false
}

// reportUnitLocked takes a response to a request for the i-th charge, whose limit is in the unit of a server.
func (l *Core) reportUnitLocked(r *Request, charges []Charge, i int, a *Answer, t taken, now meter.Instant) {
	c := &charges[i]
	m := c.Bucket.Meter.(*allowance.Meter)
	if a.Unsent {
		l.endLocked(r, c, a, now)
		return
	}
	var room [4]allowance.Claim
	switch {
	case t.refused && t.by >= 0 && !t.sure && a.Doubts != nil:
		a.Doubts.refused = append(a.Doubts.refused, refusedUnit{c.Bucket, c.Paid, t.by == i})
	case t.refused && t.by == i:
		m.Refused(c.Paid, now, int64(a.retryAfter()))
	case t.refused:
		m.GiveBack(c.Paid, now, c.Cost)
	case !c.ByBody && !c.settled:
		m.End(c.Paid, now, -1)
	}
	c.Limit.Counts.Ended++
	l.replanLocked(c.Bucket)
}

// refusedUnitsLocked takes a refusal whose body has been read: it may name the unit of the limit that refused the request. The gate takes it
// if that is none of those that the request was charged in.
func (l *Core) refusedUnitsLocked(a *Answer, now meter.Instant) {
	d := a.Doubts
	if d == nil || len(d.refused) == 0 {
		return
	}
	by := d.unit(a.Hints.Unit)
	a.Hints.Explained = by >= 0
	for i, x := range d.refused {
		if m := x.bucket.Meter.(*allowance.Meter); i == by && d.As == 0 {
			m.Refused(x.n, now, int64(a.retryAfter()))
		} else {
			m.GiveBack(x.n, now, 0)
		}
		l.replanLocked(x.bucket)
		l.freeLocked(x.bucket, now)
	}
	d.refused = nil
}

// unit returns the index of the limit that refused a request, by the unit that the body names, if it does; -1: none of these.
func (d *Doubts) unit(name string) int {
	best := -1
	for i, x := range d.refused {
		unit := x.bucket.Limit.Unit
		switch {
		case name == "" && x.guess:
			return i
		case name != unit && !strings.HasSuffix(name, "-"+unit):
		case best < 0 || len(unit) > len(d.refused[best].bucket.Limit.Unit):
			best = i
		}
	}
	return best
}
