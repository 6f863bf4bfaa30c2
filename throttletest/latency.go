package throttletest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// A Latency is a distribution of durations: see [Constant], [Uniform], [LogNormal] and [Sometimes].
type Latency struct {
	draw func(*rand.Rand) time.Duration
	err  error
}

// maxLatency keeps sums of latencies and instants within 63 bits.
const maxLatency = 10 * 366 * 24 * time.Hour

// Constant returns a Latency that is always d, which must not be negative.
func Constant(d time.Duration) Latency {
	if d < 0 {
		return Latency{err: fmt.Errorf("Constant(%v) must not be negative", d)}
	}
	return drawn(func(*rand.Rand) time.Duration { return d })
}

// Uniform returns a Latency that is evenly distributed from low to high, both included; 0 <= low <= high.
func Uniform(low, high time.Duration) Latency {
	if low < 0 || high < low || high-low == math.MaxInt64 {
		return Latency{err: fmt.Errorf("Uniform(%v, %v) needs 0 <= low <= high", low, high)}
	}
	return drawn(func(r *rand.Rand) time.Duration { return low + time.Duration(r.Int64N(int64(high-low)+1)) })
}

// LogNormal returns a Latency with that median. The standard deviation of its logarithm is sigma: 0.3 is a steady service,
// 1.2 has a heavy tail. The median must be positive, sigma finite and not negative.
func LogNormal(median time.Duration, sigma float64) Latency {
	if median <= 0 || !(sigma >= 0) || math.IsInf(sigma, 0) {
		return Latency{err: fmt.Errorf("LogNormal(%v, %v) needs a positive median and a finite sigma that is not negative", median, sigma)}
	}
	return drawn(func(r *rand.Rand) time.Duration {
		d := float64(median) * math.Exp(sigma*r.NormFloat64())
		return time.Duration(min(d, float64(maxLatency)))
	})
}

// Sometimes returns a Latency that is rare with probability p, from 0 to 1, and usual otherwise.
func Sometimes(p float64, rare, usual Latency) Latency {
	switch {
	case !(p >= 0 && p <= 1):
		return Latency{err: fmt.Errorf("Sometimes(%v, …) needs a probability from 0 to 1", p)}
	case rare.err != nil:
		return rare
	case usual.err != nil:
		return usual
	case rare.draw == nil || usual.draw == nil:
		return Latency{err: fmt.Errorf("Sometimes(%v, …): a Latency is empty", p)}
	}
	return drawn(func(r *rand.Rand) time.Duration {
		if r.Float64() < p {
			return rare.draw(r)
		}
		return usual.draw(r)
	})
}

// drawn returns a Latency that is what draw returns, from 0 to maxLatency. It is called concurrently, each time with a source of its
// own, and takes random values only from that source, so that runs can be repeated.
func drawn(draw func(*rand.Rand) time.Duration) Latency {
	return Latency{draw: func(r *rand.Rand) time.Duration { return min(max(draw(r), 0), maxLatency) }}
}

// workers serve one request each at a time, in order. Since the service time of a request is known when it is accepted,
// so is the instant at which it will be done: a request waits for that instant, and not for a worker.
type workers struct {
	free   []int64 // for each worker, when it will have done all that it was given
	queue  int
	starts []int64 // of the requests that wait for a worker, in order
}

func newWorkers(n, queue int) *workers {
	return &workers{free: make([]int64, n), queue: queue}
}

// check reports whether a request that comes now finds a worker or a place in the queue.
func (w *workers) check(now int64) bool {
	n := 0
	for n < len(w.starts) && w.starts[n] <= now {
		n++
	}
	w.starts = w.starts[:copy(w.starts, w.starts[n:])]
	return len(w.starts) < w.queue || w.free[w.next()] <= now
}

// serve gives the next worker a request that is ready at the given instant, and says when it will be done.
func (w *workers) serve(now, ready int64, service time.Duration) (done int64) {
	i := w.next()
	start := max(ready, w.free[i])
	if start > now {
		w.starts = append(w.starts, start)
	}
	w.free[i] = start + int64(service)
	return w.free[i]
}

// next is the worker that is free first.
func (w *workers) next() int {
	first := 0
	for i, at := range w.free {
		if at < w.free[first] {
			first = i
		}
	}
	return first
}
