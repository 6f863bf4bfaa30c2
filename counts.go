package throttle

import (
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
)

// limitCounts are the counters of one limit. The Limiter's mu guards them.
type limitCounts struct {
	granted, charged, returned uint64
	ended                      uint64 // of granted: requests that are not in flight any more, where that counts
	undone, delayed, canceled  uint64
	holds, evicted             uint64
	waiting                    int
	waits                      waitCounts
	refused                    [reasons]uint64
	retunes                    [aimd.Causes]uint64
}

// took counts a charge.
func (c *limitCounts) took(cost int64) {
	c.granted++
	c.charged += uint64(cost)
}

func (c *limitCounts) gave(cost int64) { c.returned += uint64(cost) }

func (c *limitCounts) waited(d int64) {
	c.delayed++
	c.waits.add(time.Duration(d))
}

// waitLocked counts n more requests in line for the limits of the line's buckets.
func (ln *line) waitLocked(n int) {
	for i := range ln.stops {
		ln.stops[i].bucket.limit.counts.waiting += n
	}
}

// inFlight returns how many requests are in flight, or slots in use.
func (li *limit) inFlight() int {
	switch {
	case !li.reported:
		return 0
	case li.frees:
		return int(li.counts.charged - li.counts.returned)
	}
	return int(li.counts.granted - li.counts.ended)
}

// counts are the counters of one Transport or Limiter. The Limiter's mu guards them.
type counts struct {
	waiting                    int
	granted, delayed, canceled uint64
	undone                     uint64 // of granted
	waited                     time.Duration
	refused                    [reasons]uint64
	serverRefused              uint64
	holds                      holdCounts
}

// sent returns how many requests were granted and not taken back.
func (c *counts) sent() uint64 { return c.granted - c.undone }

func (c *counts) grantedAfter(wait int64) {
	c.granted++
	c.delayed++
	c.waited += time.Duration(wait)
}

// holdCounts count holds by what set them; see [HoldCounts].
type holdCounts struct{ Caller, Server, Adaptive uint64 }

// waitCounts is a histogram of waits; see [Waits].
type waitCounts struct {
	Counts [19]uint64
	Sum    time.Duration
}

var waitBounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
	10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour,
}

func (w *waitCounts) add(d time.Duration) {
	i := 0
	for i < len(waitBounds) && d > waitBounds[i] {
		i++
	}
	w.Counts[i]++
	w.Sum += d
}

// read returns a copy of counters, with the callers that wait and the buckets that are kept.
func (l *core) read(of *counts) (c counts, callers, buckets int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *of, l.callers, l.keys.size()
}

// countRefusal counts a refusal of a server.
func (l *core) countRefusal(by *counts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.serverRefused++
	by.serverRefused++
}
