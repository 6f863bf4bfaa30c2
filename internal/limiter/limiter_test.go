package limiter_test

import (
	"context"
	"reflect"

	. "github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/saved"
)

// The tests of this package drive a Core by a Limiter, as programs do: they hold whatever the Core looks like inside. What follows
// is all that they know of how a Limiter is built.

// coreOf returns the Core of a Limiter.
func coreOf(l *Limiter) *limiter.Core { return inside[limiter.Core](l, "core") }

// countsOf returns what is counted for callers of the Limiter itself.
func countsOf(l *Limiter) *bucket.Counts { return inside[bucket.Counts](l, "direct", "counts") }

// chargesOf returns the part of a Grant that the Core keeps.
func chargesOf(g *Grant) *bucket.Grant { return inside[bucket.Grant](g, "grant") }

// stateOf returns what is in a Snapshot, and snapshot makes one.
func stateOf(s *Snapshot) *saved.State { return inside[saved.State](s, "state") }

func snapshot(of saved.State) (s Snapshot) {
	*stateOf(&s) = of
	return s
}

// inside returns the unexported field of that name in the struct to which of points.
func inside[T any](of any, path ...string) *T {
	v := reflect.ValueOf(of).Elem()
	for _, name := range path {
		v = v.FieldByName(name)
	}
	return (*T)(v.Addr().UnsafePointer())
}

// kindOf returns the kind of a limit, which is its name if it has no other.
func kindOf(limit Limit) string { return *inside[string](&limit, "kind") }

// ruleOf returns the rule of a limit.
func ruleOf(limit *Limit) *bucket.Rule { return inside[bucket.Rule](limit, "rule") }

// invalid reports whether NewLimiter rejects a limit.
func invalid(limit Limit) bool {
	_, err := NewLimiter(WithLimit(limit))
	return err != nil
}

// pendingOf returns a request that costs ask.Cost, or 1, in each limit.
func pendingOf(l *Limiter, ask Ask) *bucket.Pending {
	p := &bucket.Pending{Ask: bucket.Ask{Priority: ask.Priority, MaxWait: -1, Caller: ask.Caller, Weight: 1, By: countsOf(l)}}
	if ask.MaxWait != nil {
		p.Ask.MaxWait = *ask.MaxWait
	}
	p.Refusal = &p.Room
	p.Charges = make([]bucket.Charge, 0, len(coreOf(l).Limits))
	for _, li := range coreOf(l).Limits {
		p.Add(li, ask.Key, max(1, ask.Cost))
	}
	return p
}

// await makes a request to the Core, and returns the rejection or the cause of the context.
func await(ctx context.Context, l *Limiter, p *bucket.Pending) error {
	w, verdict := coreOf(l).Decide(ctx, p)
	refusal := p.Refusal
	if verdict == bucket.Waiting {
		if err := coreOf(l).Await(ctx, nil, w); err != nil {
			return err
		}
		refusal = w.Refusal
	}
	if refusal == nil || refusal.Reason == 0 {
		return nil
	}
	return &Rejection{Reason: Reason(refusal.Reason), Limit: refusal.Limit.Name, Key: refusal.Key, Cost: refusal.Cost, Wait: refusal.Wait, Patience: refusal.Patience, Err: refusal.Err}
}

// report reports an outcome to the limits of a grant, without hooks.
func report(l *Limiter, g *Grant, a *bucket.Answer) {
	coreOf(l).Report(chargesOf(g), a, countsOf(l))
}
