package worlds

import (
	"fmt"
	"maps"
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
		if to := s.at + s.wait - time.Second; to > waits[of].to && !s.mistaken { // what else is accepted contradicts a mistake
			waits[of] = span{s.at, to}
		}
	}
	return nil
}

// checkServed checks that processes that always want more have requests accepted again and again by a server that refuses, while there is a
// slot for another one.
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
		for _, s := range append(slices.Clone(f.sent), sent{at: calm.to}) {
			if s.at < calm.from || s.refused {
				continue
			}
			none := span{latest, min(s.at, calm.to)}
			if none.to-none.from > longest && none.to-none.from-f.taken(none) > longest {
				return append(faults, fmt.Sprintf("served: the server accepted nothing from %v to %v", none.from, none.to))
			}
			latest = none.to
		}
	}
	return nil
}

// taken returns for how long of a time all slots that processes share were taken, as by streams.
func (f *fleet) taken(in span) (longest time.Duration) {
	for i, l := range f.limits {
		if l.kind != "slots" || !l.shared || l.keyed && f.keys > 1 {
			continue
		}
		changes := make(map[time.Duration]int64) // of the number in flight
		for _, s := range f.sent {
			changes[s.at]++
			changes[s.ends]--
		}
		flying, since, taken := int64(0), time.Duration(0), time.Duration(0)
		for _, at := range slices.Sorted(maps.Keys(changes)) {
			if flying >= f.units(i) {
				taken += max(0, min(at, in.to)-max(since, in.from))
			}
			flying, since = flying+changes[at], at
		}
		longest = max(longest, taken)
	}
	return longest
}
