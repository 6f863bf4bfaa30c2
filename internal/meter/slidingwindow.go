package meter

import (
	"sort"
	"time"
)

const (
	// exactEvents is how many events a sliding window remembers one by one.
	exactEvents = 1024
	// slots is into how many parts a sliding window is cut once it has more to remember.
	slots = 64
)

// A SlidingWindow grants at most n tokens in any half-open stretch of length per. It keeps a log of its grants.
//
// Up to exactEvents grants are remembered to the nanosecond. Beyond that, grants of the same 64th of the window share
// one entry that expires with the latest of them: never too much, and at least 64/65 of n is usable.
type SlidingWindow struct {
	n, per int64
	log    []event // in order of time; the live ones start at head
	head   int
	used   int64 // the sum of the live ones
}

// An event is one grant, or several that are forgotten together.
type event struct {
	first, at Instant // at is the last
	cost      int64
}

// NewSlidingWindow returns an unused window.
func NewSlidingWindow(r Rate) *SlidingWindow { return &SlidingWindow{n: r.N, per: int64(r.Per)} }

func (w *SlidingWindow) Payable(now Instant, cost int64) bool {
	w.expire(now)
	return cost <= w.n-w.used
}

func (w *SlidingWindow) expire(now Instant) {
	for w.head < len(w.log) && AddInstant(w.log[w.head].at, w.per) <= now {
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

func (w *SlidingWindow) Spend(now Instant, cost int64) (int64, bool) { return SpendIf(w, now, cost) }

func (w *SlidingWindow) Ready(from Instant, ahead, cost int64) Instant {
	if cost > w.n {
		return Never
	}
	// Whatever goes at t goes again at t+per, and so on: the generation, and the place in it.
	before := AddCount(ahead, cost) - 1
	generation, place := before/w.n, before%w.n+1
	free, i := w.n-w.used, w.head
	for ; free < place; i++ {
		free += w.log[i].cost
	}
	if i > w.head {
		from = max(from, AddInstant(w.log[i-1].at, w.per))
	}
	return AddInstant(from, mulCount(generation, w.per))
}

func (w *SlidingWindow) Take(_, now Instant, cost int64, _ bool) int64 {
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
func (w *SlidingWindow) joins(earlier, now Instant) bool {
	if earlier >= now {
		return true
	}
	slot := max(1, w.per/slots)
	return len(w.log)-w.head >= exactEvents && earlier/slot == now/slot
}

func (w *SlidingWindow) GiveBack(charged int64, now Instant, cost int64) {
	w.expire(now)
	if e := w.find(charged); e != nil {
		cost = min(cost, e.cost)
		e.cost -= cost
		w.used -= cost
	}
}

func (w *SlidingWindow) Settle(charged int64, now Instant, paid, cost int64) {
	if cost <= paid {
		w.GiveBack(charged, now, paid-cost)
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
func (w *SlidingWindow) find(at Instant) *event {
	live := w.log[w.head:]
	i := sort.Search(len(live), func(i int) bool { return live[i].at >= at })
	if i < len(live) && live[i].first <= at {
		return &live[i]
	}
	return nil
}

func (w *SlidingWindow) Most() int64 { return w.n }

func (w *SlidingWindow) Matters(Instant) (must, full Instant) {
	if w.head == len(w.log) {
		return 0, 0
	}
	for used, i := w.used, w.head; used > w.n; i++ {
		used -= w.log[i].cost
		must = AddInstant(w.log[i].at, w.per)
	}
	return must, AddInstant(w.log[len(w.log)-1].at, w.per)
}

func (w *SlidingWindow) Tokens(now Instant) float64 {
	used := w.used
	for _, e := range w.log[w.head:] {
		if AddInstant(e.at, w.per) > now {
			break
		}
		used -= e.cost
	}
	return float64(w.n - used)
}

func (w *SlidingWindow) Retune(now Instant, r Rate) {
	w.expire(now)
	w.n, w.per = r.N, int64(r.Per)
}

func (w *SlidingWindow) Resize(Instant, int64) {}

func (w *SlidingWindow) Save(now Instant) (s State) {
	w.expire(now)
	for _, e := range w.log[w.head:] {
		if e.cost > 0 { // else it was given back
			s.Grants = append(s.Grants, Granted{time.Duration(max(0, now-e.at)), e.cost})
		}
	}
	return s
}

func (w *SlidingWindow) Restore(now Instant, since int64, saved State) error {
	if saved.Tokens != 0 {
		return errOtherKind
	}
	var fault error
	w.log, w.head, w.used = nil, 0, 0
	for _, s := range saved.Grants {
		if err := s.check(); err != nil {
			fault = err
			continue
		}
		s.Cost = min(s.Cost, 2*MaxCount-w.used)
		at := now - min(int64(s.Ago), MaxPer/2) - min(since, MaxPer/2)
		if n := len(w.log); n > 0 && (w.log[n-1].at >= at || n >= exactEvents+2*slots) {
			w.log[n-1].at = max(w.log[n-1].at, at)
			w.log[n-1].cost += s.Cost
		} else {
			w.log = append(w.log, event{at, at, s.Cost})
		}
		w.used += s.Cost
	}
	w.expire(now)
	return fault
}
