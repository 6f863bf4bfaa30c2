// Package loop is virtual time for simulations: a loop of events, without goroutines and without a clock.
package loop

// A Loop runs events, each at its instant, in ns. The zero Loop is at 0 and has no events.
type Loop struct {
	now    int64
	seq    uint64
	events []event // a heap of values: with internal/heap, simulations take half as much time again
}

// Events of the same instant happen in the order in which they were made.
type event struct {
	at  int64
	seq uint64
	do  func()
}

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }

// Now returns the instant of the event that happens.
func (l *Loop) Now() int64 { return l.now }

// After makes an event that happens after d, or after the other events of this instant if d is not positive.
func (l *Loop) After(d int64, do func()) {
	l.seq++
	h := append(l.events, event{l.now + max(0, d), l.seq, do})
	for i := len(h) - 1; i > 0 && h[i].before(&h[(i-1)/2]); i = (i - 1) / 2 {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
	}
	l.events = h
}

// Run runs the events until an instant, including those at that instant.
func (l *Loop) Run(until int64) {
	for len(l.events) > 0 && l.events[0].at <= until {
		next := l.pop()
		l.now = next.at
		next.do()
	}
}

func (l *Loop) pop() event {
	h := l.events
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c+1 < last && h[c+1].before(&h[c]) {
			c++
		}
		if c >= last || !h[c].before(&h[i]) {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
	l.events = h
	return first
}
