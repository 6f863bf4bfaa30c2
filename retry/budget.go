package retry

import "sync"

// A budget limits retries. A nil budget does not.
//
//	retries ≤ reserve + ratio · successes, at any time
type budget struct {
	reserve, ratio float64 // not changed

	// mu guards tokens, which are from 0 to reserve. Nothing is called under it.
	mu     sync.Mutex
	tokens float64
}

func newBudget(c *config) *budget {
	if c.boundless {
		return nil
	}
	return &budget{reserve: float64(c.reserve), ratio: c.ratio, tokens: float64(c.reserve)}
}

// take pays for a retry, if it can be paid for.
func (b *budget) take() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// succeeded gives back what a success is worth.
func (b *budget) succeeded() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.tokens+b.ratio, b.reserve)
}
