package limiter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/concurrency"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// An adaptive limit gives the token of a request back if it never reached the server, and only then; slots come back once, either
// way.
func TestOnlyARequestThatWasNotSentIsRefundedByAnAdaptiveLimit(t *testing.T) {
	for name, c := range map[string]struct {
		limit           rule
		unsent, settled bool
		returned        uint64
	}{
		"a rate, sent":               {limit: adaptive(aimd.Config{})},
		"a rate, sent and settled":   {limit: adaptive(aimd.Config{}), settled: true},
		"a rate, unsent":             {limit: adaptive(aimd.Config{}), unsent: true, returned: 1},
		"a rate, settled and unsent": {limit: adaptive(aimd.Config{}), unsent: true, settled: true},
		"slots, sent":                {limit: adaptiveInFlight(concurrency.Config{}), returned: 1},
		"slots, unsent":              {limit: adaptiveInFlight(concurrency.Config{}), unsent: true, returned: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := drive(t, c.limit)
			g, err := l.acquire(t.Context(), ask{Cost: 1})
			require.NoError(t, err)
			charge := &g.Request.Charges()[0]
			if charge.Kept = false; c.settled {
				require.NoError(t, g.settle(charge.Limit.Name, 1))
			}
			g.answer(&limiter.Answer{Outcome: aimd.OK, Unsent: c.unsent})
			require.Equal(t, c.returned, charge.Limit.Counts.Returned, name)
		})
	}
}

// A slot rests after its request, unless the request never reached the server.
func TestTheSlotOfARequestThatWasNotSentDoesNotRest(t *testing.T) {
	for _, unsent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := drive(t, inFlight(1, withPause(2*time.Second)))
			g, err := l.acquire(t.Context(), ask{Cost: 1})
			require.NoError(t, err)
			g.Request.Charges()[0].Kept = false
			g.answer(&limiter.Answer{Outcome: aimd.OK, Unsent: unsent})
			start := time.Now()
			_, err = l.acquire(t.Context(), ask{Cost: 1})
			require.NoError(t, err)
			want := 2 * time.Second
			if unsent {
				want = 0
			}
			require.Equal(t, want, time.Since(start))
		})
	}
}
