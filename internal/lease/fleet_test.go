package lease

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// A fleet is processes that share one budget of a Book, each with callers that ask for the next token when they have one.
// Time is simulated, event by event.
type fleet struct {
	*rand.Rand
	book      *store.Book
	processes []*process
	events    events
	now       int64
	latency   func() int64
	lost      float64 // the part of responses that are lost
	timeout   int64

	calls, used int64
	over        float64 // the most that was used beyond the bound
	bound       func(t int64) float64
}

type process struct {
	meter    *Leased
	callers  int64
	cost     int64
	used     int64
	question int64 // the number of the one that is under way
	wakes    int64
	leaves   int64        // callers that leave with each token
	served   func()       // is called with each token
	latency  func() int64 // if not that of the fleet
}

// A happening is what happens at an instant.
type happening struct {
	at  int64
	run func()
}

type events []happening

func (h events) Len() int           { return len(h) }
func (h events) Less(i, j int) bool { return h[i].at < h[j].at }
func (h events) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)        { *h = append(*h, x.(happening)) }
func (h *events) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

const began = int64(1_763_800_000_000_000_000) // of the store's clock, in ns

func newFleet(seed uint64, b store.Budget, processes int, callers int64) *fleet {
	f := &fleet{Rand: rand.New(rand.NewPCG(seed, 2)), book: store.NewBook(), timeout: int64(250 * time.Millisecond)}
	f.latency = func() int64 { return int64(time.Millisecond) + f.Int64N(int64(2*time.Millisecond)) }
	for range processes {
		m := newLeased(b, Config{Ahead: 10 * time.Millisecond, Seed: f.Uint64()})
		p := &process{meter: m, callers: callers, cost: 1}
		f.processes = append(f.processes, p)
		f.at(f.Int64N(int64(50*time.Millisecond)), func() { f.step(p) })
	}
	return f
}

func (f *fleet) at(t int64, run func()) { heap.Push(&f.events, happening{t, run}) }

// comes has a process want one token at an instant, and then one after each such time.
func (f *fleet) comes(p *process, at, every int64) {
	p.leaves = 1
	f.at(at, func() {
		p.callers = 1
		f.step(p)
		f.comes(p, f.now+every, every)
	})
}

// run lets so much time pass.
func (f *fleet) run(d time.Duration) {
	for end := f.now + int64(d); len(f.events) > 0; {
		if f.events[0].at > end {
			f.now = end
			return
		}
		e := heap.Pop(&f.events).(happening)
		f.now = e.at
		e.run()
	}
}

// step serves the callers of a process, and asks the store if it is time.
func (f *fleet) step(p *process) {
	p.wakes = meter.Never
	for p.callers > 0 && p.meter.Payable(f.now, p.cost) {
		p.meter.Take(f.now, f.now, p.cost, true)
		p.used += p.cost
		f.used += p.cost
		p.callers -= p.leaves
		if p.served != nil {
			p.served()
		}
		if f.bound != nil {
			f.over = max(f.over, float64(f.used)-f.bound(f.now))
		}
	}
	d := Demand{First: p.cost, All: p.cost * p.callers, Until: meter.Never}
	if p.callers == 0 {
		d = Demand{}
	}
	if at := p.meter.AskAt(f.now, d); at <= f.now {
		f.ask(p, d)
	} else {
		f.wake(p, at)
	}
	if p.callers > 0 {
		f.wake(p, p.meter.Ready(0, 0, p.cost))
	}
}

func (f *fleet) wake(p *process, at int64) {
	if at == meter.Never || at >= p.wakes {
		return
	}
	p.wakes = at
	f.at(max(at, f.now), func() {
		if p.wakes == at {
			f.step(p)
		}
	})
}

func (f *fleet) ask(p *process, d Demand) {
	sent, part := f.now, p.meter.Ask(f.now, d)
	p.question++
	question := p.question
	f.calls++
	latency := f.latency
	if p.latency != nil {
		latency = p.latency
	}
	f.at(f.now+latency()/2, func() {
		got := f.book.Lease(time.Unix(0, began+f.now), []store.Ask{{Parts: []store.Part{part}}})[0]
		if got.Err != nil {
			panic(got.Err)
		}
		if f.Float64() < f.lost {
			return
		}
		f.at(f.now+latency()/2, func() {
			if p.question == question {
				p.meter.Booked(sent, f.now, part, got.Parts[0])
				p.question++
				f.step(p)
			}
		})
	})
	f.at(f.now+f.timeout, func() {
		if p.question == question {
			p.meter.Failed(f.now, f.now)
			p.question++
			f.step(p)
		}
	})
}

// A process that has tokens of a window for a part of a request, and finds no more, does not keep them until the window ends.
func TestNoPartOfARequestIsKept(t *testing.T) {
	for _, kind := range []store.Kind{store.Fixed, store.Sliding} {
		for _, processes := range []int{2, 8, 32} {
			f := newFleet(1, window(kind, 103, time.Minute), processes, 4)
			for _, p := range f.processes {
				p.cost = 10
			}
			f.run(10 * time.Minute)
			f.reset()
			f.run(10 * time.Minute)
			assert.EqualValues(t, 1000, f.used, "%s, %d processes", kind, processes)
		}
	}
}

// jain returns Jain's index of fairness: 1 if all have used the same.
func (f *fleet) jain() float64 {
	sum, squares := 0.0, 0.0
	for _, p := range f.processes {
		sum += float64(p.used)
		squares += float64(p.used) * float64(p.used)
	}
	return sum * sum / squares / float64(len(f.processes))
}

func (f *fleet) reset() {
	f.calls, f.used = 0, 0
	for _, p := range f.processes {
		p.used = 0
	}
}

func TestFleetSharesABudgetEvenly(t *testing.T) {
	for _, c := range []struct {
		name      string
		budget    store.Budget
		processes int
		lost      float64
		over      time.Duration
		used      float64 // of the budget, at least
		jain      float64
		calls     float64 // a token, at most
	}{
		{"8 at 1,000/s", store.Budget{Kind: store.Bucket, N: 1000, Per: time.Second, Burst: 1000, Initial: 1000}, 8, 0, 10 * time.Second, 0.97, 0.95, 1},
		{"8 at 100/s", store.Budget{Kind: store.Bucket, N: 100, Per: time.Second, Burst: 100, Initial: 100}, 8, 0, 10 * time.Second, 0.97, 0.95, 4},
		{"8 at 20,000/s", store.Budget{Kind: store.Bucket, N: 20_000, Per: time.Second, Burst: 1000, Initial: 1000}, 8, 0, 5 * time.Second, 0.97, 0.95, 1},
		{"8 paced at 1,000/s", store.Budget{Kind: store.Pace, N: 1000, Per: time.Second}, 8, 0, 10 * time.Second, 0.97, 0.95, 1},
		{"8 at 1/s", store.Budget{Kind: store.Bucket, N: 1, Per: time.Second, Burst: 1, Initial: 1}, 8, 0, 10 * time.Minute, 0.97, 0.95, 2},
		{"8 at one in 5 s", store.Budget{Kind: store.Bucket, N: 1, Per: 5 * time.Second, Burst: 1, Initial: 1}, 8, 0, time.Hour, 0.97, 0.95, 3},
		{"32 at one in 5 s", store.Budget{Kind: store.Bucket, N: 1, Per: 5 * time.Second, Burst: 1, Initial: 1}, 32, 0, 4 * time.Hour, 0.97, 0.95, 3.1},
		{"32 paced at one in 100 s", store.Budget{Kind: store.Pace, N: 1, Per: 100 * time.Second}, 32, 0, 48 * time.Hour, 0.97, 0.95, 4.1},
		{"1,000 at 1,000/s", store.Budget{Kind: store.Bucket, N: 1000, Per: time.Second, Burst: 1000, Initial: 1000}, 1000, 0, 5 * time.Second, 0.95, 0.95, 2},
		{"1,000 at 20,000/s, 1 % lost", store.Budget{Kind: store.Bucket, N: 20_000, Per: time.Second, Burst: 1000, Initial: 1000}, 1000, 0.01, 3 * time.Second, 0.95, 0.95, 2},
		{"8 in a sliding window", store.Budget{Kind: store.Sliding, N: 100, Per: time.Second}, 8, 0, 30 * time.Second, 0.9, 0.9, 4},
		{"8 in a fixed window", store.Budget{Kind: store.Fixed, N: 100, Per: time.Second}, 8, 0, 60 * time.Second, 0.97, 0.9, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFleet(1, c.budget, c.processes, 10)
			f.lost = c.lost
			f.run(2 * time.Second)
			f.reset()
			f.run(c.over)
			all := float64(c.budget.N) * c.over.Seconds() / c.budget.Per.Seconds()
			used, calls := float64(f.used)/all, float64(f.calls)/float64(f.used)
			t.Logf("used %.3f, Jain %.3f, %.2f calls a token, %.0f calls a second", used, f.jain(), calls, float64(f.calls)/c.over.Seconds())
			if used < c.used || used > 1.05 {
				t.Errorf("%.3f of the budget was used", used)
			}
			if f.jain() < c.jain {
				t.Errorf("Jain's index is %.3f", f.jain())
			}
			if calls > c.calls {
				t.Errorf("%.2f calls a token", calls)
			}
		})
	}
}
