package tests

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
)

// A hold and a server's quota have one word each, whenever a request is rejected because of them: on arrival, while it waits, and at the end
// of its wait. Where a deadline is the reason, the text names the hold.
func TestOneCauseHasOneWord(t *testing.T) {
	for name, c := range map[string]struct {
		limit  throttle.Limit
		server []throttletest.Option
		hold   time.Duration // that the user sets a second after the start
		word   throttle.Reason
		text   string
	}{
		"a quota of requests": {
			limit:  throttle.TokenBucket(100, time.Second),
			server: []throttletest.Option{throttletest.WithLimits(throttletest.FixedWindow(20, time.Minute)), throttletest.WithFields(throttletest.XDelta)},
			word:   throttle.ReasonHeld, text: "held",
		},
		"a quota of requests, learned": {
			limit:  throttle.Adaptive(throttle.AIMD{}),
			server: []throttletest.Option{throttletest.WithLimits(throttletest.FixedWindow(20, time.Minute)), throttletest.WithFields(throttletest.XDelta)},
			word:   throttle.ReasonHeld, text: "held",
		},
		"a quota of tokens": {
			limit: throttle.ServerQuota("tokens", throttle.Cost(costing(5))),
			server: []throttletest.Option{throttletest.WithLimits(throttletest.FixedWindow(100, time.Minute, throttletest.Name("tokens"), throttletest.Cost(costing(5)))),
				throttletest.WithFields(throttletest.Anthropic)},
			word: throttle.ReasonMaxWait, text: "wait",
		},
		"a hold": {limit: throttle.TokenBucket(100, time.Second), hold: 50 * time.Second, word: throttle.ReasonHeld, text: "held"},
		"a rate": {limit: throttle.TokenBucket(1, time.Second), word: throttle.ReasonMaxWait, text: "wait"},
	} {
		inBubble(t, name, func(t *testing.T) {
			api, err := throttletest.NewHandler(append(c.server, throttletest.WithServiceTime(throttletest.Constant(50*time.Millisecond)))...)
			require.NoError(t, err)
			for _, deadline := range []bool{false, true} {
				tr := transportTo(t, api.Direct(), throttle.WithLimit(c.limit), throttle.WithRejectionError())
				var mu sync.Mutex
				reasons := map[throttle.Reason]int{}
				var wg sync.WaitGroup
				start := time.Now()
				for range 800 {
					wg.Go(func() {
						ctx := throttle.ContextWithMaxWait(context.Background(), time.Second)
						if deadline {
							var cancel context.CancelFunc
							ctx, cancel = context.WithTimeout(context.Background(), time.Second)
							defer cancel()
						}
						resp, err := tr.RoundTrip(get(t, ctx, "http://api.test/"))
						if err == nil {
							resp.Body.Close()
							return
						}
						var r *throttle.Rejection
						if !errors.As(err, &r) {
							require.ErrorIs(t, err, context.DeadlineExceeded)
							return
						}
						mu.Lock()
						defer mu.Unlock()
						reasons[r.Reason]++
						assert.Contains(t, r.Error(), c.text)
						assert.True(t, c.text != "wait" || !strings.Contains(r.Error(), "held"), r.Error())
					})
					time.Sleep(150 * time.Millisecond)
					if c.hold > 0 && time.Since(start) == 1050*time.Millisecond {
						tr.Limiter().Hold("", c.hold)
					}
				}
				wg.Wait()
				want := c.word
				if deadline {
					want = throttle.ReasonDeadline
				}
				require.Len(t, reasons, 1)
				assert.Greater(t, reasons[want], 100, "%v", reasons)
				var all uint64
				for reason, n := range tr.Stats().Rejected.All() {
					assert.True(t, n == 0 || reason == want, reason)
					all += n
				}
				assert.EqualValues(t, reasons[want], all, "the metrics have the same word")
			}
		})
	}
}
