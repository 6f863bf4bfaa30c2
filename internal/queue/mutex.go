//go:build !locktime || !linux

package queue

import "sync"

// A mutex is the lock of a Core. With the build tag locktime it measures for how long it is held.
type mutex = sync.Mutex
