//go:build !race

package tests

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A goroutine begins on 2 KiB of stack. If it ever needs more, it keeps 4 KiB for as long as it waits, even if it waits in a shallow
// frame. So a new variable in a function that a waiter calls may cost each waiter 2 KiB.
//
// Stacks begin as large as others have become: hence a process for each measurement. A goroutine that waits for a lock needs more, so
// the least of five counts: on a busy machine some goroutines are stopped while they have the lock. The race detector's frames are larger.
func TestMemoryOfAWaiter(t *testing.T) { // slow: it starts 10,000 goroutines at a time
	one := []throttle.Limit{throttle.TokenBucket(1, time.Hour, throttle.Initial(0))}
	two := append(one, throttle.SlidingWindow(1, time.Minute))
	for _, c := range []struct {
		name   string
		limits []throttle.Limit
		wait   func(*throttle.Limiter) func(context.Context)
		most   int64 // bytes, of which the heap has 1,250 to 1,800
	}{
		{"Wait", one, callWait, 3_800},
		{"Wait under two limits", two, callWait, 3_800},
		{"Acquire", one, callAcquire, 3_900},
		{"Acquire under two limits", two, callAcquire, 3_900},
		{"RoundTrip", one, callRoundTrip, 4_400}, // one in fifteen has grown, where the heap needed more
		{"RoundTrip under two limits", two, callRoundTrip, 4_400},
		{"Client.Do", one, callDo, 6_250},
	} {
		for _, n := range []int64{1_000, 10_000} {
			if n > 1_000 && testing.Short() {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", c.name, n), func(t *testing.T) {
				if os.Getenv(measuredInside) != "" {
					measureWaiters(t, c.wait(limiterWith(t, throttle.WithLimit(c.limits...), throttle.WithMaxQueue(int(n)))), n)
					return
				}
				least := int64(math.MaxInt64)
				for range 5 {
					if least = min(least, measuredBy(t)); least <= c.most {
						break
					}
				}
				t.Log(least, "bytes each")
				assert.LessOrEqual(t, least, c.most)
			})
		}
	}
}

const (
	measuredInside = "THROTTLE_TEST_WAITERS" // set in the process that measures
	eachTakes      = "bytes each waiter takes: "
)

// measuredBy returns what the same test reports in a process of its own.
func measuredBy(t *testing.T) (each int64) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), measuredInside+"=1", "GOMAXPROCS=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, after, found := strings.Cut(string(out), eachTakes)
	require.True(t, found, "%s", out)
	figure, _, _ := strings.Cut(after, "\n")
	each, err = strconv.ParseInt(figure, 10, 64)
	require.NoError(t, err)
	return each
}

// measureWaiters has n goroutines wait, and reports what each of them takes.
func measureWaiters(t *testing.T, wait func(context.Context), n int64) {
	const fixed = 50_000 // bytes that are not of a waiter, such as caches of the runtime
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		before := inUse()
		for range n {
			go wait(ctx)
		}
		synctest.Wait()
		t.Logf("%s%d", eachTakes, (inUse()-before-fixed)/n)
		cancel()
	})
}

func callWait(l *throttle.Limiter) func(context.Context) {
	return func(ctx context.Context) { _ = l.Wait(ctx, throttle.Ask{}) }
}

func callAcquire(l *throttle.Limiter) func(context.Context) {
	return func(ctx context.Context) { _, _ = l.Acquire(ctx, throttle.Ask{}) }
}

func callRoundTrip(l *throttle.Limiter) func(context.Context) {
	next := throttle.Must(throttle.New(nil, throttle.WithLimiter(l)))
	return func(ctx context.Context) {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://a/", nil)
		_, _ = next.RoundTrip(req)
	}
}

func callDo(l *throttle.Limiter) func(context.Context) {
	client := &http.Client{Transport: throttle.Must(throttle.New(nil, throttle.WithLimiter(l)))}
	return func(ctx context.Context) {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://a/", nil)
		_, _ = client.Do(req)
	}
}

// inUse returns how many bytes the heap and stacks take, once they have shrunk.
func inUse() int64 {
	heap := inHeap()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return heap + int64(m.StackInuse)
}

// inHeap is inUse without stacks, of which the runtime takes and returns 32 kB now and then.
func inHeap() int64 {
	var m runtime.MemStats
	for least := uint64(math.MaxUint64); ; least = m.HeapAlloc {
		runtime.GC()
		runtime.GC()
		if runtime.ReadMemStats(&m); m.HeapAlloc >= least { // what has a cleanup is freed later
			return int64(m.HeapAlloc)
		}
	}
}
