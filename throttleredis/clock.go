package throttleredis

import "sync/atomic"

// A clock is what is known of the clock of a Redis server. All instants are in µs: those of Redis, and those of the process
// since [Store] began.
//
// A response was written after its request was sent, and before it arrived, at an instant of Redis's clock that it contains.
// So each response gives a lower bound of Redis's clock, and the quickest of them the best one.
type clock struct {
	latest atomic.Int64 // at the latest response: Redis's clock minus ours, at least; 0: unknown
	best   atomic.Int64 // Redis's clock is at least best + t - t/drift at our instant t; 0: unknown
}

// drift bounds how fast or slow a clock runs: by one part in this many.
const drift = 1000

// responded takes the instant of a response. It returns how much earlier than arrived a response as quick as the best one would have
// arrived: at most the time since the request was sent.
//
// If Redis's clock was set back by less than the response took, early may be too long by as much.
func (c *clock) responded(now, sent, arrived int64) (early int64) {
	offset := now - arrived
	c.latest.Store(offset)
	best := c.best.Load()
	setBack := now < best+sent-sent/drift
	early = best - arrived/drift - offset
	if best == 0 || setBack || early < 0 {
		c.best.Store(offset + arrived/drift)
		return 0
	}
	return early
}

// at returns a lower bound of Redis's clock at our instant t, and whether anything is known of it.
func (c *clock) at(t int64) (now int64, known bool) {
	offset := c.latest.Load()
	return offset + t, offset != 0
}
