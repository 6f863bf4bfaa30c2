package main

import (
	"fmt"
	"sync"
	"time"
)

// A progress knows how far a batch is. It is safe for concurrent use.
type progress struct {
	total int

	mu     sync.Mutex
	done   int
	recent [100]time.Time // when the latest items were done, as a ring
}

// add notes that another item is done.
func (p *progress) add() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recent[p.done%len(p.recent)] = time.Now()
	p.done++
}

// String returns how many items are done, how many of the last 100 were done per second, and how long the others take at
// that rate.
func (p *progress) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(p.done, len(p.recent))
	if n < 2 {
		return fmt.Sprintf("%d of %d", p.done, p.total)
	}
	took := time.Since(p.recent[(p.done-n)%len(p.recent)])
	each := took / time.Duration(n-1)
	left := each * time.Duration(p.total-p.done)
	return fmt.Sprintf("%d of %d, %.1f per second, %v left", p.done, p.total, float64(n-1)/took.Seconds(), left.Round(time.Second))
}
