package limiter_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

func TestFixedWindowsAreThoseOfTheWallClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight UTC on 2000-01-01
		time.Sleep(20*time.Hour + time.Nanosecond)
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.FixedWindow(5, 24*time.Hour), throttle.FixedWindow(5, time.Hour, throttle.Name("at 20"), throttle.Start(time.Date(2050, 1, 1, 0, 20, 0, 0, time.UTC)))))
		require.NoError(t, err)
		_, ok := l.Try(throttle.Ask{Cost: 5})
		require.True(t, ok)
		wait, _ := l.Try(throttle.Ask{})
		require.Equal(t, 4*time.Hour-time.Nanosecond, wait)
		time.Sleep(wait - 1)
		wait, _ = l.Try(throttle.Ask{})
		require.Equal(t, time.Nanosecond, wait)
		time.Sleep(time.Nanosecond)
		_, ok = l.Try(throttle.Ask{Cost: 5})
		require.True(t, ok)
		time.Sleep(10 * time.Minute)
		require.NoError(t, l.SetRate("fixed-window", 100, 24*time.Hour))
		wait, _ = l.Try(throttle.Ask{})
		require.Equal(t, 10*time.Minute, wait)
	})
}

// TestFixedWindowFollowsAClockThatIsSet begins with a clock that is wrong by a stretch, and sets it right.
func TestFixedWindowFollowsAClockThatIsSet(t *testing.T) {
	for _, wrong := range []time.Duration{2 * time.Hour, -2 * time.Hour, 500 * time.Millisecond, 72 * time.Hour} {
		synctest.Test(t, func(t *testing.T) { // begins at midnight
			l, err := throttle.NewLimiter(throttle.WithLimit(throttle.FixedWindow(5, time.Hour)))
			require.NoError(t, err)
			time.Sleep(time.Hour - 2*time.Second)
			coreOf(l).Lock()
			coreOf(l).Wall().Unix += int64(wrong)
			*coreOf(l).WallAt() = int64(time.Since(coreOf(l).Start)) + int64(time.Second)
			unusedLocked(l)
			coreOf(l).Unlock()
			_, ok := l.Try(throttle.Ask{Cost: 5})
			require.True(t, ok)
			time.Sleep(time.Second) // now the clock is looked at
			wait, ok := l.Try(throttle.Ask{})
			if wrong < 0 {
				require.True(t, ok, "set forward: another window")
			} else {
				require.Equal(t, time.Second, wait, "set back: the window that it now is was used up")
			}
		})
	}
}

// setWrong has a Limiter believe that the clock is wrong, until it looks again.
func setWrong(l *throttle.Limiter, by, until time.Duration) {
	coreOf(l).Lock()
	defer coreOf(l).Unlock()
	coreOf(l).Wall().Unix += int64(by)
	*coreOf(l).WallAt() = int64(time.Since(coreOf(l).Start) + until)
	unusedLocked(l)
}

// unusedLocked replaces the meter of the only bucket by an unused one, which begins in the window of now.
func unusedLocked(l *throttle.Limiter) {
	b := coreOf(l).Limits[0].Single
	b.Meter = coreOf(l).Limits[0].Make(coreOf(l).NowLocked(), b.Rate(), 0, coreOf(l).Wall())
}

// TestClockThatIsSetBackALittleStartsNoWindowTwice is about one that is corrected across the end of a window.
func TestClockThatIsSetBackALittleStartsNoWindowTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight
		l := limiterOf(t, throttle.WithLimit(throttle.FixedWindow(5, time.Hour)))
		time.Sleep(time.Hour - 400*time.Millisecond)
		setWrong(l, 500*time.Millisecond, 100*time.Millisecond)
		_, ok := l.Try(throttle.Ask{Cost: 3})
		require.True(t, ok)
		time.Sleep(200 * time.Millisecond)
		wait, _ := l.Try(throttle.Ask{Cost: 2})
		require.Equal(t, 200*time.Millisecond, wait)
		wait, _ = l.Try(throttle.Ask{Cost: 3})
		require.Equal(t, time.Hour+200*time.Millisecond, wait)
		time.Sleep(300 * time.Millisecond)
		_, ok = l.Try(throttle.Ask{Cost: 2})
		require.True(t, ok)
		wait, _ = l.Try(throttle.Ask{})
		require.Equal(t, time.Hour-100*time.Millisecond, wait)
	})
}

func TestClockThatIsSetBackForgivesWhatIsLongOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.FixedWindow(5, time.Hour)))
		_, ok := l.Try(throttle.Ask{Cost: 5})
		require.True(t, ok)
		time.Sleep(10 * time.Hour)
		coreOf(l).Lock()
		coreOf(l).Wall().Unix += int64(2 * time.Hour)
		coreOf(l).Unlock()
		_, ok = l.Try(throttle.Ask{Cost: 5})
		require.True(t, ok)
	})
}

// TestWaiterForAWindowSeesThatTheClockWasSet waits for a window that has begun long ago, once the clock is right.
func TestWaiterForAWindowSeesThatTheClockWasSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.FixedWindow(5, 24*time.Hour)))
		sleep(23 * time.Hour)
		setWrong(l, -12*time.Hour, time.Second)
		coreOf(l).Lock()
		*coreOf(l).WallAt() = meter.Never
		coreOf(l).Unlock()
		_, ok := l.Try(throttle.Ask{Cost: 5})
		require.True(t, ok)
		waits := send(t, l, throttle.Ask{Cost: 1})
		coreOf(l).Lock()
		*coreOf(l).WallAt() = 0
		coreOf(l).Unlock()
		checkInvariants(t, l)
		sleep(2 * time.Hour)
		require.True(t, waits.done, "waits until the clock would have been right")
		require.LessOrEqual(t, waits.at, 24*time.Hour+time.Minute)
	})
}

// TestStartMayBeAnyTime is about times that don't fit an int64 of nanoseconds.
func TestStartMayBeAnyTime(t *testing.T) {
	for _, year := range []int{1, 1600, 1677, 1969, 1970, 2000, 2262, 2263, 9999} {
		synctest.Test(t, func(t *testing.T) { // begins at midnight
			l := limiterOf(t, throttle.WithLimit(throttle.FixedWindow(1, 24*time.Hour, throttle.Start(time.Date(year, 1, 1, 6, 0, 0, 0, time.UTC)))))
			l.Try(throttle.Ask{})
			wait, ok := l.Try(throttle.Ask{})
			require.False(t, ok)
			require.Equal(t, 6*time.Hour, wait, "year %d", year)
		})
	}
}

// However the wall clock is set, by a leap second, a day or a century, a window that the clock shows again is not granted again
// at once: tokens come in only when the clock goes on to a later window.
func TestAClockThatIsSetGrantsNoWindowTwice(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	limits := []throttle.Limit{
		throttle.FixedWindow(5, time.Hour), throttle.FixedWindow(5, 24*time.Hour, throttle.Start(time.Date(2050, 1, 1, 0, 20, 0, 0, time.UTC))),
		throttle.CalendarWindow(5, throttle.CalendarDay, berlin), throttle.CalendarWindow(5, throttle.CalendarWeek, berlin), throttle.CalendarWindow(5, throttle.CalendarMonth, berlin),
	}
	jumps := []time.Duration{time.Nanosecond, time.Second, time.Second + 1, time.Minute, time.Hour, 25 * time.Hour, 40 * 24 * time.Hour, 100 * 365 * 24 * time.Hour}
	seeds := uint64(100)
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { // begins at midnight UTC on 2000-01-01
			r := metertest.Seeded(t, seed)
			l := limiterOf(t, throttle.WithLimit(limits[seed%uint64(len(limits))]))
			index, left := int64(math.MinInt64), 0
			end := func() int64 { return onlyBucket(t, l).Reset.Sub(coreOf(l).Start).Nanoseconds() + coreOf(l).Wall().Unix } // by the clock as it is set
			for range 200 {
				time.Sleep(time.Duration(r.Int64N(1 << r.IntN(46))))
				if r.IntN(4) == 0 {
					by := jumps[r.IntN(len(jumps))]
					if r.IntN(2) == 0 {
						by = -by
					}
					if year := time.Unix(0, coreOf(l).Wall().Unix).Add(by).Year(); year > 1800 && year < 2200 {
						setClock(l, by)
					}
				}
				now := end()
				if now > index {
					left = 5
				}
				index = now // if it is an earlier one, there is what was left, until the clock goes on
				for range r.IntN(8) {
					wait, ok := l.Try(throttle.Ask{})
					if ok {
						left--
					}
					require.LessOrEqual(t, wait, 31*24*time.Hour+time.Hour+time.Second, "the clock was set back, and the window that it showed is waited for")
					require.GreaterOrEqual(t, left, 0, "a window was granted twice")
				}
				checkInvariants(t, l)
			}
		})
	}
}

// setClock has the wall clock of a Limiter jump, as if the machine's had been set.
func setClock(l *throttle.Limiter, by time.Duration) {
	coreOf(l).Lock()
	defer coreOf(l).Unlock()
	now := coreOf(l).NowLocked()
	coreOf(l).Wall().Unix += int64(by)
	if *coreOf(l).WallAt() = meter.Never; by < -time.Second {
		coreOf(l).Wall().SetBack(now)
	}
}

// onlyBucket returns the state of the only bucket.
func onlyBucket(t *testing.T, l *throttle.Limiter) throttle.BucketStats {
	for b := range l.Buckets() {
		return b
	}
	require.Fail(t, "no bucket")
	return throttle.BucketStats{}
}
