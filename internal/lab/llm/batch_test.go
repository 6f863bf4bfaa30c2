package main

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/throttletest"
)

// The vendor has a bucket of 200,000 tokens a minute, in which a request takes 1,250. It refuses quickly, and answers in five seconds.
func TestABatchFindsTheLimitOfAServerQuotaByFewRefusals(t *testing.T) {
	for name, reports := range map[string][]throttletest.Option{
		"reported at the first response": {throttletest.WithFields(throttletest.OpenAI), throttletest.WithFullResets()},
		"only Retry-After":               {},
		"nothing":                        {throttletest.WithRetryAfter(throttletest.NoRetryAfter)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cost := func(*http.Request) int64 { return 1250 }
				server, err := throttletest.NewHandler(append(reports,
					throttletest.WithLimits(throttletest.TokenBucket(200_000, time.Minute, throttletest.Name("tokens"), throttletest.Cost(cost))),
					throttletest.WithServiceTime(throttletest.Constant(5*time.Second)), throttletest.WithRefusalTime(throttletest.Constant(100*time.Millisecond)),
				)...)
				require.NoError(t, err)
				transport, err := throttle.New(server.Direct(), throttle.WithServerHints(headers.Auto), throttle.WithLimit(throttle.ServerQuota("tokens", throttle.Cost(cost))))
				require.NoError(t, err)
				began := time.Now()
				var all sync.WaitGroup
				for range 600 {
					all.Go(func() {
						for status := 0; status != http.StatusOK; {
							req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.openai.com/v1/chat/completions", strings.NewReader("{}"))
							if !assert.NoError(t, err) {
								return
							}
							resp, err := transport.RoundTrip(req)
							if !assert.NoError(t, err) {
								return
							}
							_, _ = io.Copy(io.Discard, resp.Body)
							resp.Body.Close()
							status = resp.StatusCode
						}
					})
				}
				all.Wait()
				took, fastest := time.Since(began), 600*1250*time.Minute/200_000-time.Minute+5*time.Second
				t.Logf("%d refused; %v, at best %v", server.Counts().Refused, took, fastest)
				assert.LessOrEqual(t, server.Counts().Refused, int64(20))
				assert.Less(t, took, fastest*103/100)
			})
		})
	}
}
