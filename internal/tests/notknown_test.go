package tests

import (
	"fmt"
	"io"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
)

// Where costs are settled, a rejection, its Retry-After and a Receipt say when the request would be sent as a Forecast does: not at all until a
// settlement has been seen, and then by what requests did cost, of which the estimates are twenty times as much.
func TestWaitsOfSettledCostsAreSaidWhenTheyAreKnown(t *testing.T) {
	for _, learns := range []bool{false, true} {
		inBubble(t, fmt.Sprint("LearnCost ", learns), func(t *testing.T) {
			opts := []throttle.LimitOption{throttle.Cost(costing(4000)), throttle.SettleJSON("usage")}
			if learns {
				opts = append(opts, throttle.LearnCost())
			}
			api, err := throttletest.NewHandler(throttletest.WithServiceTime(throttletest.Constant(time.Second)), usesEach(200))
			require.NoError(t, err)
			tr := transportTo(t, api.Direct(), throttle.WithLimit(throttle.TokenBucket(12_000, time.Minute, opts...)))
			start := time.Now()
			var all sync.WaitGroup
			send := func() (*throttle.Receipt, *time.Duration) {
				ctx, receipt := throttle.ContextWithReceipt(t.Context())
				ended := new(time.Duration)
				all.Go(func() {
					resp, err := tr.RoundTrip(get(t, ctx, "http://api.test/"))
					require.NoError(t, err)
					*ended = time.Since(start) - time.Second
					_, _ = io.Copy(io.Discard, resp.Body)
					require.NoError(t, resp.Body.Close())
				})
				synctest.Wait()
				return receipt, ended
			}
			for range 600 {
				send()
			}
			type said struct {
				wait, due time.Duration // since the start
				ended     *time.Duration
			}
			var each []said
			for _, at := range []time.Duration{time.Millisecond, time.Second - 1, 5 * time.Second, time.Minute, 3 * time.Minute} {
				time.Sleep(at - time.Since(start))
				synctest.Wait()
				f, err := tr.Limiter().Forecast(throttle.Ask{}, 0)
				require.NoError(t, err)
				resp, err := tr.RoundTrip(get(t, throttle.ContextWithMaxWait(t.Context(), 3*time.Second), "http://api.test/"))
				require.NoError(t, err)
				r, ok := throttle.RejectionOf(resp)
				require.True(t, ok)
				receipt, ended := send()
				w, ok := receipt.Waiting()
				require.True(t, ok)
				if at < time.Second { // no response has come
					assert.Equal(t, time.Duration(math.MaxInt64), f.Done())
					assert.Equal(t, time.Duration(math.MaxInt64), r.Wait)
					assert.Empty(t, resp.Header.Get("Retry-After"))
					assert.Contains(t, r.Error(), "not known")
					assert.Contains(t, r.LogValue().String(), "wait=not known")
					assert.Zero(t, w.Due)
					continue
				}
				assert.NotEmpty(t, resp.Header.Get("Retry-After"))
				each = append(each, said{time.Since(start) + r.Wait, w.Due.Sub(start), ended})
			}
			all.Wait()
			for _, s := range each {
				assert.InDelta(t, s.ended.Seconds(), s.wait.Seconds(), 25)
				assert.InDelta(t, s.ended.Seconds(), s.due.Seconds(), 25)
			}
		})
	}
}
