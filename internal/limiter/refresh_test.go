package limiter_test

import (
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// tiers has the rates of keys, and counts how often each is asked for.
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

// took returns how often each rate was asked for since it was called last.
func (x *tiers) took() map[string]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	defer clear(x.asked)
	return maps.Clone(x.asked)
}

func TestRefreshReachesWaitersAtTheNanosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTiers()
		x.set("k", 1, sec)
		l := drive(t, tokenBucket(5, sec, withRates(x.of), withBurst(4)))
		start := time.Now()
		require.Equal(t, 4, l.drain("k"))
		at := make(chan time.Duration, 3)
		for range 3 {
			go func() {
				assert.NoError(t, l.wait(t.Context(), ask{Key: "k"}))
				at <- time.Since(start)
			}()
			synctest.Wait()
		}
		time.Sleep(sec / 2) // half a token has come in
		x.set("k", 10, sec)
		require.NoError(t, l.refresh("bucket", "k"))
		synctest.Wait()
		l.check()
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
		l := drive(t, tokenBucket(5, sec, withRates(x.of)))
		l.drain("k")
		start := time.Now()
		rejected := make(chan error)
		go func() { rejected <- l.wait(t.Context(), ask{Key: "k", Cost: 5}) }()
		synctest.Wait()
		x.set("k", 4, sec)
		require.NoError(t, l.refresh("bucket"))
		var r *rejection
		ok := errors.As(<-rejected, &r)
		require.True(t, ok)
		require.Equal(t, bucket.ReasonCost, r.Reason)
		require.Zero(t, time.Since(start))
		require.NoError(t, l.wait(t.Context(), ask{Key: "k", Cost: 4}))
		require.Equal(t, sec, time.Since(start))
	})
}

func TestRefreshRejectsWaitersThatCanNoLongerBeInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTiers()
		x.set("k", 10, sec)
		l := drive(t, pace(5, sec, withRates(x.of)))
		start := time.Now()
		require.NoError(t, l.wait(t.Context(), ask{Key: "k", Cost: 10})) // the next goes after 1 s
		var errs [3]error
		var at [3]time.Duration
		var all sync.WaitGroup
		for i, maxWait := range []time.Duration{1500 * time.Millisecond, 2 * sec, 2*sec - 1} {
			all.Go(func() {
				_, errs[i] = l.acquire(t.Context(), ask{Key: "k", Cost: 1, MaxWait: &maxWait})
				at[i] = time.Since(start)
			})
			synctest.Wait()
		}
		x.set("k", 5, sec) // 2 s, 2.2 s, 2.4 s: only without the others is the second in time
		require.NoError(t, l.refresh("pace", "k"))
		all.Wait()
		require.ErrorIs(t, errs[0], errRejected)
		require.NoError(t, errs[1])
		require.ErrorIs(t, errs[2], errRejected)
		require.Equal(t, [3]time.Duration{0, 2 * sec, 0}, at)
	})
}

func TestRefreshKeepsBalances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTiers()
		for name, c := range map[string]struct {
			limit        rule
			before, left int // with n of 10 and 4 used; after n of 20
			fewer        int // after n of 3
		}{
			"bucket":         {tokenBucket(5, time.Hour, withRates(x.of)), 10, 6, 3},
			"with a burst":   {tokenBucket(5, time.Hour, withRates(x.of), withBurst(10)), 10, 6, 6},
			"sliding-window": {slidingWindow(5, time.Hour, withRates(x.of)), 10, 16, 0},
			"fixed-window":   {fixedWindow(5, time.Hour, withRates(x.of)), 10, 16, 0},
			"calendar":       {calendarWindow(5, meter.Day, time.UTC, withRates(x.of)), 10, 16, 0},
		} {
			per := time.Hour
			if name == "calendar" {
				per = periodOf[meter.Day]
			}
			x.set("more", 10, per)
			x.set("fewer", 10, per)
			x.set("most", 10, per)
			l := drive(t, c.limit)
			kind := l.Limits[0].Name
			require.Equal(t, c.before, l.drain("most"), name)
			for _, key := range []string{"more", "fewer"} {
				_, ok := l.try(ask{Key: key, Cost: 4})
				require.True(t, ok)
			}
			x.set("more", 20, per)
			x.set("fewer", 3, per)
			require.NoError(t, l.refresh(kind))
			require.NoError(t, l.refresh(kind), "again")
			require.Equal(t, c.left, l.drain("more"), name)
			require.Equal(t, c.fewer, l.drain("fewer"), name)
			require.Zero(t, l.drain("most"), name)
			l.check()
		}
	})
}

func TestRefreshAsksOnlyForKeysWithABucketAndEachOnce(t *testing.T) {
	x := newTiers()
	x.set("a", 3, sec)
	x.set("b", 3, sec)
	l := drive(t, slidingWindow(5, sec, withRates(x.of), named("x")), slidingWindow(100, sec))
	for _, key := range []string{"a", "b", "c", ""} {
		l.try(ask{Key: key})
	}
	require.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1}, x.took())
	require.NoError(t, l.refresh("x"))
	require.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1}, x.took())
	require.NoError(t, l.refresh("x", "b", "other", "", "b"))
	require.Equal(t, map[string]int{"b": 1}, x.took())
	require.NoError(t, l.refresh("x", "other"))
	require.Empty(t, x.took())
	l.setRate("x", 7, sec)
	require.Empty(t, x.took())
}

// A key goes from a rate of its own to that of the limit and back; SetRate reaches it only in between.
func TestRefreshGivesAndTakesRates(t *testing.T) {
	x := newTiers()
	l := drive(t, tokenBucket(5, time.Hour, withRates(x.of), withFraction(0.5)))
	check := func(perHour float64, burst int64) {
		t.Helper()
		b := l.Limits[0].Bucket("k")
		require.InDelta(t, perHour, b.Rate().PerSecond()*3600, 1e-9)
		require.Equal(t, burst, b.Meter.Most())
	}
	_, ok := l.try(ask{Key: "k", Cost: 2})
	require.True(t, ok)
	check(2.5, 2)
	x.set("k", 20, time.Hour)
	require.NoError(t, l.refresh("bucket"))
	check(10, 10)
	_, ok = l.try(ask{Key: "k"})
	require.False(t, ok, "no token is minted")
	l.setRate("bucket", 100, time.Hour)
	check(10, 10)
	x.set("k", 0, 0)
	require.NoError(t, l.refresh("bucket", "k"))
	check(50, 2)
	l.setRate("bucket", 8, time.Hour)
	check(4, 2)
	l.setBurst("bucket", 12)
	check(4, 6)
	x.set("k", 30, time.Hour)
	require.NoError(t, l.refresh("bucket", "k"))
	check(15, 6)
}

// An asking is a function of rates whose calls return when the test answers them.
type asking chan chan meter.Rate

func (a asking) rateFor(string) (int64, time.Duration) {
	answer := make(chan meter.Rate)
	a <- answer
	r := <-answer
	return r.N, r.Per
}

// A request that asked for the rate of its new key before a Refresh began, asks again.
func TestANewKeyAsksAgainIfThereWasARefreshMeanwhile(t *testing.T) {
	for name, start := range map[string]func(l *driven){
		"a request": func(l *driven) { l.try(ask{Key: "k"}) },
		"a hold":    func(l *driven) { l.hold("k", 1) },
		"a restored bucket": func(l *driven) {
			_ = l.Restore(l.Limits[0], "k", 0, func(*bucket.Bucket, meter.Instant) error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := make(asking)
				l := drive(t, tokenBucket(5, sec, withRates(a.rateFor)))
				ended := make(chan bool)
				go func() {
					start(l)
					ended <- true
				}()
				old := <-a
				require.NoError(t, l.refresh("bucket"), "there is no bucket yet")
				old <- meter.Rate{N: 1, Per: sec}
				again := <-a
				again <- meter.Rate{N: 2, Per: sec}
				<-ended
				for _, b := range l.views() {
					if b.Key == "k" {
						require.Equal(t, 2.0, b.Rate)
					}
				}
				l.check()
			})
		})
	}
}

func TestALateRateDoesNotUndoALaterRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := make(asking)
		l := drive(t, tokenBucket(5, time.Hour, withRates(a.rateFor)))
		go l.try(ask{Key: "k"})
		(<-a) <- meter.Rate{N: 1, Per: time.Hour}
		synctest.Wait()
		begin := func() chan meter.Rate {
			go func() { assert.NoError(t, l.refresh("bucket")) }()
			return <-a
		}
		early, late := begin(), begin()
		late <- meter.Rate{N: 3, Per: time.Hour}
		synctest.Wait()
		early <- meter.Rate{N: 2, Per: time.Hour}
		synctest.Wait()
		require.Equal(t, int64(3), l.Limits[0].Bucket("k").Rate().N)
	})
}

// What a key owes is not lost if its bucket was forgotten before a Refresh, and is settled after it: the key is held instead,
// and the next request asks for its rate.
func TestADebtSurvivesARefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTiers()
		x.set("k", 10, sec)
		l := drive(t, tokenBucket(5, sec, withRates(x.of)))
		g, err := l.acquire(t.Context(), ask{Key: "k", Cost: 10})
		require.NoError(t, err)
		time.Sleep(5 * sec)
		synctest.Wait()
		require.Zero(t, l.Limits[0].Keys(), "it is full, and forgotten")
		x.set("k", 2, sec)
		require.NoError(t, l.refresh("bucket"))
		require.NoError(t, g.settle("bucket", 30)) // 10 of 20 more are owed: the burst is all that a debt may be
		start := time.Now()
		require.NoError(t, l.wait(t.Context(), ask{Key: "k"}))
		require.Equal(t, sec, time.Since(start))
		require.Equal(t, int64(2), l.Limits[0].Bucket("k").Rate().N)
		l.check()
	})
}
