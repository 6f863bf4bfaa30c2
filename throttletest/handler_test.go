package throttletest

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A caller sends requests to a Handler without a connection.
type caller struct {
	t *testing.T
	*Handler
}

func newCaller(t *testing.T, opts ...Option) caller {
	t.Helper()
	h, err := NewHandler(opts...)
	require.NoError(t, err)
	return caller{t, h}
}

// do sends a request with these pairs of names and values as header.
func (c caller) do(header ...string) *http.Response {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://api.test/", nil)
	require.NoError(c.t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Direct().RoundTrip(req)
	require.NoError(c.t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(c.t, err)
	require.NoError(c.t, resp.Body.Close())
	return resp
}

func (c caller) status(header ...string) int {
	c.t.Helper()
	return c.do(header...).StatusCode
}

// take sends n requests and says how many were accepted.
func (c caller) take(n int) (accepted int) {
	c.t.Helper()
	for range n {
		if c.status() == http.StatusOK {
			accepted++
		}
	}
	return accepted
}

func byHeader(name string) func(*http.Request) string {
	return func(r *http.Request) string { return r.Header.Get(name) }
}

func costHeader(name string) func(*http.Request) int64 {
	return func(r *http.Request) int64 {
		cost, _ := strconv.ParseInt(r.Header.Get(name), 10, 64)
		return cost
	}
}

// In a bubble the clock starts at midnight, so windows that are aligned to the epoch begin at 0.
func TestLimitsOpenAtTheirInstantAndNotBefore(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit Limit
		takes int           // what is accepted at once, after half a second
		opens time.Duration // after that
		then  int           // what is accepted then
	}{
		{"bucket", TokenBucket(4, time.Second, Burst(3)), 3, 250 * time.Millisecond, 1},
		{"bucket with remainders", TokenBucket(3, time.Second, Burst(1)), 1, 333_333_334, 1},
		{"fixed window", FixedWindow(5, time.Second), 5, 500 * time.Millisecond, 5},
		{"window from the first request", FixedWindow(5, time.Second, FromFirstRequest()), 5, time.Second, 5},
		{"sliding window", SlidingWindow(5, time.Second), 5, time.Second, 5},
		{"leaky bucket", LeakyBucket(4, time.Second, Burst(2)), 3, 250 * time.Millisecond, 1},
		{"leaky bucket without burst", LeakyBucket(4, time.Second), 1, 250 * time.Millisecond, 1},
		{"leaky bucket in ms", LeakyBucket(30, time.Second, Resolution(time.Millisecond)), 1, 34 * time.Millisecond, 1},
		{"window from the last whole second", FixedWindow(5, time.Minute, FromFirstRequest(), Resolution(time.Second)),
			5, time.Minute - 500*time.Millisecond, 5},
		{"window in seconds ends at one", FixedWindow(5, 1500*time.Millisecond, FromFirstRequest(), Resolution(time.Second)),
			5, 1500 * time.Millisecond, 5},
		{"sliding window in seconds", SlidingWindow(5, 2*time.Second, Resolution(time.Second)), 5, 1500 * time.Millisecond, 5},
		{"elastic window", FixedWindow(5, time.Second, Elastic()), 5, time.Second, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newCaller(t, WithLimits(c.limit))
				time.Sleep(500 * time.Millisecond)
				assert.Equal(t, c.takes, api.take(c.takes+3))
				time.Sleep(c.opens - 1)
				assert.Equal(t, 0, api.take(3), "1 ns before")
				time.Sleep(time.Nanosecond)
				assert.Equal(t, c.then, api.take(c.then+3), "at the instant")
			})
		})
	}
}

func TestRefusalsProlongAnElasticWindowIfTheyCount(t *testing.T) {
	for _, counted := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			opts := []LimitOption{Elastic()}
			if counted {
				opts = append(opts, CountRefused())
			}
			api := newCaller(t, WithLimits(FixedWindow(2, time.Second, opts...)))
			assert.Equal(t, 2, api.take(2))
			time.Sleep(time.Second - 1)
			assert.Equal(t, 429, api.status())
			time.Sleep(time.Nanosecond)
			if counted {
				assert.Equal(t, 429, api.status(), "the last refusal began the second again")
				time.Sleep(time.Second)
			}
			assert.Equal(t, 2, api.take(3))
		})
	}
}

func TestAcceptedRequestsProlongAnElasticWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(FixedWindow(3, time.Second, Elastic())))
		for range 3 {
			assert.Equal(t, 200, api.status())
			time.Sleep(900 * time.Millisecond)
		}
		assert.Equal(t, 429, api.status())
		time.Sleep(100 * time.Millisecond)
		assert.Equal(t, 200, api.status())
	})
}

func TestANewResolutionKeepsWhatWasCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(TokenBucket(10, time.Second, Name("rate"))))
		time.Sleep(999 * time.Millisecond)
		assert.Equal(t, 10, api.take(10))
		require.NoError(t, api.SetLimit("rate", TokenBucket(10, time.Second, Resolution(time.Second))))
		assert.Equal(t, 0, api.take(1), "a coarser clock does not run backwards")
		time.Sleep(time.Millisecond)
		assert.Equal(t, 0, api.take(1), "1 ms is no token")
		time.Sleep(time.Second)
		assert.Equal(t, 10, api.take(11))
	})
}

func TestInFlightCountsUntilTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(InFlight(2)), WithServiceTime(Constant(time.Second)))
		for range 2 {
			go api.do()
		}
		synctest.Wait()
		refused := api.do()
		assert.Equal(t, 429, refused.StatusCode)
		assert.Empty(t, refused.Header.Get("Retry-After"), "it is not known")
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, 200, api.status())
	})
}

func TestInFlightLimitsAreReleasedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithServiceTime(Constant(time.Second)),
			WithLimits(InFlight(10), InFlight(5, Name("points"), Cost(costHeader("Points")))))
		for range 3 {
			go api.do("Points", "2")
			synctest.Wait()
		}
		assert.Equal(t, map[string]int64{"inflight": 0, "points": 1}, api.Counts().RefusedBy)
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, 200, api.status("Points", "5"), "all is back")
		assert.Equal(t, 429, api.status("Points", "6"))
	})
}

func TestDelayKeepsThePace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(LeakyBucket(10, time.Second, Burst(4), Delay(2))))
		start := time.Now()
		took := make(chan time.Duration, 8)
		for range 8 {
			go func() {
				if api.status() == http.StatusOK {
					took <- time.Since(start)
				} else {
					took <- -1
				}
			}()
		}
		var got []time.Duration
		for range 8 {
			got = append(got, <-took)
		}
		// One at the pace and two that are free, then two held back; three beyond the burst are refused.
		assert.ElementsMatch(t, []time.Duration{0, 0, 0, 100 * time.Millisecond, 200 * time.Millisecond, -1, -1, -1}, got)
	})
}

func TestARequestIsChargedInAllLimitsOrInNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(
			TokenBucket(10, time.Hour, Name("wide")),
			SlidingWindow(2, time.Second, Name("narrow")),
			InFlight(1),
		))
		assert.Equal(t, 2, api.take(20), "the narrow window refuses the others")
		time.Sleep(time.Second)
		assert.Equal(t, 2, api.take(20))
		for range 3 {
			time.Sleep(time.Second)
			api.take(20)
		}
		// Eighty refusals cost the wide bucket nothing: ten accepted ones (and a little refill) have emptied it.
		assert.EqualValues(t, 10, api.Counts().Accepted)
		time.Sleep(time.Second)
		assert.Zero(t, api.take(1))
	})
}

func TestKeysHaveBudgetsOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithKey(byHeader("Tenant")), WithLimits(
			FixedWindow(2, time.Minute),
			FixedWindow(5, time.Hour, Name("all"), Key(func(*http.Request) string { return "everybody" })),
		))
		for range 2 {
			assert.Equal(t, 200, api.status("Tenant", "a"))
			assert.Equal(t, 200, api.status("Tenant", "b"))
		}
		assert.Equal(t, 429, api.status("Tenant", "a"))
		assert.Equal(t, 200, api.status("Tenant", "c"))
		assert.Equal(t, 429, api.status("Tenant", "c"), "the limit for all is used up")
		assert.Equal(t, map[string]int64{"window": 1, "all": 1}, api.Counts().RefusedBy)
	})
}

func TestCostsAreChargedWhereTheyApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithCost(costHeader("Points")), WithLimits(
			FixedWindow(10, time.Minute, Name("points")),
			FixedWindow(3, time.Minute, Name("calls"), Cost(func(*http.Request) int64 { return 1 })),
		))
		assert.Equal(t, 200, api.status("Points", "7"))
		assert.Equal(t, 429, api.status("Points", "4"))
		assert.Equal(t, 200, api.status("Points", "3"))
		assert.Equal(t, 200, api.status("Points", "0"), "costs no points")
		assert.Equal(t, 429, api.status("Points", "0"), "but is a call")
		time.Sleep(time.Minute)
		never := api.do("Points", "11")
		assert.Equal(t, 429, never.StatusCode)
		assert.Empty(t, never.Header.Get("Retry-After"), "it can never be paid")
		assert.Equal(t, 429, api.status("Points", strconv.FormatInt(math.MaxInt64, 10)))
		most, err := api.MaxAccepted("points", time.Minute)
		require.NoError(t, err)
		assert.EqualValues(t, 10, most)
	})
}

func TestCountRefusedRejectsAClientThatKeepsAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(SlidingWindow(5, 10*time.Second, CountRefused())))
		assert.Equal(t, 5, api.take(6))
		for range 100 {
			time.Sleep(time.Second)
			assert.Zero(t, api.take(1))
		}
		wait, err := strconv.Atoi(api.do().Header.Get("Retry-After"))
		require.NoError(t, err)
		assert.Equal(t, 7, wait, "then four count: the two of now, and those of the last two seconds")
		time.Sleep(time.Duration(wait) * time.Second)
		assert.Equal(t, 1, api.take(1), "a client that heeds Retry-After is let in")
	})
}

func TestCountRefusedCountsWhatAnotherLimitRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(
			FixedWindow(1, time.Second),
			FixedWindow(5, time.Minute, Name("minute"), CountRefused()),
		))
		assert.Equal(t, 1, api.take(5))
		time.Sleep(time.Second)
		assert.Zero(t, api.take(1))
		assert.EqualValues(t, 1, api.Counts().RefusedBy["minute"])
	})
}

func TestBans(t *testing.T) {
	for _, c := range []struct {
		name string
		ban  LimitOption
		open bool // 10 s after the first refusal, with another at 6 s
	}{
		{"a ban ends by itself", Ban(10 * time.Second), true},
		{"a ban until quiet begins again", BanUntilQuiet(10 * time.Second), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newCaller(t, WithKey(byHeader("Tenant")), WithLimits(FixedWindow(2, time.Second, c.ban)), WithFields(XDelta))
				assert.Equal(t, 2, api.take(2))
				refused := api.do()
				assert.Equal(t, "10", refused.Header.Get("Retry-After"))
				assert.Equal(t, "0", refused.Header.Get("X-RateLimit-Remaining"))
				assert.Equal(t, 200, api.status("Tenant", "another"))
				time.Sleep(6 * time.Second)
				assert.Zero(t, api.take(1))
				time.Sleep(4*time.Second - 1)
				if c.open {
					assert.Zero(t, api.take(1))
				}
				time.Sleep(time.Nanosecond)
				assert.Equal(t, c.open, api.take(1) == 1)
				time.Sleep(10*time.Second - 1)
				if !c.open {
					time.Sleep(time.Nanosecond)
					assert.Equal(t, 1, api.take(1), "quiet for ten seconds")
				}
			})
		})
	}
}

func TestLimitsChangeWhileItServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(TokenBucket(100, time.Second, Burst(20), Name("rate")), InFlight(5)))
		assert.Equal(t, 20, api.take(30))
		require.NoError(t, api.SetRate("rate", 10, time.Second))
		time.Sleep(time.Second)
		assert.Equal(t, 10, api.take(30), "the new rate")
		time.Sleep(time.Minute)
		assert.Equal(t, 20, api.take(30), "the old burst")
		require.NoError(t, api.SetLimit("rate", FixedWindow(3, time.Second, Status(503))))
		assert.Equal(t, 3, api.take(4), "another kind begins again")
		assert.Equal(t, 503, api.status())

		assert.ErrorContains(t, api.SetRate("rat", 1, time.Second), `there is no limit named "rat"`)
		assert.ErrorContains(t, api.SetRate("rate", 0, time.Second), `n = 0 must be at least 1`)
		assert.ErrorContains(t, api.SetRate("inflight", 1, time.Second), "use SetLimit")
		assert.ErrorContains(t, api.SetLimit("rate", InFlight(1, Name("other"))), "another name")
		assert.ErrorContains(t, api.SetLimit("rate", Limit{}), "use a constructor")
		require.NoError(t, api.SetLimit("inflight", InFlight(6)))
	})
}

func TestWithoutLimitsEverythingIsAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t)
		assert.Equal(t, 100, api.take(100))
	})
}

func TestHandlerAnswersWhatIsAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(FixedWindow(1, time.Second)), WithHandler(http.HandlerFunc(
			func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusAccepted) })))
		assert.Equal(t, 202, api.status())
		assert.Equal(t, 429, api.status())
	})
}

func TestBadOptionsAreAllReported(t *testing.T) {
	_, err := NewHandler(
		nil,
		WithLimits(
			TokenBucket(0, -time.Second, Burst(0), Name("a")),
			FixedWindow(1, time.Second, Burst(3), Key(nil), nil),
			SlidingWindow(1, 200*365*24*time.Hour, FromFirstRequest(), Ban(0), Elastic(), Resolution(0)),
			SlidingWindow(1, time.Second, Resolution(2*time.Second)),
			InFlight(-1, CountRefused(), Cost(nil), Resolution(time.Second)),
			LeakyBucket(1, time.Second, Burst(-1), Delay(-1), Status(99)),
			TokenBucket(1, 24*time.Hour, Burst(math.MaxInt64/2)),
			TokenBucket(1, time.Second, Name("a\n"), Delay(1), Ban(1), BanUntilQuiet(1)),
			FixedWindow(1, time.Second, Name("twice")), FixedWindow(1, time.Second, Name("twice")),
			Limit{},
		),
		WithKey(nil), WithCost(nil), WithHandler(nil), WithRefusal(nil),
		WithStatus(600), WithRetryAfter(9), WithFields(0, XEpoch, XDelta, Draft, Draft7),
		WithRounding(2), WithLateResets(-1),
		WithRoundTrip(10, 6), WithServiceTime(LogNormal(0, 1)), WithRefusalTime(Latency{}), WithWorkers(0, 0),
		WithFaults(Fault{}, Outage(0), Hang().Between(2, 1), Abort().Chance(2), CutBody(-1), SlowBody(0, 0),
			Respond(0, nil), Hang().Every(0), Hang().Matching(nil), Hang().Every(-7).Chance(-7)),
		WithRecording(-1), WithInMemory(),
	)
	require.Error(t, err)
	for _, want := range []string{
		"Option 1 is nil",
		`TokenBucket "a": n = 0`, `TokenBucket "a": period = -1s`, "Burst(0) is too small",
		"FixedWindow: Burst(3) does not apply", "Key(nil)", "LimitOption 3 is nil",
		"is longer than", "FromFirstRequest() applies", "Ban(0s)",
		"InFlight: n = -1", "CountRefused() does not", "Cost(nil)",
		"LeakyBucket: Burst(-1)", "Delay(-1)", "Status(99)",
		"is too large for exact arithmetic",
		`Name("a\n")`, "Delay(1)", "BanUntilQuiet(1ns) is its second ban",
		`two limits named "twice"`, "Limit{} is empty",
		"WithKey(nil)", "WithCost(nil)", "WithHandler(nil)", "WithRefusal(nil)",
		"WithStatus(600)", "WithRetryAfter(9)", "WithFields(0)", "XEpoch and XDelta use the same names", "Draft, Draft6 and Draft7 use the same names",
		"WithRounding(2)", "WithLateResets(-1ns)", "Elastic() applies", "Resolution(2s) must be no longer", "Resolution(0s) must be",
		"Resolution(1s) does not apply",
		"WithRoundTrip(10ns, 6ns)", "LogNormal(0s, 1)", "WithRefusalTime(Latency{})", "WithWorkers(0, 0)",
		"Fault{} is empty", "Outage(0)", "Between(2ns, 1ns)", "Chance(2)", "CutBody(-1)", "SlowBody(0, 0s)",
		"Respond(0)", "Every(0)", "Matching(nil)", "WithFaults: Every(-7)", "WithFaults: Chance(-7)",
		"WithRecording(-1)", "are for a Server",
	} {
		assert.ErrorContains(t, err, want)
	}
}

func TestLimitsAreNamedByTheirKind(t *testing.T) {
	h, err := NewHandler(WithLimits(TokenBucket(1, 1), TokenBucket(2, 1, Name("bucket-2")), TokenBucket(3, 1), InFlight(1),
		FixedWindow(1, 1), SlidingWindow(1, 1), LeakyBucket(1, 1)))
	require.NoError(t, err)
	var names []string
	for _, r := range h.rules {
		names = append(names, r.spec.name)
	}
	assert.Equal(t, "[bucket bucket-2 bucket-3 inflight window sliding leaky]", fmt.Sprint(names))
}

func TestOneLimitServesSeveralServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := []Option{WithLimits(FixedWindow(2, time.Second)), WithWorkers(1, 0)}
		a, b := newCaller(t, opts...), newCaller(t, opts...)
		assert.Equal(t, 2, a.take(3))
		assert.Equal(t, 2, b.take(3))
	})
}
