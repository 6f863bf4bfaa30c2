package limiter

import "sync"

// A lock is a [sync.Mutex] that is held for less time than it takes to put a goroutine to sleep and to wake it. A sync.Mutex has a goroutine
// pause before it sleeps, but only if no other goroutine is ready to run. With many requests, one always is. With a lock, it pauses then, too.
type lock struct{ sync.Mutex }

// pauseSteps is how many empty steps a pause takes: about 3 µs, as long as it takes to wake a goroutine on another processor. Meanwhile the
// holder's processor has several requests take their turns, one after the other, with the lock and what it guards in its own cache. So a
// pause does not look at the lock, which would take it from there. The compiler keeps empty loops.
const pauseSteps = 8000

// Lock locks m. Where each request locks it, that is written out: TryLock can be inlined, and Lock cannot.
func (m *lock) Lock() {
	if !m.TryLock() {
		m.wait()
	}
}

// wait locks m, which TryLock could not. It is not inlined, so that it costs a request nothing that need not wait.
//
//go:noinline
func (m *lock) wait() {
	for range pauseSteps {
	}
	m.Mutex.Lock() // a goroutine that has slept for 1 ms is the next to get it
}
