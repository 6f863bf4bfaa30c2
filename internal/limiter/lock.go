package limiter

import "sync"

// A lock is a [sync.Mutex] for pieces of work that are shorter than it takes to put a goroutine to sleep and to wake it. The runtime puts
// it to sleep at once where other goroutines are ready to run. Here it first does nothing for about as long as sleep would take: then
// both together cost at most twice the cheaper one (Karlin, Li, Manasse, Owicki, "Empirical Studies of Competitive Spinning for a
// Shared-Memory Multiprocessor", 1991). It does not look at the lock meanwhile, because each look takes it from the processor of the one
// who holds it.
type lock struct{ sync.Mutex }

// sleepTakes is how many empty steps take as long as sleep: about 1 µs.
const sleepTakes = 2000

// Lock locks m. Where each request locks it, that is written out: TryLock can be inlined, and Lock cannot.
func (m *lock) Lock() {
	if !m.TryLock() {
		m.wait()
	}
}

// wait locks m where TryLock could not.
func (m *lock) wait() {
	for range sleepTakes {
	}
	m.Mutex.Lock()
}
