//go:build locktime && linux

package queue

import (
	"runtime"
	"sync"
	"time"
)

// A mutex measures the longest time for which it is held. It counts the CPU time of the thread, because on a busy machine a
// goroutine may be suspended while it holds the lock.
type mutex struct {
	sync.Mutex
	since, longest time.Duration
}

func (m *mutex) Lock() {
	m.Mutex.Lock()
	m.began()
}

func (m *mutex) TryLock() bool {
	ok := m.Mutex.TryLock()
	if ok {
		m.began()
	}
	return ok
}

// began keeps the goroutine on its thread until Unlock, because each thread has a clock of its own.
func (m *mutex) began() {
	runtime.LockOSThread()
	m.since = ThreadTime()
}

func (m *mutex) Unlock() {
	m.longest = max(m.longest, ThreadTime()-m.since)
	runtime.UnlockOSThread()
	m.Mutex.Unlock()
}

// LongestHold returns the longest time for which Mu has been held since the last call.
func (l *Core) LongestHold() time.Duration {
	m := &l.Mu
	m.Mutex.Lock()
	defer m.Mutex.Unlock()
	defer func() { m.longest = 0 }()
	return m.longest
}

// ThreadTime returns the CPU time of the thread. A benchmark sets it, because the standard library cannot tell it.
var ThreadTime func() time.Duration
