package limiter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// An adaptive limit gives the token of a request back if it never reached the server, and only then; slots come back once, either
// way.
func TestOnlyARequestThatWasNotSentIsRefundedByAnAdaptiveLimit(t *testing.T) {
	for name, c := range map[string]struct {
		limit           throttle.Limit
		unsent, settled bool
		returned        uint64
	}{
		"a rate, sent":               {limit: throttle.Adaptive(throttle.AIMD{})},
		"a rate, sent and settled":   {limit: throttle.Adaptive(throttle.AIMD{}), settled: true},
		"a rate, unsent":             {limit: throttle.Adaptive(throttle.AIMD{}), unsent: true, returned: 1},
		"a rate, settled and unsent": {limit: throttle.Adaptive(throttle.AIMD{}), unsent: true, settled: true},
		"slots, sent":                {limit: throttle.AdaptiveInFlight(throttle.Concurrency{}), returned: 1},
		"slots, unsent":              {limit: throttle.AdaptiveInFlight(throttle.Concurrency{}), unsent: true, returned: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, throttle.WithLimit(c.limit))
			g, err := l.Acquire(t.Context(), throttle.Ask{Cost: 1})
			require.NoError(t, err)
			charge := &requestOf(g).Charges()[0]
			if charge.Kept = false; c.settled {
				requestOf(g).MarkSettled(0)
			}
			report(l, g, &limiter.Answer{Outcome: aimd.OK, Unsent: c.unsent})
			require.Equal(t, c.returned, charge.Limit.Counts.Returned, name)
		})
	}
}

// A slot rests after its request, unless the request never reached the server.
func TestTheSlotOfARequestThatWasNotSentDoesNotRest(t *testing.T) {
	for _, unsent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, throttle.WithLimit(throttle.InFlight(1, throttle.Pause(2*time.Second))))
			g, err := l.Acquire(t.Context(), throttle.Ask{Cost: 1})
			require.NoError(t, err)
			requestOf(g).Charges()[0].Kept = false
			report(l, g, &limiter.Answer{Outcome: aimd.OK, Unsent: unsent})
			start := time.Now()
			_, err = l.Acquire(t.Context(), throttle.Ask{Cost: 1})
			require.NoError(t, err)
			want := 2 * time.Second
			if unsent {
				want = 0
			}
			require.Equal(t, want, time.Since(start))
		})
	}
}
