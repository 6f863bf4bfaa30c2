package lease

import (
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// holds are the holds of a budget, as far as a process knows them.
type holds struct {
	held   meter.Instant // the budget is blocked until then
	lifted bool          // the store does not know that its holds have ended
	hold   meter.Instant // the end of a hold that the store does not know, and which began after lifted; 0: none
	sent   meter.Instant // what was sent with the ask under way: hold, or -1 that holds have ended
}

// HeldUntil implements [Meter].
func (h *holds) HeldUntil() meter.Instant { return h.held }

// Hold implements [Meter]. The store is asked immediately, and with its response the tokens go back.
func (m *Leased) Hold(now, until meter.Instant) {
	m.tell(now - tellAfter)
	m.set(now, until)
}

// yield gives back the tokens that a hold leaves no time to use: those available, and those that are due before its end. If they
// were kept, every process would use its own when the hold ends.
//
// A bucket or a pace may have promised tokens to other processes that are due after the end. What is given back would be granted
// beside them, at up to twice the rate. Then it is lost instead, as everything is that comes in while a bucket is full. If the hold
// is released early, requests wait for these tokens until the hold would have ended, at most.
func (m *Leased) yield(now meter.Instant) {
	if now >= m.held {
		return
	}
	lost := m.promises() && m.inStore(m.held) < 1
	back := func(tokens, lease int64) {
		if tokens > 0 && !lost {
			m.returns(store.Return{Tokens: tokens, Lease: lease}, now)
		}
	}
	for _, l := range m.lots {
		back(l.n, l.id)
	}
	m.lots, m.have = nil, 0
	for i := range m.runs {
		r := &m.runs[i]
		early := r.due(m.held - 1)
		back(early, r.id)
		r.taken, r.n = r.taken+early, r.n-early
	}
	m.runs = slices.DeleteFunc(m.runs, func(r run) bool { return r.n == 0 })
	m.schedule()
}

// set blocks the budget until an instant. An instant that is not after now ends every hold.
func (h *holds) set(now, until meter.Instant) {
	if until <= now {
		h.held, h.lifted, h.hold = 0, true, 0
		return
	}
	h.held, h.hold = max(h.held, until), max(h.hold, until)
}

// unknown reports whether there is something that the store does not know.
func (h *holds) unknown() bool { return h.lifted || h.hold > 0 }

// ask returns Hold of a Part. A Part either ends holds or begins one, so a hold that began after others had ended is left for the next
// ask: the store would keep the longer of the two otherwise.
func (h *holds) ask(now meter.Instant) time.Duration {
	if h.lifted {
		h.lifted, h.sent = false, -1
		return -1
	}
	h.sent, h.hold = h.hold, 0
	return time.Duration(max(0, h.sent-now))
}

// booked records Hold of a LeasedPart. The store did not know yet what has ended meanwhile.
func (h *holds) booked(now meter.Instant, hold time.Duration) {
	h.held = h.hold
	if hold > 0 && !h.lifted {
		h.held = max(h.held, meter.AddInstant(now, int64(hold)))
	}
}

// failed keeps what was sent for the next ask, and reports whether there is anything to report.
func (h *holds) failed(now meter.Instant) bool {
	switch {
	case h.sent < 0:
		h.lifted = true
	case h.sent > now && !h.lifted:
		h.hold = max(h.hold, h.sent)
	}
	return h.unknown()
}
