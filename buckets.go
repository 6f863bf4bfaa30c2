package throttle

import (
	"iter"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/queue"
)

// BucketStats is the state of one bucket: of one limit for one key. It prints as one line.
type BucketStats struct {
	Limit     string        `json:"limit"`
	Key       string        `json:"key"`                 // "" if the limit has one bucket
	Rate      float64       `json:"rate"`                // tokens per second; 0 for what a server said, and for InFlight
	Capacity  float64       `json:"capacity"`            // tokens when full: the burst, the n of a window, slots; 0: no bound
	Tokens    float64       `json:"tokens"`              // balance now; negative: debt; +Inf, in JSON null: no bound
	Wait      time.Duration `json:"wait"`                // until a request of cost 1 could go, if it came now: a lower bound with several limits, Adaptive or InFlight; math.MaxInt64: never
	Waiting   int           `json:"waiting"`             // requests in the queue that this bucket applies to
	Callers   int           `json:"callers,omitempty"`   // callers of these, where the limit has FairBy
	InFlight  int           `json:"in_flight"`           // requests without a response yet, for Adaptive and InFlight limits and servers
	HeldUntil time.Time     `json:"held_until,omitzero"` // end of a hold; zero: not held
	Reset     time.Time     `json:"reset,omitzero"`      // end of the window of a FixedWindow or CalendarWindow; zero: there is none
	Learned   *LearnedStats `json:"learned,omitzero"`    // what an Adaptive limit knows; nil: it is none
}

// LearnedStats is what an [Adaptive] limit knows of a key, beside its rate.
type LearnedStats struct {
	Ceiling      float64 `json:"ceiling"`        // rate at the last sign of too much, in tokens per second; 0: there was none
	InFlightMost int     `json:"in_flight_most"` // requests that may be in flight
	// Mode is how the rate moves: start (it doubles, no sign of too much so far), below (it approaches the ceiling), above (it
	// leaves the ceiling), steady (it stays for a while), paused (Retry-After) or silence (only probes are sent).
	Mode string `json:"mode"`
}

// Buckets yields the state of every bucket that is kept, each as it is about when it is yielded, in no particular order. Those of
// limits without keys have the key "". The bucket of a key "" that nothing has used is left out where requests have keys, and in a
// Limiter without limits. What a server has said that bounds requests now is a bucket of the limit "server", whose key is the
// host and what requests are counted by there, once for each of the resources that it counts apart.
//
// The lock is taken for about 0.3 ms and at most 1,024 buckets at once, so that requests go on meanwhile. For figures over all
// keys, [Limiter.Limits] is faster.
func (l *Limiter) Buckets() iter.Seq[BucketStats] {
	l.mustBeMade()
	return func(yield func(BucketStats) bool) {
		var stats []BucketStats
		l.core.Look(func(b *queue.Bucket, now meter.Instant) { stats = append(stats, l.bucketStatsLocked(b, now)) }, func() bool {
			for i := range stats {
				if !yield(stats[i]) {
					return false
				}
			}
			stats = stats[:0]
			return true
		})
	}
}

// Bucket returns the state of one bucket, and reports whether there is such a limit and a bucket is kept for that key: one that
// is full is forgotten within about a second. For what servers said see [Limiter.Servers].
func (l *Limiter) Bucket(limit, key string) (BucketStats, bool) {
	l.mustBeMade()
	li, err := l.named(limit)
	if err != nil {
		return BucketStats{}, false
	}
	var s BucketStats
	ok := l.core.LookAt(li, key, func(b *queue.Bucket, now meter.Instant) { s = l.bucketStatsLocked(b, now) })
	return s, ok
}

func (l *Limiter) bucketStatsLocked(b *queue.Bucket, now meter.Instant) BucketStats {
	s := BucketStats{
		Limit: b.Limit.Name, Key: b.Key, Rate: b.PerSecond(now), Capacity: b.Capacity(), Tokens: b.Meter.Tokens(now),
		Wait: b.WaitLocked(now), Waiting: b.Waiting(), Callers: b.Turns().Active(),
	}
	if m, ok := b.Meter.(meter.Flier); ok {
		s.InFlight = int(m.InFlight())
	}
	if held := b.HeldUntil(); held > now {
		s.HeldUntil = l.core.Start.Add(time.Duration(held))
	}
	if m, ok := b.Meter.(meter.Turner); ok {
		if turns := m.Turns(now); turns < meter.Never {
			s.Reset = l.core.Start.Add(time.Duration(turns))
		}
	}
	if m, ok := b.Meter.(*aimd.Meter); ok {
		ceiling, most, mode := m.Bounds(now)
		s.Learned = &LearnedStats{Ceiling: ceiling, InFlightMost: most, Mode: mode}
	}
	return s
}
