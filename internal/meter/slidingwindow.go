package meter

import (
	"slices"
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
// A server counts a request at some instant between its departure and its response. So a grant whose response is reported by
// Answered counts until one period after the response, but no more than lag longer than without.
//
// The first requests of a client open connections, so they are counted later than the next ones. A grant before the first response
// counts until one period after its response, but no more than a longer lag longer than without.
//
// Up to exactEvents grants are remembered to the nanosecond. Beyond that, grants of the same 64th of the window share
// one entry that expires with the latest of them: never too much, and at least 64/65 of n is usable.
//
// An undercharge takes tokens when it becomes known. Those that are missing then are taken as soon as they come in: the log has them
// at these instants, which are known, although they are later.
type SlidingWindow struct {
	n, per int64
	log    []event // in order of time; the live ones start at head
	head   int
	gone   int64 // what was granted before the live ones; it may wrap around, as event.granted

	last     Instant // of the latest grant
	answered Instant // when the first response came since the window was unused for as long as two periods; Never: none did

	tooLate Late

	even bool    // tokens come back one by one
	back returns // of an even window

	next Instant // nothing comes back before, so that most requests need not look; 0: it is to be found
}

// An event is one grant, or several that are forgotten together.
type event struct {
	first, at Instant // at is the last
	counted   Instant // when the server had counted the last of them, as far as known: from at to at+lag; it never falls from one event to the next
	granted   int64   // by all events up to this one, so that a search among them is binary
}

// used returns the sum of the live events.
func (w *SlidingWindow) used() int64 { return w.since(len(w.log)) }

// since returns the sum of the live events before the i-th.
func (w *SlidingWindow) since(i int) int64 {
	if i == w.head {
		return 0
	}
	return w.log[i-1].granted - w.gone
}

// cost returns that of the i-th event, which is live.
func (w *SlidingWindow) cost(i int) int64 { return w.since(i+1) - w.since(i) }

// frees returns when live events that cost that much in all no longer count. It must be positive, and no more than used.
func (w *SlidingWindow) frees(cost int64) Instant {
	if w.even {
		return w.comesBack(cost, 0)
	}
	live := w.log[w.head:]
	i := sort.Search(len(live), func(i int) bool { return live[i].granted-w.gone >= cost })
	return AddInstant(live[i].counted, w.per)
}

// NewSlidingWindow returns an unused window.
func NewSlidingWindow(r Rate) *SlidingWindow {
	return &SlidingWindow{n: r.N, per: int64(r.Per), answered: Never}
}

func (w *SlidingWindow) Payable(now Instant, cost int64) bool {
	w.expire(now)
	return cost <= w.n-w.used()
}

// expire forgets what has come back by now.
func (w *SlidingWindow) expire(now Instant) {
	if now >= w.next {
		w.forget(now)
	}
}

func (w *SlidingWindow) forget(now Instant) {
	if w.even {
		var came int64
		came, w.back = w.cameBack(now)
		w.gone += came
		for w.head < len(w.log) && w.cost(w.head) <= 0 {
			w.head++
		}
	}
	for !w.even && w.head < len(w.log) && AddInstant(w.log[w.head].counted, w.per) <= now {
		w.gone = w.log[w.head].granted
		w.head++
	}
	switch {
	case w.head == len(w.log):
		w.log, w.head = w.log[:0], 0
	case w.head > len(w.log)/2:
		w.log, w.head = w.log[:copy(w.log, w.log[w.head:])], 0
	}
	if w.next = Never; len(w.log) > 0 {
		w.next = AddInstant(w.log[w.head].counted, w.per)
	}
	if w.even && len(w.log) > 0 {
		w.next = w.after(w.notBefore(w.next, w.back), 0)
	}
}

func (w *SlidingWindow) Spend(now Instant, cost int64) (int64, bool) { return SpendIf(w, now, cost) }

func (w *SlidingWindow) Ready(from Instant, ahead, cost int64) Instant {
	if cost > w.n {
		return Never
	}
	if w.even {
		if missing := AddCount(ahead, cost) - (w.n - w.used()); missing > 0 {
			from = max(from, w.comesBack(missing, from))
		}
		return from
	}
	// A token that is spent at t can be spent again at t+per, and so on: the generation, and the place in it.
	before := AddCount(ahead, cost) - 1
	generation, place := before/w.n, before%w.n+1
	if missing := place - (w.n - w.used()); missing > 0 {
		from = max(from, w.frees(missing))
	}
	return AddInstant(from, MulCount(generation, w.per))
}

func (w *SlidingWindow) Take(_, now Instant, cost int64, _ bool) int64 {
	w.expire(now)
	if (now-w.last)/2 >= w.per { // connections may have been closed
		w.answered = Never
	}
	w.last = now
	if last := len(w.log) - 1; last >= w.head && w.joins(w.log[last].at, now) {
		w.log[last].at, w.log[last].counted = now, max(now, w.log[last].counted)
		w.log[last].granted += cost
	} else {
		w.log = append(w.log, event{now, now, now, w.gone + w.used() + cost})
		w.next = min(w.next, AddInstant(now, w.per))
	}
	return now
}

// Copy implements [Copier].
func (w *SlidingWindow) Copy() Meter {
	other := *w
	other.log, other.head = slices.Clone(w.log[w.head:]), 0
	return &other
}

// Answered notes that the response to a request came. It reports whether the request counts for longer because of that.
func (w *SlidingWindow) Answered(charged int64, now Instant) bool {
	w.expire(now)
	w.answered = min(w.answered, now)
	i, ok := w.find(charged)
	if !ok {
		return false
	}
	counted := min(now, AddInstant(w.log[i].at, w.lag(w.log[i].first)))
	moved := w.log[i].counted < counted
	for ; i < len(w.log) && w.log[i].counted < counted; i++ {
		w.log[i].counted = counted
	}
	return moved
}

// connecting is how long a client waits for a connection at most: the default of net/http for a TLS handshake.
const connecting = 10 * second

// lag returns how much longer than a period a grant at that instant counts at most. A grant after the first response travels for one
// round trip: a twentieth of the period, and a second at most. A grant before it may wait for a connection, which takes three to four
// round trips.
func (w *SlidingWindow) lag(at Instant) int64 {
	if at < w.answered {
		return min(w.per/2, max(connecting, w.per/5))
	}
	return min(w.per/20, second)
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
	if i, ok := w.find(charged); ok {
		for back := min(cost, w.cost(i)); i < len(w.log); i++ {
			w.log[i].granted -= back
		}
		w.charge(now, w.owed(now))
	}
}

func (w *SlidingWindow) Settle(charged int64, now Instant, paid, cost int64) {
	if cost <= paid {
		w.tooLate.Add(now, paid-cost, now-charged, w.per)
		w.GiveBack(charged, now, paid-cost)
		return
	}
	w.expire(now)
	w.charge(now, w.tooLate.Reduce(now, cost-paid, w.per))
}

// charge spends tokens that are owed, each when it is there.
func (w *SlidingWindow) charge(now Instant, owed int64) {
	for owed = min(owed, MostUsed*w.n-w.used()); owed > 0; {
		at, n := now, owed
		switch left := w.n - w.used(); {
		case w.even: // no more comes back than evenly, whenever it was spent
		case left > 0:
			n = min(owed, left)
		default:
			live := w.log[w.head:]
			i := sort.Search(len(live), func(i int) bool { return live[i].granted-w.gone > -left })
			at, n = AddInstant(live[i].counted, w.per), min(owed, live[i].granted-w.gone+left)
		}
		if last := len(w.log) - 1; last >= w.head && w.log[last].at >= at {
			w.log[last].granted += n
		} else {
			w.log = append(w.log, event{at, at, at, w.gone + w.used() + n})
		}
		owed -= n
	}
	w.next = 0
}

// owed takes out of the log what is spent later than now, and returns how much that is.
func (w *SlidingWindow) owed(now Instant) int64 {
	i, used := w.later(now), w.used()
	w.log = w.log[:i]
	return used - w.used()
}

// later returns the first event that is later than now.
func (w *SlidingWindow) later(now Instant) int {
	i := len(w.log)
	for i > w.head && w.log[i-1].at > now {
		i--
	}
	return i
}

// find returns the event, or the one that stands for several, of that instant, if it still counts.
func (w *SlidingWindow) find(at Instant) (i int, ok bool) {
	if last := len(w.log) - 1; last >= w.head && w.log[last].first <= at { // as for most
		return last, at <= w.log[last].at
	}
	live := w.log[w.head:]
	i = sort.Search(len(live), func(i int) bool { return live[i].at >= at })
	return w.head + i, i < len(live) && live[i].first <= at
}

func (w *SlidingWindow) Most() int64 { return w.n }

func (w *SlidingWindow) Matters(Instant) (must, full Instant) {
	used := w.used()
	if w.head == len(w.log) || w.even && used == 0 {
		return 0, 0
	}
	if debt := used - w.n; debt > 0 {
		must = w.frees(debt)
	}
	if w.even {
		return must, w.frees(used)
	}
	return must, AddInstant(w.log[len(w.log)-1].counted, w.per)
}

func (w *SlidingWindow) Tokens(now Instant) float64 {
	if w.even {
		came, _ := w.cameBack(now)
		return float64(w.n - w.used() + came)
	}
	live := w.log[w.head:]
	over := sort.Search(len(live), func(i int) bool { return AddInstant(live[i].counted, w.per) > now })
	return float64(w.n - w.used() + w.since(w.head+over))
}

func (w *SlidingWindow) Retune(now Instant, r Rate) {
	w.expire(now)
	if w.even && w.back.n > 0 { // the next token comes back a new gap after the last one
		w.back = returns{w.after(w.back, -1), 1}
	}
	owed := w.owed(now)
	w.n, w.per = r.N, int64(r.Per)
	if !w.even { // what counts no longer in a shorter period leaves room for what is owed
		w.forget(now)
	}
	w.charge(now, owed)
}

func (w *SlidingWindow) Resize(Instant, int64) {}

func (w *SlidingWindow) Save(now Instant) (s State) {
	w.expire(now)
	later := w.later(now)
	s.Debt = w.used() - w.since(later)
	for i := w.head; i < later; i++ {
		if cost := w.cost(i); cost > 0 { // else it was given back
			s.Grants = append(s.Grants, Granted{time.Duration(max(0, now-w.log[i].counted)), cost})
		}
	}
	return s
}

func (w *SlidingWindow) Restore(now Instant, since int64, saved State) error {
	if saved.Tokens != 0 {
		return errOtherKind
	}
	debt, fault := saved.debt()
	w.log, w.head, w.gone, w.back, w.next = nil, 0, 0, returns{now - min(since, MaxPer/2), 1}, 0
	for _, s := range saved.Grants {
		if err := s.check(); err != nil {
			fault = err
			continue
		}
		s.Cost = min(s.Cost, 2*MaxCount-w.used())
		at := now - min(int64(s.Ago), MaxPer/2) - min(since, MaxPer/2)
		if n := len(w.log); n > 0 && (w.log[n-1].at >= at || n >= exactEvents+2*slots) {
			w.log[n-1].at, w.log[n-1].counted = max(w.log[n-1].at, at), max(w.log[n-1].counted, at)
			w.log[n-1].granted += s.Cost
		} else {
			w.log = append(w.log, event{at, at, at, w.used() + s.Cost})
		}
	}
	w.charge(now-min(since, MaxPer/2), debt)
	w.expire(now)
	return fault
}
