package limiter_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

func TestFixedWindowsAreThoseOfTheWallClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight UTC on 2000-01-01
		time.Sleep(20*time.Hour + time.Nanosecond)
		l := drive(t, fixedWindow(5, 24*time.Hour), fixedWindow(5, time.Hour, named("at 20"), startingAt(time.Date(2050, 1, 1, 0, 20, 0, 0, time.UTC))))
		_, ok := l.try(ask{Cost: 5})
		require.True(t, ok)
		wait, _ := l.try(ask{})
		require.Equal(t, 4*time.Hour-time.Nanosecond, wait)
		time.Sleep(wait - 1)
		wait, _ = l.try(ask{})
		require.Equal(t, time.Nanosecond, wait)
		time.Sleep(time.Nanosecond)
		_, ok = l.try(ask{Cost: 5})
		require.True(t, ok)
		time.Sleep(10 * time.Minute)
		l.setRate("fixed-window", 100, 24*time.Hour)
		wait, _ = l.try(ask{})
		require.Equal(t, 10*time.Minute, wait)
	})
}

// The clock is wrong at first, and then it is set right.
func TestFixedWindowFollowsAClockThatIsSet(t *testing.T) {
	for _, wrong := range []time.Duration{2 * time.Hour, -2 * time.Hour, 500 * time.Millisecond, 72 * time.Hour} {
		synctest.Test(t, func(t *testing.T) { // begins at midnight
			l := drive(t, fixedWindow(5, time.Hour))
			time.Sleep(time.Hour - 2*time.Second)
			l.Lock()
			l.Wall().Unix += int64(wrong)
			*l.WallAt() = int64(l.now()) + int64(time.Second)
			unusedLocked(l)
			l.Unlock()
			_, ok := l.try(ask{Cost: 5})
			require.True(t, ok)
			time.Sleep(time.Second) // now the clock is looked at
			wait, ok := l.try(ask{})
			if wrong < 0 {
				require.True(t, ok, "set forward: another window")
			} else {
				require.Equal(t, time.Second, wait, "set back: the window that it now is was used up")
			}
		})
	}
}

// setWrong has a Limiter believe that the clock is wrong, until it looks again.
func setWrong(l *driven, by, until time.Duration) {
	l.Lock()
	defer l.Unlock()
	l.Wall().Unix += int64(by)
	*l.WallAt() = int64(l.now() + until)
	unusedLocked(l)
}

// unusedLocked replaces the meter of the only bucket by an unused one, which begins in the window of now.
func unusedLocked(l *driven) {
	b := l.Limits[0].Single
	b.Meter = l.Limits[0].Make(l.NowLocked(), b.Rate(), 0, l.Wall())
}

// The clock is corrected across the end of a window.
func TestClockThatIsSetBackALittleStartsNoWindowTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight
		l := drive(t, fixedWindow(5, time.Hour))
		time.Sleep(time.Hour - 400*time.Millisecond)
		setWrong(l, 500*time.Millisecond, 100*time.Millisecond)
		_, ok := l.try(ask{Cost: 3})
		require.True(t, ok)
		time.Sleep(200 * time.Millisecond)
		wait, _ := l.try(ask{Cost: 2})
		require.Equal(t, 200*time.Millisecond, wait)
		wait, _ = l.try(ask{Cost: 3})
		require.Equal(t, time.Hour+200*time.Millisecond, wait)
		time.Sleep(300 * time.Millisecond)
		_, ok = l.try(ask{Cost: 2})
		require.True(t, ok)
		wait, _ = l.try(ask{})
		require.Equal(t, time.Hour-100*time.Millisecond, wait)
	})
}

func TestClockThatIsSetBackForgivesWhatIsLongOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, fixedWindow(5, time.Hour))
		_, ok := l.try(ask{Cost: 5})
		require.True(t, ok)
		time.Sleep(10 * time.Hour)
		l.Lock()
		l.Wall().Unix += int64(2 * time.Hour)
		l.Unlock()
		_, ok = l.try(ask{Cost: 5})
		require.True(t, ok)
	})
}

// A request waits for a window that has begun long ago, once the clock is right.
func TestWaiterForAWindowSeesThatTheClockWasSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, fixedWindow(5, 24*time.Hour))
		sleep(23 * time.Hour)
		setWrong(l, -12*time.Hour, time.Second)
		l.Lock()
		*l.WallAt() = meter.Never
		l.Unlock()
		_, ok := l.try(ask{Cost: 5})
		require.True(t, ok)
		waits := l.send(ask{Cost: 1})
		l.Lock()
		*l.WallAt() = 0
		l.Unlock()
		l.check()
		sleep(2 * time.Hour)
		require.True(t, waits.done, "waits until the clock would have been right")
		require.LessOrEqual(t, waits.at, 24*time.Hour+time.Minute)
	})
}

// Some of these times do not fit an int64 of nanoseconds.
func TestStartMayBeAnyTime(t *testing.T) {
	for _, year := range []int{1, 1600, 1677, 1969, 1970, 2000, 2262, 2263, 9999} {
		synctest.Test(t, func(t *testing.T) { // begins at midnight
			l := drive(t, fixedWindow(1, 24*time.Hour, startingAt(time.Date(year, 1, 1, 6, 0, 0, 0, time.UTC))))
			l.try(ask{})
			wait, ok := l.try(ask{})
			require.False(t, ok)
			require.Equal(t, 6*time.Hour, wait, "year %d", year)
		})
	}
}

// However the wall clock is set, by a leap second, a day or a century, a window that the clock shows again is not granted
// again: tokens come in only when the clock goes on to a later window.
func TestAClockThatIsSetGrantsNoWindowTwice(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	limits := []rule{
		fixedWindow(5, time.Hour), fixedWindow(5, 24*time.Hour, startingAt(time.Date(2050, 1, 1, 0, 20, 0, 0, time.UTC))),
		calendarWindow(5, meter.Day, berlin), calendarWindow(5, meter.Week, berlin), calendarWindow(5, meter.Month, berlin),
	}
	jumps := []time.Duration{time.Nanosecond, time.Second, time.Second + 1, time.Minute, time.Hour, 25 * time.Hour, 40 * 24 * time.Hour, 100 * 365 * 24 * time.Hour}
	seeds := uint64(100)
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { // begins at midnight UTC on 2000-01-01
			r := metertest.Seeded(t, seed)
			l := drive(t, limits[seed%uint64(len(limits))])
			index, left := int64(math.MinInt64), 0
			end := func() (at int64) { // by the clock as it is set
				l.LookAtBucket(l.Limits[0], "", func(b *bucket.Bucket, now meter.Instant) { at = b.Meter.(meter.Turner).Turns(now) + l.Wall().Unix })
				return at
			}
			for range 200 {
				time.Sleep(time.Duration(r.Int64N(1 << r.IntN(46))))
				if r.IntN(4) == 0 {
					by := jumps[r.IntN(len(jumps))]
					if r.IntN(2) == 0 {
						by = -by
					}
					if year := time.Unix(0, l.Wall().Unix).Add(by).Year(); year > 1800 && year < 2200 {
						setClock(l, by)
					}
				}
				now := end()
				if now > index {
					left = 5
				}
				index = now // if it is an earlier one, there is what was left, until the clock goes on
				for range r.IntN(8) {
					wait, ok := l.try(ask{})
					if ok {
						left--
					}
					require.LessOrEqual(t, wait, 31*24*time.Hour+time.Hour+time.Second, "the clock was set back, and the window that it showed is waited for")
					require.GreaterOrEqual(t, left, 0, "a window was granted twice")
				}
				l.check()
			}
		})
	}
}

// setClock has the wall clock of a Limiter jump, as if the machine's had been set.
func setClock(l *driven, by time.Duration) {
	l.Lock()
	defer l.Unlock()
	now := l.NowLocked()
	l.Wall().Unix += int64(by)
	if *l.WallAt() = meter.Never; by < -time.Second {
		l.Wall().SetBack(now)
	}
}

// Only windows of the clock follow the wall clock.
func TestAClockThatIsSetMovesNoOtherLimit(t *testing.T) {
	for name, r := range map[string]rule{
		"token bucket": tokenBucket(5, time.Hour), "pace": pace(5, time.Hour), "sliding window": slidingWindow(5, time.Hour), "quota": evenQuota(5, time.Hour),
	} {
		for _, by := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
			synctest.Test(t, func(t *testing.T) {
				l := drive(t, r)
				for {
					if _, ok := l.try(ask{}); !ok {
						break
					}
				}
				want, _ := l.try(ask{})
				setClock(l, by)
				time.Sleep(time.Second)
				wait, ok := l.try(ask{})
				require.False(t, ok, name)
				require.Equal(t, want-time.Second, wait, name)
			})
		}
	}
}
