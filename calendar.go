package throttle

import (
	"strconv"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Calendar is the unit of time of a [CalendarWindow].
type Calendar uint8

const (
	Day   = Calendar(meter.Day)
	Week  = Calendar(meter.Week) // from Monday
	Month = Calendar(meter.Month)
)

// String returns the name of the unit.
func (c Calendar) String() string {
	switch c {
	case Day:
		return "day"
	case Week:
		return "week"
	case Month:
		return "month"
	}
	return "Calendar(" + strconv.Itoa(int(c)) + ")"
}

// Period returns the mean length of the unit, for [RateFor] and [Limiter.SetRate]: 24 hours, 7 days, and a twelfth of
// 365.2425 days. It is 0 for an unknown unit.
func (c Calendar) Period() time.Duration {
	switch c {
	case Day:
		return 24 * time.Hour
	case Week:
		return 7 * 24 * time.Hour
	case Month:
		return 2_629_746 * time.Second
	}
	return 0
}

// CalendarWindow allows n tokens per day, week or month of a time zone, as quotas do that a provider resets at midnight.
// A window ends at the first instant of the next day, Monday or month in that zone, however long it was: a day has 23 to
// 25 hours where clocks are set. The window follows the wall clock, also when that is set. A cost above n can never be paid
// and is rejected. [RateFor] and [Limiter.SetRate] change n only; their period must be [Calendar.Period].
func CalendarWindow(n int64, unit Calendar, zone *time.Location, opts ...LimitOption) Limit {
	l := newLimit(kindCalendar, n, unit.Period(), opts)
	l.unit, l.zone = unit, zone
	if unit.Period() == 0 {
		l.fault("%v is not Day, Week or Month", unit)
	}
	if zone == nil {
		l.fault("a CalendarWindow needs a time zone: time.UTC, time.Local, or one from time.LoadLocation")
	}
	return l
}
