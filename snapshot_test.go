package throttle_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// restarted returns a new Limiter that goes on, some time later, from the JSON of what another has saved.
func restarted(t *testing.T, old *throttle.Limiter, later time.Duration, opts ...throttle.Option) *throttle.Limiter {
	t.Helper()
	text, err := json.Marshal(old.Snapshot())
	require.NoError(t, err)
	time.Sleep(later)
	l, err := throttle.NewLimiter(opts...)
	require.NoError(t, err)
	var s throttle.Snapshot
	require.NoError(t, json.Unmarshal(text, &s))
	require.NoError(t, l.Restore(s))
	return l
}

func TestARestartSpendsNoQuotaTwice(t *testing.T) {
	for name, limit := range map[string]throttle.Limit{
		"fixed window":   throttle.FixedWindow(10, 24*time.Hour, throttle.Name("day")),
		"sliding window": throttle.SlidingWindow(10, 24*time.Hour, throttle.Name("day")),
		"token bucket":   throttle.TokenBucket(10, 24*time.Hour, throttle.Name("day")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := throttle.NewLimiter(throttle.WithLimit(limit))
				require.NoError(t, err)
				time.Sleep(time.Hour)
				_, ok := l.Try("tenant", 7)
				require.True(t, ok)
				next := restarted(t, l, time.Hour, throttle.WithLimit(limit))
				_, ok = next.Try("tenant", 4)
				require.False(t, ok, "7 of 10 were spent an hour ago")
				wait, ok := l.Try("tenant", 4)
				require.False(t, ok)
				again, ok := next.Try("tenant", 4)
				require.False(t, ok)
				assert.Equal(t, wait, again, "as without a restart")
				_, ok = next.Try("tenant", 3)
				assert.True(t, ok)
				_, ok = next.Try("another", 10)
				assert.True(t, ok)
			})
		})
	}
}

func TestARestoredWindowIsOverInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := throttle.WithLimit(throttle.FixedWindow(10, time.Hour), throttle.SlidingWindow(10, time.Hour), throttle.Pace(1, time.Hour))
		l, err := throttle.NewLimiter(limits)
		require.NoError(t, err)
		_, ok := l.Try("", 10)
		require.True(t, ok)
		next := restarted(t, l, 10*time.Hour, limits)
		_, ok = next.Try("", 10)
		assert.True(t, ok)
	})
}

func TestARestartKeepsHoldsAndDebts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := throttle.WithLimit(throttle.Pace(1, time.Second), throttle.TokenBucket(100, time.Second, throttle.Name("b")))
		l, err := throttle.NewLimiter(limits)
		require.NoError(t, err)
		_, ok := l.Try("k", 30)
		require.True(t, ok)
		l.Hold("other", time.Minute)
		next := restarted(t, l, 10*time.Second, limits)
		wait, ok := next.Try("k", 1)
		assert.False(t, ok)
		assert.Equal(t, 20*time.Second, wait)
		wait, ok = next.Try("other", 1)
		assert.False(t, ok)
		assert.Equal(t, 50*time.Second, wait)
	})
}

func TestARestartGoesOnWithWhatWasLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithAdaptive())
		require.NoError(t, err)
		for i := range 400 {
			g, err := l.Acquire(t.Context(), throttle.Ask{Cost: 1})
			require.NoError(t, err)
			time.Sleep(10 * time.Millisecond)
			if i == 399 {
				g.Report(throttle.OutcomeThrottled)
			} else {
				g.Report(throttle.OutcomeOK)
			}
		}
		learned := rateOf(t, l)
		require.Greater(t, learned, 20.0)
		next := restarted(t, l, time.Hour, throttle.WithAdaptive())
		assert.InDelta(t, learned/2, rateOf(t, next), 1, "cautiously: from a half by doubling")
	})
}

func rateOf(t *testing.T, l *throttle.Limiter) float64 {
	t.Helper()
	for b := range l.Buckets() {
		return b.Rate
	}
	require.Fail(t, "no bucket")
	return 0
}

func TestARestartKeepsWhatServersSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := serverFunc(func(r *http.Request) *http.Response {
			if r.URL.Path == "/held" {
				return says(429, "Retry-After", "100")
			}
			return says(200, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "3600")
		})
		tr, err := throttle.New(server, throttle.WithFailFast())
		require.NoError(t, err)
		ask(t, tr, "http://a.com/items")
		ask(t, tr, "http://b.com/held")
		text, err := json.Marshal(tr.Limiter().Snapshot())
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		next, err := throttle.New(server, throttle.WithFailFast())
		require.NoError(t, err)
		var s throttle.Snapshot
		require.NoError(t, json.Unmarshal(text, &s))
		require.NoError(t, next.Limiter().Restore(s))
		_, r := ask(t, next, "http://a.com/anything")
		require.NotNil(t, r)
		assert.InDelta(t, 3590*time.Second, r.Wait, float64(2*time.Second))
		_, r = ask(t, next, "http://b.com/anything")
		require.NotNil(t, r)
		assert.GreaterOrEqual(t, r.Wait, 90*time.Second)
		assert.Less(t, r.Wait, 93*time.Second)
		_, r = ask(t, next, "http://c.com/items")
		assert.Nil(t, r)
	})
}

func TestWhatDoesNotFitASnapshotIsNamedAndTheRestRestored(t *testing.T) {
	l, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.FixedWindow(10, time.Hour, throttle.Name("hour")), throttle.SlidingWindow(10, time.Hour, throttle.Name("sliding"))),
		throttle.WithAdaptive())
	require.NoError(t, err)
	err = l.Restore(throttle.Snapshot{Taken: time.Now(), Buckets: []throttle.BucketSnapshot{
		{Limit: "gone", Key: "k"},
		{Limit: "hour", Key: "bad", Spent: []throttle.Spent{{Cost: -1}}},
		{Limit: "sliding", Key: "future", Spent: []throttle.Spent{{Ago: -time.Second, Cost: 1}}},
		{Limit: "adaptive", Key: "none"},
		{Limit: "hour", Key: "good", Spent: []throttle.Spent{{Cost: 10}}},
	}, Servers: []throttle.ServerSnapshot{{Host: "h", Quotas: []throttle.QuotaSnapshot{{Name: "q", Limit: -7, Reset: time.Hour}}}}})
	for _, part := range []string{`"gone"`, `key "bad"`, `key "future"`, `key "none"`, `server "h"`} {
		assert.ErrorContains(t, err, part)
	}
	_, ok := l.Try("good", 1)
	assert.False(t, ok)
}
