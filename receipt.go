package throttle

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// A Receipt tells what a request was charged, and takes what it really cost: for a caller whose SDK hands out no response.
// It speaks of the last attempt, where there were several, and of those that a Transport, or [Limiter.Wait], let go. It is
// safe for concurrent use, but does not tell requests apart that share its context at one time: each is to have its own.
type Receipt struct {
	mu     sync.Mutex
	grants []*Grant // the last of each Limiter, the latest first
}

// ContextWithReceipt returns a context whose requests are noted in the Receipt.
func ContextWithReceipt(ctx context.Context) (context.Context, *Receipt) {
	r := new(Receipt)
	return with(ctx, func(o *overrides) { o.receipt = r }), r
}

// filed returns the same Grant, kept and noted in its Receipt.
func (g *Grant) filed() *Grant {
	k, r := new(*g), g.receipt
	r.mu.Lock()
	defer r.mu.Unlock()
	// What was filed after the last Grant of this Limiter was further in, and so part of the attempt before.
	before := slices.IndexFunc(r.grants, func(other *Grant) bool { return other.limiter == k.limiter })
	r.grants = append([]*Grant{k}, r.grants[before+1:]...)
	return k
}

// Waited returns how long the request stood in line.
func (r *Receipt) Waited() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var waited time.Duration
	for _, g := range r.grants {
		waited += g.waited
	}
	return waited
}

// Cost returns what was charged in the limit of that name, as corrected so far; ok is false if nothing was, or if all was
// given back.
func (r *Receipt) Cost(limit string) (cost int64, ok bool) {
	g, i := r.find(limit)
	if g == nil {
		return 0, false
	}
	g.limiter.mu.Lock()
	defer g.limiter.mu.Unlock()
	return g.charges()[i].cost, g.spent&grantReturned == 0
}

// Settle corrects what was charged in the limit of that name, as [Grant.Settle] does and with the same errors.
func (r *Receipt) Settle(limit string, cost int64) error {
	err := errUncharged
	if g, i := r.find(limit); g != nil {
		err = g.limiter.settle(g, i, cost)
	}
	if err != nil {
		return fmt.Errorf("throttle: Settle(%q, %d): %w", limit, cost, err)
	}
	return nil
}

// find returns the latest Grant that was charged in the limit of that name, and which of its charges that is.
func (r *Receipt) find(limit string) (*Grant, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.grants {
		if i := g.chargeOf(limit); i >= 0 {
			return g, i
		}
	}
	return nil, 0
}
