package limiter_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/quota"
)

// This file is for requests that goroutines of their own make, in a bubble of synctest.

// A request is one that a goroutine of its own makes.
type request struct {
	cancel context.CancelCauseFunc
	done   bool
	at     time.Duration // when it was decided, since the Core was made
	grant  *grant
	err    error
}

// deciding orders what a test has read of a request before it lets time pass, and what the request then becomes.
var deciding sync.Mutex

func (r *request) decide(l *driven, g *grant, err error) {
	deciding.Lock()
	defer deciding.Unlock()
	r.grant, r.err, r.at, r.done = g, err, l.now(), true
}

// send makes a request, and returns when it is decided or waits.
func (l *driven) send(a ask) *request { return l.sendUnder(l.t.Context(), a) }

func (l *driven) sendUnder(ctx context.Context, a ask) *request {
	r := new(request)
	ctx, r.cancel = context.WithCancelCause(ctx)
	go func() {
		g, err := l.acquire(ctx, a)
		r.decide(l, g, err)
	}()
	synctest.Wait()
	return r
}

// sendBy makes a request that passes a gate of the host "h" as well.
func (l *driven) sendBy(ctx context.Context, family uint64, a ask) *request {
	r := new(request)
	ctx, r.cancel = context.WithCancelCause(ctx)
	go func() {
		w := l.waiter(a)
		w.Gate = &quota.Key{Host: "h", Family: family}
		r.decide(l, nil, l.Acquire(ctx, w))
	}()
	synctest.Wait()
	return r
}

// sendMany makes n requests, in order.
func (l *driven) sendMany(n int, a ask) []*request {
	all := make([]*request, n)
	for i := range all {
		all[i] = l.send(a)
	}
	return all
}

// finish gives the slots back of all requests that were granted.
func finish(all []*request) {
	var grants []*grant
	deciding.Lock()
	for _, r := range all {
		if r.grant != nil {
			grants = append(grants, r.grant)
		}
	}
	deciding.Unlock()
	for _, g := range grants {
		g.done()
	}
	synctest.Wait()
}

// sleep lets time pass, and all that then happens.
func sleep(d time.Duration) {
	deciding.Lock()
	//lint:ignore SA2001 what was read before happens before what is decided from now on
	deciding.Unlock()
	time.Sleep(d)
	synctest.Wait()
}

// requireGranted checks when a request was granted.
func requireGranted(t *testing.T, r *request, at time.Duration) {
	t.Helper()
	require.True(t, r.done, "still waits")
	require.NoError(t, r.err)
	require.Equal(t, at, r.at)
}

// requireRejected checks when and why a request was rejected.
func requireRejected(t *testing.T, r *request, at time.Duration, reason bucket.Reason) *rejection {
	t.Helper()
	require.True(t, r.done, "still waits")
	rejection := requireRejection(t, r.err)
	require.Equal(t, reason, rejection.Reason, "%v", r.err)
	require.Equal(t, at, r.at)
	return rejection
}

// within runs a subtest in a bubble.
func within(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

const (
	ms  = time.Millisecond
	sec = time.Second
)

// seeds returns n, or 1 in a short test.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return 1
	}
	return n
}
