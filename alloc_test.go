package throttle_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// answered is a RoundTripper that allocates nothing.
type answered struct{ resp *http.Response }

func (a answered) RoundTrip(*http.Request) (*http.Response, error) { return a.resp, nil }

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
		"weights by pattern": {1, []throttle.Option{bucket, throttle.WithWeights(map[string]int64{"GET /items/{id}": 2})}},
	} {
		t.Run(name, func(t *testing.T) {
			transport, err := throttle.New(answered{&http.Response{Body: http.NoBody}}, c.opts...)
			require.NoError(t, err)
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/items/42", nil)
			require.NoError(t, err)
			allocs := testing.AllocsPerRun(1000, func() {
				if _, err := transport.RoundTrip(req); err != nil {
					t.Error(err)
				}
			})
			require.LessOrEqual(t, allocs, c.most)
		})
	}
}
