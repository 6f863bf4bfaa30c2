package throttleredis

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle"
)

func slotsOf(n int64) func(throttle.LimitOption) throttle.Limit {
	return func(shared throttle.LimitOption) throttle.Limit {
		return throttle.InFlight(n, throttle.Name("slots"), shared)
	}
}

// TestLimitersShareSlotsOverRedis has Limiters with clients of their own, and callers that always want more.
func TestLimitersShareSlotsOverRedis(t *testing.T) { // slow: it takes seconds of real time
	s := start(t)
	const processes, n, callers, seconds = 4, 8, 6, 3
	ctx, cancel := context.WithCancel(t.Context()) // without a deadline, before which requests would be rejected
	time.AfterFunc(seconds*time.Second, cancel)
	var mu sync.Mutex
	var wg sync.WaitGroup
	used, most, served := 0, 0, make([]int, processes)
	for i := range processes {
		l := limiterOn(t, s.addr(), slotsOf(n))
		for range callers {
			wg.Go(func() {
				for {
					g, err := l.Acquire(ctx, throttle.Ask{})
					if err != nil {
						return
					}
					mu.Lock()
					used++
					most = max(most, used)
					mu.Unlock()
					time.Sleep(20 * time.Millisecond)
					mu.Lock()
					used--
					served[i]++
					mu.Unlock()
					g.Done()
				}
			})
		}
	}
	wg.Wait()
	all := 0
	for _, one := range served {
		all += one
	}
	t.Logf("%d in flight at most, %v served, %.2f of the slots used", most, served, float64(all)*0.02/seconds/n)
	if most > n {
		t.Errorf("%d of %d slots were in use", most, n)
	}
	if testing.Short() {
		return
	}
	if most < n {
		t.Errorf("only %d of %d slots were in use", most, n)
	}
	for _, one := range served {
		if one < all/processes/4 {
			t.Errorf("the shares are %v", served)
		}
	}
}

// holdsEnv makes the test binary a process that takes slots and keeps them: the address of Redis.
const holdsEnv = "THROTTLEREDIS_HOLDS_SLOTS"

// TestHoldsSlots is what the process that is killed does. It is a test of nothing otherwise.
func TestHoldsSlots(t *testing.T) {
	addr := os.Getenv(holdsEnv)
	if addr == "" {
		return
	}
	l := limiterOn(t, addr, slotsOf(3))
	for range 3 {
		_, err := l.Acquire(t.Context(), throttle.Ask{})
		must(t, err)
	}
	fmt.Println("has slots")
	time.Sleep(time.Minute)
}

// TestSlotsOfAKilledProcessAreFreeAfterTenSeconds kills a process of its own that has all slots.
func TestSlotsOfAKilledProcessAreFreeAfterTenSeconds(t *testing.T) { // slow: it takes seconds of real time
	t.Parallel()
	s := start(t)
	child := exec.Command(os.Args[0], "-test.run=^TestHoldsSlots$", "-test.v")
	child.Env = append(os.Environ(), holdsEnv+"="+s.addr())
	out, err := child.StdoutPipe()
	must(t, err)
	began := time.Now() // before the slots are taken
	must(t, child.Start())
	t.Cleanup(func() { _ = child.Process.Kill() })
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "has slots" {
	}
	l := limiterOn(t, s.addr(), slotsOf(3))
	time.Sleep(500 * time.Millisecond)
	must(t, child.Process.Kill()) // SIGKILL
	_ = child.Wait()
	killed := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for range 3 {
		g, err := l.Acquire(ctx, throttle.Ask{})
		must(t, err)
		defer g.Done()
	}
	taken, waited := time.Since(began), time.Since(killed)
	t.Logf("the slots were free at most %v after they were taken, %v after the kill", taken, waited)
	if taken < 9900*time.Millisecond || waited > 15*time.Second { // 9.5 s, on a busy machine more
		t.Errorf("the slots were free at most %v after they were taken, %v after the kill", taken, waited)
	}
}

func TestSlotsComeBackWhenRedisIsStartedAgain(t *testing.T) { // slow: it takes seconds of real time
	s := start(t)
	c := redis.NewClient(&redis.Options{Addr: s.addr()})
	t.Cleanup(func() { _ = c.Close() })
	l := limiterOn(t, s.addr(), slotsOf(2))
	first, err := l.Acquire(t.Context(), throttle.Ask{})
	must(t, err)
	s.kill(t)
	granted := make(chan *throttle.Grant)
	go func() {
		g, err := l.Acquire(t.Context(), throttle.Ask{Costs: map[string]int64{"slots": 2}})
		if err != nil {
			t.Error(err)
		}
		granted <- g
	}()
	time.Sleep(300 * time.Millisecond)
	s.again(t)
	eventually(t, "Redis knows of the slot again", func() bool {
		fields, err := c.HLen(t.Context(), "throttle:1:{#}slots:i").Result()
		return err == nil && fields > 1
	})
	first.Done()
	(<-granted).Done()
}
