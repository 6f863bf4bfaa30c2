//go:build locktime && linux

package bench

import (
	"time"

	"github.com/httpthrottle/throttle"
)

// longestHold returns the longest time for which the lock has been held since the last call.
func longestHold(l *throttle.Limiter) (time.Duration, bool) { return l.LongestHold(), true }
