package meter

import (
	"math/bits"
	"time"
)

// FixedWindow grants n tokens per window, the windows being those of the wall clock, as hourly and daily quotas are.
//
// The next windows pay its debt first. In a calendar, a debt ends with its window: a month does not pay for the one before.
type FixedWindow struct {
	n       int64
	grid    windows
	wall    *Wall
	index   int64 // the window that used is of
	used    int64
	debt    int64 // what of used the next windows have to pay
	tooLate Late
	opened  Instant // when it was first used, or later
}

// NewFixedWindow returns an unused window. Windows begin at start and every period before and after it; the zero start is
// the Unix epoch.
func NewFixedWindow(now Instant, r Rate, start time.Time, wall *Wall) *FixedWindow {
	grid := windows{per: int64(r.Per)}
	if !start.IsZero() {
		grid.start = startOf(start)
	}
	grid.origin = grid.start.boundary(uint64(grid.per))
	return newWindow(now, r, grid, wall)
}

// NewCalendarWindow returns an unused window of a calendar in a time zone. The period of its rate has no effect.
func NewCalendarWindow(now Instant, r Rate, unit Calendar, zone *time.Location, wall *Wall) *FixedWindow {
	return newWindow(now, r, windows{unit: unit, zone: zone}, wall)
}

func newWindow(now Instant, r Rate, grid windows, wall *Wall) *FixedWindow {
	w := &FixedWindow{n: r.N, grid: grid, wall: wall, opened: now}
	w.grid.backs = wall.backs
	w.index = w.indexAt(now)
	return w
}

// A Wall is the wall clock of all windows of one owner, which keeps it true.
type Wall struct {
	Unix  int64  // the time, in ns, of instant 0
	backs uint32 // how often it was set back
	back  int64  // what it showed then, the last time
}

// Copy implements [Copier].
func (w *FixedWindow) Copy() Meter {
	other, wall := *w, *w.wall
	other.wall = &wall
	return &other
}

// SetBack records that the wall clock was set back, so that an earlier window may be the current one again. Each window notices
// when it is used next: there may be a million.
func (c *Wall) SetBack(now Instant) { c.backs, c.back = c.backs+1, now+c.Unix }

// indexAt returns the number of the window that t falls into.
func (w *FixedWindow) indexAt(t Instant) int64 {
	if w.grid.backs != w.wall.backs {
		w.grid.backs = w.wall.backs
		w.index = min(w.index, w.grid.at(w.wall.back))
	}
	return w.grid.at(t + w.wall.Unix)
}

// begins returns the instant at which the window of that number begins.
func (w *FixedWindow) begins(index int64) Instant {
	start := w.grid.begins(index)
	if start == Never {
		return Never
	}
	return start - w.wall.Unix
}

// at returns the window that counts at t, what has been used of it, and the debt then.
func (w *FixedWindow) at(t Instant) (index, used, debt int64) {
	if index = w.indexAt(t); index > w.index {
		used = w.begunWith(index)
		return index, used, max(0, used-w.n)
	}
	return w.index, w.used, w.debt
}

// begunWith returns what has been used of a later window, of that number, when it begins.
func (w *FixedWindow) begunWith(index int64) int64 {
	if w.debt == 0 {
		return 0
	}
	return max(0, w.debt-MulCount(w.n, index-w.index-1))
}

func (w *FixedWindow) Payable(now Instant, cost int64) bool { return w.pays(w.indexAt(now), cost) }

// pays reports whether cost can be paid in the window of that number, if that is the one of now.
func (w *FixedWindow) pays(index, cost int64) bool {
	if index == w.index {
		return cost <= w.n-w.used
	}
	return index > w.index && cost <= w.n-w.begunWith(index)
}

func (w *FixedWindow) Spend(now Instant, cost int64) (int64, bool) {
	index := w.indexAt(now)
	if !w.pays(index, cost) {
		return 0, false
	}
	w.open(index, now)
	w.used += cost
	return now, true
}

func (w *FixedWindow) Ready(from Instant, ahead, cost int64) Instant {
	if cost > w.n {
		return Never
	}
	index, used, debt := w.at(from)
	if over := AddCount(ahead, cost) + debt - max(0, w.n-used+debt); over > 0 {
		index += 1 + (over-1)/w.n
	}
	return max(from, w.begins(index))
}

func (w *FixedWindow) Take(_, now Instant, cost int64, _ bool) int64 {
	w.roll(now)
	w.used += cost
	return now
}

// roll goes on to the window of now.
func (w *FixedWindow) roll(now Instant) { w.open(w.indexAt(now), now) }

// open goes on to the window of that number, if it is a later one.
func (w *FixedWindow) open(index int64, now Instant) {
	if index > w.index {
		w.used = w.begunWith(index)
		w.index, w.debt, w.opened = index, max(0, w.used-w.n), now
	}
}

func (w *FixedWindow) GiveBack(charged int64, now Instant, cost int64) {
	w.roll(now)
	if charged >= w.opened {
		w.used = max(0, w.used-cost)
		w.owe(0)
	}
}

func (w *FixedWindow) Settle(charged int64, now Instant, paid, cost int64) {
	w.roll(now)
	length := max(1, w.begins(w.index+1)-w.begins(w.index))
	if cost <= paid {
		if charged < w.opened {
			w.tooLate.Add(now, paid-cost, length, length)
		}
		w.GiveBack(charged, now, paid-cost)
		return
	}
	more := min(w.tooLate.Reduce(now, cost-paid, length), max(0, MostUsed*w.n-w.used))
	w.used += more
	w.owe(more)
}

// owe adds to the debt, as far as the window has no tokens for it.
func (w *FixedWindow) owe(more int64) {
	w.debt = max(0, min(w.debt+more, w.used-w.n))
	if w.grid.zone != nil {
		w.debt = 0
	}
}

func (w *FixedWindow) Most() int64 { return w.n }

func (w *FixedWindow) Matters(now Instant) (must, full Instant) {
	w.indexAt(now) // if the wall clock was set back, an earlier window counts
	if w.used == 0 {
		return 0, 0
	}
	pay := (w.debt + w.n - 1) / w.n // the number of windows that pay the debt
	if w.used > w.n {
		must = w.begins(w.index + max(1, pay))
	}
	return must, w.begins(w.index + 1 + pay)
}

// Turns returns when the window of now ends.
func (w *FixedWindow) Turns(now Instant) Instant {
	index, _, _ := w.at(now)
	return w.begins(index + 1)
}

func (w *FixedWindow) Tokens(now Instant) float64 {
	_, used, _ := w.at(now)
	return float64(w.n - used)
}

func (w *FixedWindow) Retune(now Instant, r Rate) {
	w.roll(now)
	w.n = r.N
	w.grid.retune(int64(r.Per))
	w.index = w.indexAt(now)
	w.owe(0)
}

func (w *FixedWindow) Resize(Instant, int64) {}

func (w *FixedWindow) Save(now Instant) (s State) {
	if w.roll(now); w.used > 0 {
		s.Grants, s.Debt = []Granted{{0, w.used}}, w.debt
	}
	return s
}

func (w *FixedWindow) Restore(now Instant, since int64, saved State) error {
	if saved.Tokens != 0 {
		return errOtherKind
	}
	debt, fault := saved.debt()
	w.index, w.used, w.debt = w.indexAt(now-min(since, MaxPer/2)), 0, 0
	for _, s := range saved.Grants {
		if err := s.check(); err != nil {
			fault = err
			continue
		}
		if w.indexAt(now-min(int64(s.Ago), MaxPer/2)-min(since, MaxPer/2)) == w.index {
			w.used = AddCount(w.used, s.Cost)
		}
	}
	w.owe(debt)
	w.opened = now
	w.roll(now)
	return fault
}

// A start is a Unix time at which a window begins. As one count of ns, times that are far off would overflow.
type start struct{ seconds, nanos int64 }

func startOf(t time.Time) start { return start{t.Unix(), int64(t.Nanosecond())} }

// boundary returns the first instant of Unix time, in ns, that is a whole number of periods from the start.
func (s start) boundary(per uint64) int64 {
	hi, lo := bits.Mul64(uint64(max(s.seconds, -s.seconds)), uint64(time.Second))
	rest := bits.Rem64(hi, lo, per)
	if s.seconds < 0 {
		rest = per - rest
	}
	return int64((rest + uint64(s.nanos)) % per)
}
