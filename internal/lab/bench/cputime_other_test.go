//go:build !linux

package bench

import "time"

// cpuOf calls do, and measures nothing.
func cpuOf(do func()) time.Duration {
	do()
	return 0
}
