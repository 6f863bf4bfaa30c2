package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/internal/saved"
	"github.com/httpthrottle/throttle/store"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBadOptionIsNamedWithItsValue(t *testing.T) {
	limit := func(l throttle.Limit) throttle.Option { return throttle.WithLimit(l) }
	second := throttle.TokenBucket(1, time.Second, throttle.Name("sound"))
	unit := throttle.Cost(func(*http.Request) int64 { return 100 })
	for _, c := range []struct {
		option throttle.Option
		want   []string
	}{
		{nil, []string{"Option is nil"}},
		{limit(throttle.Limit{}), []string{"zero Limit"}},
		{limit(throttle.TokenBucket(0, time.Second)), []string{`"bucket"`, "n of 0"}},
		{limit(throttle.Pace(-3, -time.Second, throttle.Name("p"))), []string{`"p"`, "n of -3", "period of -1s"}},
		{limit(throttle.SlidingWindow(1, 0)), []string{`"sliding-window"`, "period of 0s"}},
		{limit(throttle.TokenBucket(1, time.Second, nil)), []string{"LimitOption is nil"}},
		{limit(throttle.TokenBucket(1, time.Second, throttle.Name(""))), []string{`Name("")`}},
		{limit(throttle.TokenBucket(1, time.Second, throttle.Burst(0))), []string{"Burst(0)"}},
		{limit(throttle.TokenBucket(1, time.Second, throttle.Initial(-1))), []string{"Initial(-1)"}},
		{limit(throttle.TokenBucket(5, time.Second, throttle.Initial(6))), []string{"Initial(6)", "burst of 5"}},
		{limit(throttle.TokenBucket(5, time.Second, throttle.Initial(5), throttle.Fraction(0.5))), []string{"Initial(5)", "burst of 2"}},
		{limit(throttle.SlidingWindow(5, time.Second, throttle.Burst(3))), []string{"Burst(3)", "sliding-window"}},
		{limit(throttle.FixedWindow(5, time.Second, throttle.Initial(3))), []string{"Initial(3)", "fixed-window"}},
		{limit(throttle.Pace(5, time.Second, throttle.Burst(3), throttle.Initial(2))), []string{"Burst(3)", "Initial(2)", "pace"}},
		{limit(throttle.TokenBucket(5, time.Second, throttle.Start(time.Unix(0, 0)))), []string{"Start(", "bucket"}},
		{limit(throttle.TokenBucket(5, time.Second, throttle.Fraction(0))), []string{"Fraction(0)"}},
		{limit(throttle.TokenBucket(5, time.Second, throttle.Fraction(1.5))), []string{"Fraction(1.5)"}},
		{limit(throttle.TokenBucket(5, time.Second, throttle.Fraction(math.NaN()))), []string{"Fraction(NaN)"}},
		{limit(throttle.TokenBucket(5, time.Second, throttle.Fraction(math.Inf(1)))), []string{"Fraction(+Inf)"}},
		{limit(throttle.FixedWindow(5, time.Second, throttle.Fraction(0.1))), []string{"Fraction(0.1) of 5 leaves no token"}},
		{limit(throttle.TokenBucket(1, time.Second, throttle.Key(nil), throttle.Cost(nil), throttle.RateFor(nil))), []string{"Key(nil)", "Cost(nil)", "RateFor(nil)"}},
		{throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Name("x")), throttle.Pace(1, time.Second, throttle.Name("x"))), []string{`two limits are named "x"`}},
		{limit(throttle.TokenBucket(1, time.Second, throttle.Name("server"))), []string{`Name("server") is reserved`}},
		{throttle.WithLimiter(nil), []string{"WithLimiter: the Limiter is nil"}},
		{throttle.WithLimiter(new(throttle.Limiter)), []string{"WithLimiter: the Limiter is nil or zero"}},
		{throttle.WithKey(nil), []string{"WithKey(nil)"}},
		{throttle.WithCost(nil), []string{"WithCost(nil)"}},
		{throttle.WithWeights(map[string]int64{"GET /a": -2}), []string{"WithWeights", "-2", "GET /a"}},
		{throttle.WithWeights(map[string]int64{"/{x": 1}), []string{"WithWeights", "/{x"}},
		{throttle.WithWeights(map[string]int64{"/a/{x}/c": 1, "/a/b/{y}": 2}), []string{"WithWeights", "conflicts"}},
		{throttle.WithMaxWait(-time.Second), []string{"WithMaxWait(-1s)"}},
		{throttle.WithMaxQueue(0), []string{"WithMaxQueue(0)"}},
		{throttle.WithDeadlineOrder(0), []string{"WithDeadlineOrder(0s)"}},
		{throttle.WithMaxKeys(-1), []string{"WithMaxKeys(-1)"}},
		// What can have no effect is an error, and so is a number whose unit was forgotten.
		{limit(throttle.Quota(100, 60)), []string{`"quota"`, "a period of 60ns is below a millisecond: write 60*time.Second if seconds are meant"}},
		{limit(throttle.TokenBucket(1, time.Millisecond-1)), []string{`"bucket"`, "a period of 999.999µs is below a millisecond"}},
		{limit(throttle.InFlight(1, throttle.Pause(5))), []string{`"in-flight"`, "a Pause of 5ns is below a millisecond"}},
		{throttle.WithMaxWait(30), []string{"WithMaxWait: a wait of 30ns is below a millisecond"}},
		{throttle.WithDeadlineOrder(600), []string{"WithDeadlineOrder: an age of 600ns is below a millisecond"}},
		{limit(throttle.TokenBucket(1, time.Second, throttle.SettleJSON("$.usage.total_tokens"))), []string{`SettleJSON: path "$.usage.total_tokens"`, `such as "usage.total_tokens", without $`}},
		{limit(throttle.TokenBucket(1, time.Second, throttle.SettleJSON("choices[0].tokens"))), []string{`SettleJSON: path "choices[0].tokens"`, "elements of arrays"}},
		{limit(throttle.TokenBucket(1, time.Second, throttle.SettleJSON("/usage/total"))), []string{`SettleJSON: path "/usage/total"`}},
		{limit(throttle.TokenBucket(1, time.Second, throttle.SettleJSON("a"), throttle.SettleJSONFunc(func(*http.Response, []int64) (int64, bool) { return 0, true }, "b"))), []string{"SettleJSONFunc: the limit already finds its costs in bodies"}},
		{limit(throttle.TokenBucket(1, time.Second, throttle.LearnCost())), []string{`"bucket"`, "LearnCost needs a Settle, SettleJSON or SettleJSONFunc"}},
		{limit(throttle.ServerQuota("requests", unit)), []string{`ServerQuota("requests"): quotas of requests are kept without a limit`}},
		{throttle.WithLimit(throttle.ServerQuota("tokens", unit), throttle.ServerQuota("Tokens", unit)), []string{`limit "Tokens": ServerQuota: its unit is that of limit "tokens"`}},
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

// The documentation of NewLimiter lists the options that it takes, and that of WithLimiter those that have no effect beside it.
func TestOptionsOfALimiterAreListed(t *testing.T) {
	between := func(file, from, to string) string {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		_, rest, _ := strings.Cut(string(text), from)
		list, _, found := strings.Cut(rest, to)
		require.True(t, found, file)
		return list
	}
	taken := between("blocking.go", "\n// NewLimiter ", "\nfunc ")
	excluded := between("options.go", " It excludes\n", ".")
	options := regexp.MustCompile(`option\{(of\w+), "(\w+)"`).FindAllStringSubmatch(between("options.go", "", "\nfunc (c *config) validate"), -1)
	require.Greater(t, len(options), 15)
	for _, o := range options {
		name := "[" + o[2] + "]"
		require.Equal(t, o[1] != "ofTransport", strings.Contains(taken, name), "NewLimiter and %s", o[2])
		require.Equal(t, o[1] == "ofLimiter" || o[2] == "WithDryRun", strings.Contains(excluded, name), "WithLimiter and %s", o[2])
	}
}

// The numbers of a ServerQuota are those that servers report.
func TestAServerQuotaNeedsHints(t *testing.T) {
	l := throttle.ServerQuota("tokens", throttle.Cost(func(*http.Request) int64 { return 100 }))
	_, err := throttle.New(nil, throttle.WithLimit(l), throttle.WithoutServerHints())
	require.EqualError(t, err, `throttle: limit "tokens": ServerQuota has no effect beside WithoutServerHints: its numbers are those that servers report`)
}

// Without HTTP, an Ask says the cost, and a Grant takes the true one.
func TestALimiterNeedsNoCostsOfRequests(t *testing.T) {
	limiterWith(t, throttle.WithLimit(throttle.ServerQuota("tokens"), throttle.TokenBucket(1, time.Second, throttle.LearnCost())))
}

// A Limiter that fails fast does so for its own callers, and for its Transports unless they say otherwise.
func TestALimiterFailsFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := throttle.NewLimiter(throttle.WithFailFast(), throttle.WithMaxWait(time.Second))
		require.EqualError(t, err, "throttle: WithFailFast and WithMaxWait exclude each other")
		l := limiterWith(t, throttle.WithFailFast(), throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		require.NoError(t, l.Wait(t.Context(), throttle.Ask{}))
		var r *throttle.Rejection
		require.ErrorAs(t, l.Wait(t.Context(), throttle.Ask{}), &r)
		require.Equal(t, throttle.ReasonNoTokens, r.Reason)
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
		})
		for status, opts := range map[int][]throttle.Option{http.StatusTooManyRequests: nil, http.StatusOK: {throttle.WithMaxWait(time.Minute)}} {
			resp, err := transportTo(t, base, append(opts, throttle.WithLimiter(l))...).RoundTrip(request(t.Context()))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, status, resp.StatusCode)
		}
	})
}

func TestAnOptionThatDoesNotFitALimitIsOneFault(t *testing.T) {
	for fault, l := range map[string]throttle.Limit{
		"Initial(7) does not fit a limit of kind sliding-window": throttle.SlidingWindow(1, time.Second, throttle.Initial(7)),
		"Shared does not fit a limit of kind adaptive":           throttle.Adaptive(throttle.AIMD{}, throttle.Shared(store.NewMemory())),
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
	_, err = throttle.NewLimiter(throttle.WithCost(costing(1)), throttle.WithKey(throttle.ByHost), throttle.WithLimit(throttle.Pace(0, time.Second)))
	for _, want := range []string{"WithCost", "WithKey", "NewLimiter", "n of 0"} {
		require.ErrorContains(t, err, want)
	}
	require.Panics(t, func() { throttle.Must(throttle.New(nil, nil)) })
}

func TestEachProblemIsReportedOnce(t *testing.T) {
	_, err := throttle.New(nil, slices.Repeat([]throttle.Option{nil, throttle.WithLimit(throttle.Pace(0, time.Second, throttle.Name("x")))}, 20)...)
	require.EqualError(t, err, `throttle: an Option is nil
throttle: WithLimit: two limits are named "x"
throttle: limit "x": n of 0 is not positive`)
	_, err = throttle.New(nil, throttle.WithFailFast(), throttle.WithMaxWait(time.Second))
	require.EqualError(t, err, "throttle: WithFailFast and WithMaxWait exclude each other")
	_, err = throttle.New((*http.Transport)(nil))
	require.EqualError(t, err, "throttle: New: the base is a nil *http.Transport; nil itself stands for http.DefaultTransport")
	_, err = throttle.New(nil, throttle.WithServerHints(), throttle.WithoutServerHints())
	require.EqualError(t, err, "throttle: WithServerHints and WithoutServerHints exclude each other")
}

func TestLimitsWithoutNameAreCalledByTheirKind(t *testing.T) {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.TokenBucket(1, time.Second), throttle.TokenBucket(1, time.Second), throttle.TokenBucket(1, time.Second, throttle.Name("bucket-2")),
		throttle.Pace(1, time.Second), throttle.SlidingWindow(1, time.Second), throttle.FixedWindow(1, time.Second)))
	require.NoError(t, err)
	var names []string
	for b := range limiter.Buckets() {
		names = append(names, b.Limit)
	}
	require.Equal(t, "bucket bucket-3 bucket-2 pace sliding-window fixed-window", strings.Join(names, " "))
}

func TestChangesOfWhatThereIsNotAreErrors(t *testing.T) {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(5, time.Second), throttle.FixedWindow(5, time.Second, throttle.Fraction(0.5))))
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
			throttle.TokenBucket(math.MaxInt64, math.MaxInt64, throttle.Burst(math.MaxInt64), throttle.Fraction(1e-9)),
			throttle.Pace(1, math.MaxInt64, throttle.Name("pace"))))
		require.NoError(t, err)
		_, err = limiter.Acquire(t.Context(), throttle.Ask{Cost: math.MaxInt64, Costs: map[string]int64{"pace": 0}})
		require.ErrorIs(t, err, throttle.ErrThrottled)
		_, ok := limiter.Try(throttle.Ask{})
		require.True(t, ok)
		wait, ok := limiter.Try(throttle.Ask{})
		require.False(t, ok)
		require.Greater(t, wait, 100*365*24*time.Hour)
		limiter.Hold("", math.MaxInt64)
		wait, ok = limiter.Try(throttle.Ask{Cost: math.MaxInt64})
		require.False(t, ok)
		require.Positive(t, wait)
	})
}

func tokensLeft(t *testing.T, l *throttle.Limiter, limit string) float64 {
	t.Helper()
	n, ok := tokensOf(l, limit, "")
	require.True(t, ok)
	return n
}

// A forgotten Cost is not free: Costs says that of a limit, and a context of all.
func TestAnAskWithoutCostCostsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithLimit(
			throttle.TokenBucket(10, time.Hour, throttle.Name("rpm")), throttle.TokenBucket(100, time.Hour, throttle.Name("tpm")), throttle.InFlight(5)))
		require.NoError(t, err)
		for _, c := range []struct {
			ask      throttle.Ask
			rpm, tpm float64
			slots    int
		}{
			{throttle.Ask{}, 9, 99, 1},
			{throttle.Ask{Costs: map[string]int64{"tpm": 50}}, 9, 50, 1},
			{throttle.Ask{Costs: map[string]int64{"tpm": 0}}, 9, 100, 1},
			{throttle.Ask{Cost: 3, Costs: map[string]int64{"rpm": 0, "in-flight": 0}}, 10, 97, 0},
		} {
			g, err := l.Acquire(t.Context(), c.ask)
			require.NoError(t, err)
			assert.Equal(t, []float64{c.rpm, c.tpm}, []float64{tokensLeft(t, l, "rpm"), tokensLeft(t, l, "tpm")}, c.ask)
			assert.Equal(t, c.slots, inFlight(l))
			g.Cancel()
		}
		_, err = l.Acquire(t.Context(), throttle.Ask{Cost: -1})
		assert.ErrorContains(t, err, "cost -1 is negative")

		free, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(10, time.Hour, throttle.Name("rpm"))))
		require.NoError(t, err)
		require.NoError(t, free.Wait(t.Context(), throttle.Ask{Costs: map[string]int64{"rpm": 0}}))
		_, ok := free.Try(throttle.Ask{Costs: map[string]int64{"rpm": 0}})
		require.True(t, ok)
		require.NoError(t, free.Wait(throttle.ContextWithCost(t.Context(), 0), throttle.Ask{Cost: 5}))
		assert.EqualValues(t, 10, tokensLeft(t, free, "rpm"))
	})
}

// The Ask or the context come before the Transport, and that before the Limiter.
func TestMaxWaitOfALimiterIsTheDefaultOfAllThatUseIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithMaxWait(time.Minute), throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0))))
		require.NoError(t, err)
		patience := func(err error) time.Duration {
			var r *throttle.Rejection
			require.ErrorAs(t, err, &r)
			return r.MaxWait
		}
		through := func(opts ...throttle.Option) func(*http.Request) time.Duration {
			tr, err := throttle.New(nil, append(opts, throttle.WithLimiter(l), throttle.WithRejectionError())...)
			require.NoError(t, err)
			return func(req *http.Request) time.Duration { _, err := tr.RoundTrip(req); return patience(err) }
		}
		ctx := throttle.ContextWithMaxWait(t.Context(), 3*time.Second)
		_, err = l.Acquire(t.Context(), throttle.Ask{})
		assert.Equal(t, time.Minute, patience(err))
		_, err = l.Acquire(ctx, throttle.Ask{MaxWait: ptr(2 * time.Second)})
		assert.Equal(t, 3*time.Second, patience(err), "the context comes before the Ask")
		assert.Equal(t, time.Minute, patience(l.Wait(t.Context(), throttle.Ask{})))
		assert.Equal(t, 3*time.Second, patience(l.Wait(ctx, throttle.Ask{})))
		assert.Equal(t, time.Minute, through()(get(t, t.Context(), api)))
		assert.Equal(t, 5*time.Second, through(throttle.WithMaxWait(5*time.Second))(get(t, t.Context(), api)))
		assert.Equal(t, 3*time.Second, through(throttle.WithMaxWait(5*time.Second))(get(t, ctx, api)))
		assert.Zero(t, through(throttle.WithFailFast())(get(t, t.Context(), api)))
		_, err = throttle.NewLimiter(throttle.WithMaxWait(-1))
		assert.ErrorContains(t, err, "WithMaxWait(-1ns) is negative")
	})
}

func TestErrorsListTheNamesThereAre(t *testing.T) {
	l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Name("rpm")), throttle.TokenBucket(1, time.Second, throttle.Name("tpm"))))
	require.NoError(t, err)
	const have = `there is no limit named "x"; the limits are "rpm", "tpm"`
	assert.EqualError(t, l.SetRate("x", 1, 1), `throttle: SetRate: `+have)
	assert.EqualError(t, l.SetBurst("x", 1), `throttle: SetBurst: `+have)
	g, err := l.Acquire(t.Context(), throttle.Ask{})
	require.NoError(t, err)
	assert.EqualError(t, g.Settle("x", 1), `throttle: Settle("x", 1): `+have)
	none, err := throttle.NewLimiter()
	require.NoError(t, err)
	assert.EqualError(t, none.SetRate("x", 1, 1), `throttle: SetRate: there is no limit named "x"; there are no limits`)
}

// Of several faults each has a line, which says where it comes from.
func TestEachLineOfAJoinedErrorHasItsPrefix(t *testing.T) {
	l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
	require.NoError(t, err)
	_, options := throttle.New(nil,
		throttle.WithLimit(throttle.TokenBucket(0, 0, throttle.Burst(0), throttle.Name("a")), throttle.Pace(0, 0, throttle.Name("b"))),
		throttle.WithWeights(map[string]int64{"/{x": 1, "GET /a": -2}), throttle.WithServerHints(headers.Preset("x"), headers.Preset("y")))
	_, ask := l.Acquire(t.Context(), throttle.Ask{Keys: map[string]string{"k": ""}, Costs: map[string]int64{"c": 1}})
	for prefix, err := range map[string]error{
		"throttle: ": options, "throttle: Ask.": ask, `throttle: SetRate("bucket", 0, 0s): `: l.SetRate("bucket", 0, 0),
		"throttle: Restore: ": l.Restore(snapshotOf(saved.State{Buckets: []saved.Bucket{{Limit: "x"}, {Limit: "y"}}})),
	} {
		lines := strings.Split(err.Error(), "\n")
		assert.Greater(t, len(lines), 1, err)
		for _, line := range lines {
			assert.True(t, strings.HasPrefix(line, prefix), line)
		}
	}
}

func TestAWrongRateForSaysHowToKeepTheRate(t *testing.T) {
	l, err := throttle.NewLimiter(throttle.WithLimit(throttle.Pace(1, time.Second, throttle.RateFor(func(string) (int64, time.Duration) { return 0, time.Second }))))
	require.NoError(t, err)
	assert.EqualError(t, l.Wait(t.Context(), throttle.Ask{Key: "a"}), `throttle: limit "pace": RateFor("a") = 0, 1s (0, 0 keeps the limit's rate): n of 0 is not positive`)
}

func TestZeroValuesSayHowToMakeThem(t *testing.T) {
	var l throttle.Limiter
	var tr throttle.Transport
	for name, use := range map[string]func(){
		"New":        func() { _, _ = tr.RoundTrip(get(t, t.Context(), api)) },
		"New ":       func() { tr.Stats() },
		"New  ":      func() { tr.Limiter() },
		"NewLimiter": func() { _ = l.Wait(t.Context(), throttle.Ask{}) }, "NewLimiter ": func() { l.Try(throttle.Ask{}) }, "NewLimiter  ": func() { l.Hold("", 1) },
		"NewLimiter   ": func() { _, _ = l.Acquire(t.Context(), throttle.Ask{}) }, "NewLimiter    ": func() { l.Buckets() }, "NewLimiter     ": func() { l.Stats() },
	} {
		func() {
			defer func() { assert.Contains(t, fmt.Sprint(recover()), "make it with "+strings.TrimSpace(name)) }()
			use()
		}()
	}
}

func TestStatisticsAreReadByPeopleAndMachines(t *testing.T) {
	s := throttle.Stats{
		Waiting: 1, Buckets: 2, Granted: 30, Delayed: 4, Waited: 1500*time.Millisecond + 1, Canceled: 6, Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonNoTokens: 2, throttle.ReasonHeld: 5},
	}
	assert.Equal(t, "granted 30 (4 waited, 375ms on average), rejected 7 (no tokens 2, held 5), canceled 6; 1 waiting now", fmt.Sprint(s))
	assert.Equal(t, "granted 0, rejected 0, canceled 0, exempt 3; 0 waiting now", throttle.Stats{Exempt: 3}.String())
	text, err := json.Marshal(s)
	require.NoError(t, err)
	assert.JSONEq(t, `{"waiting":1,"buckets":2,"granted":30,"delayed":4,"waited":1.500000001,"canceled":6,
		"rejected":{"no_tokens":2,"max_wait":0,"deadline":0,"queue_full":0,"cost":0,"held":5,"keys":0,"store":0,"final":0,"shutdown":0},
		"server_refused":0,"max_queue":0,"max_keys":0}`, string(text))

	b := throttle.BucketStats{Limit: "rpm", Key: "a", Rate: 1.0 / 3, Tokens: -2.5, Waiting: 1, InFlight: 2, HeldUntil: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	assert.Equal(t, `rpm "a": -2.5 tokens, 20/min, 1 waiting, 2 in flight, held until 2026-01-02T03:04:05Z`, fmt.Sprint(b))
	assert.Equal(t, `rpm: 5 tokens`, throttle.BucketStats{Limit: "rpm", Tokens: 5}.String())
	end := time.Date(2026, 1, 2, 3, 0, 0, 0, time.FixedZone("CET", 3600))
	for want, b := range map[string]throttle.BucketStats{
		`daily: 8,000 of 8,000 per 24h, resets at 03:00 CET`:       {Limit: "daily", Capacity: 8000, Tokens: 8000, Rate: 8000.0 / 86400, Per: "24h", Reset: end},
		`daily: -1,234,567 of 8 per day, resets at 03:00 CET`:      {Limit: "daily", Capacity: 8, Tokens: -1234567, Per: "day", Reset: end},
		`m: 123 of 8 per month, resets at 2026-01-02 03:00 CET`:    {Limit: "m", Capacity: 8, Tokens: 123, Per: "month", Reset: end},
		`m: 123 of 8 per 48h, resets at 2026-01-02 03:00:01.5 CET`: {Limit: "m", Capacity: 8, Tokens: 123, Per: "48h", Reset: end.Add(1500 * time.Millisecond)},
		`s: 99 of 100 per 1m`: {Limit: "s", Capacity: 100, Tokens: 99, Rate: 1.6, Per: "1m"},
	} {
		assert.Equal(t, want, b.String())
	}
	text, err = json.Marshal(b)
	require.NoError(t, err)
	assert.JSONEq(t, `{"limit":"rpm","key":"a","rate":0.3333333333333333,"capacity":0,"tokens":-2.5,"wait":0,"waiting":1,"in_flight":2,"held_until":"2026-01-02T03:04:05Z"}`, string(text))

	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "stats", s, "bucket", b)
	for _, want := range []string{"stats.granted=30", "stats.rejected=7", "stats.waited=1.500000001s", "bucket.in_flight=2", "bucket.held_until=2026"} {
		assert.Contains(t, log.String(), want)
	}
}

func TestBucketsSayHowLongTheirWindowsAre(t *testing.T) {
	for want, limit := range map[string]throttle.Limit{
		"24h": throttle.FixedWindow(5, 24*time.Hour), "1m": throttle.SlidingWindow(5, time.Minute), "1h30m": throttle.SlidingWindow(5, 90*time.Minute),
		"1m1s": throttle.SlidingWindow(5, 61*time.Second), "500ms": throttle.FixedWindow(5, time.Second/2), "10s": throttle.FixedWindow(5, 10*time.Second),
		"day": throttle.CalendarWindow(5, throttle.CalendarDay, time.UTC), "": throttle.TokenBucket(5, time.Second),
	} {
		l, err := throttle.NewLimiter(throttle.WithLimit(limit))
		require.NoError(t, err)
		l.Try(throttle.Ask{Key: "k"})
		for b := range l.Buckets() {
			assert.Equal(t, want, b.Per, b)
		}
	}
}

func TestCostAboveTheBoundNamesTheBound(t *testing.T) {
	for want, limit := range map[string]throttle.Limit{
		`throttle: limit "x": cost 6 exceeds the burst of 5`:           throttle.TokenBucket(1, time.Second, throttle.Burst(5), throttle.Name("x")),
		`throttle: limit "x": cost 6 exceeds the 5 tokens of a window`: throttle.SlidingWindow(5, time.Second, throttle.Name("x")),
		`throttle: limit "x": cost 6 exceeds the 2 tokens of a window`: throttle.FixedWindow(5, time.Second, throttle.Name("x"), throttle.Fraction(0.5)),
	} {
		for _, opts := range [][]throttle.Option{nil, {throttle.WithMaxWait(0)}} {
			l, err := throttle.NewLimiter(append(opts, throttle.WithLimit(limit))...)
			require.NoError(t, err)
			require.EqualError(t, l.Wait(t.Context(), throttle.Ask{Cost: 6}), want)
		}
	}
}

func TestEveryReasonHasALabel(t *testing.T) {
	for r := throttle.ReasonNoTokens; r <= throttle.ReasonKeys; r++ {
		assert.Regexp(t, "^[a-z_]+$", r.Label(), r)
	}
	assert.Empty(t, throttle.Reason(0).Label())
	assert.Empty(t, throttle.Reason(200).Label())
}

// Wait, Try and Acquire take one kind of argument, and context values hold for each that has a context.
func TestAskAndContextHoldForEveryMethod(t *testing.T) {
	tokens := func(l *throttle.Limiter) string {
		return fmt.Sprint(tokensLeft(t, l, "a"), " ", tokensLeft(t, l, "b"))
	}
	limits := throttle.WithLimit(throttle.TokenBucket(10, time.Hour, throttle.Name("a")), throttle.TokenBucket(10, time.Hour, throttle.Name("b")))
	for name, take := range map[string]func(*throttle.Limiter, context.Context, throttle.Ask) error{
		"Wait": func(l *throttle.Limiter, ctx context.Context, ask throttle.Ask) error { return l.Wait(ctx, ask) },
		"Acquire": func(l *throttle.Limiter, ctx context.Context, ask throttle.Ask) error {
			_, err := l.Acquire(ctx, ask)
			return err
		},
		"Try": func(l *throttle.Limiter, ctx context.Context, ask throttle.Ask) error {
			if wait, ok := l.Try(ask); !ok {
				return fmt.Errorf("there is no limit named so, or %v", wait)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := throttle.NewLimiter(limits)
				require.NoError(t, err)
				require.NoError(t, take(l, t.Context(), throttle.Ask{}))
				assert.Equal(t, "9 9", tokens(l), "one token")
				require.NoError(t, take(l, t.Context(), throttle.Ask{Cost: 2, Costs: map[string]int64{"b": 0}}))
				assert.Equal(t, "7 9", tokens(l))
				require.NoError(t, take(l, t.Context(), throttle.Ask{Cost: 2, Keys: map[string]string{"a": "other"}}))
				assert.Equal(t, "7 7", tokens(l))
				require.ErrorContains(t, take(l, t.Context(), throttle.Ask{Costs: map[string]int64{"c": 1}}), "there is no limit named")
				if name == "Try" {
					return
				}
				ctx := throttle.ContextWithCost(throttle.ContextWithCost(t.Context(), 3), 1, "b")
				require.NoError(t, take(l, ctx, throttle.Ask{Cost: 9}))
				assert.Equal(t, "4 6", tokens(l))
				require.NoError(t, take(l, throttle.ContextWithKey(t.Context(), "other"), throttle.Ask{Key: ""}))
				require.NoError(t, take(l, throttle.ContextWithExempt(t.Context()), throttle.Ask{Cost: 99}))
				assert.Equal(t, "4 6", tokens(l))
				ctx, receipt := throttle.ContextWithReceipt(t.Context())
				require.NoError(t, take(l, ctx, throttle.Ask{Cost: 4}))
				cost, ok := receipt.Cost("a")
				assert.True(t, ok)
				assert.EqualValues(t, 4, cost)
				ctx = throttle.ContextWithMaxWait(t.Context(), 0)
				assert.ErrorIs(t, take(l, ctx, throttle.Ask{Cost: 5}), throttle.ErrThrottled)
				assert.ErrorIs(t, take(l, t.Context(), throttle.Ask{Cost: 5, MaxWait: ptr(time.Duration(0))}), throttle.ErrThrottled)
			})
		})
	}
}
