package bench

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// threadTime returns the CPU time of the thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

// cpuOf returns the CPU time that do takes on this goroutine.
func cpuOf(do func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	do()
	return threadTime() - began
}
