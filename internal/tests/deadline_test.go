package tests

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A queued is a request that came a while after the start, with that maximum wait or deadline; 0: without one.
type queued struct {
	name              string
	at, maxWait, ends time.Duration
	priority          int
	caller            string
}

// inOrder returns the requests in the order in which a limit grants them, one per second from the first second on; those that were
// rejected have a minus.
func inOrder(t *testing.T, all []queued, opts ...throttle.Option) (got []string) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(opts...)
		require.NoError(t, err)
		var mu sync.Mutex
		var wg sync.WaitGroup
		start := time.Now()
		for _, q := range all {
			wg.Go(func() {
				time.Sleep(q.at)
				ctx := throttle.ContextWithPriority(t.Context(), q.priority)
				if q.maxWait > 0 {
					ctx = throttle.ContextWithMaxWait(ctx, q.maxWait)
				}
				if q.ends > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithDeadline(ctx, start.Add(q.ends))
					defer cancel()
				}
				err := l.Wait(ctx, throttle.Ask{Caller: q.caller})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					require.True(t, errors.Is(err, throttle.ErrThrottled), err)
					got = append(got, "-"+q.name)
				} else {
					got = append(got, q.name)
				}
			})
		}
		wg.Wait()
	})
	return got
}

func TestRequestsAreSentInTheOrderOfTheirDeadlines(t *testing.T) {
	const s, ns = time.Second, time.Nanosecond
	perSecond := throttle.WithLimit(throttle.TokenBucket(1, s, throttle.Burst(1), throttle.Initial(0)))
	byDeadline := throttle.WithDeadlineOrder(10 * s)
	for name, c := range map[string]struct {
		all  []queued
		opts []throttle.Option
		want []string
	}{
		"of maximum waits and contexts": {
			[]queued{{name: "a"}, {name: "b", at: 1 * ns, maxWait: 8 * s}, {name: "c", at: 2 * ns, ends: 7 * s}, {name: "d", at: 3 * ns, maxWait: 3 * s, ends: 60 * s}},
			[]throttle.Option{byDeadline}, []string{"d", "c", "b", "a"},
		},
		"without the option": {
			[]queued{{name: "a"}, {name: "b", at: 1 * ns, maxWait: 8 * s}, {name: "c", at: 2 * ns, ends: 7 * s}, {name: "d", at: 3 * ns, maxWait: 5 * s}},
			nil, []string{"a", "b", "c", "d"},
		},
		"without a deadline, and with a later one, as if in ten seconds": {
			[]queued{{name: "a"}, {name: "b", at: 1 * ns, maxWait: time.Hour}, {name: "c", at: 2 * ns}, {name: "d", at: 3 * ns, maxWait: 10 * s}},
			[]throttle.Option{byDeadline}, []string{"a", "b", "c", "d"},
		},
		"a nanosecond decides": {
			[]queued{{name: "a", maxWait: 5 * s}, {name: "b", at: 1 * ns, maxWait: 5*s - 2*ns}, {name: "c", at: 2 * ns, maxWait: 5*s - 2*ns}},
			[]throttle.Option{byDeadline}, []string{"b", "a", "c"},
		},
		"a priority is ten seconds": {
			[]queued{{name: "a", maxWait: 5 * s}, {name: "b", at: 1 * ns, priority: 1}, {name: "c", at: 2 * ns, maxWait: 6 * s, priority: 1}},
			[]throttle.Option{byDeadline}, []string{"c", "b", "a"},
		},
		"an age counts as a deadline": {
			[]queued{{name: "old"}, {name: "x", at: 500 * time.Millisecond}, {name: "y", at: 500*time.Millisecond + ns}, {name: "new", at: s + 1, maxWait: 8500 * time.Millisecond}, {name: "late", at: s + 2, maxWait: 9500 * time.Millisecond}},
			[]throttle.Option{byDeadline}, []string{"old", "new", "x", "y", "late"},
		},
		"what is overtaken may be too late": {
			[]queued{{name: "a", maxWait: 2 * s}, {name: "b", at: 1 * ns, maxWait: 2 * s}, {name: "c", at: 2 * ns, maxWait: 1500 * time.Millisecond}},
			[]throttle.Option{byDeadline}, []string{"c", "a", "-b"},
		},
		"between the first requests of callers": {
			[]queued{{name: "a1", caller: "a"}, {name: "a2", at: 1 * ns, caller: "a", maxWait: 5 * s}, {name: "b1", at: 2 * ns, caller: "b", maxWait: 9 * s}, {name: "b2", at: 3 * ns, caller: "b"}},
			[]throttle.Option{byDeadline, throttle.WithLimit(throttle.TokenBucket(1, s, throttle.Burst(1), throttle.Initial(0), throttle.FairBy(throttle.ByHost)))},
			[]string{"b1", "a1", "a2", "b2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts := c.opts
			if name != "between the first requests of callers" {
				opts = append(slices.Clone(opts), perSecond)
			}
			require.Equal(t, c.want, inOrder(t, c.all, opts...))
		})
	}
}

// README's sentence: interactive requests go before bulk requests that came a minute ago, however many there are.
func TestInteractiveRequestsGoBeforeBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithDeadlineOrder(10*time.Minute), throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Burst(1))))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var bulk sync.WaitGroup
		for range 5000 {
			bulk.Go(func() {
				if err := l.Wait(ctx, throttle.Ask{}); err != nil {
					require.ErrorIs(t, err, context.Canceled)
				}
			})
		}
		time.Sleep(time.Minute)
		for i := range 20 {
			start := time.Now()
			require.NoError(t, l.Wait(throttle.ContextWithMaxWait(t.Context(), 3*time.Second), throttle.Ask{Priority: i % 2}), fmt.Sprint(i))
			require.LessOrEqual(t, time.Since(start), 100*time.Millisecond)
			time.Sleep(time.Second)
		}
		cancel()
		bulk.Wait()
	})
}

// The lines of docs/recipes.md: behind a batch of minutes, a renewal waits for a token at most, and a health check does not wait.
func TestLeasesAndHealthChecksDoNotWaitBehindBulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, err := throttle.New(takes(0), throttle.WithDeadlineOrder(10*time.Minute),
			throttle.WithLimit(throttle.TokenBucket(20, time.Second)),
			throttle.WithExempt(func(r *http.Request) bool { return r.URL.Path == "/healthz" }))
		require.NoError(t, err)
		took := func(ctx context.Context, path string) time.Duration {
			start := time.Now()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com"+path, nil)
			require.NoError(t, err)
			resp, err := transport.RoundTrip(req)
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, resp.StatusCode)
			return time.Since(start)
		}
		bulk, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 5000 {
			all.Go(func() {
				req, _ := http.NewRequestWithContext(bulk, http.MethodGet, "http://api.example.com/items", nil)
				_, _ = transport.RoundTrip(req)
			})
		}
		time.Sleep(time.Minute)
		require.LessOrEqual(t, took(throttle.ContextWithMaxWait(t.Context(), 2*time.Second), "/lease"), 50*time.Millisecond)
		require.Zero(t, took(t.Context(), "/healthz"))
		require.Zero(t, took(throttle.ContextWithExempt(t.Context()), "/lease"))
		require.Greater(t, transport.Stats().Waiting, 3000)
		cancel()
		all.Wait()
	})
}
