package throttle

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"time"
)

type overridesKey struct{}

// overrides are what a context says about its requests, in one value, so that one look-up finds all of it.
type overrides struct {
	key      string
	hasKey   bool
	cost     int64
	hasCost  bool
	costs    []costOf
	caller   string
	called   bool // caller is set
	priority int
	maxWait  time.Duration
	hasWait  bool
	exempt   bool
	receipt  *Receipt
}

type costOf struct {
	limit string
	cost  int64
}

var (
	noOverrides = new(overrides)
	overriding  atomic.Bool // whether any context has overrides
)

func overridesOf(ctx context.Context) *overrides {
	if !overriding.Load() { // so that programs without overrides do not search a context for each request
		return noOverrides
	}
	return searchOverrides(ctx)
}

// searchOverrides is not inlined, so that overridesOf is, which each request asks.
//
//go:noinline
func searchOverrides(ctx context.Context) *overrides {
	if o, ok := ctx.Value(overridesKey{}).(*overrides); ok {
		return o
	}
	return noOverrides
}

func with(ctx context.Context, change func(*overrides)) context.Context {
	o := *overridesOf(ctx)
	change(&o)
	if !overriding.Load() { // once, because all requests read it
		overriding.Store(true)
	}
	return context.WithValue(ctx, overridesKey{}, &o)
}

// costFor returns the cost that the context sets for a limit by name.
func (o *overrides) costFor(limit string) (int64, bool) {
	for _, c := range o.costs {
		if c.limit == limit {
			return c.cost, true
		}
	}
	return 0, false
}

// ContextWithCost returns a context under which requests have that cost in the limits with these names, or in all limits if there
// are no names. A cost for a limit by name takes precedence over everything else. A cost for all limits applies where the limit
// has no [Cost] of its own. With 0 the limit does not apply; a request with a negative cost is rejected. Unknown names are
// ignored, because a context may pass through several Transports. Calls nest: use several for different costs.
func ContextWithCost(ctx context.Context, cost int64, limits ...string) context.Context {
	return with(ctx, func(o *overrides) {
		if len(limits) == 0 {
			o.cost, o.hasCost = cost, true
			return
		}
		o.costs = slices.DeleteFunc(slices.Clone(o.costs), func(c costOf) bool { return slices.Contains(limits, c.limit) })
		for _, limit := range limits {
			o.costs = append(o.costs, costOf{limit, cost})
		}
	})
}

// ContextWithKey returns a context under which requests have that key, in limits without a [Key] of their own and for [ByContext].
// An empty key stands for [NoKey].
func ContextWithKey(ctx context.Context, key string) context.Context {
	return with(ctx, func(o *overrides) { o.key, o.hasKey = cmp.Or(key, NoKey), true })
}

// ContextWithCaller returns a context under which requests belong to that caller, where a limit has [FairBy].
func ContextWithCaller(ctx context.Context, caller string) context.Context {
	return with(ctx, func(o *overrides) { o.caller, o.called = caller, true })
}

// ContextWithPriority returns a context under which requests have that priority. The default is 0. Each step counts as having
// arrived ten seconds earlier, or later if negative, so that a low priority delays requests but never starves them.
func ContextWithPriority(ctx context.Context, priority int) context.Context {
	return with(ctx, func(o *overrides) { o.priority = priority })
}

// ContextWithMaxWait returns a context under which requests wait for at most d in the queue, instead of [WithMaxWait]. With 0 or
// less, they are rejected if they cannot be sent now.
func ContextWithMaxWait(ctx context.Context, d time.Duration) context.Context {
	return with(ctx, func(o *overrides) { o.maxWait, o.hasWait = max(0, d), true })
}

// ContextWithExempt returns a context under which requests are exempt, as with [WithExempt]. It is for a caller that has
// only a context, as with most SDKs, such as a health check.
func ContextWithExempt(ctx context.Context) context.Context {
	return with(ctx, func(o *overrides) { o.exempt = true })
}

// ByContext is a KeyFunc that returns the key set by [ContextWithKey].
func ByContext(r *http.Request) string { return overridesOf(r.Context()).key }
