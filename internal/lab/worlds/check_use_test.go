package worlds

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// checkUse checks that some limit is used, if processes want more all the time.
func (f *fleet) checkUse() (faults []string) {
	for _, calm := range f.calm() {
		if f.refuses() || f.wastes() || calm.to-calm.from < max(5*time.Second, 2*f.periods()) {
			continue
		}
		var thirsty []*process
		wants := 0. // requests per second
		for _, p := range f.processes {
			if p.isThirsty(calm) {
				thirsty = append(thirsty, p)
				wants += float64(p.callers) / (p.mean() + 2*f.link.longest + time.Millisecond).Seconds()
			}
		}
		if len(thirsty) == 0 {
			continue
		}
		most, rates := 0., []float64(nil)
		var text strings.Builder
		for i := range f.limits {
			used, rate := f.use(i, calm, thirsty)
			most = max(most, used)
			rates = append(rates, rate)
			fmt.Fprintf(&text, " %.3f of limit %d", used, i)
		}
		slices.Sort(rates)
		want := .95
		if len(rates) > 1 && rates[1] < 1.3*rates[0] {
			want = .8 // they stop requests in turns
		}
		if len(f.limits) > 1 {
			want *= f.waited(thirsty)
		}
		want *= 1 - f.waitedForLost(calm, thirsty...)
		if wants > 2*rates[0] && most < want {
			faults = append(faults, fmt.Sprintf("use: from %v to %v, used are%s; %.1f/s of %.1f/s that are wanted", calm.from, calm.to, text.String(), rates[0], wants))
		}
	}
	return faults
}

// wastes reports whether tokens or slots lie unused in processes that do not always want more, while others wait. An unused slot is given
// back after 100 to 200 ms, and as long as there are fewer than processes, another one waits for it. What a request lacks that does not
// wait for a response is leased for a later one, which comes too late for a token of a sliding window.
func (f *fleet) wastes() bool {
	soon := 2 * f.link.longest
	tries := slices.ContainsFunc(f.crews, func(c crew) bool { return c.maxWait >= 0 && c.maxWait < soon || c.deadline > 0 && c.deadline < soon })
	seldom := slices.ContainsFunc(f.crews, func(c crew) bool { return c.every > 0 || c.deadline > 0 || c.maxWait >= 0 })
	sliding := slices.ContainsFunc(f.limits, func(l limit) bool { return l.shared && l.kind == "sliding" })
	return f.scarce() && seldom || tries && (sliding || f.chance() && len(f.limits) > 1)
}

// waited returns the part of the time in which the limit that binds is used, where other limits stop requests as well.
func (f *fleet) waited(thirsty []*process) float64 {
	part := 1.
	for i, l := range f.limits {
		if l.shared && l.windows() { // the store is asked when it begins, or when a token comes in
			wait := f.link.longest
			if l.kind == "sliding" { // its tokens cannot be kept for those that are promised elsewhere, and are asked for again
				wait += f.promised()
				for _, other := range f.limits {
					if !other.shared && other.per > 0 {
						wait += other.per / time.Duration(other.n)
					}
				}
			}
			part *= max(.5, 1-wait.Seconds()/l.per.Seconds())
		}
		part *= f.streaming(i, thirsty[0])
		turn, gap, around := f.turns(i)
		if turn > 0 {
			// A process that gets a slot asks for the rest, and when it passes the slot on, what it was promised for the next request is
			// unused.
			gap += f.link.longest
			part *= 1 - around*gap.Seconds()/(turn+gap).Seconds()
		}
		if turn > 0 && f.scarce() {
			part *= min(1, float64(f.keys)*thirsty[0].mean().Seconds()/f.link.longest.Seconds()) // it asks for those of one request of a key at a time
			for j := range f.limits {
				if _, rate := f.use(j, span{0, f.lasts}, thirsty); j != i {
					if !f.limits[j].shared { // only processes with a slot use theirs
						part *= float64(f.units(i)) / float64(f.size())
					}
					inTurn := rate * turn.Seconds() / float64(f.units(i))
					part *= max(.3, inTurn/(inTurn+float64(f.keys)))
				}
			}
		}
	}
	return part
}

// streaming returns for which part of the time a slot is used, if a process has few streams and many short requests, which a limit of its own
// stops: a slot whose stream has ended has short ones for part of the time until the next stream begins. It is 1 for others.
func (f *fleet) streaming(slots int, p *process) float64 {
	part, each := 1., float64(f.units(slots))/float64(f.size())
	for _, l := range f.limits {
		if f.limits[slots].kind != "slots" || !p.streams || l.shared || l.per == 0 {
			continue
		}
		if rate := float64(l.of(p.percent).n) / l.per.Seconds(); rate*p.takes.Seconds() < each {
			stream := streamsTake * p.takes.Seconds()
			part = min(part, stream/(stream+1/(streamed*rate)))
		}
	}
	return part
}

// cycle returns how long it takes until each token of a window was used again: its period and a way to the store and back. Of processes
// that compete for a sliding window, those that have had their share wait for a turn, up to a 13th of the period, and the store joins what
// many leases have used in a 64th of it.
func (f *fleet) cycle(l limit) time.Duration {
	if l.kind != "sliding" || !l.shared {
		return l.per
	}
	cycle := l.per + f.link.longest
	if f.size() > 1 {
		cycle += l.per / 16
	}
	if l.n >= 128 {
		cycle += l.per / 64
	}
	return cycle
}

// use returns which part of a limit was used, and how many requests it allows per second.
func (f *fleet) use(i int, in span, thirsty []*process) (used, rate float64) {
	l := f.limits[i]
	budgets := make(map[budget]limit)
	for _, p := range thirsty {
		for k := range f.keys {
			b := f.budgetOf(i, p, fmt.Sprint(k))
			if l.shared {
				budgets[b] = f.strictest(i, in.from, f.processes...)
			} else {
				budgets[b] = f.strictest(i, in.from, p)
			}
		}
	}
	cycle := f.cycle(l)
	switch {
	case l.kind == "fixed": // whole ones
		in.to = in.to / cycle * cycle
		in.from = (in.from + cycle - 1) / cycle * cycle
	case l.windows(): // each token is used once in any stretch of this length
		in.to = in.from + (in.to-in.from)/cycle*cycle
	}
	has, had := 0., 0.
	cost := float64(1+f.most()) / 2
	for _, l := range budgets {
		switch {
		case l.kind == "slots":
			takes := 0.
			for _, p := range thirsty {
				takes += p.mean().Seconds() / float64(len(thirsty))
			}
			n := float64(l.n)
			if turn, gap, around := f.turns(i); turn > 0 {
				n *= 1 - around*gap.Seconds()/(turn+gap).Seconds()
			}
			has += n * (in.to - in.from).Seconds()
			rate += float64(l.n) / takes
		case l.windows():
			n := max(1, float64(l.n-(f.most()-1)*int64(f.size())))
			has += n * float64((in.to-in.from)/cycle)
			rate += n / cycle.Seconds() / cost
		default:
			has += float64(l.n)*(in.to-in.from).Seconds()/l.per.Seconds() - 2*float64(f.most())
			rate += float64(l.n) / l.per.Seconds() / cost
		}
	}
	for _, s := range f.sent {
		if _, ok := budgets[f.budgetOf(i, s.process, s.key)]; !ok {
			continue
		}
		if l.kind == "slots" {
			had += max(0, (min(s.ends, in.to) - max(s.at, in.from)).Seconds())
		} else if s.at >= in.from && s.at < in.to {
			had += float64(s.cost)
		}
	}
	if l.shared && l.windows() { // of those that always want more, checkUse takes off the time
		for _, lost := range f.lost {
			if lost.at >= in.from && lost.at < in.to && !slices.Contains(thirsty, lost.process) {
				had += float64(lost.tokens[f.name(i)])
			}
		}
	}
	if l.shared && (l.kind == "bucket" || l.kind == "pace") { // what a request was promised is unused when it gives up
		for _, m := range f.missed {
			if m.until < never && m.at >= in.from && m.at < in.to {
				had += float64(m.cost)
			}
		}
	}
	return had / has, rate
}
