package queue

import (
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
)

// limitCounts are the counters of one limit. Core.Mu guards them.
type limitCounts struct {
	Granted, Charged, Returned uint64
	ended                      uint64 // of granted: requests that are not in flight any more, where that counts
	Undone, Delayed, Canceled  uint64
	Holds, Evicted             uint64
	Waiting                    int
	Waits                      WaitCounts
	Refused                    [Reasons]uint64
	Retunes                    [aimd.Causes]uint64
}

// took counts a charge.
func (c *limitCounts) took(cost int64) {
	c.Granted++
	c.Charged += uint64(cost)
}

func (c *limitCounts) gave(cost int64) { c.Returned += uint64(cost) }

func (c *limitCounts) waited(d int64) {
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
	return int(li.Counts.Granted - li.Counts.ended)
}

// Counts are the counters of one Transport or Limiter. Core.Mu guards them.
type Counts struct {
	Waiting                    int
	Granted, Delayed, Canceled uint64
	Undone                     uint64 // of granted
	Waited                     time.Duration
	Refused                    [Reasons]uint64
	ServerRefused              uint64
	Holds                      holdCounts
}

// sent returns how many requests were granted and not taken back.
func (c *Counts) sent() uint64 { return c.Granted - c.Undone }

func (c *Counts) grantedAfter(wait int64) {
	c.Granted++
	c.Delayed++
	c.Waited += time.Duration(wait)
}

// holdCounts count holds by what set them; see [HoldCounts].
type holdCounts struct{ Caller, Server, Adaptive uint64 }

// WaitCounts is a histogram of waits; see [Waits].
type WaitCounts struct {
	Counts [19]uint64
	Sum    time.Duration
}

var WaitBounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
	10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour,
}

func (w *WaitCounts) Add(d time.Duration) {
	i := 0
	for i < len(WaitBounds) && d > WaitBounds[i] {
		i++
	}
	w.Counts[i]++
	w.Sum += d
}

// Read returns a copy of counters, with the callers that wait and the buckets that are kept.
func (l *Core) Read(of *Counts) (c Counts, callers, buckets int) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return *of, l.order.Callers(), l.keys.Len()
}

// Callers returns how many callers wait, where callers take turns. Mu is held.
func (l *Core) Callers() int { return l.order.Callers() }

// CountRefusal counts a refusal of a server.
func (l *Core) CountRefusal(by *Counts) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	l.Counts.ServerRefused++
	by.ServerRefused++
}
