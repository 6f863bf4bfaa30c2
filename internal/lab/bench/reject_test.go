package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
)

// A rejecting queue is n requests, of which the i-th is due after i hours. A slower rate rejects one in a hundred, all over the
// queue. These join again before the next change, so a benchmark may repeat it without end.
type rejecting struct {
	l      *throttle.Limiter
	n      int
	of     rejection
	mu     sync.Mutex
	gone   []int // requests that are yet to join, or to join again
	total  int   // requests rejected so far
	used   time.Duration
	all    sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc
}

// A rejection is a slower rate, and how long requests may wait so that it rejects one in a hundred.
type rejection struct {
	name    string
	slower  time.Duration             // for 100 requests; it was 100 hours
	maxWait func(i int) time.Duration // of the i-th request; 0: none
}

var rejections = []rejection{
	// One in a hundred has a MaxWait, which is enough for the old rate and not for half of it.
	{"reject_1_in_100", 200 * time.Hour, func(i int) time.Duration {
		if i%100 != 50 {
			return 0
		}
		return time.Duration(i) * 3 * time.Hour / 2
	}},
	// All have a MaxWait that is just enough, as in a queue that is full because all have the same. The new rate is slower by one
	// in a hundred, and each rejection makes up for that for the next hundred.
	{"reject_1_in_100_of_a_full_queue", 101 * time.Hour, func(i int) time.Duration { return time.Duration(i)*time.Hour + time.Hour/2 }},
}

// benchmarkRejections reports what stall does, and the CPU time for each request that is rejected.
func benchmarkRejections(b *testing.B, n int) {
	for _, of := range rejections {
		limit := throttle.TokenBucket(100, 100*time.Hour, throttle.Initial(0), throttle.Name("tenant"))
		c := &rejecting{l: limiterOf(b, throttle.WithMaxQueue(2_000_000), throttle.WithLimit(limit)), n: n, of: of}
		c.ctx, c.cancel = context.WithCancel(b.Context())
		for i := range n {
			c.gone = append(c.gone, i+1)
		}
		b.Run(fmt.Sprintf("of=waiters/n=%d/op=%s", n, of.name), func(b *testing.B) {
			c.total, c.used = 0, 0
			stall(b, c.l, operation{prepare: c.fill, do: c.change})
			c.gone = c.allReturned(b) // for the next run
			if c.used > 0 {
				b.ReportMetric(float64(c.used.Nanoseconds())/float64(c.total), "ns-cpu/rejected")
			}
		})
		c.cancel()
		c.all.Wait()
	}
}

// change sets the slower rate.
func (c *rejecting) change(b *testing.B, l *throttle.Limiter, _ int) {
	c.used += cpuOf(func() { must(b, l.SetRate("tenant", 100, c.of.slower)) })
}

// fill sets the rate that rejects no request, and lets those join that do not wait.
func (c *rejecting) fill(b *testing.B, l *throttle.Limiter) {
	must(b, l.SetRate("tenant", 100, 100*time.Hour))
	for _, i := range c.allReturned(b) {
		c.all.Go(func() { c.wait(i) })
	}
	waitFor(b, func() bool { return l.Stats().Waiting == c.n })
}

// allReturned returns the requests that do not wait, once their callers know.
func (c *rejecting) allReturned(b *testing.B) (gone []int) {
	waitFor(b, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.l.Stats().Waiting+len(c.gone) < c.n {
			return false
		}
		gone, c.gone = c.gone, nil
		return true
	})
	return gone
}

// wait lets the i-th request wait until it is rejected. Its priority gives it its place, whenever it joins.
func (c *rejecting) wait(i int) {
	ask := throttle.Ask{Priority: -1000 * i}
	if d := c.of.maxWait(i); d > 0 {
		ask.MaxWait = &d
	}
	_, err := c.l.Acquire(c.ctx, ask)
	if c.ctx.Err() != nil {
		return
	}
	if !errors.Is(err, throttle.ErrThrottled) {
		panic(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = append(c.gone, i)
	c.total++
}
