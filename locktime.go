//go:build locktime && linux

package throttle

import "time"

// LongestHold returns the longest time for which the lock of the Limiter has been held since the last call, in CPU time. It
// exists only with the build tag locktime, for benchmarks.
func (l *Limiter) LongestHold() time.Duration { return l.core.LongestHold() }
