package throttle

import (
	"errors"
	"math"
	"math/big"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

// reserve lets a token bucket of the model keep something back, now and then.
func (x *modelRun) reserve(limit Limit) Limit {
	if limit.kind != kindBucket || limit.rule.Clamps || x.burst == 1 || x.r.IntN(2) == 0 {
		return limit
	}
	part, plain := float64(1+x.r.Int64N(x.burst-1))/float64(x.burst), limit
	limit.rule.Reserve, limit.rule.Urgent = part, 1
	if limit.checkReserve() != nil { // the burst of keys without a rate of their own is too small
		return plain
	}
	x.m.part = part
	return limit
}

// reserved returns how many tokens must remain once w is granted.
func (m *model) reserved(w *modelWaiter) int64 {
	if !w.bounds.Below || m.part == 0 {
		return 0
	}
	burst, _ := m.ideal.(*metertest.Bucket).Burst.Float64()
	return int64(min(math.Ceil(burst*m.part-1e-9), burst-1))
}

// precedes reports whether w, which has just come, goes before a request in line.
func (m *model) precedes(w, other *modelWaiter) bool {
	if w.bounds.Below != other.bounds.Below {
		return other.bounds.Below
	}
	return w.bounds.Tag < other.bounds.Tag || w.bounds.Tag == other.bounds.Tag && w.bounds.Rank < other.bounds.Rank
}

func TestReserveIsALevelOfATokenBucket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, WithLimit(TokenBucket(10, time.Second, Reserve(.3, 1))))
		low := sendMany(t, l, 10, Ask{})
		for _, r := range low[:7] {
			requireGranted(t, r, 0)
		}
		high := sendMany(t, l, 3, Ask{Priority: 1})
		for _, r := range high { // what is kept back is theirs, although others wait
			requireGranted(t, r, 0)
		}
		for i, r := range low[7:] { // three of ten tokens must remain
			at := time.Duration(i+4) * time.Second / 10
			sleep(at - time.Since(l.core.Start) - 1)
			require.False(t, r.done)
			sleep(1)
			requireGranted(t, r, at)
		}
		for i, r := range sendMany(t, l, 20, Ask{}) { // and without urgent requests the others have the whole rate
			sleep(time.Second / 10)
			requireGranted(t, r, time.Duration(i+7)*time.Second/10)
		}
		checkInvariants(t, l)
	})
}

func TestWaitingUrgentRequestsGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, WithLimit(TokenBucket(1, time.Second, Burst(5), Initial(0), Reserve(.4, 2))))
		low := send(t, l, Ask{Priority: 1})
		sleep(30 * time.Second / 1000)
		high, higher := send(t, l, Ask{Priority: 2}), send(t, l, Ask{Priority: 3})
		sleep(time.Minute)
		requireGranted(t, higher, time.Second)
		requireGranted(t, high, 2*time.Second)
		requireGranted(t, low, 5*time.Second)
	})
}

func TestReserveHoldsInEveryKindOfLimit(t *testing.T) {
	for name, limit := range map[string]Limit{
		"bucket":   TokenBucket(10, time.Hour, Reserve(.25, 1)),
		"sliding":  SlidingWindow(10, time.Hour, Reserve(.25, 1)),
		"fixed":    FixedWindow(10, time.Hour, Reserve(.25, 1)),
		"calendar": CalendarWindow(10, Day, time.UTC, Reserve(.25, 1)),
		"slots":    InFlight(10, Reserve(.25, 1)),
		"adaptive": Adaptive(AIMD{Initial: 200}, Reserve(.25, 1)), // burst 10, 20 in flight
	} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, WithLimit(limit))
			granted := func(priority int) (n int) {
				for ; ; n++ {
					if r := send(t, l, Ask{Priority: priority, MaxWait: new(time.Duration(0))}); r.err != nil {
						return n
					}
				}
			}
			require.Equal(t, 7, granted(0), "the part that remains is rounded up")
			require.Zero(t, granted(-1))
			require.Equal(t, 3, granted(1))
			require.Zero(t, granted(1))
			checkInvariants(t, l)
		})
	}
}

func TestSlotsKeptBackAreFreeForUrgentRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, WithLimit(InFlight(3, Reserve(.3, 1))))
		low := sendMany(t, l, 4, Ask{})
		require.Equal(t, []bool{true, true, false, false}, []bool{low[0].done, low[1].done, low[2].done, low[3].done})
		high := sendMany(t, l, 2, Ask{Priority: 1})
		requireGranted(t, high[0], 0)
		low[0].grant.Done()
		synctest.Wait()
		requireGranted(t, high[1], 0)
		high[0].grant.Done()
		synctest.Wait()
		require.False(t, low[2].done, "one slot must remain")
		high[1].grant.Done()
		synctest.Wait()
		requireGranted(t, low[2], 0)
		require.False(t, low[3].done)
	})
}

func TestAdaptiveKeepsAPartOfWhatMayBeInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, WithLimit(Adaptive(AIMD{Initial: 1000}, Reserve(.25, 1)))) // burst 50
		b := l.core.Limits[0].Single
		bound := 0
		for ; bound < 1000; bound++ {
			if r := send(t, l, Ask{Priority: 1, MaxWait: new(time.Duration(0))}); r.err != nil {
				break
			}
			sleep(5 * time.Millisecond)
			if b.Leaves(1, meter.Instant(time.Since(l.core.Start))) {
				continue
			}
			break
		}
		require.Positive(t, bound)
		requireRefused(t, send(t, l, Ask{MaxWait: new(time.Duration(0))}), time.Since(l.core.Start), ReasonNoTokens)
		g := send(t, l, Ask{Priority: 1, MaxWait: new(time.Duration(0))})
		require.NoError(t, g.err, "what is kept back is for urgent requests")
	})
}

func TestCostAboveWhatAReserveLeavesIsRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []Limit{TokenBucket(10, time.Second, Reserve(.25, 1)), SlidingWindow(10, time.Second, Reserve(.25, 1)),
			FixedWindow(10, time.Second, Reserve(.25, 1)), InFlight(10, Reserve(.25, 1))} {
			l := limiterOf(t, WithLimit(limit))
			costs := map[string]int64{string(limit.kind): 8}
			requireRefused(t, send(t, l, Ask{Costs: costs}), 0, ReasonCost)
			requireGranted(t, send(t, l, Ask{Costs: costs, Priority: 1}), 0)
		}
		l := limiterOf(t, WithLimit(TokenBucket(10, time.Second, Reserve(.25, 1), ClampCost())))
		requireGranted(t, send(t, l, Ask{Cost: 100}), 0)
		wait, ok := l.Try("", 100)
		require.False(t, ok)
		require.Equal(t, 700*time.Millisecond, wait)
	})
}

// TestPlansOfWindowsWithAReserve compares what a window says of a wait with what comes.
func TestPlansOfWindowsWithAReserve(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			r := metertest.Seeded(t, seed)
			n := 2 + r.Int64N(9)
			limit := []Limit{SlidingWindow(n, time.Second), FixedWindow(n, time.Second)}[r.IntN(2)]
			limit.rule.Reserve, limit.rule.Urgent = float64(1+r.Int64N(n-1))/float64(n), 1
			l := limiterOf(t, WithLimit(limit))
			type planned struct {
				*request
				at time.Duration
			}
			var all []planned
			for range 40 {
				wait, _ := l.Try("", 1)
				now := time.Since(l.core.Start)
				if wait > 0 {
					all = append(all, planned{send(t, l, Ask{}), now + wait})
				}
				if r.IntN(4) == 0 {
					sleep(time.Duration(r.Int64N(int64(time.Second / 3))))
				}
			}
			sleep(time.Minute)
			for _, p := range all {
				requireGranted(t, p.request, p.at)
			}
		})
	}
}

func TestReserveIsKeptOfAServersQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := 10
		tr, err := New(rt(func(*http.Request) (*http.Response, error) {
			left--
			return reply(200, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", strconv.Itoa(left), "X-RateLimit-Reset", "3600")
		}), WithFailFast(), WithRejectionError(), WithLimit(InFlight(100, Reserve(.3, 1))))
		require.NoError(t, err)
		granted := func(priority int) (n int) {
			for ; ; n++ {
				if _, err := tr.RoundTrip(get(ContextWithPriority(t.Context(), priority), "http://a.com/")); err != nil {
					return n
				}
			}
		}
		require.Equal(t, 7, granted(0))
		require.Equal(t, 3, granted(1))
		require.Zero(t, left)
	})
}

// TestReserveOverSeveralLimits has urgent requests and others wait for two buckets, one of them with a reserve.
func TestReserveOverSeveralLimits(t *testing.T) {
	for seed := range seeds(6) {
		synctest.Test(t, func(t *testing.T) {
			r := metertest.Seeded(t, seed)
			l := limiterOf(t, WithLimit(TokenBucket(20, time.Second, Burst(10), Name("a"), Reserve(.3, 1)), TokenBucket(15, time.Second, Burst(10), Name("b"))))
			var all []*request
			for range 400 {
				costs := map[string]int64{"a": r.Int64N(8), "b": r.Int64N(8)}
				all = append(all, send(t, l, Ask{Costs: costs, Priority: r.IntN(3) - 1}))
				if r.IntN(3) == 0 {
					sleep(time.Duration(r.Int64N(int64(2 * time.Second))))
				}
				switch r.IntN(20) {
				case 0:
					l.Hold("", time.Duration(r.Int64N(int64(12*time.Second))))
				case 1:
					all[r.IntN(len(all))].cancel(nil)
				}
				synctest.Wait()
				checkInvariants(t, l)
				for b := range l.Buckets() {
					require.GreaterOrEqual(t, b.Tokens, 0.0)
				}
			}
			sleep(time.Hour)
			for i, r := range all {
				require.True(t, r.done, "request %d waits forever", i)
			}
			require.Empty(t, l.core.Lines)
		})
	}
}

func TestReserveThatCannotHoldIsAnError(t *testing.T) {
	for text, limits := range map[string][]Limit{
		`does not fit a limit of kind pace, which has no burst to keep back`: {Pace(1, time.Second, Reserve(.5, 1))},
		`Reserve(0, 1): the fraction is not above 0 and below 1`:             {TokenBucket(9, time.Second, Reserve(0, 1))},
		`Reserve(1, 1): the fraction is not above 0 and below 1`:             {TokenBucket(9, time.Second, Reserve(1, 1))},
		`Reserve(NaN, 1): the fraction is not above 0 and below 1`:           {TokenBucket(9, time.Second, Reserve(math.NaN(), 1))},
		`Reserve(0.5, 1) of 1 leaves no token to other requests`:             {InFlight(1, Reserve(.5, 1))},
		`Reserve(0.6, 1) of 2 leaves no token to other requests`:             {SlidingWindow(4, time.Second, Share(.5), Reserve(.6, 1))},
		`Reserve(0.5, 1) does not work with Shared`:                          {TokenBucket(9, time.Second, Reserve(.5, 1), Shared(NewMemoryStore()))},
		`Reserve for priority 1 in limit "a" and for 2 in limit "b": a Limiter has one queue for urgent requests`: {
			TokenBucket(9, time.Second, Name("a"), Reserve(.5, 1)), InFlight(9, Name("b"), Reserve(.5, 2))},
	} {
		_, err := NewLimiter(WithLimit(limits...))
		require.ErrorContains(t, err, text)
	}
}

func TestReservedIsRoundedUpAndLeavesOne(t *testing.T) {
	for _, c := range []struct {
		capacity int64
		part     float64
		want     int64
	}{{10, .25, 3}, {10, .3, 3}, {30, .1, 3}, {1, .5, 0}, {2, .9, 1}, {100, .29, 29}, {0, .5, 0}} {
		require.Equal(t, c.want, meter.Reserved(c.capacity, c.part), "%+v", c)
	}
	huge := new(big.Int).Div(big.NewInt(meter.MaxCount), big.NewInt(2)).Int64()
	require.InEpsilon(t, huge, meter.Reserved(meter.MaxCount, .5), 1e-9)
}

func TestTryOfThePriorityThatAReserveIsForIsUrgent(t *testing.T) {
	l := limiterOf(t, WithLimit(TokenBucket(10, time.Hour, Reserve(.5, 0))))
	for _, key := range []string{"", "new"} {
		_, ok := l.Try(key, 10)
		require.True(t, ok)
	}
}

// A request for a new key takes a way of its own, because the rate of the key must be asked for first.
func TestARequestOfTheUrgentPriorityWithANewKeyIsUrgent(t *testing.T) {
	l := limiterOf(t, WithLimit(TokenBucket(10, time.Hour, Reserve(.5, 1), RateFor(func(string) (int64, time.Duration) { return 10, time.Hour }))))
	_, err := l.Acquire(t.Context(), Ask{Key: "k", Cost: 10, Priority: 1, MaxWait: new(time.Duration(0))})
	require.NoError(t, err)
}

func TestARejectionTellsAnUrgentRequestItsOwnWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(10, Burst(10), Reserve(.5, 1)))
		for priority, wait := range []time.Duration{600 * ms, 100 * ms} {
			r := requireRefused(t, send(t, l, Ask{Priority: priority, MaxWait: new(time.Duration(0))}), 0, ReasonNoTokens)
			require.Equal(t, wait, r.Wait)
		}
	})
}

func TestAReserveIsKeptBesideALimitWithoutOne(t *testing.T) {
	for _, limits := range [][]Limit{{TokenBucket(10, time.Hour, Reserve(.5, 5)), Pace(10, 1)}, {Pace(10, 1), TokenBucket(10, time.Hour, Reserve(.5, 5))}} {
		l := limiterOf(t, WithLimit(limits...))
		for priority, reason := range map[int]Reason{4: ReasonCost, 5: 0} {
			_, err := l.Acquire(t.Context(), Ask{Costs: map[string]int64{"bucket": 6, "pace": 1}, Priority: priority, MaxWait: new(time.Duration(0))})
			rejection, _ := errors.AsType[*Rejection](err)
			require.Equal(t, reason != 0, rejection != nil && rejection.Reason == reason, "%v", err)
		}
	}
}

func TestWhereNothingIsReservedUrgentRequestsGoByRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, WithLimit(TokenBucket(100, time.Second, Reserve(.5, 1)), Pace(1, 100*time.Second)))
		sendMany(t, l, 1, Ask{})
		early := send(t, l, Ask{})
		sleep(20 * time.Second)
		urgent := send(t, l, Ask{Priority: 1}) // counts as having come 10 s earlier
		sleep(200 * time.Second)
		requireGranted(t, early, 100*time.Second)
		requireGranted(t, urgent, 200*time.Second)
	})
}
