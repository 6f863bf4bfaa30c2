package tests

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

func TestCalendarWindowNamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		limit throttle.Limit
		want  string
	}{
		{throttle.CalendarWindow(0, throttle.CalendarDay, time.UTC), "n of 0 is not positive"},
		{throttle.CalendarWindow(1, 0, time.UTC), "Calendar(0) is not Day, Week or Month"},
		{throttle.CalendarWindow(1, 9, time.UTC), "Calendar(9) is not Day, Week or Month"},
		{throttle.CalendarWindow(1, throttle.CalendarDay, nil), "needs a time zone"},
		{throttle.CalendarWindow(1, throttle.CalendarWeek, time.UTC, throttle.Start(time.Unix(0, 0))), "does not fit a limit of kind calendar-window"},
		{throttle.CalendarWindow(1, throttle.CalendarWeek, time.UTC, throttle.Burst(3)), "does not fit a limit of kind calendar-window"},
		{throttle.CalendarWindow(5, throttle.CalendarMonth, time.UTC, throttle.Fraction(0.1)), "Fraction(0.1) of 5 leaves no token"},
	} {
		_, err := throttle.NewLimiter(throttle.WithLimit(c.limit))
		require.ErrorContains(t, err, c.want)
	}
}

func TestCalendarWindowTakesNoOtherPeriod(t *testing.T) {
	l := limiterWith(t, throttle.WithLimit(throttle.CalendarWindow(5, throttle.CalendarMonth, time.UTC), throttle.CalendarWindow(5, throttle.CalendarDay, time.UTC,
		throttle.Name("daily"), throttle.RateFor(func(string) (int64, time.Duration) { return 1, time.Hour }))))
	require.NoError(t, l.SetRate("calendar-window", 7, throttle.CalendarMonth.Period()))
	require.ErrorContains(t, l.SetRate("calendar-window", 7, time.Hour), "a period of 1h0m0s is not the 730h29m6s of a month")
	require.ErrorContains(t, l.Wait(t.Context(), throttle.Ask{Key: "k"}), "a period of 1h0m0s is not the 24h0m0s of a day")
}
