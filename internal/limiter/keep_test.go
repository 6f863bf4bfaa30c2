package limiter_test

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

func TestManyKeysAreForgotten(t *testing.T) { // slow: 400,000 keys
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
		l := drive(t, tokenBucket(10, time.Second))
		for i := range n {
			if _, ok := l.try(ask{Key: strconv.Itoa(i)}); !ok {
				t.Fatal("a new key is not full")
			}
		}
		require.Equal(t, n, l.counts().Buckets)
		sleep(10 * time.Second)
		require.Zero(t, l.counts().Buckets)
		l.check()
		used := int64(heap()) - int64(before)
		require.Less(t, used, int64(16<<20), "memory is kept for buckets that are not")
		require.Equal(t, 10, l.drain("1"))
	})
}

// One key stays for long, because of a hold or of a slow limit.
func TestKeysAreForgottenWhileAnotherIsNot(t *testing.T) {
	for name, opt := range map[string]option{
		"held": limits(tokenBucket(10, time.Second)),
		"slow": limits(tokenBucket(10, time.Second), tokenBucket(10, 24*time.Hour, named("daily"))),
	} {
		within(t, name, func(t *testing.T) {
			l := drive(t, opt)
			if name == "held" {
				l.hold("stays", 24*time.Hour)
			}
			_, err := l.acquire(t.Context(), ask{Key: "stays", Cost: 1, MaxWait: ptr(time.Duration(0))})
			require.Equal(t, name == "held", err != nil)
			sleep(3 * time.Second)
			for i := range 1000 {
				asked := ask{Key: strconv.Itoa(i), Cost: 1}
				if name == "slow" {
					asked.Costs = map[string]int64{"daily": 0}
				}
				_, err := l.acquire(t.Context(), asked)
				require.NoError(t, err)
			}
			sleep(10 * time.Second)
			require.LessOrEqual(t, l.Limits[0].Keys(), 1)
		})
	}
}

func TestMaxKeysEvictsNoneThatIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, pace(1, time.Second), maxKeys(4))
		l.hold("held", 1000*time.Second)
		_, ok := l.try(ask{Key: "debt", Cost: 1000})
		require.True(t, ok)
		waits := l.send(ask{Key: "held", Cost: 1})
		l.send(ask{Key: "line", Cost: 900})
		line := l.send(ask{Key: "line", Cost: 1})
		for i := range 100 {
			_, ok := l.try(ask{Key: strconv.Itoa(i), Cost: 2})
			require.Equal(t, i == 0, ok, "a fourth fits, and then has debt")
			require.LessOrEqual(t, l.counts().Buckets, 4)
			l.check()
		}
		full := requireRejected(t, l.send(ask{Key: "fifth", Cost: 1}), 0, bucket.ReasonKeys)
		require.Equal(t, "fifth", full.Key)
		require.Equal(t, time.Second, full.Wait, "buckets are forgotten no more often")
		require.Equal(t, uint64(100), l.counts().Rejected[bucket.ReasonKeys])
		sleep(2 * time.Second)
		require.True(t, l.send(ask{Key: "fifth", Cost: 1}).grant != nil, "the fourth is full again")
		wait, _ := l.try(ask{Key: "debt"})
		require.Equal(t, 998*time.Second, wait)
		sleep(time.Hour)
		requireGranted(t, waits, 1000*time.Second)
		requireGranted(t, line, 900*time.Second)
		sleep(time.Hour)
		require.Zero(t, l.counts().Buckets)
	})
}

// Room for one key is not made by forgetting another that the same request falls under.
func TestMaxKeysEvictsNoneThatIsAboutToPay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, maxKeys(1), tokenBucket(10, time.Hour, named("first")), tokenBucket(10, time.Hour, named("second")))
		require.NotNil(t, l.send(ask{Key: "k", Costs: map[string]int64{"first": 0, "second": 4}}).grant)
		requireRejected(t, l.send(ask{Key: "k", Cost: 1}), 0, bucket.ReasonKeys)
		for _, b := range l.views() {
			if b.Key == "k" {
				require.Equal(t, "second", b.Limit)
				require.Equal(t, 6.0, b.Tokens)
			}
		}
		require.Equal(t, 1, l.counts().Buckets)
	})
}

func TestMaxKeysEvictsNoKeyWithWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, empty(1), maxKeys(3))
		var all []*request
		for _, key := range []string{"a", "b", "c"} {
			all = append(all, l.send(ask{Key: key, Cost: 1}))
		}
		requireRejected(t, l.send(ask{Key: "d", Cost: 1}), 0, bucket.ReasonKeys)
		l.check()
		sleep(time.Second)
		for _, r := range all {
			requireGranted(t, r, time.Second)
		}
	})
}

// Otherwise a bucket would be charged that was just forgotten.
func TestMaxKeysSparesTheRequestsOwnKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, maxKeys(8), tokenBucket(10, time.Hour, named("a")), tokenBucket(10, time.Hour, named("b")), tokenBucket(10, time.Hour, named("c")))
		for i := range 20 {
			_, ok := l.try(ask{Key: strconv.Itoa(i), Cost: 5})
			require.True(t, ok)
			l.check()
			require.LessOrEqual(t, l.counts().Buckets, 8)
		}
		require.Equal(t, 10, l.drain("x"))
		require.Equal(t, 0, l.drain("x"))
	})
	l := drive(t, maxKeys(1), tokenBucket(10, time.Hour, named("a")), tokenBucket(10, time.Hour, named("b")))
	_, ok := l.try(ask{Key: "x"})
	require.False(t, ok, "there is no room for both")
}

func TestAKeyMayHaveARateOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(map[string]int)
		l := drive(t, tokenBucket(2, time.Second, withRates(func(key string) (int64, time.Duration) {
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
		})))
		require.Equal(t, 10, l.drain("gold"))
		require.Equal(t, 2, l.drain("iron"))
		require.Equal(t, 2, l.drain(""))
		require.Equal(t, map[string]int{"gold": 1, "iron": 1}, asked, "asked once for each key, and not for none")
		for _, key := range []string{"bad", "worse"} {
			require.ErrorContains(t, l.wait(t.Context(), ask{Key: key}), key)
			wait, ok := l.try(ask{Key: key})
			require.False(t, ok)
			require.Equal(t, never, wait)
		}
		wait, _ := l.try(ask{Key: "gold"})
		require.Equal(t, 100*time.Millisecond, wait)
		l.setRate("bucket", 4, time.Second)
		wait, _ = l.try(ask{Key: "gold"})
		require.Equal(t, 100*time.Millisecond, wait, "the rate of its own stays")
		wait, _ = l.try(ask{Key: "iron"})
		require.Equal(t, 250*time.Millisecond, wait)
		sleep(10 * time.Second)
		require.Zero(t, l.counts().Buckets)
		require.Equal(t, 10, l.drain("gold"))
		require.Equal(t, 2, asked["gold"], "asked again once the key was forgotten")
		require.Equal(t, 2, l.drain("new"), "SetRate keeps the burst")
	})
}

func TestARateOfItsOwnKeepsTheBurst(t *testing.T) {
	l := drive(t, tokenBucket(1, time.Hour, withBurst(3), withRates(func(string) (int64, time.Duration) { return 7, time.Hour })))
	require.Equal(t, 3, l.drain("key"))
}

func TestNewKeysFollowASmallerBurst(t *testing.T) {
	l := drive(t, tokenBucket(10, time.Hour, withInitial(5)))
	require.Equal(t, 5, l.drain("before"))
	l.setBurst("bucket", 2)
	require.Equal(t, 2, l.drain("after"))
}

func TestShareLeavesTheRest(t *testing.T) {
	for _, c := range []struct {
		limit rule
		burst int
		next  time.Duration // until one more can be paid
	}{
		{tokenBucket(10, time.Second, withFraction(0.5)), 5, 200 * time.Millisecond},
		{tokenBucket(10, time.Second, withFraction(0.29)), 2, 344_827_587},
		{tokenBucket(100, time.Second, withFraction(0.29)), 29, 34_482_759},
		{tokenBucket(3, time.Second, withFraction(0.1)), 1, 3_333_333_334},
		{tokenBucket(10, time.Second, withFraction(0.5), withBurst(4)), 2, 200 * time.Millisecond},
		{pace(10, time.Second, withFraction(0.5)), 1, 200 * time.Millisecond},
		{slidingWindow(100, time.Second, withFraction(0.29)), 29, time.Second},
		{fixedWindow(100, time.Second, withFraction(0.07)), 7, time.Second},
		{slidingWindow(7, time.Second, withFraction(1.0/7)), 1, time.Second},
	} {
		within(t, fmt.Sprint(c.burst, c.next), func(t *testing.T) {
			l := drive(t, c.limit)
			li := l.Limits[0]
			n := li.Rate.N * 10
			require.Equal(t, c.burst, l.drain("key"))
			wait, _ := l.try(ask{Key: "key"})
			require.Equal(t, c.next, wait)
			l.setRate(li.Name, n, time.Hour)
			require.InDelta(t, float64(n)*li.Share/3600, li.Bucket("key").Rate().PerSecond(), 0.01)
		})
	}
}

// Otherwise its hold would end early.
func TestHeldKeyIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(10, time.Second), maxKeys(1))
		l.hold("held", time.Minute)
		for range 59 {
			sleep(time.Second)
			_, ok := l.try(ask{Key: "other"})
			require.False(t, ok)
		}
		wait, _ := l.try(ask{Key: "held"})
		require.Equal(t, time.Second, wait)
		sleep(3 * time.Second)
		_, ok := l.try(ask{Key: "other"})
		require.True(t, ok)
	})
}

// Keys are used now and then, and what each got is counted.
func TestForgettingMintsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := metertest.Seeded(t, 11)
		l := drive(t, tokenBucket(1, time.Second, withBurst(5)), slidingWindow(8, 10*time.Second), fixedWindow(9, 15*time.Second))
		model := make(map[string]*metertest.Bucket)
		granted := make(map[string][]metertest.Event)
		for range 5000 {
			sleep(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
			key, now := strconv.Itoa(r.IntN(20)), int64(l.now())
			if _, ok := l.try(ask{Key: key}); !ok {
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
				l.check()
			}
		}
		for _, events := range granted {
			require.LessOrEqual(t, metertest.MostInAnyWindow(events, int64(10*time.Second)), int64(8))
		}
		sleep(time.Minute)
		require.Zero(t, l.counts().Buckets)
	})
}

// The cost is clamped to the bucket that is made, so the rate is asked for first.
func TestTryOfAMissingKeyClampsToItsOwnRate(t *testing.T) {
	l := drive(t, tokenBucket(1, time.Hour, clamped(), withRates(func(string) (int64, time.Duration) { return 5, time.Hour })))
	_, ok := l.try(ask{Key: "k", Cost: 100})
	require.True(t, ok)
	_, ok = l.try(ask{Key: "k"})
	require.False(t, ok)
}
