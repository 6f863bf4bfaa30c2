package throttle

import (
	"iter"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/queue"
)

// LimitStats are the counters and gauges of one limit, over all of its keys. It is a plain value, and prints as one line.
//
// A request counts in each limit that it was charged in. Delayed, Canceled, Refused and Waits count it in one alone: the limit
// that it would have waited for the longest.
//
// The limit "server" stands for what servers said. Its tokens are requests.
type LimitStats struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`  // bucket, pace, sliding-window, fixed-window, calendar-window, in-flight, adaptive, server, or none without limits
	Keyed bool   `json:"keyed"` // requests have keys in this limit, or some had one

	// Gauges
	Rate      float64   `json:"rate"`                // tokens per second: as set, or as learned by an Adaptive limit without keys; 0: none
	Capacity  float64   `json:"capacity"`            // tokens when full, as set: the burst, the n of a window, slots; 0: no bound
	Tokens    float64   `json:"tokens"`              // balance now of a limit without keys; negative: debt; +Inf, in JSON null: no bound
	Keys      int       `json:"keys"`                // buckets kept now, except the one of the key ""
	Waiting   int       `json:"waiting"`             // requests in the queue that this limit applies to
	Callers   int       `json:"callers,omitempty"`   // callers of these, where the limit has FairBy; one that waits for several keys counts for each
	InFlight  int       `json:"in_flight"`           // requests without a response yet, for Adaptive limits and servers; slots in use
	HeldUntil time.Time `json:"held_until,omitzero"` // the latest end of the holds of all keys; zero: none is held

	// Counters
	Granted  uint64       `json:"granted"`  // requests that it was charged for
	Undone   uint64       `json:"undone"`   // of these, the ones that were never used; see Stats
	Delayed  uint64       `json:"delayed"`  // requests granted after a wait for this limit
	Canceled uint64       `json:"canceled"` // requests whose context ended while they waited for this limit
	Refused  Refusals     `json:"refused"`  // requests rejected because of this limit
	Waits    Waits        `json:"waits"`    // the waits of Delayed
	Charged  uint64       `json:"charged"`  // tokens charged, including those by which a settlement raised a cost
	Returned uint64       `json:"returned"` // tokens of Charged that were given back; for InFlight, slots that are free again
	Holds    uint64       `json:"holds"`    // holds set
	Retunes  RetuneCounts `json:"retunes"`  // changes of learned rates
	Evicted  uint64       `json:"evicted"`  // keys forgotten before they were full again, to make room
}

// RetuneCounts counts the changes of the rates of an [Adaptive] limit by cause, as [RetuneEvent] has it.
type RetuneCounts struct {
	Growth        uint64 `json:"growth"`
	Throttled     uint64 `json:"throttled"`
	Errors        uint64 `json:"errors"`
	ErrorsStayed  uint64 `json:"errors_stayed"`
	Latency       uint64 `json:"latency"`
	QueueDrained  uint64 `json:"queue_drained"`
	LatencyStayed uint64 `json:"latency_stayed"`
	Silence       uint64 `json:"silence"`
	ProbeAnswered uint64 `json:"probe_answered"`
	Restored      uint64 `json:"restored"`
}

func retuneCounts(n *[aimd.Causes]uint64) RetuneCounts {
	return RetuneCounts{
		Growth: n[aimd.CauseGrowth], Throttled: n[aimd.CauseThrottled], Errors: n[aimd.CauseErrors], ErrorsStayed: n[aimd.CauseNotLoad],
		Latency: n[aimd.CauseLatency], QueueDrained: n[aimd.CauseDrained], LatencyStayed: n[aimd.CauseSlower],
		Silence: n[aimd.CauseSilence], ProbeAnswered: n[aimd.CauseAlive], Restored: n[aimd.CauseRestored],
	}
}

// All yields every cause and its count.
func (r RetuneCounts) All() iter.Seq2[string, uint64] {
	counts := [aimd.Causes]uint64{
		aimd.CauseGrowth: r.Growth, aimd.CauseThrottled: r.Throttled, aimd.CauseErrors: r.Errors, aimd.CauseNotLoad: r.ErrorsStayed,
		aimd.CauseLatency: r.Latency, aimd.CauseDrained: r.QueueDrained, aimd.CauseSlower: r.LatencyStayed,
		aimd.CauseSilence: r.Silence, aimd.CauseAlive: r.ProbeAnswered, aimd.CauseRestored: r.Restored,
	}
	return func(yield func(string, uint64) bool) {
		for c := aimd.CauseGrowth; c < aimd.Causes && yield(c.String(), counts[c]); c++ {
		}
	}
}

// Total returns the number of changes.
func (r RetuneCounts) Total() (n uint64) {
	for _, count := range r.All() {
		n += count
	}
	return n
}

// Waits is a histogram of the waits of the requests that had to wait.
type Waits struct {
	Counts [19]uint64    `json:"counts"` // Counts[i]: of waits up to WaitBounds()[i], and longer than the bound before; the last has no bound
	Sum    time.Duration `json:"sum"`    // in seconds as JSON
}

// WaitBounds returns the upper bounds of [Waits], from 1 ms to 1 h. The slice is a copy.
func WaitBounds() []time.Duration { return append([]time.Duration(nil), queue.WaitBounds[:]...) }

// Limits returns the state of each limit over all of its keys, in their order, and last that of the limit "server". It takes
// the lock for a few microseconds, however many keys there are.
func (l *Limiter) Limits() []LimitStats {
	l.mustBeMade()
	all := make([]LimitStats, 0, len(l.core.Limits)+1)
	l.core.LookAtLimits(func(li *queue.Limit, now meter.Instant) { all = append(all, l.limitStatsLocked(li, now)) })
	return all
}

func (l *Limiter) limitStatsLocked(li *queue.Limit, now meter.Instant) LimitStats {
	c := &li.Counts
	s := LimitStats{
		Name: li.Name, Kind: string(l.policyOf(li).kind), Keyed: li.Keyed, Keys: len(li.Buckets), Waiting: c.Waiting, InFlight: li.InFlight(),
		Granted: c.Granted, Undone: c.Undone, Delayed: c.Delayed, Canceled: c.Canceled, Refused: refusals(&c.Refused), Waits: Waits(c.Waits),
		Charged: c.Charged, Returned: c.Returned, Holds: c.Holds, Retunes: retuneCounts(&c.Retunes), Evicted: c.Evicted,
	}
	if li.Gates {
		s.Keys, s.Keyed = len(l.core.Gates), true
	}
	if b := li.Single; b != nil {
		s.Capacity = b.Capacity()
		if !li.Keyed {
			s.Rate, s.Tokens = b.PerSecond(now), b.Meter.Tokens(now)
		} else if _, learns := b.Meter.(meter.Rater); !learns {
			s.Rate = li.Shared(li.Rate).PerSecond()
		}
	}
	if li == l.core.Fair {
		s.Callers = l.core.Callers
	}
	if held := max(li.Held, li.HeldMost); held > now {
		s.HeldUntil = l.core.Start.Add(time.Duration(held))
	}
	return s
}
