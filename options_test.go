package throttle_test

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

func TestBadOptionIsNamedWithItsValue(t *testing.T) {
	limit := func(l throttle.Limit) throttle.Option { return throttle.WithLimit(l) }
	second := throttle.TokenBucket(1, time.Second, throttle.Name("sound"))
	for _, c := range []struct {
		option throttle.Option
		want   []string
	}{
		{nil, []string{"Option is nil"}},
		{limit(throttle.Limit{}), []string{"zero Limit"}},
		{limit(throttle.TokenBucket(0, time.Second)), []string{`"bucket"`, "n of 0"}},
		{limit(throttle.Pace(-3, -time.Second, throttle.Name("p"))), []string{`"p"`, "n of -3", "period of -1s"}},
		{limit(throttle.SlidingWindow(1, 0)), []string{`"sliding-window"`, "period of 0s"}},
		{limit(throttle.TokenBucket(1, 1, nil)), []string{"LimitOption is nil"}},
		{limit(throttle.TokenBucket(1, 1, throttle.Name(""))), []string{`Name("")`}},
		{limit(throttle.TokenBucket(1, 1, throttle.Burst(0))), []string{"Burst(0)"}},
		{limit(throttle.TokenBucket(1, 1, throttle.Initial(-1))), []string{"Initial(-1)"}},
		{limit(throttle.TokenBucket(5, 1, throttle.Initial(6))), []string{"Initial(6)", "burst of 5"}},
		{limit(throttle.TokenBucket(5, 1, throttle.Initial(5), throttle.Share(0.5))), []string{"Initial(5)", "burst of 2"}},
		{limit(throttle.SlidingWindow(5, 1, throttle.Burst(3))), []string{"Burst(3)", "sliding-window"}},
		{limit(throttle.FixedWindow(5, 1, throttle.Initial(3))), []string{"Initial(3)", "fixed-window"}},
		{limit(throttle.Pace(5, 1, throttle.Burst(3), throttle.Initial(2))), []string{"Burst(3)", "Initial(2)", "pace"}},
		{limit(throttle.TokenBucket(5, 1, throttle.Start(time.Unix(0, 0)))), []string{"Start(", "bucket"}},
		{limit(throttle.TokenBucket(5, 1, throttle.Share(0))), []string{"Share(0)"}},
		{limit(throttle.TokenBucket(5, 1, throttle.Share(1.5))), []string{"Share(1.5)"}},
		{limit(throttle.TokenBucket(5, 1, throttle.Share(math.NaN()))), []string{"Share(NaN)"}},
		{limit(throttle.TokenBucket(5, 1, throttle.Share(math.Inf(1)))), []string{"Share(+Inf)"}},
		{limit(throttle.FixedWindow(5, 1, throttle.Share(0.1))), []string{"Share(0.1) of 5 leaves no token"}},
		{limit(throttle.TokenBucket(1, 1, throttle.Key(nil), throttle.Cost(nil), throttle.RateFor(nil))), []string{"Key(nil)", "Cost(nil)", "RateFor(nil)"}},
		{throttle.WithLimit(throttle.TokenBucket(1, 1, throttle.Name("x")), throttle.Pace(1, 1, throttle.Name("x"))), []string{`two limits are named "x"`}},
		{limit(throttle.TokenBucket(1, 1, throttle.Name("server"))), []string{`Name("server") is taken`}},
		{throttle.WithLimiter(nil), []string{"WithLimiter: the Limiter is nil"}},
		{throttle.WithLimiter(new(throttle.Limiter)), []string{"WithLimiter: the Limiter is nil or zero"}},
		{throttle.WithKey(nil), []string{"WithKey(nil)"}},
		{throttle.WithCost(nil), []string{"WithCost(nil)"}},
		{throttle.WithWeights(map[string]int64{"GET /a": -2}), []string{"WithWeights", "-2", "GET /a"}},
		{throttle.WithWeights(map[string]int64{"/{x": 1}), []string{"WithWeights", "/{x"}},
		{throttle.WithWeights(map[string]int64{"/a/{x}/c": 1, "/a/b/{y}": 2}), []string{"WithWeights", "conflicts"}},
		{throttle.WithMaxWait(-time.Second), []string{"WithMaxWait(-1s)"}},
		{throttle.WithMaxQueue(0), []string{"WithMaxQueue(0)"}},
		{throttle.WithMaxKeys(-1), []string{"WithMaxKeys(-1)"}},
		{throttle.WithRejectionResponse(nil), []string{"WithRejectionResponse(nil)"}},
		{throttle.WithExempt(nil), []string{"WithExempt(nil)"}},
		{throttle.WithLogger(nil), []string{"WithLogger(nil)"}},
	} {
		_, err := throttle.New(nil, throttle.WithLimit(second), c.option)
		require.Error(t, err, "%v", c.want)
		for _, want := range c.want {
			require.ErrorContains(t, err, want)
		}
	}
}

func TestAnOptionThatDoesNotFitALimitIsOneFault(t *testing.T) {
	for fault, l := range map[string]throttle.Limit{
		"Initial(7) does not fit a limit of kind sliding-window": throttle.SlidingWindow(1, 1, throttle.Initial(7)),
		"Shared does not fit a limit of kind calendar-window":    throttle.CalendarWindow(1, throttle.Day, time.UTC, throttle.Shared(throttle.NewMemoryStore())),
	} {
		_, err := throttle.New(nil, throttle.WithLimit(l))
		require.ErrorContains(t, err, fault)
		require.NotContains(t, err.Error(), "\n")
	}
}

func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	limiter, err := throttle.NewLimiter()
	require.NoError(t, err)
	_, err = throttle.New(nil,
		throttle.WithLimit(throttle.TokenBucket(0, 0)), throttle.WithLimiter(limiter), throttle.WithMaxWait(-1), throttle.WithDryRun(),
		throttle.WithMaxKeys(5), throttle.WithMaxQueue(5), throttle.WithRejectionError(),
		throttle.WithRejectionResponse(func(*throttle.Rejection, *http.Request) *http.Response { return nil }))
	for _, want := range []string{
		"n of 0", "period of 0s", "WithMaxWait(-1ns)", "WithLimit has no effect beside WithLimiter", "WithDryRun has no effect",
		"WithMaxKeys has no effect", "WithMaxQueue has no effect", "WithRejectionError and WithRejectionResponse",
	} {
		require.ErrorContains(t, err, want)
	}
	_, err = throttle.NewLimiter(throttle.WithFailFast(), throttle.WithKey(throttle.ByHost), throttle.WithLimit(throttle.Pace(0, 1)))
	for _, want := range []string{"WithFailFast", "WithKey", "NewLimiter", "n of 0"} {
		require.ErrorContains(t, err, want)
	}
	require.Panics(t, func() { throttle.Must(throttle.New(nil, nil)) })
}

func TestLimitsWithoutNameAreCalledByTheirKind(t *testing.T) {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.TokenBucket(1, 1), throttle.TokenBucket(1, 1), throttle.TokenBucket(1, 1, throttle.Name("bucket-2")),
		throttle.Pace(1, 1), throttle.SlidingWindow(1, 1), throttle.FixedWindow(1, 1)))
	require.NoError(t, err)
	var names []string
	for b := range limiter.Buckets() {
		names = append(names, b.Limit)
	}
	require.Equal(t, "bucket bucket-3 bucket-2 pace sliding-window fixed-window", strings.Join(names, " "))
}

func TestChangesOfWhatThereIsNotAreErrors(t *testing.T) {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(5, 1), throttle.FixedWindow(5, 1, throttle.Share(0.5))))
	require.NoError(t, err)
	require.ErrorContains(t, limiter.SetRate("x", 1, 1), `no limit named "x"`)
	require.ErrorContains(t, limiter.SetRate("bucket", 0, -1), "n of 0")
	require.ErrorContains(t, limiter.SetRate("fixed-window", 1, 1), "leaves no token")
	require.ErrorContains(t, limiter.SetBurst("x", 1), `no limit named "x"`)
	require.ErrorContains(t, limiter.SetBurst("bucket", 0), "positive")
	require.ErrorContains(t, limiter.SetBurst("fixed-window", 1), "no burst")
	_, err = limiter.Acquire(t.Context(), throttle.Ask{Cost: 1, Keys: map[string]string{"k": ""}, Costs: map[string]int64{"c": 1}})
	require.ErrorContains(t, err, `Ask.Keys: there is no limit named "k"`)
	require.ErrorContains(t, err, `Ask.Costs: there is no limit named "c"`)
}

// TestHugeValuesSaturate would find an overflow turned into "go now".
func TestHugeValuesSaturate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter, err := throttle.NewLimiter(throttle.WithLimit(
			throttle.TokenBucket(math.MaxInt64, math.MaxInt64, throttle.Burst(math.MaxInt64), throttle.Share(1e-9)),
			throttle.Pace(1, math.MaxInt64, throttle.Name("pace"))))
		require.NoError(t, err)
		_, err = limiter.Acquire(t.Context(), throttle.Ask{Cost: math.MaxInt64, Costs: map[string]int64{"pace": 0}})
		require.ErrorIs(t, err, throttle.ErrThrottled)
		_, ok := limiter.Try("", 1)
		require.True(t, ok)
		wait, ok := limiter.Try("", 1)
		require.False(t, ok)
		require.Greater(t, wait, 100*365*24*time.Hour)
		limiter.Hold("", math.MaxInt64)
		wait, ok = limiter.Try("", math.MaxInt64)
		require.False(t, ok)
		require.Positive(t, wait)
	})
}
