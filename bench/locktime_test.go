//go:build locktime && linux

package bench

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/queue"
)

func init() {
	queue.ThreadTime = func() time.Duration {
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
			panic(err)
		}
		return time.Duration(t.Nano())
	}
}

// longestHold returns the longest time for which the lock has been held since the last call.
func longestHold(l *throttle.Limiter) (time.Duration, bool) { return l.LongestHold(), true }

// cpuOf returns the CPU time that do takes on this goroutine.
func cpuOf(do func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := queue.ThreadTime()
	do()
	return queue.ThreadTime() - began
}
