package pool

import (
	"sync/atomic"
	"time"
)

// When a member is added, requests that wait come to it one by one, in any order. So it is shut until all have places there: otherwise, its first
// tokens would be for those that happen to come first, or for requests that have just arrived.

// waits counts the requests that wait at the members of a set. When there is another set, those that move to it count until they have places there.
type waits struct {
	n     atomic.Int64
	moved func() // called when none is left; set before n is negative
}

// over is the count of no request, once there is another set.
const over = -1 << 62

// begin counts a request in. It reports false if there is another set.
func (w *waits) begin() bool {
	for n := w.n.Load(); n >= 0; n = w.n.Load() {
		if w.n.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

// end counts a request out.
func (w *waits) end() {
	if w.n.Add(-1) == over {
		w.moved()
	}
}

// close lets no more requests begin. It reports false if there are none, and otherwise calls moved once the last has ended.
func (w *waits) close(moved func()) bool {
	w.moved = moved
	return w.n.Add(over) != over
}

// A move is of a request that has waited, until it waits at other members; nil: it has not waited.
type move struct{ from *waits } // where it still counts; nil: it does not

// isOpen reports whether the request still counts where it has waited.
func (m *move) isOpen() bool { return m != nil && m.from != nil }

// end counts the request out where it has waited, because it has all its places now. A second call has no effect.
func (m *move) end() {
	if m.isOpen() {
		m.from.end()
		m.from = nil
	}
}

// addLocked has the members that a set adds to an old one be shut until the requests that wait there have moved, or for as long as between two
// trials: a function of the user may block one of them.
func (p *Pool) addLocked(added []*state, old *set) {
	open := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, s := range added {
			s.opening.Store(false)
		}
		p.turnLocked()
	}
	if len(added) == 0 {
		open = func() {}
	}
	if old.waits.close(open) && len(added) > 0 {
		for _, s := range added {
			s.opening.Store(true)
		}
		time.AfterFunc(outFor, open)
	}
}
