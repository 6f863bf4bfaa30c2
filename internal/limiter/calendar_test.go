package limiter_test

import (
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata" // a machine may have none

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	loc, err := time.LoadLocation(name)
	require.NoError(t, err)
	return loc
}

// waitsUntil checks that a limit that has been used up opens at that instant, and not 1 ns before.
func waitsUntil(t *testing.T, l *driven, n int64, at time.Time) {
	t.Helper()
	_, ok := l.try(ask{Cost: n})
	require.True(t, ok)
	wait, ok := l.try(ask{})
	require.False(t, ok)
	require.Equal(t, at, time.Now().Add(wait).In(at.Location()))
	time.Sleep(wait - 1)
	wait, ok = l.try(ask{})
	require.False(t, ok)
	require.Equal(t, time.Nanosecond, wait)
	time.Sleep(time.Nanosecond)
}

func TestCalendarWindowEndsAtMidnightOfItsZone(t *testing.T) {
	for name, c := range map[string]struct {
		zone  string
		unit  meter.Calendar
		now   time.Time // in UTC
		until time.Time // in the zone
	}{
		"a day of 24 hours":      {"Europe/Berlin", meter.Day, time.Date(2000, 1, 5, 12, 0, 0, 1, time.UTC), time.Date(2000, 1, 6, 0, 0, 0, 0, time.UTC)},
		"a day of 23 hours":      {"Europe/Berlin", meter.Day, time.Date(2000, 3, 25, 23, 0, 0, 0, time.UTC), time.Date(2000, 3, 27, 0, 0, 0, 0, time.UTC)},
		"a day of 25 hours":      {"Europe/Berlin", meter.Day, time.Date(2000, 10, 28, 22, 0, 0, 0, time.UTC), time.Date(2000, 10, 30, 0, 0, 0, 0, time.UTC)},
		"a day without midnight": {"America/Sao_Paulo", meter.Day, time.Date(2000, 10, 7, 12, 0, 0, 0, time.UTC), time.Date(2000, 10, 8, 1, 0, 0, 0, time.UTC)},
		"a week":                 {"America/New_York", meter.Week, time.Date(2000, 3, 28, 0, 0, 0, 0, time.UTC), time.Date(2000, 4, 3, 0, 0, 0, 0, time.UTC)},
		"a February of 29 days":  {"Asia/Kathmandu", meter.Month, time.Date(2000, 2, 3, 0, 0, 0, 0, time.UTC), time.Date(2000, 3, 1, 0, 0, 0, 0, time.UTC)},
		"a month of 31 days":     {"UTC", meter.Month, time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2000, 2, 1, 0, 0, 0, 0, time.UTC)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // begins at midnight UTC on 2000-01-01
				loc := zone(t, c.zone)
				until := time.Date(c.until.Year(), c.until.Month(), c.until.Day(), c.until.Hour(), 0, 0, 0, loc)
				time.Sleep(time.Until(c.now))
				l := drive(t, calendarWindow(5, c.unit, loc))
				waitsUntil(t, l, 5, until)
				_, ok := l.try(ask{Cost: 5})
				require.True(t, ok)
			})
		})
	}
}

func TestWaiterOfACalendarWindowLeavesAtMidnight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight UTC on 2000-01-01
		berlin := zone(t, "Europe/Berlin")
		time.Sleep(time.Until(time.Date(2000, 3, 26, 0, 0, 0, 0, berlin)))
		l := drive(t, calendarWindow(2, meter.Day, berlin))
		for day := range 4 { // the first of which has 23 hours
			for range 2 {
				require.NoError(t, l.wait(t.Context(), ask{}))
				require.Equal(t, time.Date(2000, 3, 26+day, 0, 0, 0, 0, berlin), time.Now().In(berlin))
			}
		}
	})
}

// Four processes share a quota for each day of a zone, over days of 24, 23 and 25 hours.
func TestSharedCalendarWindowIsOneQuotaOfAFleet(t *testing.T) {
	for _, first := range []time.Time{time.Date(2000, 3, 25, 0, 0, 0, 0, time.UTC), time.Date(2000, 10, 28, 0, 0, 0, 0, time.UTC)} {
		overTrip(t, 4*ms, func(t *testing.T, s *trip) {
			berlin := zone(t, "Europe/Berlin")
			day := func(i int) time.Time {
				return time.Date(first.Year(), first.Month(), first.Day()+i, 0, 0, 0, 0, berlin)
			}
			time.Sleep(time.Until(day(0)))
			fleet := make([]*driven, 4)
			for i := range fleet {
				fleet[i] = drive(t, calendarWindow(20, meter.Day, berlin, named("quota"), shared(s)))
			}
			granted := make(map[string]int)
			for time.Now().Before(day(4).Add(-time.Minute)) {
				for _, l := range fleet { // 24 requests an hour
					if l.wait(t.Context(), ask{MaxWait: ptr(time.Second)}) == nil {
						granted[time.Now().In(berlin).Format(time.DateOnly)]++
					}
				}
				time.Sleep(10 * time.Minute)
			}
			require.Len(t, granted, 4)
			for day, n := range granted {
				require.Equal(t, 20, n, day)
			}
			for i, most := range []time.Duration{30 * time.Second, 20 * ms} { // a process that had its share of a day leaves the next one to others first
				time.Sleep(time.Until(day(4+i)) - time.Minute)
				require.NoError(t, fleet[0].wait(t.Context(), ask{Cost: 20}))
				late := time.Since(day(4 + i))
				require.GreaterOrEqual(t, late, time.Duration(0))
				require.Less(t, late, most)
			}
		})
	}
}

func TestCalendarWindowFollowsAClockThatIsSet(t *testing.T) {
	for name, c := range map[string]struct {
		wrong, left time.Duration
		ok          bool
	}{
		"back, to the day that was used":    {wrong: 12 * time.Hour, left: 11 * time.Hour},
		"forward, to a day that was unused": {wrong: -12 * time.Hour, ok: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // begins at midnight UTC on 2000-01-01
				berlin := zone(t, "Europe/Berlin")
				l := drive(t, calendarWindow(5, meter.Day, berlin))
				time.Sleep(time.Until(time.Date(2000, 1, 3, 1, 0, 0, 0, berlin)))
				if !c.ok {
					time.Sleep(12 * time.Hour)
				}
				setWrong(l, c.wrong, time.Second)
				_, ok := l.try(ask{Cost: 5})
				require.True(t, ok)
				time.Sleep(time.Second) // now the clock is looked at
				wait, ok := l.try(ask{})
				require.Equal(t, c.ok, ok)
				if !ok {
					require.Equal(t, c.left-time.Second, wait)
				}
			})
		})
	}
}

func TestCalendarWindowTakesANewNumberOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, calendarWindow(5, meter.Month, time.UTC))
		_, ok := l.try(ask{Cost: 5})
		require.True(t, ok)
		l.setRate("calendar-window", 7, periodOf[meter.Month])
		_, ok = l.try(ask{Cost: 2})
		require.True(t, ok)
		_, ok = l.try(ask{})
		require.False(t, ok)
	})
}

func TestCalendarWindowHasANumberForEachKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, calendarWindow(5, meter.Day, time.UTC, withRates(func(key string) (int64, time.Duration) {
			if key == "gold" {
				return 50, periodOf[meter.Day]
			}
			return 0, 0
		})))
		_, ok := l.try(ask{Key: "gold", Cost: 50})
		require.True(t, ok)
		wait, ok := l.try(ask{Key: "other", Cost: 6})
		require.False(t, ok)
		require.Equal(t, never, wait)
	})
}
