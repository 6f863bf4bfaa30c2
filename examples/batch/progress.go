package main

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/httpthrottle/throttle"
)

// A progress knows how far a batch is. It is safe for concurrent use.
type progress struct {
	total   int
	limiter *throttle.Limiter

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

// String returns how many items are done, how many of the last 100 were done per second, unless they took less than a second, and how long
// the others take: at that rate, because the server may be slow, or by the limit, because the first items are sent in a burst.
func (p *progress) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(p.done, len(p.recent))
	if n < 2 {
		return fmt.Sprintf("%d of %d", p.done, p.total)
	}
	took := time.Since(p.recent[(p.done-n)%len(p.recent)])
	each := took / time.Duration(n-1)
	left := max(each*time.Duration(p.total-p.done), p.forecast())
	text := fmt.Sprintf("%d of %d", p.done, p.total)
	if took >= time.Second { // less may be a burst, which says nothing of the others
		text += fmt.Sprintf(", %.1f per second", float64(n-1)/took.Seconds())
	}
	return fmt.Sprintf("%s, %v left", text, left.Round(time.Second))
}

// forecast returns how long the items that are not sent yet have to wait for the limit.
func (p *progress) forecast() time.Duration {
	s := p.limiter.Stats()
	f, err := p.limiter.Forecast(throttle.Ask{}, max(0, p.total-int(s.Granted)-s.Waiting))
	if err != nil || f.Done() == math.MaxInt64 { // it is not known
		return 0
	}
	return f.Done()
}
