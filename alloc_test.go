package throttle_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"

	"github.com/stretchr/testify/require"
)

// answered is a RoundTripper that allocates nothing.
type answered struct{ resp *http.Response }

func (a *answered) RoundTrip(*http.Request) (*http.Response, error) { return a.resp, nil }

func TestRequestThatNeedNotWaitAllocatesNothing(t *testing.T) {
	const many = 1_000_000_000
	bucket := throttle.WithLimit(throttle.TokenBucket(many, time.Second))
	for name, c := range map[string]struct {
		most float64
		opts []throttle.Option
	}{
		"one limit":   {0, []throttle.Option{bucket}},
		"by host":     {0, []throttle.Option{bucket, throttle.WithKey(throttle.ByHost)}},
		"by function": {0, []throttle.Option{bucket, throttle.WithCost(func(*http.Request) int64 { return 3 })}},
		"three limits": {0, []throttle.Option{throttle.WithLimit(
			throttle.Pace(many, time.Nanosecond), throttle.SlidingWindow(many, time.Minute), throttle.FixedWindow(many, time.Hour))}},
		"adaptive": {0, []throttle.Option{throttle.WithAdaptive(throttle.AIMD{Initial: many})}},
		"adaptive and two more, by host": {0, []throttle.Option{
			throttle.WithAdaptive(throttle.AIMD{Initial: many}), throttle.WithKey(throttle.ByHost),
			throttle.WithLimit(throttle.TokenBucket(many, time.Second), throttle.SlidingWindow(many, time.Minute))}},
		"adaptive in flight": {0, []throttle.Option{throttle.WithAdaptiveInFlight()}},
		"settled by a header": {0, []throttle.Option{throttle.WithLimit(throttle.TokenBucket(many, time.Second, throttle.Settle(
			func(*http.Request, *http.Response) (int64, bool) { return 3, true })))}},
		"callers take turns": {0, []throttle.Option{throttle.WithLimit(throttle.TokenBucket(many, time.Second,
			throttle.FairBy(throttle.ByHost)))}},
		"a shared slot available": {0, []throttle.Option{throttle.WithLimit(throttle.InFlight(many, throttle.Shared(throttle.NewMemoryStore())))}},
		"weights by pattern":      {0, []throttle.Option{bucket, throttle.WithWeights(map[string]int64{"GET /items/{id}": 2})}},
	} {
		t.Run(name, func(t *testing.T) {
			next := &answered{&http.Response{Body: http.NoBody, StatusCode: 200}}
			transport, err := throttle.New(next, c.opts...)
			require.NoError(t, err)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/items/42", nil)
			require.NoError(t, err)
			send := func() {
				if _, err := transport.RoundTrip(req); err != nil {
					t.Error(err)
				}
			}
			require.LessOrEqual(t, testing.AllocsPerRun(1000, send), c.most)

			// Once a server has said something of its limits, requests pass gates.
			next.resp = &http.Response{Body: http.NoBody, StatusCode: 200, Header: http.Header{
				"X-Ratelimit-Remaining": {"1000000"}, "X-Ratelimit-Reset": {"3600"}}}
			send()
			next.resp = &http.Response{Body: http.NoBody, StatusCode: 200, Header: http.Header{"Content-Type": {"text/plain"}}}
			require.LessOrEqual(t, testing.AllocsPerRun(1000, send), c.most, "through a gate")
		})
	}
}

// again answers with the same body again and again.
type again struct {
	resp http.Response
	body io.ReadCloser
}

func (a *again) RoundTrip(*http.Request) (*http.Response, error) {
	a.resp.Body = a.body
	return &a.resp, nil
}

func TestABodyThatIsReadForItsCostTakesOneAllocation(t *testing.T) {
	next := &again{http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}}, io.NopCloser(endless{})}
	transport, err := throttle.New(next, throttle.WithLimit(throttle.TokenBucket(1_000_000_000, time.Second, throttle.SettleJSON("usage.total_tokens"))))
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/items/42", nil)
	require.NoError(t, err)
	buf := make([]byte, 1000)
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() {
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Error(err)
		}
		_, _ = resp.Body.Read(buf)
		_ = resp.Body.Close()
	}), 1.0)
}

// endless is JSON without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return copy(p, `{"usage":{"total_tokens":42}}`), nil }

func TestARefusalByTryAllocatesNothing(t *testing.T) {
	for name, limits := range map[string][]throttle.Limit{
		"one limit":   {throttle.TokenBucket(1, 1000*time.Hour)},
		"four limits": {throttle.TokenBucket(1, 1000*time.Hour), throttle.SlidingWindow(9, time.Hour), throttle.Pace(9, time.Hour), throttle.FixedWindow(9, time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := throttle.NewLimiter(throttle.WithLimit(limits...))
			require.NoError(t, err)
			_, ok := l.Try(throttle.Ask{Key: "key"})
			require.True(t, ok)
			require.Zero(t, testing.AllocsPerRun(1000, func() {
				if _, ok := l.Try(throttle.Ask{Key: "key"}); ok {
					t.Error("there was nothing left")
				}
			}))
		})
	}
}

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
	synctest.Test(t, func(t *testing.T) {
		const waiters = 10_000
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0))), throttle.WithMaxQueue(waiters))
		ctx, cancel := context.WithCancel(t.Context())
		before := stacks()
		for range waiters {
			go func() { _ = l.Wait(ctx, throttle.Ask{}) }()
		}
		synctest.Wait()
		each := float64(stacks()-before) / waiters
		require.Equal(t, waiters, l.Stats().Waiting)
		cancel()
		synctest.Wait()
		require.Less(t, each, 4200.0, "bytes")
	})
}

// stacks returns how many bytes stacks take, once they have shrunk.
func stacks() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.StackInuse)
}
