package order

// Blocker returns a request that stops w, which waits: the first of its line or, if w is that, another one that is to be granted
// first at a point that w waits for. It returns w if what w costs cannot be paid, or if nothing stops it. Next has returned nil.
func (o *Order) Blocker(w *Waiter) *Waiter {
	l := w.queue.lane
	ln := l.line
	first := l.queues.Top().first
	stops := ln.stops
	if l.IsIn() {
		first = ln.first
	} else { // its gate alone
		stops = nil
	}
	if first != w {
		return first
	}
	blocker := w
	for i := range stops {
		s := &stops[i]
		switch top := s.point.blocked.Top(); {
		case w.blocked&bit(i) == 0 || top == nil:
		case top == s:
			return w
		default:
			blocker = top.head()
		}
	}
	if g := &l.gate; g.IsIn() {
		if top := g.point.blocked.Top(); top != g && blocker == w {
			blocker = top.head()
		}
	}
	return blocker
}
