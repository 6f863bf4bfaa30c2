//go:build locktime && linux

package queue

import (
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"
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
	m.since = threadTime()
}

func (m *mutex) Unlock() {
	m.longest = max(m.longest, threadTime()-m.since)
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

// threadTime returns the CPU time of the thread.
func threadTime() time.Duration {
	const threadClock = 3 // CLOCK_THREAD_CPUTIME_ID
	var t syscall.Timespec
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, threadClock, uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		panic("throttle: bug: no CPU time of a thread: " + errno.Error())
	}
	return time.Duration(t.Nano())
}
