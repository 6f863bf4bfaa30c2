package allowance

import (
	"math"
	"slices"
	"unsafe"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

const (
	mostParts   = 8
	firstRetry  = second / 8    // doubles for each refusal in a row
	longestBack = 9             // doublings
	keepLearned = 3600 * second // how long what is known of an account is kept after its last request
	mostSilent  = 64            // responses that do not report a part, after which no request may be counted there
	firstSends  = 16            // requests that may be sent together while nothing is known, and as many in each second after that
	sendsMore   = 4             // as many times as what was accepted in all are the requests of a second, once these are more
)

// A Meter is what a server lets an account spend in one unit. It is a [meter.Meter] in the unit of estimates.
type Meter struct {
	Host    string // whose responses report to it
	Blind   bool   // estimates say nothing of costs
	ByLimit bool   // requests may be counted separately: reports of one name with two limits are of two parts
	sends   sends
	parts   []*part
	hidden  [2]hidden     // of what requests cost, and of their number
	before  *[2]hidden    // what Unlearn has forgotten of them; nil: nothing
	last    meter.Instant // when the last request was sent
	probed  meter.Instant // while nothing is known, requests are sent as a bucket allows that is full again then; see probes
	held    meter.Instant // no request is sent before, because a refusal says so
	stray   meter.Instant // when a request was refused that no part explains; those sent before may be of the same event; -1: none was
	row     int           // refusals without an accepted request between them, less one; those of one event count once
	event   meter.Instant // when the last of them came
	works   bool          // a response to an accepted request came since
	backoff server.Backoff
	rested  int64 // longer rests than a minute, in all
	wall    *meter.Wall
}

var (
	_ meter.Meter  = (*Meter)(nil)
	_ meter.Holder = (*Meter)(nil)
	_ meter.Flier  = (*Meter)(nil)
	_ meter.Rater  = (*Meter)(nil)
)

// New returns the Meter of an account of which nothing is known. It stops no request.
func New(wall *meter.Wall) *Meter {
	return &Meter{wall: wall, backoff: server.NewBackoff(), hidden: [2]hidden{{stops: -1}, {counts: true, stops: -1}}, last: -minute, stray: -1, event: -1}
}

// MinuteEnd returns the end of the minute of the clock of which an instant is.
func (m *Meter) MinuteEnd(at meter.Instant) meter.Instant {
	return at + minute - (m.wall.Unix+at)%minute
}

func (m *Meter) Payable(now meter.Instant, cost int64) bool { return m.Ready(now, 0, cost) <= now }

func (m *Meter) Spend(now meter.Instant, cost int64) (int64, bool) {
	return meter.SpendIf(m, now, cost)
}

func (m *Meter) Ready(from meter.Instant, ahead, cost int64) meter.Instant {
	at := max(from, m.held)
	for _, p := range m.parts {
		at = p.ready(at, m.last, float64(ahead), float64(cost), &m.sends)
	}
	costs, n := float64(ahead)+float64(cost), 1+m.sends.requests(float64(ahead))
	if m.hidden[0].rate > 0 {
		at = m.hidden[0].ready(at, m.last, costs, max(n, m.sends.requests(costs)), &m.sends, &m.backoff)
	}
	if m.hidden[1].rate > 0 {
		at = m.hidden[1].ready(at, m.last, n, n, &m.sends, &m.backoff)
	}
	if m.unknown() {
		each := second / m.probes()
		at = max(at, meter.AddInstant(m.probed, int64(n)*each-second))
	}
	return at
}

// unknown reports whether neither a report nor a refusal has shown a limit.
func (m *Meter) unknown() bool {
	return len(m.parts) == 0 && m.hidden[0].rate == 0 && m.hidden[1].rate == 0
}

// probes returns how many requests without a response may be sent in a second while no limit is known. A server refuses all that are sent
// before its first refusal arrives, so these are few of those that it has accepted.
func (m *Meter) probes() int64 {
	return min(max(firstSends, m.sends.next/sendsMore), second)
}

// Take returns the number of the request.
func (m *Meter) Take(due, now meter.Instant, cost int64, waited bool) int64 {
	m.rested += max(0, m.backoff.Sent(due, waited)-minute)
	for _, p := range m.parts {
		switch {
		case p.isBucket():
			p.overflow(now, &m.sends)
		case now >= p.turns():
			p.turn(now, m.sends.total, m.sends.next-1, p.next(now, m.MinuteEnd))
		}
	}
	for i := range m.hidden {
		if h := &m.hidden[i]; h.window > 0 && now >= h.ends {
			h.turn(now, m.sends.total)
		} else if m.sends.next == 0 {
			h.begun = now
		}
	}
	if m.unknown() {
		m.probed = max(m.probed, due) + second/m.probes()
	}
	m.last = due
	return m.sends.add(now, cost)
}

// GiveBack undoes the Take of a request that was not sent, or was refused.
func (m *Meter) GiveBack(n int64, _ meter.Instant, _ int64) {
	cost := float64(m.sends.undo(n))
	for _, p := range m.parts {
		p.undo(n, cost)
	}
}

// End notes that a request has ended, of which no response says what it did cost.
func (m *Meter) End(n int64, now meter.Instant) { m.end(n, now, -1) }

// Settle notes that a request has ended, and what it did cost.
func (m *Meter) Settle(n int64, now meter.Instant, _, cost int64) { m.end(n, now, cost) }

func (m *Meter) end(n int64, now meter.Instant, cost int64) {
	m.sends.end(n, now, cost)
	for i := range m.hidden {
		m.hidden[i].ended(now, &m.sends)
	}
}

// Report takes what the response to a request, which has come now, reports of parts. refused says that the request was refused, for
// whatever reason.
func (m *Meter) Report(n int64, now meter.Instant, figures []Figures, refused bool) {
	x := m.sends.find(n)
	if x == nil {
		return
	}
	if !refused {
		m.works = true
		m.backoff.Accepted(x.at)
		m.probed -= second / m.probes()
	}
	if m.ByLimit && len(figures) > 0 {
		m.parts = slices.DeleteFunc(m.parts, func(p *part) bool { return n-p.said > mostSilent })
	}
	for i := range figures {
		if p := m.part(&figures[i]); p != nil {
			p.take(n, x, &figures[i], refused, m.sends.near(n), m.sends.back(n), now-x.at, m.MinuteEnd)
		}
	}
}

// part returns the part of figures; nil: there is no room for it.
func (m *Meter) part(c *Figures) *part {
	for _, p := range m.parts {
		if p.name == c.Name && (!m.ByLimit || c.Limit < 0 || p.limit == float64(c.Limit)) {
			return p
		}
	}
	if len(m.parts) == mostParts {
		return nil
	}
	p := newPart(c)
	if m.Blind {
		p.fit = newFit(0, 0)
	}
	m.parts = append(m.parts, p)
	return p
}

// Refused takes a refusal of a request because of a limit in the unit: after Report, and instead of GiveBack. The wait is 0 if the server
// did not say how long. counts says that a limit that is not reported is of the number of requests. If neither that a part has too
// little left explains the refusal nor another one of the same event, the windows of parts are spread, and after the next such
// refusal no faster than a minute allows.
func (m *Meter) Refused(n int64, now meter.Instant, wait int64, counts bool) {
	x := m.sends.find(n)
	if x == nil {
		return
	}
	refused := *x
	m.GiveBack(n, now, 0)
	m.backOff(now, refused.at, wait)
	explained := false
	for _, p := range m.parts {
		if p.said == n && p.now.left < p.fit.most*float64(refused.cost) {
			explained = true
			p.waits(now, wait, float64(refused.cost), &m.sends)
		}
	}
	switch {
	case explained:
	case len(m.parts) == 0 && counts:
		m.hidden[1].refused(now, &refused, wait, m.rested)
	case len(m.parts) == 0:
		m.hidden[0].refused(now, &refused, wait, m.rested)
	case refused.at > m.stray:
		for _, p := range m.parts {
			p.tight, p.dry = p.dry && m.stray >= 0, true
		}
		m.stray = now
	}
}

// backOff holds requests for as long as a refusal asks. If it does not say, and no request was accepted since the refusal before,
// the server is closed for a time that is not known.
func (m *Meter) backOff(now, sent meter.Instant, wait int64) {
	if sent > m.event {
		if m.row++; m.works {
			m.row = 0
		}
		m.event, m.works = now, false
	}
	switch {
	case wait > 0:
		m.held = max(m.held, meter.AddInstant(now, wait))
	case m.row > 0:
		m.held = max(m.held, m.backoff.Until(meter.AddInstant(now, m.backoff.Wait(firstRetry<<min(m.row, longestBack), false)), 1))
	}
}

// Forget forgets what was reported and refused. Requests in flight still count, and their responses may say it again.
func (m *Meter) Forget(now meter.Instant) {
	m.parts = nil
	m.Unlearn(now)
	m.before = nil
}

// Unlearn forgets what was refused, because refusals seem to be by chance.
func (m *Meter) Unlearn(now meter.Instant) {
	before := m.hidden
	m.before = &before
	m.held, m.stray, m.event, m.row, m.works = min(m.held, now), -1, -1, 0, false
	for i := range m.hidden {
		h := &m.hidden[i]
		charged := h.charged(m.sends.total)
		*h = hidden{counts: h.counts, begun: now, at: now, stops: now, then: charged, from: charged, rested: m.rested}
	}
}

// Relearn undoes the last Unlearn: what was learned was right. Requests are refused again, so nothing is left now. What was accepted
// meanwhile is no debt.
func (m *Meter) Relearn(now meter.Instant) {
	if m.before == nil {
		return
	}
	for i, h := range m.before {
		if h.rate > 0 {
			h.at, h.then, h.stops, h.rested = now, h.charged(m.sends.total), now, m.rested
			m.hidden[i] = h
		}
	}
	m.before = nil
}

// Most returns no bound: a request that costs more than the limit is sent when there is enough of it.
func (m *Meter) Most() int64 { return meter.MaxCount }

func (m *Meter) Matters(meter.Instant) (must, full meter.Instant) {
	switch {
	case m.sends.open > 0:
		return meter.Never, meter.Never
	case m.last < 0: // no request was sent, and nothing restored
		return m.held, m.held
	}
	return m.held, max(m.held, meter.AddInstant(m.last, keepLearned))
}

// Tokens returns the least that is left of a part; +Inf: none is reported.
func (m *Meter) Tokens(now meter.Instant) float64 {
	least := math.Inf(1)
	for _, p := range m.parts {
		least = min(least, p.free(now, &m.sends))
	}
	return least
}

// PerSecond returns the rate of the part that refills most slowly, or what refusals have shown of one; 0: none is known.
func (m *Meter) PerSecond(meter.Instant) float64 {
	least := math.Inf(1)
	for _, p := range m.parts {
		if r := p.perSecond(); r > 0 {
			least = min(least, r)
		}
	}
	if r := m.hidden[0].rate * 1e9; len(m.parts) == 0 && r > 0 {
		least = min(least, r)
	}
	if r := m.hidden[1].rate * 1e9; len(m.parts) == 0 && r > 0 && m.sends.count > 0 {
		least = min(least, r*m.sends.sent/m.sends.count)
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}

// Reports reports whether responses have reported what is left.
func (m *Meter) Reports() bool { return len(m.parts) > 0 }

// Lacks reports whether what is left of a part may be too little for a request of that cost.
func (m *Meter) Lacks(c *Figures, cost int64) bool {
	few := float64(c.Limit) / dryBelow
	for _, p := range m.parts {
		if p.name == c.Name {
			few = max(few, p.fit.most*float64(cost))
		}
	}
	return float64(c.Left) < few
}

// Refills reports whether the part of that name is a bucket, as far as is known.
func (m *Meter) Refills(name string) bool {
	return slices.ContainsFunc(m.parts, func(p *part) bool { return p.name == name && p.isBucket() })
}

// Drop forgets the part of that name.
func (m *Meter) Drop(name string) {
	m.parts = slices.DeleteFunc(m.parts, func(p *part) bool { return p.name == name })
}

// Size returns about how many bytes the meter takes besides itself, while no requests are in flight.
func (m *Meter) Size() (n int) {
	for _, p := range m.parts {
		n += int(unsafe.Sizeof(*p)) + len(p.name)
	}
	return n
}

func (m *Meter) InFlight() int64                  { return m.sends.open }
func (m *Meter) HeldUntil() meter.Instant         { return m.held }
func (m *Meter) Retune(meter.Instant, meter.Rate) {}
func (m *Meter) Resize(meter.Instant, int64)      {}
