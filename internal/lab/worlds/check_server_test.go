package worlds

import (
	"fmt"
	"slices"
	"time"
)

// refuses reports whether the server has refused requests, except by mistake: then its limit is the one that counts.
func (f *fleet) refuses() bool {
	return slices.ContainsFunc(f.sent, func(s sent) bool { return s.refused && !s.mistaken })
}

// checkWaits checks that a process sends no request of a key for as long as the server asked it to wait, except in the last second: the
// server may have rounded up.
func (f *fleet) checkWaits() (faults []string) {
	type asker struct {
		process *process
		key     string
	}
	waits := make(map[asker]span)
	for _, s := range f.sent {
		of := asker{s.process, s.key}
		if wait := waits[of]; s.at > wait.from && s.at < wait.to {
			return append(faults, fmt.Sprintf("waits: process %d sent a request of key %s at %v, and was asked at %v to wait until %v", s.process.nth, s.key, s.at, wait.from, wait.to+time.Second))
		}
		if to := s.at + s.wait - time.Second; to > waits[of].to {
			waits[of] = span{s.at, to}
		}
	}
	return nil
}

// checkServed checks that processes that always want more have requests accepted again and again by a server that refuses.
func (f *fleet) checkServed() (faults []string) {
	if !f.refuses() || f.most() > f.server.burst { // it refuses each request of such a cost
		return nil
	}
	const longest = 10 * time.Second
	for _, calm := range f.calm() {
		if !slices.ContainsFunc(f.processes, func(p *process) bool { return p.isThirsty(calm) }) {
			continue
		}
		latest := calm.from
		for _, s := range f.sent {
			if !s.refused && s.at >= calm.from && s.at < calm.to || s.at >= calm.to {
				if min(s.at, calm.to)-latest > longest {
					break
				}
				latest = min(s.at, calm.to)
			}
		}
		if calm.to-latest > longest {
			return append(faults, fmt.Sprintf("served: the server accepted nothing from %v on, until %v", latest, calm.to))
		}
	}
	return nil
}
