package aimd

// A belief is what the failure of a request changes.
type belief struct {
	control controller
	freed   instant
	bare    Suspicion
}

// Doubt keeps what Answered is about to change until the body of that response has been read; see [meter.Doubts]. The result takes
// the outcome that the body shows; 0: the failure stands. It reports whether what the failure has changed was undone.
func (m *Meter) Doubt(now instant, charged int64, sent instant, cost int64) func(now instant, as Outcome) bool {
	end := m.doubts.Open(now, belief{m.control, m.freed, m.bare})
	return func(now instant, as Outcome) bool {
		was := end(now, as != 0)
		if was == nil {
			return false
		}
		is := m.control
		m.control, m.freed, m.bare = was.control, was.freed, was.bare
		c := &m.control
		c.seq, c.inFlight = is.seq, is.inFlight+1 // it is answered again
		if c.silence.probe != uint64(charged) {
			c.silence.probe = is.silence.probe
		}
		if c.shown = is.shown; c.shown != c.current {
			c.why = CauseRestored
		}
		m.Answered(now, charged, sent, cost, as, 0)
		return true
	}
}

// Stand makes what failures have changed stand.
func (m *Meter) Stand() { m.doubts.Stand() }
