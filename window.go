package throttle

import (
	"math/bits"
	"sort"
)

const (
	// exactEvents is how many events a sliding window remembers one by one.
	exactEvents = 1024
	// slots is into how many parts a sliding window is cut once it has more to remember.
	slots = 64
)

// slidingWindow grants at most n tokens in any half-open stretch of length per, by a log of what was granted.
//
// Up to exactEvents grants are remembered to the nanosecond. Beyond that, grants of the same 64th of the window share
// one entry that expires with the latest of them: never too much, and at least 64/65 of n is usable.
type slidingWindow struct {
	n, per int64
	log    []event // in order of time; the live ones start at head
	head   int
	used   int64 // the sum of the live ones
}

// An event is one grant, or several that are forgotten together.
type event struct {
	first, at instant // at is the last
	cost      int64
}

func (w *slidingWindow) payable(now instant, cost int64) bool {
	w.expire(now)
	return cost <= w.n-w.used
}

func (w *slidingWindow) expire(now instant) {
	for w.head < len(w.log) && addInstant(w.log[w.head].at, w.per) <= now {
		w.used -= w.log[w.head].cost
		w.head++
	}
	switch {
	case w.head == len(w.log):
		w.log, w.head = w.log[:0], 0
	case w.head > len(w.log)/2:
		w.log, w.head = w.log[:copy(w.log, w.log[w.head:])], 0
	}
}

func (w *slidingWindow) spend(now instant, cost int64) (int64, bool) { return spendIf(w, now, cost) }

func (w *slidingWindow) ready(from instant, ahead, cost int64) instant {
	if cost > w.n {
		return never
	}
	// Whatever goes at t goes again at t+per, and so on: the generation, and the place in it.
	before := addCount(ahead, cost) - 1
	generation, place := before/w.n, before%w.n+1
	free, i := w.n-w.used, w.head
	for ; free < place; i++ {
		free += w.log[i].cost
	}
	if i > w.head {
		from = max(from, addInstant(w.log[i-1].at, w.per))
	}
	return addInstant(from, mulCount(generation, w.per))
}

func (w *slidingWindow) take(_, now instant, cost int64, _ bool) int64 {
	w.expire(now)
	w.used += cost
	if last := len(w.log) - 1; last >= w.head && w.joins(w.log[last].at, now) {
		w.log[last].at = now
		w.log[last].cost += cost
	} else {
		w.log = append(w.log, event{now, now, cost})
	}
	return now
}

// joins reports whether an event now is counted together with one at the earlier instant.
func (w *slidingWindow) joins(earlier, now instant) bool {
	if earlier >= now {
		return true
	}
	slot := max(1, w.per/slots)
	return len(w.log)-w.head >= exactEvents && earlier/slot == now/slot
}

func (w *slidingWindow) giveBack(charged int64, now instant, cost int64) {
	w.expire(now)
	if e := w.find(charged); e != nil {
		cost = min(cost, e.cost)
		e.cost -= cost
		w.used -= cost
	}
}

func (w *slidingWindow) settle(charged int64, now instant, paid, cost int64) {
	if cost <= paid {
		w.giveBack(charged, now, paid-cost)
		return
	}
	w.expire(now)
	if e := w.find(charged); e != nil {
		more := min(cost-paid, max(0, 2*w.n-w.used))
		e.cost += more
		w.used += more
	}
}

// find returns the event, or the one that stands for several, of that instant; nil if it counts no more.
func (w *slidingWindow) find(at instant) *event {
	live := w.log[w.head:]
	i := sort.Search(len(live), func(i int) bool { return live[i].at >= at })
	if i < len(live) && live[i].first <= at {
		return &live[i]
	}
	return nil
}

func (w *slidingWindow) most() int64 { return w.n }

func (w *slidingWindow) fullAt() instant {
	if w.head == len(w.log) {
		return 0
	}
	return addInstant(w.log[len(w.log)-1].at, w.per)
}

func (w *slidingWindow) tokens(now instant) float64 {
	used := w.used
	for _, e := range w.log[w.head:] {
		if addInstant(e.at, w.per) > now {
			break
		}
		used -= e.cost
	}
	return float64(w.n - used)
}

func (w *slidingWindow) indebted(instant) bool { return w.used > w.n }

func (w *slidingWindow) retune(now instant, r rate) {
	w.expire(now)
	w.n, w.per = r.n, int64(r.per)
}

func (w *slidingWindow) resize(instant, int64) { panic("throttle: bug: a window has no burst") }

// fixedWindow grants n tokens per window, the windows being those of the wall clock, as hourly and daily quotas are.
type fixedWindow struct {
	n, per int64
	origin int64  // one boundary between windows, in ns of Unix time
	unix   *int64 // the Unix time, in ns, of instant 0; its owner keeps it true
	index  int64  // the window that used is of
	used   int64
	opened instant // when it was first used, or later
}

// indexAt returns the number of the window that t falls into, counted from origin.
func (w *fixedWindow) indexAt(t instant) int64 {
	since := t + *w.unix - w.origin
	if since < 0 {
		return -1 - (-1-since)/w.per
	}
	return since / w.per
}

// begins returns the instant at which the window of that number begins.
func (w *fixedWindow) begins(index int64) instant {
	if index < 0 {
		return index*w.per + w.origin - *w.unix
	}
	start := addInstant(mulCount(index, w.per), w.origin)
	if start == never {
		return never
	}
	return start - *w.unix
}

// at returns the window that counts at t, and what has been used of it.
func (w *fixedWindow) at(t instant) (index, used int64) {
	if index = w.indexAt(t); index > w.index {
		return index, 0
	}
	return w.index, w.used
}

func (w *fixedWindow) payable(now instant, cost int64) bool {
	index, used := w.at(now)
	return cost <= w.n-used && index == w.indexAt(now)
}

func (w *fixedWindow) spend(now instant, cost int64) (int64, bool) { return spendIf(w, now, cost) }

func (w *fixedWindow) ready(from instant, ahead, cost int64) instant {
	if cost > w.n {
		return never
	}
	index, used := w.at(from)
	if over := addCount(ahead, cost) - max(0, w.n-used); over > 0 {
		index += 1 + (over-1)/w.n
	}
	return max(from, w.begins(index))
}

func (w *fixedWindow) take(_, now instant, cost int64, _ bool) int64 {
	w.roll(now)
	w.used += cost
	return now
}

// roll goes on to the window of now.
func (w *fixedWindow) roll(now instant) {
	if index, used := w.at(now); index != w.index {
		w.index, w.used, w.opened = index, used, now
	}
}

func (w *fixedWindow) giveBack(charged int64, _ instant, cost int64) {
	if charged >= w.opened {
		w.used = max(0, w.used-cost)
	}
}

func (w *fixedWindow) settle(charged int64, now instant, paid, cost int64) {
	switch index, _ := w.at(now); {
	case cost <= paid:
		w.giveBack(charged, now, paid-cost)
	case charged >= w.opened && index == w.index: // else its window is over
		w.used += min(cost-paid, max(0, 2*w.n-w.used))
	}
}

func (w *fixedWindow) most() int64 { return w.n }

func (w *fixedWindow) fullAt() instant {
	if w.used == 0 {
		return 0
	}
	return w.begins(w.index + 1)
}

func (w *fixedWindow) tokens(now instant) float64 {
	_, used := w.at(now)
	return float64(w.n - used)
}

func (w *fixedWindow) indebted(now instant) bool {
	_, used := w.at(now)
	return used > w.n
}

func (w *fixedWindow) retune(now instant, r rate) {
	w.roll(now)
	w.n, w.per = r.n, int64(r.per)
	w.index = w.indexAt(now)
}

func (w *fixedWindow) resize(instant, int64) { panic("throttle: bug: a window has no burst") }

// mulCount returns a·b for a, b ≥ 0, at most never.
func mulCount(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi > 0 || lo > uint64(never) {
		return never
	}
	return int64(lo)
}
