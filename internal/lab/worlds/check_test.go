package worlds

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle"
)

// check returns what is wrong with a world that was played.
func (f *fleet) check() (faults []string) {
	f.sort()
	faults = append(faults, f.faults...)
	for _, check := range []func() []string{f.checkBounds, f.checkShares, f.checkUse, f.checkMissed} {
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

const kept = 100 * time.Millisecond // tokens that are not used for so long, and three ways there and back, are given back

// checkBounds checks that no more is sent than a limit allows.
func (f *fleet) checkBounds() (faults []string) {
	for b, all := range f.budgets() {
		_, most := f.percents(b.limit)
		l := f.limits[b.limit].of(most)
		// A response of the store may be late, as a timer may.
		tokens, more := int64(0), slack
		if l.shared {
			// What counts is when a token is leased. A request that costs several may get them one by one.
			tokens, more = (f.most()-1)*int64(f.size()), slack+kept+4*f.link.longest
		}
		if l.shared && (l.kind == "bucket" || l.kind == "pace") && f.givesBack() {
			// See "Promises that are given back" in docs/lab/shared-limits.md: they are promised again behind the promises of others, so
			// that two are due at one instant. Also, what was promised at an earlier rate is used.
			tokens, more = tokens+int64(f.size()), more+horizon+3*f.link.longest
		}
		if l.shared && f.lossy > 0 && f.mode == throttle.OutageLocalShare { // to a process whose first response is lost, it is an outage
			tokens += int64(f.size())
		}
		for _, t := range f.twists {
			if e, ok := t.(excuse); ok {
				n, d := e.excuses(f, l)
				tokens, more = tokens+n, more+d
			}
		}
		if tokens >= noBound {
			continue
		}
		if fault := f.bound(l, all, tokens, more); fault != "" {
			faults = append(faults, fmt.Sprintf("bound: %v: %s", b, fault))
		}
	}
	return faults
}

// givesBack reports whether processes may give back what they were promised, because a request does not wait until the end, waits
// for another limit meanwhile, or the rule changes.
func (f *fleet) givesBack() bool {
	for _, c := range f.crews {
		if c.deadline > 0 || c.maxWait >= 0 || c.to < f.lasts || c.percent != 100 {
			return true
		}
	}
	return f.lossy > 0 || len(f.twists) > 0 || len(f.limits) > 1
}

// bound returns why requests are more than a limit allows, if it allows some tokens more and those of some more time; "": they are not.
func (f *fleet) bound(l limit, all []sent, tokens int64, more time.Duration) string {
	switch l.kind {
	case "bucket", "pace":
		// The level of a bucket that runs out at the rate, in tokens times the period.
		level, at := int64(0), time.Duration(0)
		for _, s := range all {
			level = max(0, level-l.n*int64(s.at-at))
			at = s.at
			room := (l.size()+tokens)*int64(l.per) + l.n*int64(more) - level
			level += s.cost * int64(l.per)
			need := s.cost
			if l.kind == "pace" {
				need = 1
			}
			if need*int64(l.per) > room {
				return fmt.Sprintf("%d tokens at %v, and there are %.2f", s.cost, s.at, float64(room)/float64(l.per))
			}
		}
	case "sliding":
		per := l.per
		if l.shared {
			per -= f.link.longest*3/2 + 10*time.Millisecond
		}
		used, first := int64(0), 0
		for _, last := range all {
			for used += last.cost; all[first].at <= last.at-per; first++ {
				used -= all[first].cost
			}
			if used > l.n+tokens {
				return fmt.Sprintf("%d of %d in %v until %v", used, l.n+tokens, per, last.at)
			}
		}
	case "fixed":
		used := make(map[time.Duration]int64)
		for _, s := range all {
			w := s.at / l.per // a world begins with windows
			if used[w] += s.cost; used[w] > l.n+tokens {
				return fmt.Sprintf("%d of %d in the window that begins at %v, by %v", used[w], l.n+tokens, w*l.per, s.at)
			}
		}
	case "slots":
		var ends []time.Duration // of those in flight
		for _, s := range all {
			ends = append(slices.DeleteFunc(ends, func(end time.Duration) bool { return end <= s.at }), s.ends)
			if flying := int64(len(ends)); flying > l.n+tokens {
				return fmt.Sprintf("%d of %d in flight at %v", flying, l.n+tokens, s.at)
			}
		}
	}
	return ""
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
	slices.SortFunc(unrest, func(a, b span) int { return int(a.from - b.from) })
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

// turns returns for how long a process keeps a slot that goes around, and how long that is unused until the next one has it; 0: there is
// one for each.
func (f *fleet) turns(i int) (turn, gap time.Duration) {
	l, p := f.limits[i], int64(f.size())
	least, _ := f.percents(i)
	more := l.of(least).n % p
	if l.kind != "slots" || !l.shared || more == 0 {
		return 0, 0
	}
	poll := time.Duration(min(100, p)) * 10 * time.Millisecond
	return 25 * poll / time.Duration(p-more), f.link.longest + poll/time.Duration(p-more)
}

// isThirsty reports whether the process always wants more in a stretch of time, of each key.
func (p *process) isThirsty(s span) bool {
	return p.every == 0 && p.deadline == 0 && p.maxWait < 0 && p.callers >= p.keys && p.from < s.from && p.gone >= s.to
}

// refuses reports whether the server has refused requests, except by mistake: then its limit is the one that counts.
func (f *fleet) refuses() bool {
	return slices.ContainsFunc(f.sent, func(s sent) bool { return s.refused && !s.mistaken })
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

// checkShares checks that a process gets half of an even share, or of what it wants, over any 5 s, or as long as an even share is two
// requests or windows take two periods.
func (f *fleet) checkShares() (faults []string) {
	for _, calm := range f.calm() {
		if f.refuses() || f.lossy > 0 { // each response that is lost costs the process its tokens, and a quarter of a second
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
					wants := float64(p.callers) * length.Seconds() / (p.takes + 2*f.link.longest + time.Millisecond).Seconds()
					half := min(share, wants) / 2
					if requests := share / float64(f.most()) / f.aTurn(); f.chance() { // of so many draws
						half = min(half, share*(1-6/math.Sqrt(requests)))
					}
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

// aTurn returns how many requests a process sends each time that it gets a slot, if there is not one for each.
func (f *fleet) aTurn() float64 {
	most := 1.
	for i := range f.limits {
		for _, c := range f.crews {
			if turn, _ := f.turns(i); turn > 0 && c.takes > 0 {
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

// checkUse checks that some limit is used, if processes want more all the time.
func (f *fleet) checkUse() (faults []string) {
	for _, calm := range f.calm() {
		if f.refuses() || f.lossy > 0 || f.wastes() || calm.to-calm.from < max(5*time.Second, 2*f.periods()) {
			continue
		}
		var thirsty []*process
		wants := 0.                                                                     // requests per second
		streams := slices.ContainsFunc(f.crews, func(c crew) bool { return c.streams }) // they outlast their processes
		for _, p := range f.processes {
			if p.isThirsty(calm) {
				thirsty = append(thirsty, p)
				wants += float64(p.callers) / (p.takes + 2*f.link.longest + time.Millisecond).Seconds()
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
		if !streams && wants > 2*rates[0] && most < want {
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
		if turn, gap := f.turns(i); turn > 0 && f.scarce() {
			// A process that gets a slot asks for the rest, and when it passes the slot on, what it was promised for the next request is
			// unused.
			gap += f.link.longest
			part *= turn.Seconds() / (turn + gap).Seconds()
			part *= min(1, float64(f.keys)*thirsty[0].takes.Seconds()/f.link.longest.Seconds()) // it asks for those of one request of a key at a time
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
	if l.windows() { // whole ones
		in.to = in.to / l.per * l.per
		in.from = (in.from + l.per - 1) / l.per * l.per
	}
	has, had := 0., 0.
	cost := float64(1+f.most()) / 2
	for _, l := range budgets {
		switch {
		case l.kind == "slots":
			takes := 0.
			for _, p := range thirsty {
				takes += p.takes.Seconds() / float64(len(thirsty))
			}
			n := float64(l.n)
			if turn, gap := f.turns(i); turn > 0 {
				n -= float64(l.n%int64(f.size())) * gap.Seconds() / (turn + gap).Seconds()
			}
			has += n * (in.to - in.from).Seconds()
			rate += float64(l.n) / takes
		case l.windows():
			n := max(1, float64(l.n-(f.most()-1)*int64(f.size())))
			if l.kind == "sliding" && l.shared {
				if p := float64(f.size()); p > 1 && n > p && n < 4*p { // what is not one for each is left for others
					n = math.Floor(n/p) * p
				}
				// A token comes in when its period and a way there and back are over. Of processes that compete for it, those that have had
				// their share wait for a turn, up to a 13th of the period.
				late := f.link.longest
				if f.size() > 1 {
					late += l.per / 16
				}
				n *= l.per.Seconds() / (l.per + late).Seconds()
			}
			has += n * float64((in.to-in.from)/l.per)
			rate += n / l.per.Seconds() / cost
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
	if l.shared && (l.kind == "bucket" || l.kind == "pace") { // what a request was promised is unused when it gives up
		for _, m := range f.missed {
			if m.until < never && m.at >= in.from && m.at < in.to {
				had += float64(m.cost)
			}
		}
	}
	return had / has, rate
}

// checkMissed checks that requests were rejected for reasons that the world has, and that none was that could have been sent.
func (f *fleet) checkMissed() (faults []string) {
	budgets, busy := f.budgets(), make(map[ruled][]span)
	for _, m := range f.missed {
		var r *throttle.Rejection
		if errors.As(m.err, &r) {
			if why := f.unfounded(m, r); why != "" {
				return append(faults, fmt.Sprintf("missed: %v of process %d at %v: %s", m.err, m.process.nth, m.at, why))
			}
		}
		if from, ok := f.couldSend(m, budgets, busy); ok {
			return append(faults, fmt.Sprintf("missed: process %d asked at %v for until %v, %v, and there were unused tokens from %v on", m.process.nth, m.asked, m.until, m.err, from))
		}
	}
	return faults
}

// unfounded returns why a rejection has no reason in the world.
func (f *fleet) unfounded(m missed, r *throttle.Rejection) string {
	switch r.Reason {
	case throttle.ReasonNoTokens, throttle.ReasonMaxWait, throttle.ReasonDeadline:
		if m.until == never {
			return "it had no bound"
		}
	case throttle.ReasonHeld:
		if f.server == nil && !slices.ContainsFunc(f.twists, func(t twist) bool { _, ok := t.(hold); return ok }) {
			return "nothing was held"
		}
	case throttle.ReasonStore:
		if f.lossy == 0 && f.isCalm(m.at, m.at) {
			return "the store was there"
		}
	default:
		return "no world has a reason for it"
	}
	return ""
}

// isCalm reports whether nothing happens in a stretch of time.
func (f *fleet) isCalm(from, to time.Duration) bool {
	return slices.ContainsFunc(f.calm(), func(s span) bool { return s.from <= from && to < s.to })
}

// A ruled is a budget under a rule.
type ruled struct {
	budget
	n int64
}

// couldSend reports whether the tokens for a request that was not sent lay there unused for so long while it could have been sent that
// the process must have got them, and from when on.
func (f *fleet) couldSend(m missed, budgets map[budget][]sent, known map[ruled][]span) (from time.Duration, ok bool) {
	if f.server != nil || f.lossy > 0 || f.most() > 1 {
		return 0, false
	}
	idle := 300*time.Millisecond + 4*f.link.longest
	if f.has("slots") { // while none is free, a process asks this often
		idle += 300*time.Millisecond + time.Duration(min(100, f.size()))*10*time.Millisecond
	}
	if m.until-m.asked < idle || m.until > f.lasts || !f.isCalm(m.asked, m.until) {
		return 0, false
	}
	var busy []span
	for i := range f.limits {
		l := f.limits[i]
		if l.shared && l.windows() {
			return 0, false // a process waits for its turn, for longer than this
		}
		if l.shared && !f.isQuiet(l, budgets[f.budgetOf(i, m.process, m.key)], span{m.asked, m.until}) {
			return 0, false // the tokens may be promised to others
		}
		if l.shared {
			l = f.strictest(i, m.asked, f.processes...)
		} else {
			l = f.strictest(i, m.asked, m.process)
		}
		b := f.budgetOf(i, m.process, m.key)
		of := ruled{b, l.n}
		if _, ok := known[of]; !ok {
			known[of] = f.busy(l, budgets[b])
		}
		for _, s := range known[of] {
			if s.to > m.asked && s.from < m.until {
				busy = append(busy, s)
			}
		}
	}
	slices.SortFunc(busy, func(a, b span) int { return int(a.from - b.from) })
	at := m.asked
	for _, b := range append(busy, span{m.until, m.until}) {
		if min(b.from, m.until)-at >= idle {
			return at, true
		}
		at = max(at, b.to)
	}
	return 0, false
}

// isQuiet reports whether less than half of a limit is used in a stretch of time.
func (f *fleet) isQuiet(l limit, all []sent, in span) bool {
	if l.kind != "slots" && in.to-in.from < 10*l.per/time.Duration(l.n) {
		return false // too short to tell
	}
	used := time.Duration(0)
	for _, s := range all {
		if l.kind == "slots" {
			used += max(0, min(s.ends, in.to)-max(s.at, in.from))
		} else if s.at >= in.from && s.at < in.to {
			used += time.Duration(s.cost) * l.per
		}
	}
	return used < time.Duration(l.n)*(in.to-in.from)/2
}

// busy returns when there is no token.
func (f *fleet) busy(l limit, all []sent) (busy []span) {
	switch l.kind {
	case "bucket", "pace":
		level, at := int64(0), time.Duration(0)
		for _, s := range all {
			level = max(0, level-l.n*int64(s.at-at)) + s.cost*int64(l.per)
			at = s.at
			if over := level - (l.size()-1)*int64(l.per); over > 0 {
				busy = append(busy, span{at, at + time.Duration(over/l.n) + 1})
			}
		}
	case "slots", "sliding":
		var ends []time.Duration // of those that count, in order
		for _, s := range all {
			end := s.ends
			if l.kind == "sliding" {
				end = s.at + l.per
			}
			ends = slices.DeleteFunc(ends, func(end time.Duration) bool { return end <= s.at })
			i, _ := slices.BinarySearch(ends, end)
			ends = slices.Insert(ends, i, end)
			if free := len(ends) - int(l.n); free >= 0 {
				busy = append(busy, span{s.at, ends[free]})
			}
		}
	case "fixed":
		used := make(map[time.Duration]int64)
		for _, s := range all {
			w := s.at / l.per
			if used[w] += s.cost; used[w] >= l.n {
				busy = append(busy, span{s.at, (w + 1) * l.per})
			}
		}
	}
	return busy
}
