package lease

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/store"
)

// A slotFleet is processes that share slots of a Book. Each has callers that take a slot, use it for a while and want one
// again. Time is simulated, event by event.
type slotFleet struct {
	*rand.Rand
	book      *store.Book
	budget    store.Budget
	processes []*slotProcess
	events    events
	now       int64
	lost      float64 // the part of asks that are lost, and the part of responses
	twice     float64 // the part of asks that are carried out twice

	used, most, calls, served int64
	busy                      int64 // the sum of used over time
	since                     int64
}

type slotProcess struct {
	meter   *LeasedSlots
	waiting int64
	served  int64
	wakes   int64
	asked   int64 // numbers the ask under way
	dead    bool
	hold    func() int64 // for how long a caller has a slot
}

func newSlotFleet(seed uint64, n int64, processes int, callers int64, hold func(*rand.Rand) int64) *slotFleet {
	f := &slotFleet{Rand: rand.New(rand.NewPCG(seed, 3)), book: store.NewBook(), budget: store.Budget{Kind: store.Slots, Limit: "l", N: n}, now: second}
	for range processes {
		f.join(callers, hold)
	}
	return f
}

func (f *slotFleet) join(callers int64, hold func(*rand.Rand) int64) *slotProcess {
	p := &slotProcess{meter: newLeasedSlots(f.budget, Config{Seed: f.Uint64()}), waiting: callers, wakes: never, hold: func() int64 { return hold(f.Rand) }}
	f.processes = append(f.processes, p)
	f.at(f.now+f.Int64N(20*ms), func() { f.step(p) })
	return p
}

const never = int64(1) << 62

func (f *slotFleet) at(at int64, run func()) {
	heap.Push(&f.events, happening{at, run})
}

// count adds to the slots in use.
func (f *slotFleet) count(n int64) {
	f.busy += f.used * (f.now - f.since)
	f.since = f.now
	f.used += n
	f.most = max(f.most, f.used)
}

func (f *slotFleet) step(p *slotProcess) {
	if p.dead {
		return
	}
	p.meter.advance(f.now)
	for p.waiting > 0 && p.meter.Payable(f.now, 1) {
		p.meter.Take(f.now, f.now, 1, true)
		p.waiting--
		f.count(1)
		f.at(f.now+p.hold(), func() { f.end(p) })
	}
	d := waiting(p.waiting)
	if p.waiting == 0 {
		d = Demand{}
	}
	switch at := p.meter.AskAt(f.now, d); {
	case at <= f.now:
		f.ask(p, d)
	case at < p.wakes:
		p.wakes = at
		f.at(at, func() {
			if p.wakes == at {
				p.wakes = never
				f.step(p)
			}
		})
	}
}

// end has a caller give its slot back and want another one.
func (f *slotFleet) end(p *slotProcess) {
	if p.dead {
		return
	}
	f.count(-1)
	p.meter.GiveBack(0, f.now, 1)
	p.waiting++
	p.served++
	f.served++
	f.step(p)
}

func (f *slotFleet) ask(p *slotProcess, d Demand) {
	sent, part := f.now, p.meter.Ask(f.now, d)
	p.asked++
	asked := p.asked
	f.calls++
	fail := func() {
		if p.asked == asked && p.meter.under && !p.dead {
			p.meter.Failed(f.now, f.now+25*ms)
			f.at(f.now+25*ms, func() { f.step(p) })
		}
	}
	f.at(f.now+250*ms, fail)
	if f.Float64() < f.lost {
		return
	}
	f.at(f.now+ms/2+f.Int64N(ms), func() {
		got := f.book.Lease(time.Unix(0, began+f.now), []store.Ask{{Parts: []store.Part{part}}})[0]
		if f.Float64() < f.twice {
			got = f.book.Lease(time.Unix(0, began+f.now), []store.Ask{{Parts: []store.Part{part}}})[0]
		}
		if got.Err != nil {
			panic(got.Err)
		}
		if f.Float64() < f.lost {
			return
		}
		f.at(f.now+ms/2+f.Int64N(ms), func() {
			if p.asked == asked && p.meter.under && !p.dead {
				p.meter.Booked(sent, f.now, part, got.Parts[0])
				f.step(p)
			}
		})
	})
}

// kill ends a process, and its requests with it.
func (f *slotFleet) kill(p *slotProcess) {
	p.dead = true
	f.count(-p.meter.used)
}

func (f *slotFleet) run(d time.Duration) {
	end := f.now + int64(d)
	for len(f.events) > 0 && f.events[0].at <= end {
		h := heap.Pop(&f.events).(happening)
		f.now = h.at
		h.run()
	}
	f.now = end
	f.count(0)
}

func (f *slotFleet) reset() {
	f.busy, f.calls, f.served, f.since = 0, 0, 0, f.now
	for _, p := range f.processes {
		p.served = 0
	}
}

// jain returns the index of the shares: 1 if they are equal.
func (f *slotFleet) jain() float64 {
	sum, squares, n := 0.0, 0.0, 0.0
	for _, p := range f.processes {
		if x := float64(p.served); !p.dead {
			sum, squares, n = sum+x, squares+x*x, n+1
		}
	}
	return sum * sum / squares / n
}

func steadily(d time.Duration) func(*rand.Rand) int64 {
	return func(r *rand.Rand) int64 { return int64(d)/2 + r.Int64N(int64(d)) }
}

func TestFleetNeverUsesMoreSlotsThanThereAre(t *testing.T) {
	for _, c := range []struct {
		n         int64
		processes int
		callers   int64
		hold      time.Duration
		lost      float64
		used      float64 // of the slots, on average, at least
		jain      float64
		calls     float64 // a second, at most
	}{
		{10, 1, 20, 50 * time.Millisecond, 0, 0.99, 1, 110},
		{10, 2, 20, 50 * time.Millisecond, 0, 0.93, 0.99, 130},
		{100, 8, 50, 200 * time.Millisecond, 0, 0.95, 0.99, 250},
		{100, 8, 50, 200 * time.Millisecond, 0.02, 0.9, 0.98, 250},
		{8, 8, 4, 100 * time.Millisecond, 0, 0.9, 0.97, 150},
		{3, 8, 4, 100 * time.Millisecond, 0, 0.95, 0.95, 130},
		{1, 2, 4, 100 * time.Millisecond, 0, 0.95, 0.98, 130}, // n slots for n + 1 processes
		{1, 2, 4, 5 * time.Millisecond, 0, 0.95, 0.98, 130},
		{3, 4, 4, 100 * time.Millisecond, 0, 0.95, 0.98, 130},
		{3, 4, 4, time.Second, 0, 0.95, 0.9, 130},
		{7, 8, 4, 5 * time.Millisecond, 0, 0.95, 0.98, 130},
		{16, 17, 4, 100 * time.Millisecond, 0, 0.95, 0.97, 130},
		{49, 50, 4, 100 * time.Millisecond, 0, 0.95, 0.95, 150},
		{5, 3, 4, 5 * time.Millisecond, 0, 0.95, 0.98, 110}, // and some slots more than a share for each
		{13, 8, 4, 5 * time.Millisecond, 0, 0.95, 0.97, 120},
		{15, 8, 2, 5 * time.Millisecond, 0, 0.95, 0.97, 120},
		{12, 50, 4, 100 * time.Millisecond, 0, 0.95, 0.9, 150},
		{1, 4, 2, 100 * time.Millisecond, 0.02, 0.5, 0.9, 170},
		{100, 8, 10, 100 * time.Millisecond, 0, 0.7, 0.99, 30}, // callers for eighty
	} {
		t.Run(fmt.Sprintf("%d of %d processes, %v, %v lost", c.n, c.processes, c.hold, c.lost), func(t *testing.T) {
			f := newSlotFleet(1, c.n, c.processes, c.callers, steadily(c.hold))
			f.lost, f.twice = c.lost, c.lost
			f.run(3 * time.Second)
			f.reset()
			const over = 30 * time.Second
			f.run(over)
			used, calls := float64(f.busy)/float64(c.n)/float64(over), float64(f.calls)/over.Seconds()
			t.Logf("used %.3f, Jain %.3f, %.0f calls a second, %.2f a request", used, f.jain(), calls, float64(f.calls)/float64(f.served))
			if f.most > c.n {
				t.Errorf("%d of %d slots were in use", f.most, c.n)
			}
			if used < c.used || f.jain() < c.jain || calls > c.calls {
				t.Errorf("want at least %.2f used, Jain's index of %.2f, at most %.0f calls a second", c.used, c.jain, c.calls)
			}
		})
	}
}

func TestProcessesThatComeAndDieLeaveEverySlotToTheOthers(t *testing.T) {
	f := newSlotFleet(2, 20, 4, 10, steadily(100*time.Millisecond))
	f.lost, f.twice = 0.01, 0.01
	f.run(5 * time.Second)
	for range 10 {
		f.kill(f.processes[0])
		f.processes = f.processes[1:]
		f.join(10, steadily(100*time.Millisecond))
		f.run(4 * time.Second)
	}
	f.run(11 * time.Second)
	f.reset()
	f.run(10 * time.Second)
	used := float64(f.busy) / 20 / float64(10*time.Second)
	t.Logf("used %.3f, Jain %.3f", used, f.jain())
	if f.most > 20 {
		t.Errorf("%d of 20 slots were in use", f.most)
	}
	if used < 0.9 || f.jain() < 0.97 {
		t.Error("the slots are not used evenly")
	}
}
