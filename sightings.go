package throttle

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/httpthrottle/throttle/internal/limiter"
)

// sightings are which of the things that a limit looks for in responses were in any of them, as bits, and above them how many responses
// there were, up to enoughResponses. Only time shows whether a path or a unit is misspelled.
type sightings struct {
	atomic.Uint32
	all uint16 // that it looks for
}

const enoughResponses = 100

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

// warning returns what is probably wrong with a limit, as its responses show; "": nothing.
func (p *policy) warning() string {
	var all []string
	if missing := p.paths.missing(); missing != 0 && (p.costBy == nil || missing == p.paths.all) {
		var at []string
		for i, path := range p.costPaths {
			if missing&(1<<i) != 0 {
				at = append(at, fmt.Sprintf("%q", path))
			}
		}
		all = append(all, fmt.Sprintf("none of %d responses had a number at %s", enoughResponses, strings.Join(at, ", nor at ")))
	}
	if p.names.missing() != 0 {
		all = append(all, fmt.Sprintf("none of %d responses named the unit %q", enoughResponses, p.rule.Unit))
	}
	return strings.Join(all, "; ")
}

// saw takes which of the paths of a limit had a number in a response that was accepted.
func (l *Limiter) saw(o *observer, p *policy, found uint16) {
	if p.paths.see(found) {
		o.suspicious(p)
	}
}

// sawUnits takes which of the limits in units of servers a response has named, by charge as bits.
func (t *Transport) sawUnits(charges []limiter.Charge, named uint8) {
	for i := range charges {
		p := t.limiter.policyOf(charges[i].Limit())
		if p.names != nil && p.names.see(uint16(named>>i&1)) {
			t.observer.suspicious(p)
		}
	}
}
