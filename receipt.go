package throttle

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// A Receipt tells how long a request waited and what it was charged, and settles the charge. It is for SDKs that
// return no response. After several attempts it holds the last one that a Transport or [Limiter.Wait] granted. It is safe for
// concurrent use. Requests that are under way at the same time need a Receipt each.
type Receipt struct {
	mu     sync.Mutex
	grants []*Grant // the last one of each Limiter, the latest first
}

// ContextWithReceipt returns a context under which requests are recorded in the Receipt.
func ContextWithReceipt(ctx context.Context) (context.Context, *Receipt) {
	r := new(Receipt)
	return with(ctx, func(o *overrides) { o.receipt = r }), r
}

// filed returns a copy of the Grant on the heap, recorded in its Receipt.
func (g *Grant) filed() *Grant {
	k, r := new(*g), g.receipt
	r.mu.Lock()
	defer r.mu.Unlock()
	// Grants after the last one of this Limiter belong to inner Transports, and so to the attempt before.
	before := slices.IndexFunc(r.grants, func(other *Grant) bool { return other.limiter == k.limiter })
	r.grants = append([]*Grant{k}, r.grants[before+1:]...)
	return k
}

// Waited returns how long the request waited, in all Limiters together.
func (r *Receipt) Waited() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var waited time.Duration
	for _, g := range r.grants {
		waited += g.waited
	}
	return waited
}

// Cost returns the charge in the limit of that name: the true cost once it is settled. ok is false if nothing was charged
// there, or if it was refunded.
func (r *Receipt) Cost(limit string) (cost int64, ok bool) {
	g, i := r.find(limit)
	if g == nil {
		return 0, false
	}
	return g.limiter.core.Charged(&g.grant, i)
}

// Settle settles the charge in the limit of that name, as [Grant.Settle] does, with the same errors.
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

// find returns the latest Grant with a charge in the limit of that name, and the index of the charge.
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
