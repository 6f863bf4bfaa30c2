package throttleredis

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// limiterOn returns a Limiter with one shared limit, and its client, which gives calls up in time.
func limiterOn(t testing.TB, addr string, limit func(throttle.LimitOption) throttle.Limit, opts ...throttle.SharedOption) *throttle.Limiter {
	t.Helper()
	return limiterOver(t, storeOn(t, addr), limit, opts...)
}

func limiterOver(t testing.TB, s store.Store, limit func(throttle.LimitOption) throttle.Limit, opts ...throttle.SharedOption) *throttle.Limiter {
	t.Helper()
	l, err := throttle.NewLimiter(throttle.WithLimit(limit(throttle.Shared(s, opts...))))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// storeOn returns a Store with a client of its own.
func storeOn(t testing.TB, addr string) *Store {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	st, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func bucketOf(n, burst int64) func(throttle.LimitOption) throttle.Limit {
	return func(shared throttle.LimitOption) throttle.Limit {
		return throttle.TokenBucket(n, time.Second, throttle.Burst(burst), throttle.Name("calls"), shared)
	}
}

// again starts another server at the port of one that was killed.
func (s *server) again(t *testing.T) {
	t.Helper()
	s.cmd = exec.Command(s.cmd.Path, s.cmd.Args[1:]...)
	must(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
}

func TestLimiterGoesOnWhenRedisIsStartedAgain(t *testing.T) {
	t.Parallel()
	s := start(t)
	l := limiterOn(t, s.addr(), bucketOf(1000, 10), throttle.StoreGrace(time.Minute))
	must(t, l.Wait(t.Context(), throttle.Ask{}))
	s.kill(t)
	short, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := l.Wait(short, throttle.Ask{Cost: 10}) // more than the process can have leased
	rejection, ok := errors.AsType[*throttle.Rejection](err)
	if !ok || rejection.Reason != throttle.ReasonStore || rejection.Err == nil || short.Err() != nil {
		t.Errorf("%v; the context: %v", err, short.Err())
	}
	if l.Stores()[0].Up {
		t.Error("the store is up")
	}
	done := make(chan error)
	go func() { done <- l.Wait(t.Context(), throttle.Ask{Cost: 5}) }()
	time.Sleep(500 * time.Millisecond)
	s.again(t)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestMissingPasswordIsAWrongSetUpInEveryMode(t *testing.T) {
	s := start(t, "--requirepass", "secret")
	for _, mode := range []throttle.Outage{throttle.OutageReject, throttle.OutageLocalShare, throttle.OutagePass} {
		l := limiterOn(t, s.addr(), bucketOf(10, 10), throttle.WithoutStore(mode), throttle.StoreGrace(0))
		for range 2 {
			err := l.Wait(t.Context(), throttle.Ask{})
			if !errors.Is(err, store.ErrSetup) || !strings.Contains(err.Error(), "NOAUTH") {
				t.Errorf("%v: %v", mode, err)
			}
		}
	}
}

func TestLimitsOfDifferentKeysInAClusterAreAskedForAlone(t *testing.T) {
	t.Parallel()
	st := newStore(t, startCluster(t).client)
	patient := throttle.Shared(st, throttle.StoreTimeout(10*time.Second)) // a busy machine is no outage
	l, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.TokenBucket(1000, time.Second, throttle.Name("all"), patient),
		throttle.SlidingWindow(50, time.Second, throttle.Name("tenant"), patient)))
	must(t, err)
	for range 30 {
		_, err := l.Acquire(t.Context(), throttle.Ask{Key: "tenant-1", Keys: map[string]string{"all": ""}})
		must(t, err)
	}
	if st := l.Stores()[0]; !st.Up || st.Failed+st.Setup > 0 {
		t.Errorf("%+v", st)
	}
}

func TestRequestsDoNotWaitForAClosedClient(t *testing.T) {
	t.Parallel()
	c := start(t).client(t)
	st, err := New(c)
	must(t, err)
	l := limiterOver(t, st, bucketOf(1, 1), throttle.StoreTimeout(10*time.Second), throttle.StoreGrace(time.Minute), throttle.WithoutStore(throttle.OutagePass))
	must(t, l.Wait(t.Context(), throttle.Ask{Key: "a"}))
	must(t, c.Close())
	if err := l.Wait(t.Context(), throttle.Ask{Key: "b"}); !errors.Is(err, store.ErrSetup) || !errors.Is(err, redis.ErrClosed) {
		t.Errorf("the error is %v", err)
	}
}
