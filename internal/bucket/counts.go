package bucket

import (
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
)

// limitCounts are the counters of one limit. The lock guards them.
type limitCounts struct {
	Granted, Charged, Returned uint64
	Estimated, Settled         uint64 // what settled requests were charged at first, and what they did cost
	Ended                      uint64 // of granted: requests that are not in flight any more, where that counts
	Undone, Delayed, Canceled  uint64
	Holds, Evicted, Unread     uint64
	Waiting                    int
	Waits                      WaitCounts
	Rejected                   [Reasons]uint64
	Retunes                    [aimd.Causes]uint64
}

// Took counts a charge.
func (c *limitCounts) Took(cost int64) {
	c.Granted++
	c.Charged += uint64(cost)
}

// Gave counts tokens that are given back.
func (c *limitCounts) Gave(cost int64) { c.Returned += uint64(cost) }

// Settle counts a charge whose true cost is known.
func (c *limitCounts) Settle(charged, cost int64) {
	c.Estimated += uint64(charged)
	c.Settled += uint64(cost)
	if cost > charged {
		c.Charged += uint64(cost - charged)
	} else {
		c.Gave(charged - cost)
	}
}

// Waited counts a request that was granted after a wait for the limit.
func (c *limitCounts) Waited(d int64) {
	c.Delayed++
	c.Waits.Add(time.Duration(d))
}

// InFlight returns how many requests are in flight, or slots in use.
func (li *Limit) InFlight() int {
	switch {
	case !li.Reported:
		return 0
	case li.Frees:
		return int(li.Counts.Charged - li.Counts.Returned)
	}
	return int(li.Counts.Granted - li.Counts.Ended)
}

// Counts are the counters of one Transport or Limiter. The lock guards them.
type Counts struct {
	Waiting                    int
	Granted, Delayed, Canceled uint64
	Undone                     uint64 // of granted
	Waited                     time.Duration
	Rejected                   [Reasons]uint64
	ServerRefused              uint64
	Holds                      holdCounts
}

// Sent returns how many requests were granted and not taken back.
func (c *Counts) Sent() uint64 { return c.Granted - c.Undone }

// GrantedAfter counts a request that was granted after a wait.
func (c *Counts) GrantedAfter(wait int64) {
	c.Granted++
	c.Delayed++
	c.Waited += time.Duration(wait)
}

// holdCounts count holds by what set them; see throttle.HoldCounts.
type holdCounts struct{ Caller, Server, Adaptive uint64 }

// WaitCounts is a histogram of waits; see throttle.Waits.
type WaitCounts struct {
	Counts [19]uint64
	Sum    time.Duration
}

// WaitBounds are the longest waits that WaitCounts.Counts count, by index; the last count has no bound.
var WaitBounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
	10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour,
}

// Add counts a wait.
func (w *WaitCounts) Add(d time.Duration) {
	i := 0
	for i < len(WaitBounds) && d > WaitBounds[i] {
		i++
	}
	w.Counts[i]++
	w.Sum += d
}
