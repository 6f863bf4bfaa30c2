package allowance

import (
	"math"
	"strings"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	mostParts   = 8
	KeepLearned = 3600 * second // how long an idle account is remembered
)

// A Meter is what a server lets an account spend in one unit.
type Meter struct {
	sends  sends
	parts  []*part
	hidden hidden
	last   meter.Instant // when the last request was sent
	stray  meter.Instant // when a request was refused that no part explains; those sent before may be of the same event
	held   meter.Instant // no request is sent before, because a refusal says so
	wall   *meter.Wall
}

var _ meter.Planner = (*Meter)(nil)

// New returns the Meter of an account of which nothing is known. It stops no request.
func New(wall *meter.Wall) *Meter { return &Meter{wall: wall, last: -minute} }

// minuteAfter returns the end of the minute of the clock in which an instant is.
func (m *Meter) minuteAfter(at meter.Instant) meter.Instant {
	into := (m.wall.Unix + at) % minute
	return at + minute - into
}

func (m *Meter) Payable(now meter.Instant, cost int64) bool { return m.Ready(now, 0, cost) <= now }

func (m *Meter) Spend(now meter.Instant, cost int64) (int64, bool) {
	return meter.SpendIf(m, now, cost)
}

func (m *Meter) Ready(from meter.Instant, ahead, cost int64) meter.Instant {
	at := max(from, m.held)
	need := float64(ahead) + float64(cost)
	for _, p := range m.parts {
		at = p.ready(at, m.last, need, &m.sends)
	}
	return m.hidden.ready(at, m.last, need, &m.sends)
}

// Plan returns a lower bound, because a response may report that more is left.
func (m *Meter) Plan(from meter.Instant, ahead, cost int64) meter.Instant {
	return m.Ready(from, ahead, cost)
}

// Take returns the number of the request.
func (m *Meter) Take(due, now meter.Instant, cost int64, _ bool) int64 {
	for _, p := range m.parts {
		if !p.isBucket() && now >= p.ends+p.late {
			p.turn(now, m.sends.total, m.sends.next-1, m.minuteAfter)
		}
	}
	m.hidden.begin(now, &m.sends)
	m.last = due
	return m.sends.add(now, cost)
}

// GiveBack undoes the Take of a request that was not sent.
func (m *Meter) GiveBack(n int64, _ meter.Instant, _ int64) {
	cost := m.sends.undo(n)
	for _, p := range m.parts {
		p.undo(n, cost)
	}
}

// End notes that a request has ended, and what it did cost; negative: what was estimated.
func (m *Meter) End(n int64, now meter.Instant, cost int64) {
	m.sends.end(n, now, cost)
}

// Settle does nothing: see End.
func (m *Meter) Settle(int64, meter.Instant, int64, int64) {}

// Report takes what the response to a request reports of parts. refused says that the request was refused, for whatever reason.
func (m *Meter) Report(n int64, claims []Claim, refused bool) {
	x := m.sends.find(n)
	if x == nil {
		return
	}
	for i := range claims {
		if p := m.part(&claims[i]); p != nil {
			p.take(n, x, &claims[i], refused, m.sends.near(n), m.minuteAfter)
		}
	}
}

// part returns the part of a claim; nil: there is no room for it.
func (m *Meter) part(c *Claim) *part {
	for _, p := range m.parts {
		if p.name == c.Name {
			return p
		}
	}
	if len(m.parts) == mostParts {
		return nil
	}
	p := newPart(c)
	m.parts = append(m.parts, p)
	return p
}

// Refused takes a refusal of a request because of a limit in the unit: after Report, and instead of GiveBack. The wait is 0 if the server
// did not say how long.
func (m *Meter) Refused(n int64, now meter.Instant, wait int64) {
	x := m.sends.find(n)
	if x == nil {
		return
	}
	sent, cost, before := x.at, x.cost, x.before
	m.GiveBack(n, now, cost)
	if wait > 0 {
		m.held = max(m.held, meter.AddInstant(now, wait))
	}
	if len(m.parts) == 0 {
		m.hidden.refused(now, sent, cost, before, wait)
		return
	}
	explained := false
	for _, p := range m.parts {
		if p.said == n && p.left < p.fit.most()*float64(cost) {
			explained = true
			if wait > 0 && p.isBucket() {
				p.waits(now, wait, float64(cost), &m.sends)
			}
		}
	}
	if explained {
		return
	}
	if sent > m.stray {
		for _, p := range m.parts {
			p.tight, p.dry = p.dry && m.stray > 0, true
		}
		m.stray = now
	}
}

// Names reports whether a claim is of a part of the unit.
func Names(unit, name, of string) bool { return of == unit || strings.Contains(name, unit) }

func (m *Meter) Most() int64 { return meter.MaxCount }

func (m *Meter) Matters(now meter.Instant) (must, full meter.Instant) {
	if m.sends.open > 0 {
		return meter.Never, meter.Never
	}
	must = m.held
	if m.sends.next == 0 {
		return must, must
	}
	return must, max(must, meter.AddInstant(m.last, KeepLearned))
}

// Tokens returns the least that is left, in the unit of the server.
func (m *Meter) Tokens(now meter.Instant) float64 {
	least := math.Inf(1)
	for _, p := range m.parts {
		least = min(least, p.free(now, &m.sends))
	}
	return least
}

func (m *Meter) PerSecond(meter.Instant) float64  { return 0 }
func (m *Meter) Retune(meter.Instant, meter.Rate) {}
func (m *Meter) Resize(meter.Instant, int64)      {}
func (m *Meter) InFlight() int64                  { return m.sends.open }
func (m *Meter) HeldUntil() meter.Instant         { return m.held }
