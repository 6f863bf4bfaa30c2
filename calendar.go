package throttle

import (
	"strconv"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Calendar is the unit of time of a [CalendarWindow].
type Calendar uint8

const (
	CalendarDay  Calendar = iota + 1
	CalendarWeek          // from Monday
	CalendarMonth
)

// A Calendar has the same number as that of a meter: the arrays have one element, at the index 0.
var (
	_ = [1]struct{}{}[CalendarDay-Calendar(meter.Day)]
	_ = [1]struct{}{}[CalendarWeek-Calendar(meter.Week)]
	_ = [1]struct{}{}[CalendarMonth-Calendar(meter.Month)]
)

// String returns the name of the unit.
func (c Calendar) String() string {
	switch c {
	case CalendarDay:
		return "day"
	case CalendarWeek:
		return "week"
	case CalendarMonth:
		return "month"
	}
	return "Calendar(" + strconv.Itoa(int(c)) + ")"
}

// Period returns the mean length of the unit, for [RateFor] and [Limiter.SetRate]: 24 hours, 7 days, and a twelfth of
// 365.2425 days. It is 0 for an unknown unit.
func (c Calendar) Period() time.Duration {
	switch c {
	case CalendarDay:
		return 24 * time.Hour
	case CalendarWeek:
		return 7 * 24 * time.Hour
	case CalendarMonth:
		return 2_629_746 * time.Second
	}
	return 0
}
