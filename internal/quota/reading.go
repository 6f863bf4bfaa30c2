package quota

import "github.com/httpthrottle/throttle/internal/meter"

// Figures are what a response reports about one quota, at an instant.
type Figures struct {
	Name    string
	Limit   int64 // -1: unknown
	Left    int64
	Reset   meter.Instant // Never: unknown
	Counted bool          // its unit is requests
	Reserve int64         // tokens left to other clients
	Refused bool          // the request was refused because nothing was left
	Unit    string        // as the server names it; "": requests
	Covered bool          // a limit of the client, in its unit, takes it
}

// A Reading is what hints come to at an instant.
type Reading struct {
	Hints   *Hints // nil: there are none
	empty   bool   // they report that a quota is empty, for which the request was refused
	named   bool   // they name that quota
	figures []Figures
}

// Read returns what hints come to now.
func (h *Hints) Read(now meter.Instant) Reading {
	r := Reading{Hints: h}
	for i := range h.Quotas {
		q := h.Quotas[i]
		if h.Limited && h.Wait > 0 && (q.Left > 0 || !q.Known) && q.Violated {
			q.Left, q.Known, q.Reset, q.Ends = 0, true, h.Wait, true // not enough is nothing, for as long as the server says
		}
		none := q.Limit == 0 && !h.Limited && h.Bare == NotBare // an accepted request contradicts a limit of 0
		if !q.Known || q.Advisory || none {
			continue
		}
		c := Figures{Name: q.Name, Unit: q.Unit, Left: q.Left, Limit: q.Limit, Counted: q.Unit == "" || q.Unit == "requests", Reserve: q.Reserve, Reset: meter.Never, Covered: q.Covered}
		if q.Ends {
			c.Reset = meter.AddInstant(now, int64(q.Reset))
		}
		if c.Refused = h.Limited && q.Left <= 0; c.Refused {
			r.empty, r.named = true, r.named || q.Name != Unnamed
		}
		if r.figures == nil {
			r.figures = make([]Figures, 0, len(h.Quotas))
		}
		r.figures = append(r.figures, c)
	}
	return r
}

// names reports whether some figures are of the quota of that name.
func (r *Reading) names(name string) bool {
	for i := range r.figures {
		if r.figures[i].Name == name {
			return true
		}
	}
	return false
}
