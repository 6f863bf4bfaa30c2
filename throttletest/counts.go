package throttletest

import (
	"fmt"
	"time"
)

// Counts are the gauges and counters of a server. A counter never falls. A request that has been received but not decided
// yet, because it travels (see [WithRoundTrip]), is in Received and in none of the other counters.
type Counts struct {
	InFlight    int64 // requests received that have no response yet
	MaxInFlight int64 // the most such requests at one time

	Received  int64            // all requests
	Accepted  int64            // charged to all their limits
	Refused   int64            // refused by a limit, or by a full queue
	RefusedBy map[string]int64 // refused by each limit, by its name; a request that two limits refuse counts in both
	QueueFull int64            // refused because the queue of the workers was full
	Failed    int64            // hit by Outage, Hang or Abort, and so neither accepted nor refused
	Spoiled   int64            // accepted, and then hit by Respond, CutBody or SlowBody
}

// A charge is an accepted request, as one limit has counted it.
type charge struct {
	at, cost int64
	account  int32
}

// Counts returns what has been counted up to now.
func (h *Handler) Counts() Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.counts
	c.RefusedBy = make(map[string]int64, len(h.rules))
	for _, r := range h.rules {
		c.RefusedBy[r.spec.name] = r.refused
	}
	return c
}

// Accepted returns the instants at which requests were accepted, in order. If there were more than [WithRecording] keeps, it
// returns the first ones.
func (h *Handler) Accepted() []time.Time {
	h.mu.Lock()
	accepted := h.accepted // only appended to, so what is there can be read without the lock
	h.mu.Unlock()
	at := make([]time.Time, len(accepted))
	for i, ns := range accepted {
		at[i] = h.start.Add(time.Duration(ns - h.start.UnixNano()))
	}
	return at
}

// MaxAccepted returns the largest cost that the limit of that name has accepted for one key in any stretch of time of that
// length. Stretches are half-open: two requests exactly one length apart are not in the same one. If limit is "", it returns the
// largest number of requests that the server has accepted in such a stretch. With it, a test can assert that a client kept within
// a limit, even within one that the server does not enforce.
//
// It is an error if there is no such limit, if length is not positive, or if more was accepted than [WithRecording] keeps.
func (h *Handler) MaxAccepted(limit string, length time.Duration) (int64, error) {
	if length <= 0 {
		return 0, fmt.Errorf("throttletest: MaxAccepted(%q, %v): the length must be positive", limit, length)
	}
	charges, err := h.recorded(limit)
	if err != nil {
		return 0, err
	}
	perAccount := make(map[int32][]charge)
	for _, c := range charges {
		perAccount[c.account] = append(perAccount[c.account], c)
	}
	var most int64
	for _, charges := range perAccount {
		most = max(most, maxInWindow(charges, int64(length)))
	}
	return most, nil
}

func (h *Handler) recorded(limit string) ([]charge, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.counts.Accepted > int64(h.record) {
		return nil, fmt.Errorf("throttletest: %d requests were accepted, and WithRecording(%d) keeps no more than that",
			h.counts.Accepted, h.record)
	}
	if limit == "" {
		charges := make([]charge, len(h.accepted))
		for i, at := range h.accepted {
			charges[i] = charge{at: at, cost: 1}
		}
		return charges, nil
	}
	for _, r := range h.rules {
		if r.spec.name == limit {
			return r.charges, nil
		}
	}
	return nil, fmt.Errorf("throttletest: there is no limit named %q", limit)
}

func maxInWindow(charges []charge, length int64) (most int64) {
	var sum int64
	first := 0
	for _, c := range charges {
		for c.at-charges[first].at >= length {
			sum -= charges[first].cost
			first++
		}
		sum += c.cost
		most = max(most, sum)
	}
	return most
}
