package aimd

import "strconv"

// A Cause is why the rate changed.
type Cause uint8

const (
	CauseGrowth    Cause = iota + 1 // the rate was used, and no response spoke against more
	CauseThrottled                  // 429, or 503 with Retry-After
	CauseErrors                     // more failures than usual
	CauseNotLoad                    // the failures are not caused by load: the cut is undone
	CauseLatency                    // the server queues
	CauseSlower                     // the server is slower and does not queue: as many requests as before may be in flight again
	CauseSilence                    // a row of failures: only probes are sent
	CauseAlive                      // a probe was answered
	CauseRestored                   // by Learn, or because a refusal was none
	CauseAlone                      // one request alone takes longer than the latency that the user has set: one at a time is sent
	Causes
)

var causes = [Causes]string{
	CauseGrowth: "growth", CauseThrottled: "throttled", CauseErrors: "errors", CauseNotLoad: "errors_stayed",
	CauseLatency: "latency", CauseSlower: "latency_stayed", CauseSilence: "silence",
	CauseAlive: "probe_answered", CauseRestored: "restored", CauseAlone: "latency_alone",
}

// String returns the cause as an identifier for logs and metrics, which stays the same in later versions.
func (c Cause) String() string {
	if c == 0 || c >= Causes {
		return "Cause(" + strconv.Itoa(int(c)) + ")"
	}
	return causes[c]
}

// mode returns how the rate moves now.
func (c *controller) mode(now instant) string {
	switch {
	case c.silence.on:
		return "silence"
	case now < c.pausedUntil:
		return "paused"
	case c.ceiling == 0:
		return "start"
	case now < c.heldUntil:
		return "steady"
	case c.current < c.ceiling:
		return "below"
	}
	return "above"
}

// resume ends a pause, as if it had been that long. A server that was silent is asked now.
func (c *controller) resume(now instant) {
	c.silence.probeAt = min(c.silence.probeAt, now)
	if c.pausedUntil > now {
		c.pausedUntil, c.workedFrom, c.used.At = now, now, now
	}
}

// unpause takes that a request was accepted that was sent in a pause: it concerned only some of the requests that share the rate, and shows
// nothing of what the server gives to all of them.
func (c *controller) unpause(now instant) {
	c.resume(now)
	c.paused = 0
}
