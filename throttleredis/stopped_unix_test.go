//go:build unix

package throttleredis

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

func TestStoppedServerHoldsNoCallBeyondItsContext(t *testing.T) {
	s := start(t)
	c := redis.NewClient(&redis.Options{Addr: s.addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	st := newStore(t, c)
	p := store.Part{Budget: bucket("k"), Want: 1}
	lease1(t, st, p)
	must(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := try(ctx, st, p)
	if took := time.Since(began); err == nil || errors.Is(err, store.ErrSetup) || took > 20*time.Second {
		t.Errorf("after %v: %v", took, err)
	}
	must(t, s.cmd.Process.Signal(syscall.SIGCONT))
	time.Sleep(50 * time.Millisecond)
	if got := lease1(t, st, store.Part{Budget: p.Budget, Want: 9}); got.Tokens != 4 {
		t.Errorf("%d tokens are left: what was asked before SIGCONT was carried out after its deadline", got.Tokens)
	}
}

// TestDeadlinesHoldWhileRedisIsStopped has many callers with deadlines while Redis does not respond, and then does again. All
// deadlines are within the grace: a request with a later deadline waits for the end of the grace.
func TestDeadlinesHoldWhileRedisIsStopped(t *testing.T) { // slow: it takes seconds of real time
	if testing.Short() {
		return
	}
	s := start(t)
	const timeout = 200 * time.Millisecond
	l := limiterOn(t, s.addr(), bucketOf(100_000, 10), throttle.StoreTimeout(timeout), throttle.StoreGrace(10*time.Second))
	must(t, l.Wait(t.Context(), throttle.Ask{}))
	must(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(150 * time.Millisecond) // the tokens available are given back
	const patience, stopped = 300 * time.Millisecond, 3 * time.Second
	var mu sync.Mutex
	var wg sync.WaitGroup
	var slowest, granted time.Duration // granted: when the first request was, after Redis went on
	began := time.Now()
	waits := func() bool { // for the first grant
		mu.Lock()
		defer mu.Unlock()
		return granted == 0 && time.Since(began) < 10*stopped
	}
	for range 64 {
		wg.Go(func() {
			for time.Since(began) < stopped+time.Second || waits() {
				asked := time.Now()
				err := within(patience, func(ctx context.Context) error { return l.Wait(ctx, throttle.Ask{}) })
				mu.Lock()
				slowest = max(slowest, time.Since(asked))
				if at := time.Since(began); err == nil && at > stopped && granted == 0 {
					granted = at - stopped
				}
				mu.Unlock()
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	time.Sleep(stopped - time.Since(began))
	must(t, s.cmd.Process.Signal(syscall.SIGCONT))
	wg.Wait()
	t.Logf("the slowest answer took %v, the first grant came %v after SIGCONT", slowest, granted)
	if slowest > stopped/2 { // 200 ms, on a busy machine more
		t.Errorf("an answer took %v", slowest)
	}
	if granted == 0 {
		t.Error("no grant after SIGCONT")
	}
}

func within(d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return f(ctx)
}
