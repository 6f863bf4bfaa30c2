package limiter_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
)

func TestServerRefusalsCountAlsoForTheDeaf(t *testing.T) {
	for name, opts := range map[string][]throttle.Option{
		"hints": nil, "deaf": {throttle.WithoutServerHints()}, "deaf, tracked": {throttle.WithoutServerHints(), throttle.WithLimit(throttle.InFlight(5))},
		"tracked": {throttle.WithAdaptive()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				status := 0
				base := roundTripper(func(r *http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: status, Body: http.NoBody, Request: r}, nil
				})
				var told []throttle.ServerRefusalEvent
				tr := throttle.Must(throttle.New(base, append(opts, throttle.WithHooks(throttle.Hooks{OnServerRefusal: func(e throttle.ServerRefusalEvent) { told = append(told, e) }}))...))
				for i, s := range []int{200, 404, 500, 429} {
					status = s
					_, err := tr.RoundTrip(get(t.Context(), fmt.Sprintf("http://h%d/", i)))
					require.NoError(t, err)
				}
				require.Equal(t, []throttle.ServerRefusalEvent{{Context: t.Context(), Host: "h3", Status: 429}}, told)
				require.EqualValues(t, 1, tr.Stats().ServerRefused)
				require.EqualValues(t, 1, tr.Limiter().Stats().ServerRefused)
			})
		})
	}
}

func TestHooksAddUpInOrder(t *testing.T) {
	var calls []string
	hooks := func(name string) throttle.Option {
		return throttle.WithHooks(throttle.Hooks{OnGrant: func(throttle.GrantEvent) { calls = append(calls, name) }})
	}
	l := limiterOf(t, hooks("first"), throttle.WithHooks(throttle.Hooks{}), hooks("second"))
	tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) { return nil, errors.New("none") }),
		throttle.WithLimiter(l), hooks("third"), hooks("fourth")))
	_, _ = tr.RoundTrip(get(t.Context(), "http://h/"))
	require.Equal(t, []string{"first", "second", "third", "fourth"}, calls)
	_, _ = l.Try(throttle.Ask{})
	require.Equal(t, []string{"first", "second"}, calls[4:])
}

// The walk takes the lock for at most 1,024 buckets: what changes all of them as the first is yielded is seen from the next
// piece on.
func TestBucketsAreLookedAtInPieces(t *testing.T) {
	l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1000, time.Hour)))
	const keys = 10_000
	for i := range keys {
		_, ok := l.Try(throttle.Ask{Key: fmt.Sprint(i)})
		require.True(t, ok)
	}
	n, before := 0, 0
	for b := range l.Buckets() {
		if n++; n == 1 {
			l.HoldAll(time.Hour)
		}
		if b.HeldUntil.IsZero() {
			before++
		}
	}
	require.InDelta(t, keys, n, 1)
	require.LessOrEqual(t, before, limiter.VisitMost)
	require.Positive(t, before)
}

func TestStatsOfLimitsSayWhichOneHeldARequestUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var grant throttle.GrantEvent
		l := limiterOf(t, throttle.WithHooks(throttle.Hooks{OnGrant: func(e throttle.GrantEvent) { grant = e }}), throttle.WithLimit(
			throttle.TokenBucket(10, time.Second, throttle.Name("fast")), throttle.TokenBucket(1, time.Minute, throttle.Name("slow")), throttle.InFlight(3), throttle.FixedWindow(100, time.Hour)))
		for range 2 {
			g, err := l.Acquire(t.Context(), throttle.Ask{Costs: map[string]int64{"fast": 2}})
			require.NoError(t, err)
			require.NoError(t, g.Settle("fast", 5))
			require.NoError(t, g.Settle("fixed-window", 0))
			g.Done()
		}
		require.Equal(t, "slow", grant.Limit)
		_, err := l.Acquire(t.Context(), throttle.Ask{MaxWait: new(time.Duration(0))})
		require.ErrorIs(t, err, throttle.ErrThrottled)
		stats := make(map[string]throttle.LimitStats)
		for _, s := range l.Limits() {
			stats[s.Name] = s
		}
		fast, slow, slots, window := stats["fast"], stats["slow"], stats["in-flight"], stats["fixed-window"]
		assert.EqualValues(t, []uint64{2, 0, 10, 0, 0}, []uint64{fast.Granted, fast.Delayed, fast.Charged, fast.Returned, fast.Rejected.Total()})
		assert.EqualValues(t, []uint64{2, 1, 2, 0, 1}, []uint64{slow.Granted, slow.Delayed, slow.Charged, slow.Returned, slow.Rejected[throttle.ReasonNoTokens]})
		assert.EqualValues(t, []uint64{2, 2}, []uint64{window.Charged, window.Returned})
		assert.EqualValues(t, []uint64{2, 2}, []uint64{slots.Charged, slots.Returned})
		assert.Equal(t, time.Minute, slow.Waits.Sum)
		assert.EqualValues(t, 1, slow.Waits.Counts[14], "up to a minute")
		assert.Equal(t, []float64{10, 10}, []float64{fast.Rate, fast.Capacity})
		assert.Equal(t, "server", stats["server"].Kind)

		b, ok := l.Bucket("slow", "")
		require.True(t, ok)
		assert.Equal(t, time.Minute, b.Wait)
		w, ok := l.Bucket("fixed-window", "")
		require.True(t, ok)
		assert.Equal(t, time.Now().Truncate(time.Hour).Add(time.Hour).UnixNano(), w.Reset.UnixNano())
		_, ok = l.Bucket("slow", "unknown")
		assert.False(t, ok)
		_, ok = l.Bucket("unknown", "")
		assert.False(t, ok)
	})
}

func TestWaitsAreCountedUpToTheirBounds(t *testing.T) {
	var w bucket.WaitCounts
	require.Len(t, w.Counts, len(throttle.WaitBounds())+1)
	for i, bound := range throttle.WaitBounds() {
		w = bucket.WaitCounts{}
		w.Add(bound)
		require.EqualValues(t, 1, w.Counts[i], "%v", bound)
		w.Add(bound + 1)
		require.EqualValues(t, 1, w.Counts[i+1], "%v", bound+1)
	}
}

func TestStatisticsWithoutABoundAreValidJSON(t *testing.T) {
	l := limiterOf(t)
	l.Hold("", time.Hour)
	for b := range l.Buckets() {
		require.True(t, math.IsInf(b.Tokens, 1))
		text, err := json.Marshal(b)
		require.NoError(t, err)
		require.Contains(t, string(text), `"tokens":null`)
	}
	text, err := json.Marshal(l.Limits())
	require.NoError(t, err)
	require.Contains(t, string(text), `"tokens":null`)
}
