package bench

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/ratelimiter"
	"github.com/gofri/go-github-ratelimit/v2/github_ratelimit"
	"go.uber.org/ratelimit"
	"golang.org/x/time/rate"
	"resty.dev/v3"

	"github.com/httpthrottle/throttle"
)

// many per second is a limit that is never reached.
const many = 1_000_000_000

// A client is a way to put limits before a RoundTripper.
type client struct {
	name string
	wrap func(testing.TB, http.RoundTripper) http.RoundTripper
}

// clients are those that the cost of a request is compared for. What begins with throttle is ours.
var clients = []client{
	{"bare", func(_ testing.TB, base http.RoundTripper) http.RoundTripper { return base }},
	{"xtime", func(_ testing.TB, base http.RoundTripper) http.RoundTripper {
		return &xtimeWrapper{rate.NewLimiter(many, many), base}
	}},
	{"uber", func(_ testing.TB, base http.RoundTripper) http.RoundTripper {
		return &uberWrapper{ratelimit.New(many), base}
	}},
	{"failsafe", func(_ testing.TB, base http.RoundTripper) http.RoundTripper {
		limiter := ratelimiter.NewSmoothBuilder[*http.Response](many, time.Second).WithMaxWaitTime(time.Hour).Build()
		return failsafehttp.NewRoundTripper(base, limiter)
	}},
	{"failsafe-adaptive", func(_ testing.TB, base http.RoundTripper) http.RoundTripper {
		return failsafehttp.NewRoundTripper(base, plentiful())
	}},
	{"resty", func(_ testing.TB, base http.RoundTripper) http.RoundTripper {
		return &restyWrapper{resty.NewRateLimitTokenBucket(many, many), base}
	}},
	{"resty-client", func(tb testing.TB, base http.RoundTripper) http.RoundTripper {
		c := resty.New().SetTransport(base).SetRateLimiter(resty.NewRateLimitTokenBucket(many, many))
		tb.Cleanup(func() { _ = c.Close() })
		return restyClient{c}
	}},
	{"gofri", func(_ testing.TB, base http.RoundTripper) http.RoundTripper { return github_ratelimit.New(base) }},
	ours("throttle", bucket),
	ours("throttle-deaf", bucket, throttle.WithoutServerHints()),
	ours("throttle-host", bucket, throttle.WithKey(throttle.ByHost)),
	ours("throttle-weights", bucket, weights),
	ours("throttle-three", threeLimits),
	ours("throttle-adaptive", adaptive),
	told("throttle-told", bucket),
	told("throttle-everything", threeLimits, adaptive, weights, throttle.WithKey(throttle.ByHost)),
}

var (
	bucket      = throttle.WithLimit(throttle.TokenBucket(many, time.Second))
	threeLimits = throttle.WithLimit(
		throttle.TokenBucket(many, time.Second),
		throttle.SlidingWindow(many, time.Minute),
		throttle.FixedWindow(many, time.Hour))
	adaptive = throttle.WithAdaptive(throttle.AIMD{Initial: many})
	weights  = throttle.WithWeights(map[string]int64{"GET /items/{id}": 2, "POST /items": 5, "/": 1})
)

// plentiful is an adaptive limiter that never has to refuse 64 at a time.
func plentiful() adaptivelimiter.AdaptiveLimiter[*http.Response] {
	return adaptivelimiter.NewBuilder[*http.Response]().WithLimits(100, 1000, 200).WithMaxWaitTime(time.Hour).Build()
}

func ours(name string, opts ...throttle.Option) client {
	return client{name, func(tb testing.TB, base http.RoundTripper) http.RoundTripper {
		t, err := throttle.New(base, opts...)
		if err != nil {
			tb.Fatal(err)
		}
		return t
	}}
}

// told is ours after a server has spoken of limits: from then on every request passes a gate.
func told(name string, opts ...throttle.Option) client {
	return client{name, func(tb testing.TB, base http.RoundTripper) http.RoundTripper {
		talk := &talkative{next: base}
		t, err := throttle.New(talk, opts...)
		if err != nil {
			tb.Fatal(err)
		}
		resp, err := t.RoundTrip(request(tb, "http://api.example.com"))
		if err != nil {
			tb.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			tb.Fatal(err)
		}
		return t
	}}
}

// talkative answers once for a server that speaks of its limits, and is nothing but next from then on.
type talkative struct {
	next  http.RoundTripper
	spoke atomic.Bool
}

func (t *talkative) RoundTrip(r *http.Request) (*http.Response, error) {
	if !t.spoke.Load() {
		t.spoke.Store(true)
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r, Header: http.Header{
			"X-Ratelimit-Limit": {"1000000000000"}, "X-Ratelimit-Remaining": {"1000000000000"}, "X-Ratelimit-Reset": {"3600"}}}, nil
	}
	return t.next.RoundTrip(r)
}

// xtimeWrapper is the ten lines around golang.org/x/time/rate that most programs have.
type xtimeWrapper struct {
	limiter *rate.Limiter
	next    http.RoundTripper
}

func (w *xtimeWrapper) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := w.limiter.Wait(r.Context()); err != nil {
		return nil, err
	}
	return w.next.RoundTrip(r)
}

type uberWrapper struct {
	limiter ratelimit.Limiter
	next    http.RoundTripper
}

func (w *uberWrapper) RoundTrip(r *http.Request) (*http.Response, error) {
	w.limiter.Take()
	return w.next.RoundTrip(r)
}

// restyWrapper is resty's token bucket without its client.
type restyWrapper struct {
	limiter *resty.RateLimitTokenBucket
	next    http.RoundTripper
}

func (w *restyWrapper) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := w.limiter.Allow(r.Context()); err != nil {
		return nil, err
	}
	return w.next.RoundTrip(r)
}

// restyClient is the whole client, which builds requests and reads answers of its own.
type restyClient struct{ client *resty.Client }

func (c restyClient) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.client.R().SetContext(r.Context()).Execute(r.Method, r.URL.String())
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: resp.StatusCode(), Body: resp.Body}, nil
}

// instant answers at once and allocates nothing, so that what is measured is what stands before it. The answer is what
// request has put into the request: one for each goroutine, since some clients change the body of what they get.
type instant struct{}

func (instant) RoundTrip(r *http.Request) (*http.Response, error) {
	resp := r.Response
	if resp == nil { // a client has made a request of its own
		resp = answer()
		resp.Request = r
	}
	resp.Body = http.NoBody
	return resp, nil
}

// answer has the usual headers, none of them about limits.
func answer() *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{
		"Date": {"Fri, 20 Nov 2026 12:00:00 GMT"}, "Content-Type": {"application/json"}, "Content-Length": {"2048"},
		"Server": {"nginx"}, "Etag": {`"abc"`}, "Vary": {"Accept-Encoding"}}}
}

func request(tb testing.TB, url string) *http.Request {
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, url+"/items/42", nil)
	if err != nil {
		tb.Fatal(err)
	}
	req.Response = answer()
	req.Response.Request = req
	return req
}

// send sends a request as a caller does that has no use for the body.
func send(t http.RoundTripper, req *http.Request) error {
	resp, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return resp.Body.Close()
}
