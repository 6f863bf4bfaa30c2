package lease

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// holds are the holds of a budget, as far as a process knows them.
type holds struct {
	held meter.Instant // the budget is blocked until then
	hold meter.Instant // the end of a hold that the store does not know; -1: that holds have ended; 0: none
	sent meter.Instant // what hold was when it was sent with the ask under way
}

// HeldUntil implements [Meter].
func (h *holds) HeldUntil() meter.Instant { return h.held }

// set blocks the budget until an instant. An instant that is not after now ends every hold.
func (h *holds) set(now, until meter.Instant) {
	if until <= now {
		h.held, h.hold = 0, -1
		return
	}
	h.held, h.hold = max(h.held, until), max(h.hold, until)
}

// ask returns Hold of a Part.
func (h *holds) ask(now meter.Instant) time.Duration {
	h.sent, h.hold = h.hold, 0
	if h.sent < 0 {
		return -1
	}
	return time.Duration(max(0, h.sent-now))
}

// booked records Hold of a LeasedPart.
func (h *holds) booked(now meter.Instant, hold time.Duration) {
	h.held = h.hold
	if hold > 0 {
		h.held = max(h.held, meter.AddInstant(now, int64(hold)))
	}
	h.held = max(h.held, 0)
}

// failed keeps what was sent for the next ask, and reports whether there is anything to report.
func (h *holds) failed(now meter.Instant) bool {
	if h.hold == 0 && (h.sent < 0 || h.sent > now) {
		h.hold = h.sent
	}
	return h.hold != 0
}
