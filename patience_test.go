package throttle_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// With one token per second and none at the start, the wait is one second.
func TestMaxWaitIsJudgedBeforeTheDeadline(t *testing.T) {
	cases := []struct {
		name     string
		maxWait  time.Duration
		deadline time.Duration
		hold     time.Duration
		reason   throttle.Reason // 0: the request is sent
		patience time.Duration
		text     string
	}{
		{"FailFast", 0, 100 * time.Millisecond, 0, throttle.ReasonNoTokens, 0, `cost 1 can be paid in 1s, and the request may not wait`},
		{"FailFastHeld", 0, time.Minute, time.Hour, throttle.ReasonHeld, 0, `held for 1h0m0s`},
		{"MaxWaitBeforeDeadline", time.Second - 1, time.Second - 2, 0, throttle.ReasonMaxWait, time.Second - 1, `a wait of 1s exceeds the maximum of 999.999ms`},
		{"MaxWaitHeld", time.Minute, time.Second, time.Hour, throttle.ReasonHeld, time.Minute, `held for 1h0m0s, and the maximum wait is 1m0s`},
		{"DeadlineWithinMaxWait", time.Second, time.Second, 0, throttle.ReasonDeadline, time.Second, `a wait of 1s does not fit the context's deadline in 1s`},
		{"DeadlineWithinMaxWaitHeld", 2 * time.Hour, time.Minute, time.Hour, throttle.ReasonDeadline, time.Minute, `a wait of 1h0m0s does not fit the context's deadline in 1m0s`},
		{"Both", time.Second, time.Second + 1, 0, 0, 0, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRefusal(t, throttle.WithMaxWait(c.maxWait))
				r.tr.Limiter().Hold("", c.hold)
				r.within(c.deadline)
				resp, err := r.tr.RoundTrip(r.req)
				if c.reason == 0 {
					require.NoError(t, err)
					assert.Equal(t, http.StatusNoContent, resp.StatusCode)
					return
				}
				var rejection *throttle.Rejection
				if c.reason == throttle.ReasonDeadline {
					require.ErrorAs(t, err, &rejection)
					assert.ErrorIs(t, err, context.DeadlineExceeded)
				} else {
					require.NoError(t, err)
					defer resp.Body.Close()
					rejection, _ = throttle.RejectionOf(resp)
					assert.NotErrorIs(t, rejection, context.DeadlineExceeded)
				}
				assert.Equal(t, c.reason, rejection.Reason)
				assert.Equal(t, c.patience, rejection.Patience)
				assert.Contains(t, rejection.Error(), c.text)
			})
		})
	}
}

// A slot is not known to be late before the patience for it is over: the timer of that and the context's then fire together.
func TestPatienceGoesBeforeADeadlineAtTheSameInstant(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			l, err := throttle.NewLimiter(throttle.WithLimit(throttle.InFlight(1)))
			require.NoError(t, err)
			_, err = l.Acquire(t.Context(), throttle.Ask{})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = l.Acquire(ctx, throttle.Ask{MaxWait: new(time.Second)})
			var r *throttle.Rejection
			require.ErrorAs(t, err, &r)
			require.Equal(t, throttle.ReasonMaxWait, r.Reason)
		})
	}
}
