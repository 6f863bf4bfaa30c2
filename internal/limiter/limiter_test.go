package limiter_test

import (
	"context"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/saved"
)

// The tests of this package drive a Core by a Limiter, as programs do: they hold whatever the Core looks like inside.

// coreOf returns the Core of a Limiter.
func coreOf(l *throttle.Limiter) *limiter.Core { return inside[limiter.Core](l, "core") }

// countsOf returns what is counted for callers of the Limiter itself.
func countsOf(l *throttle.Limiter) *bucket.Counts {
	return inside[bucket.Counts](l, "direct", "counts")
}

// chargesOf returns the part of a Grant that the Core keeps.
func chargesOf(g *throttle.Grant) *bucket.Grant { return inside[bucket.Grant](g, "grant") }

// inside returns the unexported field at that path in the struct to which of points. The root package exports nothing of its
// inside, not even to tests, and here are the few places that need it.
func inside[T any](of any, path ...string) *T {
	v := reflect.ValueOf(of).Elem()
	for _, name := range path {
		v = v.FieldByName(name)
	}
	return (*T)(v.Addr().UnsafePointer())
}

// stateOf returns what is in a Snapshot, by its JSON.
func stateOf(t testing.TB, s throttle.Snapshot) saved.State {
	text, err := s.MarshalJSON()
	require.NoError(t, err)
	state, err := saved.Decode(text)
	require.NoError(t, err)
	return state
}

// snapshot returns the Snapshot with that in it.
func snapshot(t testing.TB, of saved.State) (s throttle.Snapshot) {
	text, err := of.Encode()
	require.NoError(t, err)
	require.NoError(t, s.UnmarshalJSON(text))
	return s
}

// invalid reports whether NewLimiter rejects a limit.
func invalid(limit throttle.Limit) bool {
	_, err := throttle.NewLimiter(throttle.WithLimit(limit))
	return err != nil
}

// pendingOf returns a request that costs ask.Cost, or 1, in each limit.
func pendingOf(l *throttle.Limiter, ask throttle.Ask) *bucket.Pending {
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
func await(ctx context.Context, l *throttle.Limiter, p *bucket.Pending) error {
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
	return &throttle.Rejection{Reason: throttle.Reason(refusal.Reason), Limit: refusal.Limit.Name, Key: refusal.Key, Cost: refusal.Cost, Wait: refusal.Wait, Patience: refusal.Patience, Err: refusal.Err}
}

// report reports an outcome to the limits of a grant, without hooks.
func report(l *throttle.Limiter, g *throttle.Grant, a *bucket.Answer) {
	coreOf(l).Report(chargesOf(g), a, countsOf(l))
}
