package limiter

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestALockIsHeldByOneGoroutineAtATime(t *testing.T) {
	const goroutines, turns = 8, 300
	var m lock
	var all sync.WaitGroup
	n := 0 // the race detector sees whether the lock guards it
	for i := range goroutines {
		all.Go(func() {
			for k := range turns {
				if (i+k)%2 == 0 || !m.TryLock() {
					m.wait()
				}
				before := n
				if k%16 == 0 {
					runtime.Gosched() // others pause, and then sleep
				}
				n = before + 1
				m.Unlock()
			}
		})
	}
	all.Wait()
	assert.Equal(t, goroutines*turns, n)
	assert.True(t, m.TryLock(), "it is free again")
}

func TestALockThatIsFreeIsTakenAfterAPause(t *testing.T) {
	var m lock
	m.wait()
	assert.False(t, m.TryLock())
	m.Unlock()
	m.Lock()
	assert.False(t, m.TryLock())
	m.Unlock()
}

func TestAHolderMayHoldALockForLongerThanAPause(t *testing.T) {
	var m lock
	var held, had atomic.Bool
	m.Lock()
	held.Store(true)
	var waiter sync.WaitGroup
	waiter.Go(func() {
		m.wait()
		had.Store(!held.Load())
		m.Unlock()
	})
	var longer lock
	longer.wait() // a pause, too
	for range 100 {
		runtime.Gosched()
	}
	held.Store(false)
	m.Unlock()
	waiter.Wait()
	assert.True(t, had.Load())
}

// A goroutine that pauses is not in the queue of the lock, and must not starve.
func TestAWaiterGetsTheLockWhileOthersTakeTurns(t *testing.T) {
	var m lock
	var got atomic.Bool
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for !got.Load() {
				m.Lock()
				runtime.Gosched() // so that most others find it held
				m.Unlock()
			}
		})
	}
	for range 20 {
		m.wait()
		runtime.Gosched()
		m.Unlock()
	}
	got.Store(true)
	all.Wait()
}
