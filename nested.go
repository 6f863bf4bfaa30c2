package throttle

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// This file finds requests that would wait for themselves: those that a base sends by the same Transport, or another one with its
// Limiter, on behalf of a request that has all slots of an InFlight limit until the base returns. They are recognized by their
// context, so only requests that have all slots get a context of their own.

type holdingKey struct{}

// A holding is a request that has all slots of some buckets.
type holding struct {
	buckets []*bucket.Bucket
	slots   []int64  // that it has, by bucket
	outer   *holding // a request on whose behalf the base sends this one; nil: there is none
	over    atomic.Bool
}

// holdingOf returns the request on whose behalf a base sends requests with that context; nil: there is none.
func holdingOf(ctx context.Context) *holding {
	h, _ := ctx.Value(holdingKey{}).(*holding)
	return h
}

// forwardHolding is forward for a request that may have all slots of a limit.
func (t *Transport) forwardHolding(req *http.Request, r *limiter.Request) (*http.Response, reach, error) {
	h := t.limiter.holding(req.Context(), r)
	if h == nil {
		return t.forward(req, r)
	}
	defer h.over.Store(true)
	marked := req.WithContext(context.WithValue(req.Context(), holdingKey{}, h))
	resp, far, err := t.forward(marked, r)
	if resp != nil && resp.Request == marked {
		resp.Request = req
	}
	return resp, far, err
}

// holding returns the buckets of which a request takes all slots that their limits were made with; nil: there are none.
func (l *Limiter) holding(ctx context.Context, r *limiter.Request) (h *holding) {
	if !l.slots {
		return nil
	}
	charges := r.Charges()
	for i := range charges { // no copy of a charge, which another goroutine may be settling
		c := &charges[i]
		if of := l.policyOf(c.Limit()); of.kind == kindInFlight && of.takesAll(c.Cost) {
			if h == nil {
				h = &holding{outer: holdingOf(ctx)}
			}
			h.buckets, h.slots = append(h.buckets, c.Bucket), append(h.slots, c.Cost)
		}
	}
	return h
}

// takesAll reports whether a request of that cost takes all slots that the limit, which is of slots, was made with.
func (p *policy) takesAll(cost int64) bool { return cost >= p.rule.BurstOf(p.rule.Rate) }

// waitsForItself returns an error if a request that is about to wait can only be granted after the call of the base that sends it has
// ended.
func (l *Limiter) waitsForItself(ctx context.Context, w *limiter.Waiter) error {
	if !l.slots || l.dry {
		return nil
	}
	for h := holdingOf(ctx); h != nil; h = h.outer {
		for i, b := range h.buckets {
			if !h.over.Load() && l.core.NeedsAllOf(w, b, h.slots[i]) {
				return fmt.Errorf("throttle: limit %q: the base of a request that has all %d slots sends another request by the same Transport, which would wait for itself", b.Limit.Name, h.slots[i])
			}
		}
	}
	return nil
}
