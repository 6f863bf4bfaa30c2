package limiter_test

import (
	"fmt"
	"math"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

// drain takes all tokens that a key has in a limit of its own, and returns how many there were.
func drain(l *throttle.Limiter, key string) (n int) {
	for {
		if _, ok := l.Try(throttle.Ask{Key: key}); !ok {
			return n
		}
		n++
	}
}

func TestManyKeysAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 400_000
		if testing.Short() {
			n = 100_000
		}
		heap := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := heap()
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second)))
		for i := range n {
			if _, ok := l.Try(throttle.Ask{Key: strconv.Itoa(i)}); !ok {
				t.Fatal("a new key is not full")
			}
		}
		require.Equal(t, n, l.Stats().Buckets)
		sleep(10 * time.Second)
		require.Zero(t, l.Stats().Buckets)
		checkInvariants(t, l)
		used := int64(heap()) - int64(before)
		require.Less(t, used, int64(16<<20), "memory is kept for buckets that are not")
		require.Equal(t, 10, drain(l, "1"))
	})
}

// TestKeysAreForgottenWhileAnotherIsNot has one that stays for long, by a hold or by a slow limit.
func TestKeysAreForgottenWhileAnotherIsNot(t *testing.T) {
	for name, opt := range map[string]throttle.Option{
		"held": throttle.WithLimit(throttle.TokenBucket(10, time.Second)),
		"slow": throttle.WithLimit(throttle.TokenBucket(10, time.Second), throttle.TokenBucket(10, 24*time.Hour, throttle.Name("daily"))),
	} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, opt)
			if name == "held" {
				l.Hold("stays", 24*time.Hour)
			}
			_, err := l.Acquire(t.Context(), throttle.Ask{Key: "stays", Cost: 1, MaxWait: new(time.Duration(0))})
			require.Equal(t, name == "held", err != nil)
			sleep(3 * time.Second)
			for i := range 1000 {
				ask := throttle.Ask{Key: strconv.Itoa(i), Cost: 1}
				if name == "slow" {
					ask.Costs = map[string]int64{"daily": 0}
				}
				_, err := l.Acquire(t.Context(), ask)
				require.NoError(t, err)
			}
			sleep(10 * time.Second)
			require.LessOrEqual(t, coreOf(l).Limits[0].Keys(), 1)
		})
	}
}

func TestMaxKeysEvictsNoneThatIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.Pace(1, time.Second)), throttle.WithMaxKeys(4))
		l.Hold("held", 1000*time.Second)
		_, ok := l.Try(throttle.Ask{Key: "debt", Cost: 1000})
		require.True(t, ok)
		waits := send(t, l, throttle.Ask{Key: "held", Cost: 1})
		send(t, l, throttle.Ask{Key: "line", Cost: 900})
		line := send(t, l, throttle.Ask{Key: "line", Cost: 1})
		for i := range 100 {
			_, ok := l.Try(throttle.Ask{Key: strconv.Itoa(i), Cost: 2})
			require.Equal(t, i == 0, ok, "a fourth fits, and then has debt")
			require.LessOrEqual(t, l.Stats().Buckets, 4)
			checkInvariants(t, l)
		}
		full := requireRefused(t, send(t, l, throttle.Ask{Key: "fifth", Cost: 1}), 0, throttle.ReasonKeys)
		require.Equal(t, "fifth", full.Key)
		require.Equal(t, time.Second, full.Wait, "buckets are forgotten no more often")
		require.Equal(t, uint64(100), l.Stats().Rejected[throttle.ReasonKeys])
		sleep(2 * time.Second)
		require.True(t, send(t, l, throttle.Ask{Key: "fifth", Cost: 1}).grant != nil, "the fourth is full again")
		wait, _ := l.Try(throttle.Ask{Key: "debt"})
		require.Equal(t, 998*time.Second, wait)
		sleep(time.Hour)
		requireGranted(t, waits, 1000*time.Second)
		requireGranted(t, line, 900*time.Second)
		sleep(time.Hour)
		require.Zero(t, l.Stats().Buckets)
	})
}

// Room for one key is not made by forgetting another that the same request falls under.
func TestMaxKeysEvictsNoneThatIsAboutToPay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithMaxKeys(1), throttle.WithLimit(throttle.TokenBucket(10, time.Hour, throttle.Name("first")), throttle.TokenBucket(10, time.Hour, throttle.Name("second"))))
		require.NotNil(t, send(t, l, throttle.Ask{Key: "k", Costs: map[string]int64{"first": 0, "second": 4}}).grant)
		requireRefused(t, send(t, l, throttle.Ask{Key: "k", Cost: 1}), 0, throttle.ReasonKeys)
		for b := range l.Buckets() {
			if b.Key == "k" {
				require.Equal(t, "second", b.Limit)
				require.Equal(t, 6.0, b.Tokens)
			}
		}
		require.Equal(t, 1, l.Stats().Buckets)
	})
}

func TestMaxKeysEvictsNoKeyWithALine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1), throttle.WithMaxKeys(3))
		var all []*request
		for _, key := range []string{"a", "b", "c"} {
			all = append(all, send(t, l, throttle.Ask{Key: key, Cost: 1}))
		}
		requireRefused(t, send(t, l, throttle.Ask{Key: "d", Cost: 1}), 0, throttle.ReasonKeys)
		checkInvariants(t, l)
		sleep(time.Second)
		for _, r := range all {
			requireGranted(t, r, time.Second)
		}
	})
}

// TestMaxKeysSparesTheRequestsOwnKeys would charge a bucket that was just forgotten.
func TestMaxKeysSparesTheRequestsOwnKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithMaxKeys(8),
			throttle.WithLimit(throttle.TokenBucket(10, time.Hour, throttle.Name("a")), throttle.TokenBucket(10, time.Hour, throttle.Name("b")), throttle.TokenBucket(10, time.Hour, throttle.Name("c"))))
		for i := range 20 {
			_, ok := l.Try(throttle.Ask{Key: strconv.Itoa(i), Cost: 5})
			require.True(t, ok)
			checkInvariants(t, l)
			require.LessOrEqual(t, l.Stats().Buckets, 8)
		}
		require.Equal(t, 10, drain(l, "x"))
		require.Equal(t, 0, drain(l, "x"))
	})
	l := limiterOf(t, throttle.WithMaxKeys(1), throttle.WithLimit(throttle.TokenBucket(10, time.Hour, throttle.Name("a")), throttle.TokenBucket(10, time.Hour, throttle.Name("b"))))
	_, ok := l.Try(throttle.Ask{Key: "x"})
	require.False(t, ok, "there is no room for both")
}

func TestRateForSetsTheRateOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(map[string]int)
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(2, time.Second, throttle.RateFor(func(key string) (int64, time.Duration) {
			asked[key]++
			switch key {
			case "gold":
				return 10, time.Second
			case "bad":
				return -1, time.Second
			case "worse":
				return 0, time.Second
			}
			return 0, 0
		}))))
		require.Equal(t, 10, drain(l, "gold"))
		require.Equal(t, 2, drain(l, "iron"))
		require.Equal(t, 2, drain(l, ""))
		require.Equal(t, map[string]int{"gold": 1, "iron": 1}, asked, "asked once for each key, and not for none")
		for _, key := range []string{"bad", "worse"} {
			require.ErrorContains(t, l.Wait(t.Context(), throttle.Ask{Key: key}), key)
			wait, ok := l.Try(throttle.Ask{Key: key})
			require.False(t, ok)
			require.Equal(t, time.Duration(math.MaxInt64), wait)
		}
		wait, _ := l.Try(throttle.Ask{Key: "gold"})
		require.Equal(t, 100*time.Millisecond, wait)
		require.NoError(t, l.SetRate("bucket", 4, time.Second))
		wait, _ = l.Try(throttle.Ask{Key: "gold"})
		require.Equal(t, 100*time.Millisecond, wait, "what RateFor said stays")
		wait, _ = l.Try(throttle.Ask{Key: "iron"})
		require.Equal(t, 250*time.Millisecond, wait)
		sleep(10 * time.Second)
		require.Zero(t, l.Stats().Buckets)
		require.Equal(t, 10, drain(l, "gold"))
		require.Equal(t, 2, asked["gold"], "asked again once the key was forgotten")
		require.Equal(t, 2, drain(l, "new"), "SetRate keeps the burst")
	})
}

func TestRateForKeepsTheBurst(t *testing.T) {
	l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Burst(3), throttle.RateFor(func(string) (int64, time.Duration) { return 7, time.Hour }))))
	require.Equal(t, 3, drain(l, "key"))
}

func TestNewKeysFollowASmallerBurst(t *testing.T) {
	l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Hour, throttle.Initial(5))))
	require.Equal(t, 5, drain(l, "before"))
	require.NoError(t, l.SetBurst("bucket", 2))
	require.Equal(t, 2, drain(l, "after"))
}

func TestShareLeavesTheRest(t *testing.T) {
	for _, c := range []struct {
		limit throttle.Limit
		burst int
		next  time.Duration // until one more can be paid
	}{
		{throttle.TokenBucket(10, time.Second, throttle.Fraction(0.5)), 5, 200 * time.Millisecond},
		{throttle.TokenBucket(10, time.Second, throttle.Fraction(0.29)), 2, 344_827_587},
		{throttle.TokenBucket(100, time.Second, throttle.Fraction(0.29)), 29, 34_482_759},
		{throttle.TokenBucket(3, time.Second, throttle.Fraction(0.1)), 1, 3_333_333_334},
		{throttle.TokenBucket(10, time.Second, throttle.Fraction(0.5), throttle.Burst(4)), 2, 200 * time.Millisecond},
		{throttle.Pace(10, time.Second, throttle.Fraction(0.5)), 1, 200 * time.Millisecond},
		{throttle.SlidingWindow(100, time.Second, throttle.Fraction(0.29)), 29, time.Second},
		{throttle.FixedWindow(100, time.Second, throttle.Fraction(0.07)), 7, time.Second},
		{throttle.SlidingWindow(7, time.Second, throttle.Fraction(1.0/7)), 1, time.Second},
	} {
		within(t, fmt.Sprint(c.burst, c.next), func(t *testing.T) {
			l := limiterOf(t, throttle.WithLimit(c.limit))
			li := coreOf(l).Limits[0]
			n := li.Rate.N * 10
			require.Equal(t, c.burst, drain(l, "key"))
			wait, _ := l.Try(throttle.Ask{Key: "key"})
			require.Equal(t, c.next, wait)
			require.NoError(t, l.SetRate(li.Name, n, time.Hour))
			require.InDelta(t, float64(n)*li.Share/3600, li.Bucket("key").Rate().PerSecond(), 0.01)
		})
	}
}

func TestNoKeyIsAKeyOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(3, time.Hour)))
		require.NoError(t, l.Wait(throttle.ContextWithKey(t.Context(), ""), throttle.Ask{Key: "ignored", Cost: 3}))
		require.Equal(t, 3, drain(l, ""), "the key that cannot be computed is not the one of limits without keys")
		require.Equal(t, 0, drain(l, throttle.NoKey))
		require.Equal(t, 3, drain(l, "ignored"))
	})
}

// TestHeldKeyIsNotForgotten would end a hold early.
func TestHeldKeyIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second)), throttle.WithMaxKeys(1))
		l.Hold("held", time.Minute)
		for range 59 {
			sleep(time.Second)
			_, ok := l.Try(throttle.Ask{Key: "other"})
			require.False(t, ok)
		}
		wait, _ := l.Try(throttle.Ask{Key: "held"})
		require.Equal(t, time.Second, wait)
		sleep(3 * time.Second)
		_, ok := l.Try(throttle.Ask{Key: "other"})
		require.True(t, ok)
	})
}

// TestForgettingMintsNothing uses keys now and then, and counts what each got.
func TestForgettingMintsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := metertest.Seeded(t, 11)
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Burst(5)), throttle.SlidingWindow(8, 10*time.Second), throttle.FixedWindow(9, 15*time.Second)))
		model := make(map[string]*metertest.Bucket)
		granted := make(map[string][]metertest.Event)
		for range 5000 {
			sleep(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
			key, now := strconv.Itoa(r.IntN(20)), int64(time.Since(coreOf(l).Start))
			if _, ok := l.Try(throttle.Ask{Key: key}); !ok {
				continue
			}
			m := model[key]
			if m == nil {
				m = metertest.NewBucket(now, meter.Rate{N: 1, Per: time.Second}, 5, 5)
				model[key] = m
			}
			require.Equal(t, now, m.Ready(now, 1), "key %s got more than its bucket had", key)
			m.Take(now, 1, false)
			granted[key] = append(granted[key], metertest.Event{At: now, Cost: 1})
			if now%5 == 0 {
				checkInvariants(t, l)
			}
		}
		for _, events := range granted {
			require.LessOrEqual(t, metertest.MostInAnyWindow(events, int64(10*time.Second)), int64(8))
		}
		sleep(time.Minute)
		require.Zero(t, l.Stats().Buckets)
	})
}

// TestTryOfAMissingKeyClampsNothing asks for the rate first, because the cost is clamped to a bucket that is yet to be made.
func TestTryOfAMissingKeyClampsNothing(t *testing.T) {
	l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.ClampCost(), throttle.RateFor(func(string) (int64, time.Duration) { return 5, time.Hour }))))
	_, ok := l.Try(throttle.Ask{Key: "k", Cost: 100})
	require.True(t, ok)
	_, ok = l.Try(throttle.Ask{Key: "k"})
	require.False(t, ok)
}
