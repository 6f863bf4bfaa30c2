package retry_test

import (
	"net/http"
	"testing"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/retry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// policied returns a client together with its Policy.
func policied(t *testing.T, s http.RoundTripper, opts ...retry.Option) (*retryablehttp.Client, *retry.Policy) {
	t.Helper()
	c := newClient(t, s).Client
	p, err := retry.New(c, opts...)
	require.NoError(t, err)
	c.CheckRetry, c.Backoff, c.PrepareRetry, c.ErrorHandler = p.CheckRetry, p.Backoff, p.PrepareRetry, p.ErrorHandler
	return c, p
}

func TestStatsAndOnRetryReportCausesAndAttempts(t *testing.T) {
	t.Parallel()
	bubble(t, "", func(t *testing.T) {
		var events []retry.RetryEvent
		var sent []int
		script := scripted(answer(500), answer(429, "Retry-After: 7"), fail(errBroken), answer(200))
		tr := newTransport(t, script, throttle.WithHooks(throttle.Hooks{OnGrant: func(e throttle.GrantEvent) {
			sent = append(sent, retry.Retries(e.Context))
		}}))
		c, p := policied(t, tr, retry.WithOnRetry(func(e retry.RetryEvent) { events = append(events, e) }))
		resp, err := c.Get(site)
		whole(t, resp, err, 200)
		assert.Equal(t, []int{0, 1, 2, 3}, sent, "the context of each attempt says which one it is")
		require.Len(t, events, 3)
		for i, want := range []retry.RetryEvent{
			{Attempt: 1, Cause: retry.CauseStatus, Status: 500, Wait: s},
			{Attempt: 2, Cause: retry.CauseLimited, Status: 429, Wait: 7 * s},
			{Attempt: 3, Cause: retry.CauseError, Wait: 4 * s},
		} {
			e := events[i]
			assert.Equal(t, []any{want.Attempt, want.Cause, want.Status, want.Wait}, []any{e.Attempt, e.Cause, e.Status, e.Wait})
			assert.NotNil(t, e.Context)
			assert.Equal(t, want.Status == 0, e.Err != nil)
		}
		assert.Equal(t, retry.Stats{Attempts: 4, Retries: map[retry.Cause]uint64{
			retry.CauseStatus: 1, retry.CauseLimited: 1, retry.CauseError: 1, retry.CauseRejected: 0, retry.CauseHandler: 0,
		}, Budget: 98, BudgetMax: 100}, p.Stats())
		assert.Equal(t, "4 attempts, 3 retries (limited 1, status 1, error 1), gave up 0; the budget allows 98 of 100 retries", p.Stats().String())
	})
}

func TestStatsSayWhyFailuresWereNotRetried(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts    []retry.Option
		answer  step
		want    retry.NoRetries
		retries uint64
	}{
		"budget":    {[]retry.Option{retry.WithBudget(0, 0)}, answer(503), retry.NoRetries{Budget: 1}, 0},
		"max wait":  {nil, answer(429, "Retry-After: 3600"), retry.NoRetries{MaxWait: 1}, 0},
		"exhausted": {nil, answer(503), retry.NoRetries{Exhausted: 1}, 4},
	} {
		bubble(t, name, func(t *testing.T) {
			client, p := policied(t, scripted(c.answer), c.opts...)
			resp, err := client.Get(site)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, c.want, p.Stats().NoRetry)
			assert.Equal(t, c.retries, p.Stats().Retries[retry.CauseStatus])
		})
	}
	bubble(t, "deadline", func(t *testing.T) {
		client, p := policied(t, scripted(answer(503)))
		ctx, cancel := withTimeout(t.Context(), s)
		defer cancel()
		req, err := retryablehttp.NewRequestWithContext(ctx, "GET", site, nil)
		require.NoError(t, err)
		resp, err := client.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, retry.NoRetries{Deadline: 1}, p.Stats().NoRetry)
	})
}
