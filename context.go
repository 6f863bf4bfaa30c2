package throttle

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

type overridesKey struct{}

// overrides are what a context says about its requests: one value, so that one look-up finds all of it.
type overrides struct {
	key      string
	hasKey   bool
	cost     int64
	hasCost  bool
	costs    []costOf
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
	overriding  atomic.Bool // some context has overrides
)

func overridesOf(ctx context.Context) *overrides {
	if !overriding.Load() { // so most programs need not search a context for each request
		return noOverrides
	}
	return searched(ctx)
}

// searched is apart, and not inlined, so that overridesOf can be.
//
//go:noinline
func searched(ctx context.Context) *overrides {
	if o, ok := ctx.Value(overridesKey{}).(*overrides); ok {
		return o
	}
	return noOverrides
}

func with(ctx context.Context, change func(*overrides)) context.Context {
	o := *overridesOf(ctx)
	change(&o)
	if !overriding.Load() { // once, since all requests read it
		overriding.Store(true)
	}
	return context.WithValue(ctx, overridesKey{}, &o)
}

// costFor returns what the context says a request costs against that limit by name.
func (o *overrides) costFor(limit string) (int64, bool) {
	for _, c := range o.costs {
		if c.limit == limit {
			return c.cost, true
		}
	}
	return 0, false
}

// ContextWithCost sets what requests under ctx cost: against the limits named, before all else; against all limits, if
// none is named, where neither ctx names the limit nor the limit has a [Cost] of its own. 0 means that the limit does
// not apply, and a negative cost is refused. Names that no limit has are ignored, since a context may pass through
// several Transports. Calls nest, for costs that differ from limit to limit.
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

// ContextWithKey sets the key of requests under ctx, for limits without a [Key] of their own and for [ByContext].
// An empty key is counted under [NoKey].
func ContextWithKey(ctx context.Context, key string) context.Context {
	return with(ctx, func(o *overrides) { o.key, o.hasKey = orNoKey(key), true })
}

// ContextWithPriority sets the priority of requests under ctx: 0 by default, and each step counts as having come ten
// seconds earlier (later, if negative), so that a low priority is delayed but never starved.
func ContextWithPriority(ctx context.Context, priority int) context.Context {
	return with(ctx, func(o *overrides) { o.priority = priority })
}

// ContextWithMaxWait sets the longest that requests under ctx may stand in line, in place of [WithMaxWait]. 0 or less
// is to fail fast.
func ContextWithMaxWait(ctx context.Context, d time.Duration) context.Context {
	return with(ctx, func(o *overrides) { o.maxWait, o.hasWait = max(0, d), true })
}

// ContextWithExempt lets requests under ctx pass untouched and uncounted, as [WithExempt] does.
func ContextWithExempt(ctx context.Context) context.Context {
	return with(ctx, func(o *overrides) { o.exempt = true })
}
