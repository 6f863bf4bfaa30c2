package tests

import (
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A server accepts 20 requests in any second, and answers the others with a 5xx that does not mention a limit. The rate heeds that alone and
// beside a number in flight, and an ErrorThreshold is obeyed.
func TestALearnedRateHeedsServerErrorsBesideANumberToo(t *testing.T) { // slow: minutes of a server
	strict := throttle.WithAdaptive(throttle.AIMD{ErrorThreshold: 0.02})
	for _, c := range []struct {
		name string
		code int
		most float64 // share of errors
		opts []throttle.Option
	}{
		{"rate", 500, 0.15, []throttle.Option{throttle.WithAdaptive()}},
		{"both", 500, 0.15, []throttle.Option{throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()}},
		{"both, 502", 502, 0.15, []throttle.Option{throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()}},
		{"both, 504", 504, 0.15, []throttle.Option{throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()}},
		{"both, ErrorThreshold", 500, 0.08, []throttle.Option{strict, throttle.WithAdaptiveInFlight()}},
		{"both, ErrorThreshold, 503", 503, 0.08, []throttle.Option{strict, throttle.WithAdaptiveInFlight()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var last []time.Time
				failed, sent := 0, 0
				begin := time.Now()
				tr, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
					resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req, ProtoMajor: 1, ProtoMinor: 1}
					mu.Lock()
					for len(last) > 0 && time.Since(last[0]) >= time.Second {
						last = last[1:]
					}
					counts := 0
					if time.Since(begin) > time.Minute {
						counts = 1
					}
					sent += counts
					if len(last) >= 20 {
						failed += counts
						resp.StatusCode = c.code
						mu.Unlock()
						time.Sleep(3 * time.Millisecond)
						return resp, nil
					}
					last = append(last, time.Now())
					mu.Unlock()
					time.Sleep(40 * time.Millisecond)
					return resp, nil
				}), c.opts...)
				require.NoError(t, err)
				var all sync.WaitGroup
				for range 16 {
					all.Go(func() {
						for time.Since(begin) < 4*time.Minute {
							req, _ := http.NewRequest(http.MethodGet, "http://host.example/", nil)
							resp, err := tr.RoundTrip(req)
							if !assert.NoError(t, err) {
								return
							}
							resp.Body.Close()
							if resp.StatusCode >= 500 {
								time.Sleep(50 * time.Millisecond)
							}
						}
					})
				}
				all.Wait()
				t.Logf("%d of %d failed", failed, sent)
				assert.Less(t, float64(failed), c.most*float64(sent))
				assert.Greater(t, sent-failed, 180*20*45/100)
			})
		})
	}
}

// A LatencyThreshold is obeyed beside a number in flight, too.
func TestALatencyThresholdIsObeyedBesideANumberInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackend(16, false)
		tr, err := throttle.New(b, throttle.WithAdaptive(throttle.AIMD{LatencyThreshold: 20 * time.Millisecond}), throttle.WithAdaptiveInFlight())
		require.NoError(t, err)
		press(t, tr, 64, 20*time.Second, "http://example.com/")
		assert.Positive(t, tr.Limiter().Limits()[0].Retunes[throttle.CauseLatency])
	})
}
