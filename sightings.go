package throttle

import (
	"sync/atomic"
)

// sightings are which of the things that a limit looks for in responses were in any of them, as bits, and above them how many responses
// there were, up to enoughResponses. Only time shows whether a path or a unit is misspelled.
type sightings struct {
	atomic.Uint32
	all uint16 // that it looks for
}

const enoughResponses = 100

// What the names of a policy see.
const (
	sawUnit = 1 << iota
	sawCost
)

func newSightings(n int) *sightings { return &sightings{all: uint16(1<<n - 1)} }

// see takes what is in another response. It reports whether there have been enough now and something was in none of them.
func (s *sightings) see(found uint16) (warns bool) {
	for {
		old := s.Load()
		responses, seen := old>>16, uint16(old)|found
		if responses == enoughResponses && seen == uint16(old) {
			return false
		}
		responses = min(responses+1, enoughResponses)
		if s.CompareAndSwap(old, responses<<16|uint32(seen)) {
			return old>>16 < enoughResponses && responses == enoughResponses && seen != s.all
		}
	}
}

// missing returns what was in none of enough responses, as bits; 0: nothing, as far as is known. It works for nil.
func (s *sightings) missing() uint16 {
	if s == nil {
		return 0
	}
	if now := s.Load(); now>>16 == enoughResponses {
		return s.all &^ uint16(now)
	}
	return 0
}
