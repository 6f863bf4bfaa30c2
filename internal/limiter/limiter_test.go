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
func coreOf(l *throttle.Limiter) *limiter.Core { return *inside[*limiter.Core](l, "core") }

// userOf returns the User for callers of the Limiter itself.
func userOf(l *throttle.Limiter) *limiter.User { return *inside[*limiter.User](l, "user") }

// countsOf returns what is counted for that User.
func countsOf(l *throttle.Limiter) *bucket.Counts { return limiter.CountsOf(userOf(l)) }

// requestOf returns the part of a Grant that the Core knows.
func requestOf(g *throttle.Grant) *limiter.Request { return inside[limiter.Request](g, "request") }

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

// waiterOf returns a request that costs ask.Cost, or 1, in each limit.
func waiterOf(l *throttle.Limiter, ask throttle.Ask) *limiter.Waiter {
	r := limiter.Request{User: userOf(l)}
	for _, li := range coreOf(l).Limits {
		r.Add(li, ask.Key, max(1, ask.Cost))
	}
	w := r.Waiter()
	w.Priority = ask.Priority
	w.SetCaller(ask.Caller, 1)
	if ask.MaxWait != nil {
		w.MaxWait = *ask.MaxWait
	}
	return w
}

// enqueue has a request wait, and reports whether it does.
func enqueue(ctx context.Context, l *throttle.Limiter, w *limiter.Waiter) (waits bool) {
	waits, _ = coreOf(l).Enqueue(ctx, w)
	return waits
}

// report reports an outcome to the limits of a grant.
func report(l *throttle.Limiter, g *throttle.Grant, a *limiter.Answer) {
	coreOf(l).Report(requestOf(g), a)
}
