package worlds

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// check returns what is wrong with a world that was played.
func (f *fleet) check() (faults []string) {
	f.sort()
	faults = append(faults, f.faults...)
	for _, check := range []func() []string{f.checkBounds, f.checkShares, f.checkUse, f.checkMissed, f.checkWaits, f.checkServed} {
		faults = append(faults, check()...)
	}
	return faults
}

// sort brings what was noted into an order that does not depend on goroutines.
func (f *fleet) sort() {
	slices.SortFunc(f.sent, func(a, b sent) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.asked, b.asked)) })
	slices.SortFunc(f.missed, func(a, b missed) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.asked, b.asked)) })
}

// A budget is what requests of one limit and key share.
type budget struct {
	limit   int
	process int // -1: it is that of all
	key     string
}

func (b budget) String() string {
	return fmt.Sprintf("limit %d of process %d, key %q", b.limit, b.process, b.key)
}

func (f *fleet) budgetOf(limit int, p *process, key string) budget {
	b := budget{limit, -1, ""}
	if !f.limits[limit].shared {
		b.process = p.nth
	}
	if f.limits[limit].keyed {
		b.key = key
	}
	return b
}

// budgets returns what was sent from each budget.
func (f *fleet) budgets() map[budget][]sent {
	all := make(map[budget][]sent)
	for _, s := range f.sent {
		for i := range f.limits {
			b := f.budgetOf(i, s.process, s.key)
			all[b] = append(all[b], s)
		}
	}
	return all
}

// percents returns the least and the most that any process sets of the number of a limit.
func (f *fleet) percents(i int) (least, most int64) {
	least, most = noBound, 0
	for _, c := range f.crews {
		least, most = min(least, c.percent), max(most, c.percent)
	}
	for _, t := range f.twists {
		if o, ok := t.(rollout); ok && o.limit == i {
			least, most = min(least, o.percent), max(most, o.percent)
		}
	}
	return least, most
}

// strictest returns a limit by the strictest rule that one of these processes sets from an instant on, or has set within 10 s before: it
// applies as long.
func (f *fleet) strictest(i int, from time.Duration, processes ...*process) limit {
	least := noBound
	for _, p := range processes {
		if p.gone < from-10*time.Second {
			continue
		}
		percent, latest := p.percent, time.Duration(-1)
		for _, t := range f.twists {
			if o, ok := t.(rollout); ok && o.limit == i && o.crew == p.of {
				if at := o.reaches(f, p); at < from && p.from < at && at > latest {
					percent, latest = o.percent, at
				}
			}
		}
		least = min(least, percent)
	}
	return f.limits[i].of(least)
}

// most returns the most that a request costs.
func (f *fleet) most() (cost int64) {
	for _, c := range f.crews {
		cost = max(cost, c.costs)
	}
	return cost
}

// A span is a stretch of time.
type span struct{ from, to time.Duration }

// calm returns the stretches in which nothing happens, and nothing has happened from which the fleet has not settled.
func (f *fleet) calm() (all []span) {
	unrest := []span{{0, 0}}
	for _, t := range f.twists {
		from, until := t.unrest()
		unrest = append(unrest, span{from, until})
	}
	for _, c := range f.crews {
		begun := c.from
		if c.percent != 100 {
			begun += settles // the others hear of a stricter rule, and have been promised tokens by theirs
		}
		unrest = append(unrest, span{c.from, begun})
		left := c.to
		if c.percent != 100 {
			left += 10 * time.Second
		}
		unrest = append(unrest, span{c.to, left})
	}
	for i := range unrest {
		unrest[i].to += max(settles, 2*f.periods())
		if i > 0 { // what was promised before is due, or unused if it was given back
			unrest[i].to += f.promised()
		}
	}
	slices.SortFunc(unrest, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	at := time.Duration(0)
	for _, u := range unrest {
		if u.from > at {
			all = append(all, span{at, min(u.from, f.lasts)})
		}
		at = max(at, u.to)
	}
	if at < f.lasts {
		all = append(all, span{at, f.lasts})
	}
	return all
}

// isCalm reports whether nothing happens in a stretch of time.
func (f *fleet) isCalm(from, to time.Duration) bool {
	return slices.ContainsFunc(f.calm(), func(s span) bool { return s.from <= from && to < s.to })
}

// promised returns how far ahead the processes may have been promised tokens: each those of a request. If they leave, these are unused,
// and if the rate is lowered, they are traded for those that come after all of them.
func (f *fleet) promised() (longest time.Duration) {
	for i, l := range f.limits {
		if least, _ := f.percents(i); l.shared && (l.kind == "bucket" || l.kind == "pace") {
			longest = max(longest, time.Duration(int64(f.size())*f.most()*int64(l.per)/l.of(least).n))
		}
	}
	return longest
}

// units returns how many requests can have tokens of a shared window, or slots, at one time; 0: it is neither.
func (f *fleet) units(i int) int64 {
	if l := f.limits[i]; l.shared && (l.windows() || l.kind == "slots") {
		least, _ := f.percents(i)
		return l.of(least).n
	}
	return 0
}

// scarce reports whether there are fewer slots than processes.
func (f *fleet) scarce() bool {
	for i, l := range f.limits {
		if n := f.units(i); l.kind == "slots" && n > 0 && n < int64(f.size()) {
			return true
		}
	}
	return false
}

// odd returns how many slots and processes there are at some time, if the slots cannot be divided evenly then; 0: they can be at any time.
func (f *fleet) odd(i int) (slots, processes int64) {
	l := f.limits[i]
	if l.kind != "slots" || !l.shared {
		return 0, 0
	}
	least, most := f.percents(i)
	for _, processes := range f.sizes() {
		for _, percent := range []int64{least, most} {
			if n := l.of(percent).n; n%processes > 0 {
				return n, processes
			}
		}
	}
	return 0, 0
}

// sizes returns how many processes there are in all, and each time that one has left.
func (f *fleet) sizes() []int64 {
	all, at := []int64{int64(f.size())}, f.lasts
	for _, left := range f.processes {
		if left.gone == at { // so have those of its crew
			continue
		}
		at = left.gone
		n := int64(0)
		for _, p := range f.processes {
			if p.from <= left.gone && left.gone < p.gone {
				n++
			}
		}
		if n > 0 {
			all = append(all, n)
		}
	}
	return all
}

// turns returns for how long a process keeps a slot that goes around, how long that is unused until the next one has it, and which part of
// the slots go around; 0: there is one for each.
func (f *fleet) turns(i int) (turn, gap time.Duration, around float64) {
	n, p := f.odd(i)
	if n == 0 {
		return 0, 0, 0
	}
	poll := time.Duration(min(100, p)) * 10 * time.Millisecond
	left := time.Duration(p - n%p)
	return 25 * poll / left, f.link.longest + poll/left, float64(n%p) / float64(n)
}

// isThirsty reports whether the process always wants more in a stretch of time, of each key.
func (p *process) isThirsty(s span) bool {
	return p.every == 0 && p.deadline == 0 && p.maxWait < 0 && p.callers >= p.keys && p.from < s.from && p.gone >= s.to
}

// periods returns the longest period of a window.
func (f *fleet) periods() (longest time.Duration) {
	for _, l := range f.limits {
		if l.windows() {
			longest = max(longest, l.per)
		}
	}
	return longest
}

const storeTimeout = 250 * time.Millisecond // a call without a response is given up

// waitedForLost returns in which part of a stretch of time processes waited for responses that were lost. Their tokens are lost as well:
// those of a window until its end, and of a sliding one for a period.
func (f *fleet) waitedForLost(in span, of ...*process) float64 {
	waited := time.Duration(0)
	for _, l := range f.lost {
		if l.at >= in.from && l.at < in.to && slices.Contains(of, l.process) {
			waited += storeTimeout + f.link.longest + f.periods()
		}
	}
	return min(1, waited.Seconds()/(in.to-in.from).Seconds()/float64(len(of)))
}

// loses reports whether responses are lost in a stretch of time, and tokens with them.
func (f *fleet) loses(in span) bool {
	return slices.ContainsFunc(f.lost, func(l lost) bool { return l.at >= in.from && l.at < in.to })
}

// tokens returns what each process has used in a stretch of time.
func (f *fleet) tokens(in span, of ...*process) []int64 {
	got := make([]int64, len(of))
	for _, s := range f.sent {
		if s.at >= in.from && s.at < in.to {
			if i := slices.Index(of, s.process); i >= 0 {
				got[i] += s.cost
			}
		}
	}
	return got
}

func sum(all []int64) (n int64) {
	for _, one := range all {
		n += one
	}
	return n
}
