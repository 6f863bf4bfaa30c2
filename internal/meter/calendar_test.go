package meter

import (
	"fmt"
	"math"
	"testing"
	"time"
	_ "time/tzdata" // a machine may have none

	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/stretchr/testify/require"
)

// The zones of the tests set their clocks at different hours.
var zones = []string{
	"UTC",
	"Europe/Berlin",
	"America/Sao_Paulo",   // until 2019 from midnight to 1:00, and back to 23:00
	"America/St_Johns",    // until 2011 from 0:01, and back to 23:01 of the day before
	"America/Havana",      // from midnight to 1:00, and back from 1:00 to midnight
	"Australia/Lord_Howe", // by half an hour
	"Asia/Kathmandu",      // 5:45 from UTC
	"Pacific/Apia",        // without a 2011-12-30
}

// first returns the first minute at which a clock in the zone shows that day, or a later one, by trying every minute of the
// days around it.
func first(t *testing.T, date time.Time) time.Time {
	t.Helper()
	wanted := date.Unix()
	for at := date.Add(-26 * time.Hour); at.Before(date.Add(26 * time.Hour)); at = at.Add(time.Minute) {
		_, offset := at.Zone()
		if at.Unix()+int64(offset) >= wanted {
			return at
		}
	}
	require.Fail(t, "no such day", date)
	return time.Time{}
}

// starts returns the first instant of a day by time.Date, where no clock is set around it, and by search where one is.
func starts(t *testing.T, year int, month time.Month, day int, zone *time.Location) time.Time {
	t.Helper()
	at := time.Date(year, month, day, 0, 0, 0, 0, zone)
	_, before := at.Add(-26 * time.Hour).Zone()
	_, after := at.Add(26 * time.Hour).Zone()
	if before == after {
		return at
	}
	utc := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	return first(t, utc.In(zone))
}

// clockIsSet reports whether the offset from UTC changes within four hours.
func clockIsSet(at time.Time) bool {
	_, before := at.Zone()
	_, after := at.Add(4 * time.Hour).Zone()
	return before != after
}

func TestCalendarWindowsAgreeWithTimeDate(t *testing.T) {
	for _, name := range zones {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			zone, err := time.LoadLocation(name)
			require.NoError(t, err)
			ws := map[Calendar]*windows{Day: {unit: Day, zone: zone}, Week: {unit: Week, zone: zone}, Month: {unit: Month, zone: zone}}
			for date := time.Date(1996, 1, 1, 0, 0, 0, 0, time.UTC); date.Year() < 2026; date = date.AddDate(0, 0, 1) {
				at := starts(t, date.Year(), date.Month(), date.Day(), zone).UnixNano()
				for unit, begins := range map[Calendar]bool{Day: true, Week: date.Weekday() == time.Monday, Month: date.Day() == 1} {
					if !begins {
						continue
					}
					w := ws[unit]
					index := w.at(at)
					require.Equal(t, at, w.begins(index), "%v: window %d of unit %d", date, index, unit)
					require.Less(t, w.at(at-1), index, "%v: 1 ns before", date)
					require.Equal(t, index, w.at(w.begins(index+1)-1), "%v: 1 ns before the next", date)
					if !clockIsSet(time.Unix(0, at).In(zone)) {
						continue
					}
					for later := range int64(24) { // the clock may show the day before once more
						fresh := &windows{unit: unit, zone: zone}
						require.Equal(t, index, fresh.at(at+later*int64(10*time.Minute)), "%v: %d0 minutes later", date, later)
						require.Equal(t, w.begins(index+1), fresh.until)
					}
				}
			}
		})
	}
}

// Windows follow each other without a gap, wherever a clock is set.
func TestCalendarWindowsHaveNoGaps(t *testing.T) {
	for _, name := range zones {
		zone, err := time.LoadLocation(name)
		require.NoError(t, err)
		for _, unit := range []Calendar{Day, Week, Month} {
			r := metertest.Seeded(t, uint64(unit))
			for range 500 {
				unix := r.Int64N(2 * math.MaxInt64 / 3)
				fresh := &windows{unit: unit, zone: zone}
				index := fresh.at(unix)
				what := fmt.Sprintf("%s, unit %d, %v", name, unit, time.Unix(0, unix).In(zone))
				require.LessOrEqual(t, fresh.begins(index), unix, what)
				require.Greater(t, fresh.begins(index+1), unix, what)
			}
		}
	}
}

func TestCalendarWindowsOfFarTimesSaturate(t *testing.T) {
	for _, unit := range []Calendar{Day, Week, Month} {
		for _, name := range zones {
			zone, err := time.LoadLocation(name)
			require.NoError(t, err)
			w := &windows{unit: unit, zone: zone}
			require.Equal(t, Never, w.begins(math.MaxInt64))
			require.Equal(t, Never, w.begins(w.at(math.MaxInt64)+1))
			for _, unix := range []int64{math.MinInt64, -1, 0, 1, math.MaxInt64 - 1} {
				index := w.at(unix)
				require.LessOrEqual(t, w.begins(index), unix)
				require.Greater(t, w.begins(index+1), unix)
			}
		}
	}
}

// The first and the last window that begin within an int64 of nanoseconds begin in zones that have midnight just then.
func TestCalendarWindowsReachAsFarAsNanoseconds(t *testing.T) {
	const most = math.MaxInt64 / second
	for _, at := range []int64{-most, -25_567 * secondsPerDay, -secondsPerDay, 0, 90_000 * secondsPerDay, most} {
		zone := time.FixedZone("", int(-at%secondsPerDay))
		w := &windows{unit: Day, zone: zone}
		require.Equal(t, at*second, w.begins(w.at(at*second)), "%v", time.Unix(at, 0).In(zone))
	}
	for _, unit := range []Calendar{Day, Month} {
		w := &windows{unit: unit, zone: time.UTC}
		require.Zero(t, w.begins(w.at(0)), "1970 begins with a month")
	}
}

func TestFloorRoundsDown(t *testing.T) {
	for a := int64(-20); a <= 20; a++ {
		for b := int64(1); b < 9; b++ {
			require.Equal(t, int64(math.Floor(float64(a)/float64(b))), floor(a, b), "⌊%d / %d⌋", a, b)
		}
	}
	require.Equal(t, int64(math.MinInt64), floor(math.MinInt64, 1))
}

func TestCalendarWindowPlansByMonths(t *testing.T) {
	unix := time.Date(2024, 1, 31, 12, 0, 0, 0, time.UTC).UnixNano()
	at := func(year int, month time.Month) Instant {
		return time.Date(year, month, 1, 0, 0, 0, 0, time.UTC).UnixNano() - unix
	}
	w := NewCalendarWindow(0, Rate{N: 10}, Month, time.UTC, &Wall{Unix: unix})
	w.Take(0, 0, 7, false)
	require.Equal(t, Instant(0), w.Ready(0, 0, 3))
	require.Equal(t, at(2024, 2), w.Ready(0, 0, 4))
	require.Equal(t, at(2024, 3), w.Ready(0, 13, 1))
	require.Equal(t, at(2025, 2), w.Ready(0, 123, 1))
	require.Equal(t, Never, w.Ready(0, 0, 11))
	require.Equal(t, at(2024, 2), fullAt(w))
	require.False(t, w.Payable(at(2024, 2)-1, 10))
	require.True(t, w.Payable(at(2024, 2), 10))

	w.Retune(1, Rate{N: 20})
	require.InDelta(t, 13, w.Tokens(1), 0)
	saved := w.Save(2)
	for since, left := range map[int64]float64{int64(time.Hour): 13, at(2024, 2): 20} {
		restored := NewCalendarWindow(2+since, Rate{N: 20}, Month, time.UTC, &Wall{Unix: unix})
		require.NoError(t, restored.Restore(2+since, since, saved))
		require.InDelta(t, left, restored.Tokens(2+since), 0)
	}
}

func TestCalendarWindowAllocatesNothing(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	unix := time.Date(2024, 3, 31, 0, 0, 0, 0, time.UTC).UnixNano()
	w := NewCalendarWindow(0, Rate{N: 10}, Day, zone, &Wall{Unix: unix})
	now := Instant(0)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		now += int64(time.Hour)
		w.Spend(now, 1)
		w.Ready(now, 100, 1)
	}))
}
