package hook_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/internal/throttle"
	"net/http/internal/throttle/headers"
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
	case "rejecting":
		http.ThrottleHook = rejecting(generous(hooks))
	case "bodies":
		http.ThrottleHook = perBase(func(base http.RoundTripper) http.RoundTripper {
			every := headers.Dialect{Rules: []headers.Rule{{Body: []headers.Match{{Name: "code", Values: []string{"limited"}}}}}}
			return throttle.Must(throttle.New(base, hooks, throttle.WithServerHints(every), throttle.WithLimit(
				throttle.TokenBucket(1e9, time.Second, throttle.SettleJSON("usage.total_tokens")), throttle.InFlight(1e6),
			)))
		})
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

// perBase gives each RoundTripper one Transport for good.
func perBase(wrap func(http.RoundTripper) http.RoundTripper) func(http.RoundTripper) http.RoundTripper {
	var known sync.Map
	return func(base http.RoundTripper) http.RoundTripper {
		if !reflect.TypeOf(base).Comparable() {
			return wrap(base)
		}
		if t, ok := known.Load(base); ok {
			return t.(http.RoundTripper)
		}
		first, _ := known.LoadOrStore(base, wrap(base))
		return first.(http.RoundTripper)
	}
}

// generous has limits that are never reached.
func generous(hooks throttle.Option) func(http.RoundTripper) http.RoundTripper {
	return perBase(func(base http.RoundTripper) http.RoundTripper {
		return throttle.Must(throttle.New(base, hooks, throttle.WithWeights(map[string]int64{"POST /": 3}), throttle.WithLimit(
			throttle.TokenBucket(1e9, time.Second),
			throttle.SlidingWindow(1e9, time.Second, throttle.Key(throttle.ByHost)),
			throttle.FixedWindow(1e9, time.Hour, throttle.Key(throttle.ByHeader("Authorization"))),
			throttle.InFlight(1e6), throttle.Adaptive(throttle.AIMD{Initial: 1e9}),
		)))
	})
}

// A rejector has a copy of each request rejected before it sends the request.
type rejector struct {
	http.RoundTripper
	by []*throttle.Transport
}

func rejecting(next func(http.RoundTripper) http.RoundTripper) func(http.RoundTripper) http.RoundTripper {
	nothing := throttle.WithLimit(throttle.TokenBucket(1, 1000*time.Hour, throttle.Initial(0)))
	by := []*throttle.Transport{
		throttle.Must(throttle.New(nil, nothing, throttle.WithFailFast())),
		throttle.Must(throttle.New(nil, nothing, throttle.WithMaxWait(time.Hour), throttle.WithRejectionError())),
	}
	return func(base http.RoundTripper) http.RoundTripper { return rejector{next(base), by} }
}

func (r rejector) RoundTrip(req *http.Request) (*http.Response, error) {
	for _, t := range r.by {
		if err := r.reject(t, req); err != nil {
			fmt.Printf("nethttptest: fault: %s %s: %v\n", req.Method, req.URL, err)
		}
	}
	return r.RoundTripper.RoundTrip(req)
}

// reject has a copy of a request rejected, with a body of its own that must be closed, and not read.
func (rejector) reject(t *throttle.Transport, req *http.Request) error {
	body, rejected := new(untouched), *req
	rejected.Body, rejected.GetBody = body, nil
	resp, err := t.RoundTrip(&rejected)
	switch {
	case body.closed.Load() != 1:
		return fmt.Errorf("the body of a rejected request was closed %d times", body.closed.Load())
	case body.read.Load():
		return fmt.Errorf("the body of a rejected request was read")
	case err != nil && resp != nil, err == nil && resp == nil:
		return fmt.Errorf("rejected with the response %v and the error %v", resp, err)
	case resp == nil:
		return nil // an error, be it that of a context that is over
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if _, ok := throttle.RejectionOf(resp); !ok || resp.StatusCode != http.StatusTooManyRequests {
		return fmt.Errorf("not rejected: %s", resp.Status)
	}
	return resp.Body.Close()
}

// untouched is a body that notes what is done with it.
type untouched struct {
	closed atomic.Int32
	read   atomic.Bool
}

func (u *untouched) Read([]byte) (int, error) { u.read.Store(true); return 0, io.EOF }

func (u *untouched) Close() error { u.closed.Add(1); return nil }

func (r rejector) CloseIdleConnections() {
	r.RoundTripper.(interface{ CloseIdleConnections() }).CloseIdleConnections()
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
