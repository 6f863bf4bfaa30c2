package worlds

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// chance reports whether chance decides which processes are served next: there are fewer slots, or tokens of a window, than processes, so
// one of those that wait gets what is free, whichever asks first. Where requests cost several tokens of a window, one that finds too few
// waits, and a cheaper one of another process is served. No slot is kept while a request waits for tokens of other limits.
func (f *fleet) chance() bool {
	for i, l := range f.limits {
		if n := f.units(i); n > 0 && (n < int64(f.size()) || l.windows() && f.most() > 1) {
			return true
		}
		if l.kind == "slots" && l.shared && len(f.limits) > 1 {
			return true
		}
	}
	return false
}

// checkShares checks that a process gets half of an even share, or of what it wants, over any 5 s, or as long as an even share is two
// requests or windows take two periods.
func (f *fleet) checkShares() (faults []string) {
	for _, calm := range f.calm() {
		if f.refuses() {
			continue
		}
		for _, alike := range f.alike(calm) {
			if len(alike) < 2 {
				continue
			}
			total := f.tokens(calm, alike...)
			requests := 2.
			if f.most() > 1 {
				requests = 5 // turns are of requests, of any cost
			}
			length := max(5*time.Second, 2*f.periods())
			for _, n := range total {
				if n > 0 {
					length = max(length, time.Duration(float64(calm.to-calm.from)*requests*float64(f.most())*float64(len(alike))/float64(sum(total))))
				}
			}
			if slices.ContainsFunc(f.limits, func(l limit) bool { return l.keyed }) {
				length *= time.Duration(f.keys) // it may be served of all keys in one turn
			}
			for from := calm.from; from+length <= calm.to; from += length / 4 {
				in := span{from, from + length}
				got := f.tokens(in, alike...)
				share := float64(sum(got)) / float64(len(alike))
				for i, p := range alike {
					wants := float64(p.callers) * length.Seconds() / (p.mean() + 2*f.link.longest + f.before(p, in) + time.Millisecond).Seconds()
					half := min(share, wants) / 2
					if requests := share / float64(f.most()) / f.aTurn(); f.chance() { // of so many draws
						half = min(half, share*(1-6/math.Sqrt(requests)))
					}
					half *= 1 - f.waitedForLost(in, p)
					if got[i] < int64(half) {
						faults = append(faults, fmt.Sprintf("shares: process %d has %d from %v to %v, and an even share is %.1f: %v", p.nth, got[i], in.from, in.to, share, got))
						break
					}
				}
				if len(faults) > 0 {
					return faults
				}
			}
		}
	}
	return faults
}

// before returns for how long tokens are promised to other processes before a request: each has those of its callers, up to the horizon. A
// process with few callers wants as few requests as can wait one after the other.
func (f *fleet) before(p *process, in span) (longest time.Duration) {
	waiting := int64(0)
	for _, o := range f.processes {
		if o != p && o.from < in.to && o.gone >= in.from {
			waiting += int64(o.callers)
		}
	}
	for i, l := range f.limits {
		if l.shared && (l.kind == "bucket" || l.kind == "pace") {
			promised := time.Duration(waiting * f.most() * int64(l.per) / f.strictest(i, in.from, f.processes...).n)
			longest = max(longest, min(promised, horizon+3*f.link.longest))
		}
	}
	return longest
}

// aTurn returns how many requests a process sends each time that it gets a slot, if there is not one for each.
func (f *fleet) aTurn() float64 {
	most := 1.
	for i := range f.limits {
		for _, c := range f.crews {
			if turn, _, _ := f.turns(i); turn > 0 && c.takes > 0 {
				most = max(most, 1+turn.Seconds()/c.takes.Seconds())
			}
		}
	}
	return most
}

// alike returns groups of processes that always want more and differ in nothing that matters for their shares.
func (f *fleet) alike(in span) [][]*process {
	var all [][]*process
next:
	for _, p := range f.processes {
		if !p.isThirsty(in) || p.streams {
			continue
		}
		for i, group := range all {
			o := group[0]
			if p.away == o.away && p.takes == o.takes && p.costs == o.costs && (p.of == o.of || f.keys == 1 && p.percent == o.percent) {
				all[i] = append(group, p)
				continue next
			}
		}
		all = append(all, []*process{p})
	}
	return all
}
