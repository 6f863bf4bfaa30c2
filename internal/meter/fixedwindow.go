package meter

import (
	"math/bits"
	"time"
)

// FixedWindow grants n tokens per window, the windows being those of the wall clock, as hourly and daily quotas are.
type FixedWindow struct {
	n      int64
	grid   windows
	wall   *Wall
	index  int64 // the window that used is of
	used   int64
	opened Instant // when it was first used, or later
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

// at returns the window that counts at t, and what has been used of it.
func (w *FixedWindow) at(t Instant) (index, used int64) {
	if index = w.indexAt(t); index > w.index {
		return index, 0
	}
	return w.index, w.used
}

func (w *FixedWindow) Payable(now Instant, cost int64) bool { return w.pays(w.indexAt(now), cost) }

// pays reports whether cost can be paid in the window of that number, if that is the one of now.
func (w *FixedWindow) pays(index, cost int64) bool {
	if index == w.index {
		return cost <= w.n-w.used
	}
	return index > w.index && cost <= w.n
}

func (w *FixedWindow) Spend(now Instant, cost int64) (int64, bool) {
	index := w.indexAt(now)
	if !w.pays(index, cost) {
		return 0, false
	}
	if index > w.index {
		w.index, w.used, w.opened = index, 0, now
	}
	w.used += cost
	return now, true
}

func (w *FixedWindow) Ready(from Instant, ahead, cost int64) Instant {
	if cost > w.n {
		return Never
	}
	index, used := w.at(from)
	if over := AddCount(ahead, cost) - max(0, w.n-used); over > 0 {
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
func (w *FixedWindow) roll(now Instant) {
	if index, used := w.at(now); index != w.index {
		w.index, w.used, w.opened = index, used, now
	}
}

func (w *FixedWindow) GiveBack(charged int64, _ Instant, cost int64) {
	if charged >= w.opened {
		w.used = max(0, w.used-cost)
	}
}

func (w *FixedWindow) Settle(charged int64, now Instant, paid, cost int64) {
	switch index, _ := w.at(now); {
	case cost <= paid:
		w.GiveBack(charged, now, paid-cost)
	case charged >= w.opened && index == w.index: // else its window has ended
		w.used += min(cost-paid, max(0, 2*w.n-w.used))
	}
}

func (w *FixedWindow) Most() int64 { return w.n }

func (w *FixedWindow) Matters(now Instant) (must, full Instant) {
	w.indexAt(now) // if the wall clock was set back, an earlier window counts
	if w.used > 0 {
		full = w.begins(w.index + 1)
	}
	if w.used > w.n {
		must = full
	}
	return must, full
}

// Turns returns when the window of now ends.
func (w *FixedWindow) Turns(now Instant) Instant {
	index, _ := w.at(now)
	return w.begins(index + 1)
}

func (w *FixedWindow) Tokens(now Instant) float64 {
	_, used := w.at(now)
	return float64(w.n - used)
}

func (w *FixedWindow) Retune(now Instant, r Rate) {
	w.roll(now)
	w.n = r.N
	w.grid.retune(int64(r.Per))
	w.index = w.indexAt(now)
}

func (w *FixedWindow) Resize(Instant, int64) {}

func (w *FixedWindow) Save(now Instant) (s State) {
	if w.roll(now); w.used > 0 {
		s.Grants = []Granted{{0, w.used}}
	}
	return s
}

func (w *FixedWindow) Restore(now Instant, since int64, saved State) error {
	if saved.Tokens != 0 {
		return errOtherKind
	}
	var fault error
	w.roll(now)
	w.used = 0
	for _, s := range saved.Grants {
		if err := s.check(); err != nil {
			fault = err
			continue
		}
		if w.indexAt(now-min(int64(s.Ago), MaxPer/2)-min(since, MaxPer/2)) == w.index {
			w.used = AddCount(w.used, s.Cost)
		}
	}
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
