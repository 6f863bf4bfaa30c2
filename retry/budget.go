package retry

import (
	"context"
	"reflect"
	"sync"
)

// A budget limits retries. A nil budget does not.
//
//	retries ≤ reserve + ratio · successes, at any time
//
// A token is lent to a retry before its wait, and is returned if the wait was cancelled.
type budget struct {
	most, ratio int64 // in billionths of a retry; not changed

	// mu guards what follows. Nothing is called under it that takes long.
	mu     sync.Mutex
	tokens int64 // in billionths of a retry, from 0 to most
	lent   map[context.Context]int
}

const (
	token   = 1_000_000_000 // for one retry
	maxLent = 10_000        // contexts that are remembered
)

func newBudget(c *config) *budget {
	if c.boundless {
		return nil
	}
	reserve := min(int64(c.reserve), 1<<32) * token
	return &budget{most: max(reserve, token), ratio: int64(c.ratio * token), tokens: reserve, lent: make(map[context.Context]int)}
}

// lend pays for a retry that waits under ctx, if it can be paid for.
func (b *budget) lend(ctx context.Context) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tokens < token {
		b.reclaimLocked()
	}
	if b.tokens < token {
		return false
	}
	b.tokens -= token
	if ctx.Done() != nil && len(b.lent) < maxLent && reflect.TypeOf(ctx).Comparable() {
		b.lent[ctx]++
	}
	return true
}

// left returns how many retries can be paid for now, and by a full budget; -1 without a budget.
func (b *budget) left() (now, most int64) {
	if b == nil {
		return -1, -1
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tokens / token, b.most / token
}

// reclaimLocked takes the tokens back of retries whose context ended while they waited.
func (b *budget) reclaimLocked() {
	for ctx, n := range b.lent {
		if ctx.Err() != nil {
			b.tokens = min(b.tokens+int64(n)*token, b.most)
			delete(b.lent, ctx)
		}
	}
}

// spend notes that a retry is about to be sent, which was paid for by lend if it had to be.
func (b *budget) spend(ctx context.Context) {
	if b == nil || !reflect.TypeOf(ctx).Comparable() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lent[ctx]--; b.lent[ctx] <= 0 {
		delete(b.lent, ctx)
	}
}

// succeeded gives back what a success is worth.
func (b *budget) succeeded() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.tokens+b.ratio, b.most)
}
