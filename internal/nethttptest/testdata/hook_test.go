package hook_test

import (
	"fmt"
	"net/http"
	"net/http/internal/throttle"
	"os"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// throttled runs the tests with every client's RoundTripper wrapped, and prints what became of their requests.
func throttled(m *testing.M) int {
	var sent, delayed, refused, canceled atomic.Int64
	hooks := throttle.WithHooks(throttle.Hooks{
		OnGrant: func(e throttle.GrantEvent) {
			sent.Add(1)
			if e.Waited > 0 {
				delayed.Add(1)
			}
		},
		OnReject: func(throttle.RejectEvent) { refused.Add(1) },
		OnCancel: func(throttle.CancelEvent) { canceled.Add(1) },
	})
	switch mode := os.Getenv("NETHTTPTEST_MODE"); mode {
	case "control":
		http.ThrottleHook = func(base http.RoundTripper) http.RoundTripper { return control{base, &sent} }
	case "generous":
		http.ThrottleHook = generous(hooks)
	case "waiting":
		http.ThrottleHook = waiting(hooks)
	default:
		panic("no such mode: " + mode)
	}
	code := m.Run()
	fmt.Printf("nethttptest: sent %d, of which %d waited; refused %d, canceled in line %d\n",
		sent.Load(), delayed.Load(), refused.Load(), canceled.Load())
	return code
}

// control is the least that a wrapper can be.
type control struct {
	base http.RoundTripper
	sent *atomic.Int64
}

func (c control) RoundTrip(req *http.Request) (*http.Response, error) {
	c.sent.Add(1)
	return c.base.RoundTrip(req)
}

func (c control) CloseIdleConnections() {
	if c, ok := c.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// generous gives each RoundTripper one Transport for good, with limits that are never reached.
func generous(hooks throttle.Option) func(http.RoundTripper) http.RoundTripper {
	var known sync.Map
	return func(base http.RoundTripper) http.RoundTripper {
		isKey := reflect.TypeOf(base).Comparable()
		if isKey {
			if t, ok := known.Load(base); ok {
				return t.(http.RoundTripper)
			}
		}
		t := throttle.Must(throttle.New(base, hooks, throttle.WithWeights(map[string]int64{"POST /": 3}), throttle.WithLimit(
			throttle.TokenBucket(1e9, time.Second),
			throttle.SlidingWindow(1e9, time.Second, throttle.Key(throttle.ByHost)),
			throttle.FixedWindow(1e9, time.Hour, throttle.Key(throttle.ByHeader("Authorization"))),
			throttle.InFlight(1e6), throttle.Adaptive(throttle.AIMD{Initial: 1e9}),
		)))
		if !isKey {
			return t
		}
		first, _ := known.LoadOrStore(base, t)
		return first.(http.RoundTripper)
	}
}

// waiting gives each request a Transport of its own, in whose line it has to wait.
func waiting(hooks throttle.Option) func(http.RoundTripper) http.RoundTripper {
	return func(base http.RoundTripper) http.RoundTripper {
		return throttle.Must(throttle.New(base, hooks, throttle.WithLimit(
			throttle.TokenBucket(1, 100*time.Microsecond, throttle.Initial(0)),
			throttle.SlidingWindow(1e9, time.Second, throttle.Key(throttle.ByHost)),
		)))
	}
}
