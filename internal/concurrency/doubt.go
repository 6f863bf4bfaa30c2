package concurrency

import "github.com/httpthrottle/throttle/internal/aimd"

// A belief is what a refusal changes.
type belief struct {
	n        float64
	mode     mode
	refusals refusals
	bare     aimd.Suspicion
}

// Doubt keeps what Answered is about to change until the body of that response has been read; see [meter.Doubts]. The result takes
// the outcome that the body shows; 0: the refusal stands. It reports whether what the refusal has changed was undone.
func (m *Meter) Doubt(now instant, charged int64, _ instant, _ int64) func(now instant, as aimd.Outcome) bool {
	c := &m.control
	end := m.doubts.Open(now, belief{c.n, c.mode, c.refusals, m.bare})
	return func(now instant, as aimd.Outcome) bool {
		was := end(now, as != 0)
		if was == nil {
			return false
		}
		c.refusals, m.bare = was.refusals, was.bare
		if c.n != was.n { // otherwise what is measured goes on
			if was.mode == starting {
				c.mode, c.pending, c.high = starting, false, level{}
			}
			c.change(aimd.CauseRestored, was.n)
			c.restart(0)
		}
		if m.bare.Judge(as, now) == aimd.ClientError {
			c.succeeded(now, ticketOf(charged))
		}
		m.follow(now)
		return true
	}
}

// Stand makes what refusals have changed stand.
func (m *Meter) Stand() { m.doubts.Stand() }
