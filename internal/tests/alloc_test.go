package tests

import (
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"

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
			throttle.Pace(many, time.Millisecond), throttle.SlidingWindow(many, time.Minute), throttle.FixedWindow(many, time.Hour))}},
		"four limits": {0, []throttle.Option{throttle.WithLimit(
			throttle.Pace(many, time.Millisecond), throttle.SlidingWindow(many, time.Minute), throttle.FixedWindow(many, time.Hour),
			throttle.TokenBucket(many, time.Second))}},
		"eight limits": {0, []throttle.Option{eightLimits()}},
		"adaptive":     {0, []throttle.Option{throttle.WithAdaptive(throttle.AIMD{Initial: many})}},
		"adaptive and two more, by host": {0, []throttle.Option{
			throttle.WithAdaptive(throttle.AIMD{Initial: many}), throttle.WithKey(throttle.ByHost),
			throttle.WithLimit(throttle.TokenBucket(many, time.Second), throttle.SlidingWindow(many, time.Minute))}},
		"adaptive in flight": {0, []throttle.Option{throttle.WithAdaptiveInFlight()}},
		"settled by a header": {0, []throttle.Option{throttle.WithLimit(throttle.TokenBucket(many, time.Second, throttle.Settle(
			func(*http.Request, *http.Response) (int64, bool) { return 3, true })))}},
		"callers take turns": {0, []throttle.Option{throttle.WithLimit(throttle.TokenBucket(many, time.Second,
			throttle.FairBy(throttle.ByHost)))}},
		"a shared slot available": {0, []throttle.Option{throttle.WithLimit(throttle.InFlight(many, throttle.Shared(store.NewMemory())))}},
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

// eightLimits are more than a request has room for on the stack.
func eightLimits() throttle.Option {
	limits := make([]throttle.Limit, 8)
	for i := range limits {
		limits[i] = throttle.TokenBucket(1_000_000_000, time.Second, throttle.Name(strconv.Itoa(i)))
	}
	return throttle.WithLimit(limits...)
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
