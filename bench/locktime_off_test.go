//go:build !locktime || !linux

package bench

import (
	"time"

	"github.com/httpthrottle/throttle"
)

// longestHold measures nothing without the build tag locktime.
func longestHold(*throttle.Limiter) (time.Duration, bool) { return 0, false }

// cpuOf calls do, and measures nothing.
func cpuOf(do func()) time.Duration {
	do()
	return 0
}
