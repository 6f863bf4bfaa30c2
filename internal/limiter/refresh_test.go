package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/saved"
)

// tiers is where RateFor finds the rates of keys; it counts how often it is asked.
type tiers struct {
	mu    sync.Mutex
	rates map[string]meter.Rate
	asked map[string]int
}

func newTiers() *tiers {
	return &tiers{rates: make(map[string]meter.Rate), asked: make(map[string]int)}
}

func (x *tiers) set(key string, n int64, per time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rates[key] = meter.Rate{N: n, Per: per}
}

func (x *tiers) of(key string) (int64, time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.asked[key]++
	r := x.rates[key]
	return r.N, r.Per
}

// took returns how often RateFor has been asked for each key since it was called last.
func (x *tiers) took() map[string]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	defer clear(x.asked)
	return maps.Clone(x.asked)
}

// drained takes all that the key has now.
func drained(l *throttle.Limiter, key string) (n int) {
	for {
		if _, ok := l.Try(throttle.Ask{Key: key}); !ok {
			return n
		}
		n++
	}
}

func TestRefreshReachesWaitersAtTheNanosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTiers()
		x.set("k", 1, sec)
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(5, sec, throttle.RateFor(x.of), throttle.Burst(4))))
		start := time.Now()
		require.Equal(t, 4, drained(l, "k"))
		at := make(chan time.Duration, 3)
		for range 3 {
			go func() {
				assert.NoError(t, l.Wait(t.Context(), throttle.Ask{Key: "k"}))
				at <- time.Since(start)
			}()
			synctest.Wait()
		}
		time.Sleep(sec / 2) // half a token has come in
		x.set("k", 10, sec)
		require.NoError(t, l.Refresh("bucket", "k"))
		synctest.Wait()
		checkInvariants(t, l)
		time.Sleep(50*time.Millisecond - 1)
		synctest.Wait()
		require.Empty(t, at)
		require.Equal(t, 550*time.Millisecond, <-at)
		require.Equal(t, 650*time.Millisecond, <-at)
		require.Equal(t, 750*time.Millisecond, <-at)
	})
}

func TestRefreshRejectsCostsAboveTheNewBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTiers()
		x.set("k", 10, sec)
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(5, sec, throttle.RateFor(x.of))))
		drained(l, "k")
		start := time.Now()
		rejected := make(chan error)
		go func() { rejected <- l.Wait(t.Context(), throttle.Ask{Key: "k", Cost: 5}) }()
		synctest.Wait()
		x.set("k", 4, sec)
		require.NoError(t, l.Refresh("bucket"))
		r, ok := errors.AsType[*throttle.Rejection](<-rejected)
		require.True(t, ok)
		require.Equal(t, throttle.ReasonCost, r.Reason)
		require.Zero(t, time.Since(start))
		require.NoError(t, l.Wait(t.Context(), throttle.Ask{Key: "k", Cost: 4}))
		require.Equal(t, sec, time.Since(start))
	})
}

func TestRefreshRejectsWaitersThatCanNoLongerBeInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTiers()
		x.set("k", 10, sec)
		l := limiterOf(t, throttle.WithLimit(throttle.Pace(5, sec, throttle.RateFor(x.of))))
		start := time.Now()
		require.NoError(t, l.Wait(t.Context(), throttle.Ask{Key: "k", Cost: 10})) // the next goes after 1 s
		var errs [3]error
		var at [3]time.Duration
		var all sync.WaitGroup
		for i, maxWait := range []time.Duration{1500 * time.Millisecond, 2 * sec, 2*sec - 1} {
			all.Go(func() {
				_, errs[i] = l.Acquire(t.Context(), throttle.Ask{Key: "k", Cost: 1, MaxWait: &maxWait})
				at[i] = time.Since(start)
			})
			synctest.Wait()
		}
		x.set("k", 5, sec) // 2 s, 2.2 s, 2.4 s: only without the others is the second in time
		require.NoError(t, l.Refresh("pace", "k"))
		all.Wait()
		require.ErrorIs(t, errs[0], throttle.ErrThrottled)
		require.NoError(t, errs[1])
		require.ErrorIs(t, errs[2], throttle.ErrThrottled)
		require.Equal(t, [3]time.Duration{0, 2 * sec, 0}, at)
	})
}

func TestRefreshKeepsBalances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTiers()
		for name, c := range map[string]struct {
			limit        throttle.Limit
			before, left int // with n of 10 and 4 used; after n of 20
			fewer        int // after n of 3
		}{
			"bucket":         {throttle.TokenBucket(5, time.Hour, throttle.RateFor(x.of)), 10, 6, 3},
			"with a burst":   {throttle.TokenBucket(5, time.Hour, throttle.RateFor(x.of), throttle.Burst(10)), 10, 6, 6},
			"sliding-window": {throttle.SlidingWindow(5, time.Hour, throttle.RateFor(x.of)), 10, 16, 0},
			"fixed-window":   {throttle.FixedWindow(5, time.Hour, throttle.RateFor(x.of)), 10, 16, 0},
			"calendar":       {throttle.CalendarWindow(5, throttle.CalendarDay, time.UTC, throttle.RateFor(x.of)), 10, 16, 0},
		} {
			per := time.Hour
			if name == "calendar" {
				per = throttle.CalendarDay.Period()
			}
			x.set("more", 10, per)
			x.set("fewer", 10, per)
			x.set("most", 10, per)
			l := limiterOf(t, throttle.WithLimit(c.limit))
			kind := l.Limits()[0].Kind
			require.Equal(t, c.before, drained(l, "most"), name)
			for _, key := range []string{"more", "fewer"} {
				_, ok := l.Try(throttle.Ask{Key: key, Cost: 4})
				require.True(t, ok)
			}
			x.set("more", 20, per)
			x.set("fewer", 3, per)
			require.NoError(t, l.Refresh(kind))
			require.NoError(t, l.Refresh(kind), "again")
			require.Equal(t, c.left, drained(l, "more"), name)
			require.Equal(t, c.fewer, drained(l, "fewer"), name)
			require.Zero(t, drained(l, "most"), name)
			checkInvariants(t, l)
		}
	})
}

func TestRefreshAsksOnlyForKeysWithABucketAndEachOnce(t *testing.T) {
	x := newTiers()
	x.set("a", 3, sec)
	x.set("b", 3, sec)
	l := limiterOf(t, throttle.WithLimit(throttle.SlidingWindow(5, sec, throttle.RateFor(x.of), throttle.Name("x")), throttle.SlidingWindow(100, sec)))
	for _, key := range []string{"a", "b", "c", ""} {
		l.Try(throttle.Ask{Key: key})
	}
	require.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1}, x.took())
	require.NoError(t, l.Refresh("x"))
	require.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1}, x.took())
	require.NoError(t, l.Refresh("x", "b", "other", "", "b"))
	require.Equal(t, map[string]int{"b": 1}, x.took())
	require.NoError(t, l.Refresh("x", "other"))
	require.Empty(t, x.took())
	require.NoError(t, l.SetRate("x", 7, sec))
	require.Empty(t, x.took())
}

// A key goes from a rate of its own to that of the limit and back; SetRate reaches it only in between.
func TestRefreshGivesAndTakesRates(t *testing.T) {
	x := newTiers()
	l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(5, time.Hour, throttle.RateFor(x.of), throttle.Fraction(0.5))))
	check := func(perHour float64, burst int64) {
		t.Helper()
		b := coreOf(l).Limits[0].Bucket("k")
		require.InDelta(t, perHour, b.Rate().PerSecond()*3600, 1e-9)
		require.Equal(t, burst, b.Meter.Most())
	}
	_, ok := l.Try(throttle.Ask{Key: "k", Cost: 2})
	require.True(t, ok)
	check(2.5, 2)
	x.set("k", 20, time.Hour)
	require.NoError(t, l.Refresh("bucket"))
	check(10, 10)
	_, ok = l.Try(throttle.Ask{Key: "k"})
	require.False(t, ok, "no token is minted")
	require.NoError(t, l.SetRate("bucket", 100, time.Hour))
	check(10, 10)
	x.set("k", 0, 0)
	require.NoError(t, l.Refresh("bucket", "k"))
	check(50, 2)
	require.NoError(t, l.SetRate("bucket", 8, time.Hour))
	check(4, 2)
	require.NoError(t, l.SetBurst("bucket", 12))
	check(4, 6)
	x.set("k", 30, time.Hour)
	require.NoError(t, l.Refresh("bucket", "k"))
	check(15, 6)
}

func TestAnInvalidRateChangesNothingAndIsNamed(t *testing.T) {
	x := newTiers()
	for _, key := range []string{"a", "b", "c"} {
		x.set(key, 3, time.Hour)
	}
	l := limiterOf(t, throttle.WithLimit(throttle.SlidingWindow(5, time.Hour, throttle.RateFor(x.of), throttle.Name("x"))))
	for _, key := range []string{"a", "b", "c"} {
		_, ok := l.Try(throttle.Ask{Key: key})
		require.True(t, ok)
	}
	x.set("a", 4, time.Hour)
	x.set("b", -1, 0)
	x.set("c", 6, time.Hour)
	err := l.Refresh("x")
	require.EqualError(t, err, `throttle: Refresh("x"): RateFor("b") = -1, 0s (0, 0 keeps the limit's rate): n of -1 is not positive`+"\n"+
		`throttle: Refresh("x"): RateFor("b") = -1, 0s (0, 0 keeps the limit's rate): a period of 0s is not positive`)
	require.Equal(t, 3, drained(l, "a"))
	require.Equal(t, 2, drained(l, "b"))
	require.Equal(t, 5, drained(l, "c"))

	require.ErrorContains(t, l.Refresh("other"), `no limit named "other"`)
	require.ErrorContains(t, limiterOf(t, throttle.WithLimit(throttle.Pace(1, sec))).Refresh("pace"), `Refresh("pace"): the limit has no RateFor`)
}

func TestRefreshNamesAHundredKeysAtMost(t *testing.T) {
	x := newTiers()
	l := limiterOf(t, throttle.WithLimit(throttle.SlidingWindow(5, time.Hour, throttle.RateFor(x.of))))
	for i := range 700 {
		key := fmt.Sprint(i)
		l.Try(throttle.Ask{Key: key})
		x.set(key, 0, 1)
	}
	err := l.Refresh("sliding-window")
	require.ErrorContains(t, err, "and 600 more keys")
	require.Len(t, err.(interface{ Unwrap() []error }).Unwrap(), 101)
}

func TestRateForIsCalledWithoutTheLock(t *testing.T) {
	synctest.Test(t, rateForWithoutTheLock) // in real time, keys may be full again, and forgotten, before they are asked for
}

func rateForWithoutTheLock(t *testing.T) {
	var l *throttle.Limiter
	fails := false
	rateFor := func(key string) (int64, time.Duration) {
		if fails {
			panic("no database")
		}
		if l != nil {
			_ = l.Stats()
			l.Try(throttle.Ask{Key: "other limit's key", Costs: map[string]int64{"bucket": 0}})
		}
		return 10, sec
	}
	l = limiterOf(t, throttle.WithLimit(throttle.TokenBucket(5, sec, throttle.RateFor(rateFor))))
	for i := range 600 {
		l.Try(throttle.Ask{Key: fmt.Sprint(i)})
	}
	require.NoError(t, l.Refresh("bucket"))
	fails = true
	require.PanicsWithValue(t, "no database", func() { _ = l.Refresh("bucket") })
	require.PanicsWithValue(t, "no database", func() { _ = l.Refresh("bucket", "1") })
	fails = false
	require.NoError(t, l.Refresh("bucket"), "the lock is free")
	checkInvariants(t, l)
}

// asking is a RateFor whose calls return when they are told to.
type asking chan chan meter.Rate

func (a asking) rateFor(string) (int64, time.Duration) {
	answer := make(chan meter.Rate)
	a <- answer
	r := <-answer
	return r.N, r.Per
}

// A request that asked for the rate of its new key before a Refresh began, asks again.
func TestANewKeyAsksAgainIfThereWasARefreshMeanwhile(t *testing.T) {
	for name, start := range map[string]func(l *throttle.Limiter){
		"a request": func(l *throttle.Limiter) { l.Try(throttle.Ask{Key: "k"}) },
		"a hold":    func(l *throttle.Limiter) { l.Hold("k", 1) },
		"a restored bucket": func(l *throttle.Limiter) {
			_ = l.Restore(snapshot(t, saved.State{Taken: time.Now(), Buckets: []saved.Bucket{{Limit: "bucket", Key: "k"}}}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := make(asking)
				l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(5, sec, throttle.RateFor(a.rateFor))))
				ended := make(chan bool)
				go func() {
					start(l)
					ended <- true
				}()
				old := <-a
				require.NoError(t, l.Refresh("bucket"), "there is no bucket yet")
				old <- meter.Rate{N: 1, Per: sec}
				again := <-a
				again <- meter.Rate{N: 2, Per: sec}
				<-ended
				for b := range l.Buckets() {
					if b.Key == "k" {
						require.Equal(t, 2.0, b.Rate)
					}
				}
				checkInvariants(t, l)
			})
		})
	}
}

func TestALateAnswerDoesNotUndoALaterRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := make(asking)
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(5, time.Hour, throttle.RateFor(a.rateFor))))
		go l.Try(throttle.Ask{Key: "k"})
		(<-a) <- meter.Rate{N: 1, Per: time.Hour}
		synctest.Wait()
		begin := func() chan meter.Rate {
			go func() { assert.NoError(t, l.Refresh("bucket")) }()
			return <-a
		}
		early, late := begin(), begin()
		late <- meter.Rate{N: 3, Per: time.Hour}
		synctest.Wait()
		early <- meter.Rate{N: 2, Per: time.Hour}
		synctest.Wait()
		require.Equal(t, int64(3), coreOf(l).Limits[0].Bucket("k").Rate().N)
	})
}

// What a key owes is not lost if its bucket was forgotten before a Refresh, and is settled after it: the key is held instead,
// and the next request asks for its rate.
func TestADebtSurvivesARefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTiers()
		x.set("k", 10, sec)
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(5, sec, throttle.RateFor(x.of))))
		g, err := l.Acquire(t.Context(), throttle.Ask{Key: "k", Cost: 10})
		require.NoError(t, err)
		time.Sleep(5 * sec)
		synctest.Wait()
		require.Zero(t, coreOf(l).Limits[0].Keys(), "it is full, and forgotten")
		x.set("k", 2, sec)
		require.NoError(t, l.Refresh("bucket"))
		require.NoError(t, g.Settle("bucket", 30)) // 10 of 20 more are owed: the burst is all that a debt may be
		start := time.Now()
		require.NoError(t, l.Wait(t.Context(), throttle.Ask{Key: "k"}))
		require.Equal(t, sec, time.Since(start))
		require.Equal(t, int64(2), coreOf(l).Limits[0].Bucket("k").Rate().N)
		checkInvariants(t, l)
	})
}

// A visit of all buckets frees the lock after a short time, and stops when it is told to.
func TestAVisitOfAllBucketsIsInShortPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Hour)))
		for i := range 100 {
			l.Try(throttle.Ask{Key: fmt.Sprint(i)})
		}
		visit := func(each time.Duration, most int) (pieces []int) {
			n := 0
			coreOf(l).VisitAll(coreOf(l).Limits, func(*bucket.Bucket, meter.Instant) { n++; time.Sleep(each) }, func() bool {
				require.True(t, coreOf(l).TryLock())
				coreOf(l).Unlock()
				pieces, n = append(pieces, n), 0
				return len(pieces) < most
			})
			return pieces
		}
		require.Equal(t, []int{101}, visit(0, 9))
		require.Equal(t, []int{32, 32, 32, 5}, visit(10*time.Microsecond, 9), "the clock is read after each 16")
		require.Equal(t, []int{32, 32}, visit(10*time.Microsecond, 2))
	})
}

// Many buckets, and many waiters, are changed a few at a time.
func TestWorkUnderTheLockIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.SlidingWindow(1, time.Hour)))
		for i := range 2*limiter.PieceSize + 9 {
			require.True(t, func() bool { _, ok := l.Try(throttle.Ask{Key: fmt.Sprint(i)}); return ok }())
		}
		sizes := func() (all []int) {
			for piece := range coreOf(l).Pieces(coreOf(l).Limits[0]) {
				require.True(t, coreOf(l).TryLock())
				coreOf(l).Unlock()
				all = append(all, len(piece))
			}
			return all
		}
		require.Equal(t, []int{limiter.PieceSize, limiter.PieceSize, 10}, sizes())
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 6 {
			for range limiter.PieceWaiters / 2 {
				go func() { _ = l.Wait(ctx, throttle.Ask{Key: fmt.Sprint(i)}) }()
			}
		}
		synctest.Wait()
		waiting := 0
		for piece := range coreOf(l).Pieces(coreOf(l).Limits[0]) {
			n := 0
			for _, b := range piece {
				n += b.Waiting()
			}
			require.LessOrEqual(t, n, limiter.PieceWaiters)
			waiting += n
		}
		require.Equal(t, 3*limiter.PieceWaiters, waiting)
		cancel()
	})
}
