package tests

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/httpthrottle/throttle/store"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// enqueueAll has n requests come now, and returns when each of them is granted, as they are sent one after the other.
func enqueueAll(t *testing.T, l *throttle.Limiter, ask throttle.Ask, n int) (tickets []*throttle.Ticket) {
	for range n {
		ticket, err := l.Enqueue(ask)
		require.NoError(t, err)
		tickets = append(tickets, ticket)
	}
	return tickets
}

// tenthsOf waits until all tickets are granted, and returns when each tenth of them was.
func tenthsOf(tickets []*throttle.Ticket, since time.Time) (tenths [10]time.Duration) {
	for i := range tenths {
		ticket := tickets[(len(tickets)*(i+1)+9)/10-1]
		<-ticket.Decided()
		tenths[i] = ticket.Due().Sub(since)
	}
	return tenths
}

// someLimit returns a limit with a rate or a window, which is called by its number.
func someLimit(r *rand.Rand, i int) throttle.Limit {
	name, n, per := throttle.Name(fmt.Sprint(i)), 1+r.Int64N(60), time.Duration(1+r.IntN(100))*time.Second/10
	switch r.IntN(6) {
	case 0:
		return throttle.TokenBucket(n, per, name, throttle.Burst(5+r.Int64N(100)), throttle.Initial(r.Int64N(5)))
	case 1:
		return throttle.Pace(n, per, name)
	case 2:
		return throttle.Quota(5+n, 5*per, name)
	case 3:
		return throttle.SlidingWindow(5+n, 5*per, name)
	case 4:
		return throttle.FixedWindow(5+n, 5*per, name)
	}
	return throttle.CalendarWindow(20+n, throttle.CalendarDay, time.UTC, name)
}

// With one limit that has a rate or a window and an empty queue, a forecast is exact, whatever was used before.
func TestForecastIsExactForOneLimit(t *testing.T) {
	r := metertest.Seeded(t, 1)
	for range 100 {
		limit, used, wait := someLimit(r, 0), r.IntN(30), time.Duration(r.Int64N(int64(10*time.Second)))
		n, cost := 1+r.IntN(200), 1+r.Int64N(4)
		synctest.Test(t, func(t *testing.T) {
			l := limiterWith(t, throttle.WithLimit(limit))
			for _, ticket := range enqueueAll(t, l, throttle.Ask{}, used) {
				<-ticket.Decided()
			}
			time.Sleep(wait)
			stats, tokens := l.Stats(), l.Limits()
			f, err := l.Forecast(throttle.Ask{Cost: cost}, n)
			require.NoError(t, err)
			require.False(t, f.Least)
			require.Equal(t, stats, l.Stats())
			require.Equal(t, tokens, l.Limits())
			start := time.Now()
			require.Equal(t, tenthsOf(enqueueAll(t, l, throttle.Ask{Cost: cost}, n), start), f.Tenths, "%d requests of %d after %d, %v", n, cost, used, l.Limits()[0])
			require.Equal(t, f.Tenths[9], f.Done())
			if f.Done() > 0 {
				require.Equal(t, "0", f.Limit)
			} else {
				require.Empty(t, f.Limit)
			}
		})
	}
}

// With several limits and a queue of other requests, a forecast is at most 5 % off.
func TestForecastIsCloseForSeveralLimits(t *testing.T) {
	r := metertest.Seeded(t, 2)
	sets := 200
	if testing.Short() {
		sets = 40
	}
	off, exact, worst := 0.0, 0, ""
	for range sets {
		var limits []throttle.Limit
		for i := range 1 + r.IntN(4) {
			limits = append(limits, someLimit(r, i))
		}
		queue, n := r.IntN(150), 1+r.IntN(200)
		synctest.Test(t, func(t *testing.T) {
			l := limiterWith(t, throttle.WithLimit(limits...))
			enqueueAll(t, l, throttle.Ask{}, r.IntN(30))
			time.Sleep(time.Duration(r.Int64N(int64(10 * time.Second))))
			for range queue {
				ask := throttle.Ask{Cost: 1 + r.Int64N(4), Priority: r.IntN(20) / 19, Costs: map[string]int64{}}
				for i := range limits {
					if r.IntN(4) == 0 {
						ask.Costs[fmt.Sprint(i)] = r.Int64N(3)
					}
				}
				_, err := l.Enqueue(ask)
				require.NoError(t, err)
			}
			ask := throttle.Ask{Cost: 1 + r.Int64N(4)}
			f, err := l.Forecast(ask, n)
			require.NoError(t, err)
			got := tenthsOf(enqueueAll(t, l, ask, n), time.Now())
			if got == f.Tenths {
				exact++
			}
			for i, at := range got {
				if by := math.Abs(float64(f.Tenths[i]-at)) / max(float64(at), 1); at != f.Tenths[i] && by > off {
					off, worst = by, fmt.Sprint(got, f.Tenths, limits)
				}
			}
			if f.Done() > 0 {
				require.NotEmpty(t, f.Limit)
			}
		})
	}
	t.Logf("%d of %d are exact, and the worst is %.2g %% off", exact, sets, 100*off)
	require.LessOrEqual(t, off, 0.05, worst)
}

// The limit of a forecast is the one that requests wait for the longest.
func TestForecastNamesTheLimitThatBinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(
			throttle.FixedWindow(100, time.Minute, throttle.Name("minute")),
			throttle.TokenBucket(10, time.Second, throttle.Burst(1), throttle.Name("second"), throttle.Key(throttle.ByHost))))
		for n, want := range map[int]string{50: "second", 100: "second", 120: "minute", 1000: "minute"} {
			f, err := l.Forecast(throttle.Ask{Key: "k"}, n)
			require.NoError(t, err)
			require.Equal(t, want, f.Limit, "%d", n)
		}
		f, err := l.Forecast(throttle.Ask{Key: "k"}, 150)
		require.NoError(t, err)
		require.Equal(t, 64900*time.Millisecond, f.Done())
		f, err = l.Forecast(throttle.Ask{Key: "k"}, 50)
		require.NoError(t, err)
		require.Equal(t, "k", f.Key)
		require.Zero(t, len(bucketsOf(l)), "no key is remembered")
		l.HoldAll(time.Hour)
		f, err = l.Forecast(throttle.Ask{Key: "k"}, 150)
		require.NoError(t, err)
		require.Equal(t, time.Hour+64900*time.Millisecond, f.Done())
	})
}

func bucketsOf(l *throttle.Limiter) (keys []string) {
	for b := range l.Buckets() {
		if b.Key != "" {
			keys = append(keys, b.Key)
		}
	}
	return keys
}

// Without further requests, a forecast says when the queue will be empty.
func TestForecastOfTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		for n := range 4 {
			f, err := l.Forecast(throttle.Ask{Cost: 1000}, 0)
			require.NoError(t, err)
			require.Equal(t, time.Duration(max(0, n-1))*time.Second, f.Done())
			require.Equal(t, f.Done(), f.Tenths[0])
			enqueueAll(t, l, throttle.Ask{}, 1)
		}
	})
}

// What depends on responses stops nothing in a forecast, which says so.
func TestForecastSaysWhereItIsABound(t *testing.T) {
	for _, c := range []struct {
		limit throttle.Limit
		least bool
		done  time.Duration
	}{
		{throttle.InFlight(1), true, math.MaxInt64}, // for how long requests take slots has not been seen
		{throttle.InFlight(100), true, 0},
		{throttle.Adaptive(throttle.AIMD{}), true, math.MaxInt64}, // nor how large the rate may be
		{throttle.Adaptive(throttle.AIMD{Initial: 10, Max: 10}), true, 9900 * time.Millisecond},
		{throttle.TokenBucket(10, time.Second, throttle.Shared(store.NewMemory())), true, 9 * time.Second},
		{throttle.TokenBucket(10, time.Second, throttle.Burst(1)), false, 9900 * time.Millisecond},
		{throttle.TokenBucket(10, time.Second, throttle.RateFor(func(string) (int64, time.Duration) { return 20, time.Second })), false, 4 * time.Second},
	} {
		l := limiterWith(t, throttle.WithLimit(c.limit))
		f, err := l.Forecast(throttle.Ask{Key: "k"}, 100)
		require.NoError(t, err)
		assert.Equal(t, c.least, f.Least)
		assert.InDelta(t, c.done, f.Done(), float64(c.done)/50, "%v", l.Limits()[0])
	}
}

// A forecast for a limit in a store is a lower bound, and a close one if no other process asks.
func TestForecastForASharedLimit(t *testing.T) {
	for name, limit := range map[string]func(throttle.LimitOption) throttle.Limit{
		"bucket":  func(o throttle.LimitOption) throttle.Limit { return throttle.TokenBucket(10, time.Second, o) },
		"pace":    func(o throttle.LimitOption) throttle.Limit { return throttle.Pace(10, time.Second, o) },
		"sliding": func(o throttle.LimitOption) throttle.Limit { return throttle.SlidingWindow(10, time.Second, o) },
		"fixed":   func(o throttle.LimitOption) throttle.Limit { return throttle.FixedWindow(10, time.Second, o) },
	} {
		for _, used := range []int{0, 1, 25} {
			t.Run(fmt.Sprint(name, used), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := limiterWith(t, throttle.WithLimit(limit(throttle.Shared(store.NewMemory()))))
					for range used {
						require.NoError(t, l.Wait(t.Context(), throttle.Ask{}))
					}
					for _, waiting := range []int{0, 15} {
						enqueueAll(t, l, throttle.Ask{}, waiting)
						f, err := l.Forecast(throttle.Ask{}, 100)
						require.NoError(t, err)
						require.True(t, f.Least)
						got := tenthsOf(enqueueAll(t, l, throttle.Ask{}, 100), time.Now())
						for i, at := range got {
							require.LessOrEqual(t, f.Tenths[i], at+time.Microsecond, "%d", i) // in which stores count
						}
						if used > 0 {
							require.InDelta(t, int64(got[9]), int64(f.Done()), 1.1e9, "a window at most")
						}
					}
					require.NoError(t, l.Shutdown(t.Context()))
				})
			})
		}
	}
}

// A cost that can never be paid is never due, and requests beyond those that are played go on as the others do.
func TestForecastOfTooMuch(t *testing.T) {
	l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second)))
	_, err := l.Forecast(throttle.Ask{Cost: 11}, 5)
	require.EqualError(t, err, `throttle: limit "bucket": cost 11 exceeds the burst of 10`)
	_, err = l.Forecast(throttle.Ask{Cost: -1}, 5)
	require.ErrorContains(t, err, "cost -1 is negative")
	f, err := l.Forecast(throttle.Ask{}, 10_000_010)
	require.NoError(t, err)
	require.InDelta(t, 1e6, f.Done().Seconds(), 1)
	require.InDelta(t, 5e5, f.Tenths[4].Seconds(), 1)
	f, err = limiterWith(t, throttle.WithLimit(throttle.TokenBucket(1, time.Hour))).Forecast(throttle.Ask{}, math.MaxInt)
	require.NoError(t, err)
	require.EqualValues(t, int64(math.MaxInt64), f.Tenths[0])
	_, err = l.Forecast(throttle.Ask{}, -1)
	require.EqualError(t, err, "throttle: Forecast of -1 requests: the number is negative")
	_, err = l.Forecast(throttle.Ask{Costs: map[string]int64{"x": 1}}, -1)
	require.ErrorContains(t, err, `Ask.Costs`)
	require.ErrorContains(t, err, "Forecast of -1 requests")
}

// After Shutdown, requests that come are never sent, and those that wait as before.
func TestForecastAfterShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		go func() { _ = l.Wait(t.Context(), throttle.Ask{}) }()
		go func() { _ = l.Wait(t.Context(), throttle.Ask{}) }()
		synctest.Wait()
		go func() { _ = l.Shutdown(t.Context()) }()
		synctest.Wait()
		f, err := l.Forecast(throttle.Ask{}, 10)
		require.NoError(t, err)
		require.EqualValues(t, int64(math.MaxInt64), f.Tenths[0])
		f, err = l.Forecast(throttle.Ask{}, 0)
		require.NoError(t, err)
		require.Equal(t, time.Second, f.Done())
	})
}

// A forecast of more requests than are played is exact with one limit whose burst is a multiple of the cost, and otherwise close.
func TestForecastOfMoreThanIsPlayed(t *testing.T) {
	const day = 24 * time.Hour
	second, minute := throttle.Name("second"), throttle.Name("minute")
	for name, c := range map[string]struct {
		limits  []throttle.Limit
		cost    int64
		n       int
		limit   string
		done    time.Duration
		percent float64 // by which it may be off
	}{
		"a rate":              {[]throttle.Limit{throttle.TokenBucket(10, time.Second)}, 1, 1_000_010, "bucket", 100_000 * time.Second, 0},
		"a large burst":       {[]throttle.Limit{throttle.TokenBucket(1_000_000, time.Hour)}, 1, 3_000_000, "bucket", 2 * time.Hour, 0},
		"a day":               {[]throttle.Limit{throttle.CalendarWindow(500_000, throttle.CalendarDay, time.UTC)}, 1, 1_000_001, "calendar-window", 2 * day, 0},
		"a large window":      {[]throttle.Limit{throttle.FixedWindow(60_000, time.Minute)}, 1, 1_000_000, "fixed-window", 16 * time.Minute, 0},
		"a small window":      {[]throttle.Limit{throttle.FixedWindow(1_000, time.Minute)}, 1, 1_000_000, "fixed-window", 999 * time.Minute, 0},
		"a sliding window":    {[]throttle.Limit{throttle.SlidingWindow(500_000, time.Hour)}, 1, 1_000_001, "sliding-window", 2 * time.Hour, 0},
		"a quota":             {[]throttle.Limit{throttle.Quota(500_000, time.Hour)}, 5, 300_000, "quota", 3 * time.Hour, 1},
		"a rest of each":      {[]throttle.Limit{throttle.FixedWindow(10, time.Minute)}, 4, 1_000_000, "fixed-window", 499_999 * time.Minute, 1},
		"none binds the play": {[]throttle.Limit{throttle.FixedWindow(500_000, 24*time.Hour, minute), throttle.TokenBucket(1_000_000, time.Second, second)}, 1, 1_000_000, "minute", day, 0},
		"two alternate":       {[]throttle.Limit{throttle.FixedWindow(100, time.Minute, minute), throttle.TokenBucket(10, time.Second, throttle.Burst(1), second)}, 1, 1_000_000, "minute", 9999*time.Minute + 9900*time.Millisecond, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, err := limiterWith(t, throttle.WithLimit(c.limits...)).Forecast(throttle.Ask{Cost: c.cost}, c.n)
				require.NoError(t, err)
				require.Equal(t, c.limit, f.Limit)
				require.InDelta(t, int64(c.done), int64(f.Done()), float64(c.done)*c.percent/100)
				require.True(t, slices.IsSorted(f.Tenths[:]))
			})
		})
	}
}

// Behind many requests, and with callers that take turns, a forecast is played with some of them.
func TestForecastBehindManyAndAmongCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Burst(1),
			throttle.FairBy(func(*http.Request) string { return "" }))))
		for i := range 30_000 {
			_, err := l.Enqueue(throttle.Ask{Caller: "old", Cost: 1})
			require.NoError(t, err)
			if i == 5_000 {
				f, err := l.Forecast(throttle.Ask{Caller: "new"}, 1_000)
				require.NoError(t, err)
				require.InDelta(t, 20, f.Done().Seconds(), 0.05, "by turns")
			}
		}
		f, err := l.Forecast(throttle.Ask{Caller: "old"}, 1_000)
		require.NoError(t, err)
		require.InDelta(t, 310, f.Done().Seconds(), 1)
	})
}

// A Ticket and a request say what they wait for, and since when.
func TestWaitersSayWhatTheyWaitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := transportTo(t, takes(0), throttle.WithLimit(
			throttle.TokenBucket(1, time.Second, throttle.Name("second")), throttle.FixedWindow(3, time.Minute, throttle.Name("minute"))))
		start := time.Now()
		sendAll(t, tr, 1)()
		time.Sleep(time.Second / 2)
		ticket, err := tr.Limiter().Enqueue(throttle.Ask{})
		require.NoError(t, err)
		w, ok := ticket.Waiting()
		require.True(t, ok)
		require.Equal(t, throttle.Waiting{Limit: "second", Since: start.Add(time.Second / 2), Due: start.Add(time.Second)}, w)
		_, err = tr.Limiter().Enqueue(throttle.Ask{})
		require.NoError(t, err)
		ctx, receipt := throttle.ContextWithReceipt(t.Context())
		_, ok = receipt.Waiting()
		require.False(t, ok)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = tr.RoundTrip(request(ctx))
		}()
		synctest.Wait()
		w, ok = receipt.Waiting()
		require.True(t, ok)
		require.Equal(t, throttle.Waiting{Limit: "minute", Since: start.Add(time.Second / 2), Due: start.Add(time.Minute)}, w)
		<-done
		_, ok = receipt.Waiting()
		require.False(t, ok)
		_, ok = ticket.Waiting()
		require.False(t, ok)
		granted, err := limiterWith(t).Enqueue(throttle.Ask{})
		require.NoError(t, err)
		_, ok = granted.Waiting()
		require.False(t, ok)
	})
}
