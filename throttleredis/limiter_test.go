package throttleredis

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle"
)

// limiterOn returns a Limiter with one shared limit, and its client, which gives calls up in time.
func limiterOn(t testing.TB, addr string, limit func(throttle.LimitOption) throttle.Limit, opts ...throttle.ShareOption) *throttle.Limiter {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	st, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	l, err := throttle.NewLimiter(throttle.WithLimit(limit(throttle.Shared(st, opts...))))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func bucketOf(n, burst int64) func(throttle.LimitOption) throttle.Limit {
	return func(shared throttle.LimitOption) throttle.Limit {
		return throttle.TokenBucket(n, time.Second, throttle.Burst(burst), throttle.Name("calls"), shared)
	}
}

// TestLimitersShareABudgetOverRedis has eight Limiters with clients of their own, and callers that always want more.
func TestLimitersShareABudgetOverRedis(t *testing.T) {
	s := start(t)
	const processes, rate, burst, seconds = 8, 1000, 100, 4
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	all, over, used := 0, 0.0, make([]int, processes)
	var began time.Time
	for i := range processes {
		l := limiterOn(t, s.addr(), bucketOf(rate, burst))
		for range 8 {
			wg.Go(func() {
				for l.Wait(ctx, "", 1) == nil {
					mu.Lock()
					if all++; all == 1 {
						began = time.Now()
					}
					over = max(over, float64(all)-burst-rate*time.Since(began).Seconds())
					used[i]++
					mu.Unlock()
				}
			})
		}
	}
	time.Sleep(seconds * time.Second)
	cancel()
	took := time.Since(began).Seconds()
	wg.Wait()
	part := float64(all) / (burst + rate*took)
	t.Logf("%.3f of the budget, %v, over %.1f", part, used, over)
	if over > 0.1*rate { // tokens may be used up to 100 ms after they were leased
		t.Errorf("%.1f more than burst + rate·t", over)
	}
	if part < 0.9 || part > 1.1 { // a busy machine delays the callers
		t.Errorf("%.3f of the budget was used", part)
	}
	mean := float64(all) / processes
	if least, most := slices.Min(used), slices.Max(used); float64(least) < 0.75*mean || float64(most) > 1.25*mean {
		t.Errorf("the shares are %v", used)
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
	s := start(t)
	l := limiterOn(t, s.addr(), bucketOf(1000, 10))
	must(t, l.Wait(t.Context(), "", 1))
	s.kill(t)
	time.Sleep(150 * time.Millisecond) // the tokens at hand are given back
	short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	began := time.Now()
	err := l.Wait(short, "", 5)
	rejection, ok := errors.AsType[*throttle.Rejection](err)
	if !ok || rejection.Reason != throttle.ReasonStore || rejection.Err == nil || time.Since(began) > time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	if l.Stores()[0].Up {
		t.Error("the store is up")
	}
	done := make(chan error)
	go func() { done <- l.Wait(t.Context(), "", 5) }()
	time.Sleep(500 * time.Millisecond)
	s.again(t)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestMissingPasswordIsAWrongSetUpInEveryMode(t *testing.T) {
	s := start(t, "--requirepass", "secret")
	for _, mode := range []throttle.Outage{throttle.Refuse, throttle.LocalShare, throttle.Pass} {
		l := limiterOn(t, s.addr(), bucketOf(10, 10), throttle.WithoutStore(mode), throttle.StoreGrace(0))
		for range 2 {
			err := l.Wait(t.Context(), "", 1)
			if !errors.Is(err, throttle.ErrStoreSetup) || !strings.Contains(err.Error(), "NOAUTH") {
				t.Errorf("%v: %v", mode, err)
			}
		}
	}
}

func TestLimitsOfDifferentKeysInAClusterAreAskedForAlone(t *testing.T) {
	st := newStore(t, startCluster(t).client)
	l, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.TokenBucket(1000, time.Second, throttle.Name("all"), throttle.Shared(st)),
		throttle.SlidingWindow(50, time.Second, throttle.Name("tenant"), throttle.Shared(st))))
	must(t, err)
	for range 30 {
		_, err := l.Acquire(t.Context(), throttle.Ask{Key: "tenant-1", Keys: map[string]string{"all": ""}})
		must(t, err)
	}
	if st := l.Stores()[0]; !st.Up || st.Failed+st.Setup > 0 {
		t.Errorf("%+v", st)
	}
}
