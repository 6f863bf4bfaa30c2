package seen

import "sync/atomic"

// Sightings are which of the things that a limit looks for in responses were in any of them, as bits, and above them how many responses
// there were, up to Enough. Only time shows whether a path or a unit is misspelled. Several goroutines may use them.
type Sightings struct {
	All uint16 // that it looks for
	now atomic.Uint32
}

// Enough responses without a thing show that it is not there.
const Enough = 100

// LookFor returns the Sightings of n things, of which none was seen.
func LookFor(n int) *Sightings { return &Sightings{All: uint16(1<<n - 1)} }

// See takes what is in another response. It reports whether there have been enough now and something was in none of them.
func (s *Sightings) See(found uint16) (warns bool) {
	for {
		old := s.now.Load()
		responses, seen := old>>16, uint16(old)|found
		if responses == Enough && seen == uint16(old) {
			return false
		}
		responses = min(responses+1, Enough)
		if s.now.CompareAndSwap(old, responses<<16|uint32(seen)) {
			return old>>16 < Enough && responses == Enough && seen != s.All
		}
	}
}

// Missing returns what was in none of enough responses, as bits; 0: nothing, as far as is known. It works for nil.
func (s *Sightings) Missing() uint16 {
	if s == nil {
		return 0
	}
	if now := s.now.Load(); now>>16 == Enough {
		return s.All &^ uint16(now)
	}
	return 0
}
