package bench

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"golang.org/x/time/rate"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/scene"
)

// An adapter is a client that does not know the limit. Those of a fixed rate stand for a guess.
type adapter struct {
	name string
	make func(*testing.T, http.RoundTripper, scene.Scene) http.RoundTripper
}

var adapters = []adapter{
	{"throttle", func(_ *testing.T, base http.RoundTripper, _ scene.Scene) http.RoundTripper {
		return throttle.Must(throttle.New(base, throttle.WithAdaptive()))
	}},
	{"throttle-both", func(_ *testing.T, base http.RoundTripper, _ scene.Scene) http.RoundTripper {
		return throttle.Must(throttle.New(base, throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()))
	}},
	{"aws", func(_ *testing.T, base http.RoundTripper, _ scene.Scene) http.RoundTripper { return newAWS(base) }},
	{"failsafe-adaptive", func(_ *testing.T, base http.RoundTripper, _ scene.Scene) http.RoundTripper {
		limiter := adaptivelimiter.NewBuilder[*http.Response]().WithMaxWaitTime(time.Hour).Build()
		return failsafehttp.NewRoundTripper(base, limiter)
	}},
	{"rule", func(_ *testing.T, base http.RoundTripper, _ scene.Scene) http.RoundTripper { return newRule(base) }},
	{"fixed-half", fixed(0.5)},
	{"fixed-exact", fixed(1)},
	{"fixed-double", fixed(2)},
}

// fixed is x/time/rate at a share of the limit at the beginning, which clients that know of each other divide.
func fixed(share float64) func(*testing.T, http.RoundTripper, scene.Scene) http.RoundTripper {
	return func(_ *testing.T, base http.RoundTripper, s scene.Scene) http.RoundTripper {
		return &xtimeWrapper{paced(share * s.Limit(0) / float64(s.Clients)), base}
	}
}

// paced allows 50 ms worth of a rate at once.
func paced(r float64) *rate.Limiter { return rate.NewLimiter(rate.Limit(r), max(1, int(r*0.05))) }

// awsAdaptive is the adaptive mode of the AWS SDK, as its middleware uses it: a token before each attempt, and what
// became of it afterwards. 429 and 503 are what AWS's services throttle with.
type awsAdaptive struct {
	mode *retry.AdaptiveMode
	next http.RoundTripper
}

var errThrottled = errors.New("throttled")

func newAWS(next http.RoundTripper) *awsAdaptive {
	return &awsAdaptive{next: next, mode: retry.NewAdaptiveMode(func(o *retry.AdaptiveModeOptions) {
		o.Throttles = []retry.IsErrorThrottle{retry.IsErrorThrottleFunc(func(err error) aws.Ternary {
			return aws.BoolTernary(errors.Is(err, errThrottled))
		})}
	})}
}

func (a *awsAdaptive) RoundTrip(r *http.Request) (*http.Response, error) {
	release, err := a.mode.GetAttemptToken(passing{r.Context()})
	if err != nil {
		return nil, err
	}
	resp, err := a.next.RoundTrip(r)
	result := err
	if err == nil && (resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable) {
		result = errThrottled
	}
	return resp, errors.Join(err, release(result))
}

// passing lets a microsecond pass whenever a request begins to wait. In a bubble none passes while a program computes, so
// that a wait that is rounded to 0, as happens to the SDK's, would be repeated for ever.
type passing struct{ context.Context }

func (p passing) Done() <-chan struct{} {
	time.Sleep(time.Microsecond)
	return p.Context.Done()
}

// A rule looks at the last 100 answers after each one: the rate goes up by a fifth if they took less than 100 ms in the
// mean and 95 % were good, and down to 70 % if they took more than 500 ms or less than 80 % were good. This is what comes
// to mind first.
type rule struct {
	next http.RoundTripper

	mu      sync.Mutex
	rate    float64
	limiter *rate.Limiter
	last    []result
}

type result struct {
	took time.Duration
	ok   bool
}

func newRule(next http.RoundTripper) *rule { return &rule{next: next, rate: 10, limiter: paced(10)} }

func (u *rule) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := u.current().Wait(r.Context()); err != nil {
		return nil, err
	}
	began := time.Now()
	resp, err := u.next.RoundTrip(r)
	if !errors.Is(err, context.Canceled) {
		u.learn(result{time.Since(began), err == nil && resp.StatusCode < 400})
	}
	return resp, err
}

func (u *rule) current() *rate.Limiter {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.limiter
}

func (u *rule) learn(now result) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last = append(u.last, now)
	u.last = u.last[max(0, len(u.last)-100):]
	took, good := time.Duration(0), 0
	for _, r := range u.last {
		took += r.took
		if r.ok {
			good++
		}
	}
	n := len(u.last)
	mean, share := took/time.Duration(n), float64(good)/float64(n)
	before := u.rate
	switch {
	case mean < 100*time.Millisecond && share > 0.95:
		u.rate = min(u.rate*1.2, 1e6)
	case mean > 500*time.Millisecond || share < 0.8:
		u.rate = max(u.rate*0.7, 1)
	}
	if u.rate != before {
		u.limiter = paced(u.rate) // full again
	}
}
