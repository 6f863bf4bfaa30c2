package tests

import (
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// FuzzOptions gives New any options. It either says what is wrong with them, or keeps the limit that they describe.
func FuzzOptions(f *testing.F) {
	f.Add(uint8(0), int64(10), int64(time.Second), int64(5), int64(3), 1.0, "name", "POST /upload", int64(3))
	f.Add(uint8(1), int64(7), int64(24*time.Hour), int64(-1), int64(-1), 0.5, "", "/", int64(0))
	f.Add(uint8(2), int64(math.MaxInt64), int64(1), int64(math.MaxInt64), int64(math.MaxInt64), 0.3, "x", "example.com/", int64(math.MaxInt64))
	f.Add(uint8(3), int64(1), int64(math.MaxInt64), int64(0), int64(0), math.NaN(), "", "GET {", int64(-1))
	f.Add(uint8(0), int64(-1), int64(-1), int64(math.MinInt64), int64(math.MinInt64), math.Inf(1), "\x00", "", int64(math.MinInt64))
	f.Add(uint8(0), int64(1<<40), int64(1), int64(2), int64(0), 1e-300, "a", "/{x...}", int64(1))
	f.Fuzz(func(t *testing.T, kind uint8, n, per, burst, initial int64, share float64, name, pattern string, cost int64) {
		limit := fuzzedLimit(kind, n, time.Duration(per), burst, initial, share, name)
		synctest.Test(t, func(t *testing.T) {
			sent := int64(0)
			base := roundTripper(func(*http.Request) (*http.Response, error) {
				sent++
				return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
			})
			transport, err := throttle.New(base, throttle.WithLimit(limit), throttle.WithWeights(map[string]int64{pattern: cost, "PUT /fuzz/only": 2}), throttle.WithMaxWait(time.Minute))
			if err != nil {
				require.Nil(t, transport)
				require.NotEmpty(t, err.Error())
				return
			}
			limit := func() throttle.LimitStats { return transport.Limiter().Limits()[0] }
			rate, burst := limit().Rate, limit().Capacity
			require.Positive(t, rate)
			if kind%4 == 3 {
				burst *= 2 // before and after the end of a window
			}
			start := time.Now()
			for range 30 {
				before := limit().Tokens
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://example.com/fuzz/only", nil)
				resp, err := transport.RoundTrip(req)
				require.True(t, err != nil || resp != nil)
				require.False(t, math.IsNaN(before))
				if burst < math.MaxInt64/4 { // a cost of 2 may make it 1 more
					most := burst + rate*(time.Since(start).Seconds()+2e-9)
					require.LessOrEqual(t, float64(2*sent), most*(1+1e-9)+2, "%+v", limit())
				}
			}
		})
	})
}

func fuzzedLimit(kind uint8, n int64, per time.Duration, burst, initial int64, share float64, name string) throttle.Limit {
	var opts []throttle.LimitOption
	if name != "" {
		opts = append(opts, throttle.Name(name))
	}
	if share != 0 {
		opts = append(opts, throttle.Fraction(share))
	}
	if kind%4 == 0 && burst != 0 {
		opts = append(opts, throttle.Burst(burst))
	}
	if kind%4 == 0 && initial != 0 {
		opts = append(opts, throttle.Initial(initial))
	}
	return []func(int64, time.Duration, ...throttle.LimitOption) throttle.Limit{throttle.TokenBucket, throttle.Pace, throttle.SlidingWindow, throttle.FixedWindow}[kind%4](n, per, opts...)
}
