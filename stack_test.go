//go:build !race

package throttle_test

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A goroutine begins on 2 KiB of stack, and gets twice as much where that does not do. Stacks begin as large as others have
// become, though: hence a process of its own. The race detector's frames are larger.
func TestWaitersUseSmallestStack(t *testing.T) {
	const inside = "THROTTLE_TEST_STACKS"
	if os.Getenv(inside) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
		cmd.Env = append(os.Environ(), inside+"=1", "GOMAXPROCS=1") // waiting for the lock takes more stack
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "PASS")
		return
	}
	const waiters = 10_000
	limits := []throttle.Option{throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0))), throttle.WithMaxQueue(waiters)}
	l := limiterWith(t, limits...)
	client := &http.Client{Transport: transportTo(t, nil, limits...)}
	for name, wait := range []func(context.Context){
		func(ctx context.Context) { _ = l.Wait(ctx, throttle.Ask{}) },
		func(ctx context.Context) {
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://a/", nil)
			_, _ = client.Do(req)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			before := stacks()
			for range waiters {
				go wait(ctx)
			}
			synctest.Wait()
			each := float64(stacks()-before) / waiters
			cancel()
			synctest.Wait()
			assert.Less(t, each, 4500.0, "bytes for the %d. way", name+1)
		})
	}
}

// stacks returns how many bytes stacks take, once they have shrunk.
func stacks() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.StackInuse)
}
