package tests

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

func TestCallerOfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(roundTripper(func(*http.Request) (*http.Response, error) { return reply(200) }),
			throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0), throttle.FairBy(func(r *http.Request) string { return r.Header.Get("Tenant") }))))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		goes := func(ctx context.Context, tenant string) {
			req := get(t, ctx, "http://a.com/")
			req.Header.Set("Tenant", tenant)
			go func() { _, _ = tr.RoundTrip(req) }()
		}
		waits := func(ctx context.Context) { go func() { _ = tr.Limiter().Wait(ctx, throttle.Ask{}) }() }
		for i, c := range []struct {
			send    func()
			callers int // that wait afterwards
		}{
			{func() { goes(ctx, "one") }, 1},
			{func() { goes(ctx, "") }, 2},
			{func() { goes(throttle.ContextWithCaller(ctx, "three"), "one") }, 3},
			{func() { goes(throttle.ContextWithCaller(ctx, ""), "four") }, 3},
			{func() { waits(throttle.ContextWithCaller(ctx, "five")) }, 4},
			{func() { waits(ctx) }, 4},
			{func() { goes(ctx, "five") }, 4},
		} {
			c.send()
			synctest.Wait()
			require.Equal(t, c.callers, tr.Stats().Callers, "request %d", i)
		}
		cancel()
		synctest.Wait()
	})
}

func TestTurnsThatCannotBeTakenAreAnError(t *testing.T) {
	for text, limits := range map[string][]throttle.Limit{
		`FairBy in limits "a" and "b": a request has one place in the queue`: {throttle.Pace(1, 1, throttle.Name("a"), throttle.FairBy(throttle.ByHost)), throttle.Pace(1, 1, throttle.Name("b"), throttle.FairBy(throttle.ByHost))},
		`limit "a": FairWeights has no effect without FairBy`:                {throttle.Pace(1, 1, throttle.Name("a"), throttle.FairWeights(func(string) int { return 1 }))},
		"FairBy(nil): a function is needed":                                  {throttle.Pace(1, 1, throttle.FairBy(nil))},
		"FairWeights(nil): a function is needed":                             {throttle.Pace(1, 1, throttle.FairBy(throttle.ByHost), throttle.FairWeights(nil))},
	} {
		_, err := throttle.NewLimiter(throttle.WithLimit(limits...))
		require.ErrorContains(t, err, text)
	}
}
