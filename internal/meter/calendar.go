package meter

import (
	"math"
	"time"
)

// A Calendar is a unit of time that begins at midnight of a time zone.
type Calendar uint8

const (
	Day Calendar = 1 + iota
	Week
	Month
)

// windows are those of a clock, numbered: all of one period from an origin on, or those of a calendar in a time zone, from the
// one that holds the first day of 1970. Window i ends where window i+1 begins. One of a calendar begins at the first instant
// at which a local clock shows its first midnight or a later time: so a midnight that is skipped leaves no gap, and one
// that comes twice begins no window twice.
type windows struct {
	per, origin int64 // in ns, the origin of Unix time
	start       start // which origin was made from
	unit        Calendar
	backs       uint32         // how often the wall clock had been set back when they were used last
	zone        *time.Location // nil: all are per long

	found, from, until int64 // the window found last, and its bounds in ns of Unix time
}

// at returns the number of the window that an instant of Unix time, in ns, falls into.
func (w *windows) at(unix int64) int64 {
	if unix < w.from || unix >= w.until {
		w.find(unix)
	}
	return w.found
}

func (w *windows) find(unix int64) {
	if w.zone == nil {
		w.found = floor(unix-w.origin, w.per)
	} else {
		w.found = w.local(unix)
	}
	w.from, w.until = w.begins(w.found), w.begins(w.found+1)
	for w.until <= unix && w.until < Never { // the local clock was set back across midnight since
		w.found++
		w.from, w.until = w.until, w.begins(w.found+1)
	}
}

// begins returns the first instant of a window, in ns of Unix time; Never if that is later than an Instant can be.
func (w *windows) begins(index int64) int64 {
	switch {
	case w.zone != nil:
		return w.midnight(index)
	case index < 0:
		return index*w.per + w.origin
	}
	return AddInstant(MulCount(index, w.per), w.origin)
}

// A Calendars finds the windows of a calendar in a time zone.
type Calendars struct {
	grid windows
	wall *Wall
}

// NewCalendars returns the windows of a calendar in a time zone.
func NewCalendars(unit Calendar, zone *time.Location, wall *Wall) *Calendars {
	return &Calendars{windows{unit: unit, zone: zone}, wall}
}

// Around returns when the window before that of an instant begins, and the next three, in ns of Unix time.
func (c *Calendars) Around(t Instant) (begins [4]int64) {
	i := c.grid.at(t+c.wall.Unix) - 1
	for k := range begins {
		begins[k] = c.grid.begins(i + int64(k))
	}
	return begins
}

// retune changes the period of windows that are not of a calendar.
func (w *windows) retune(per int64) {
	if w.zone == nil {
		w.per, w.origin, w.from, w.until = per, w.start.boundary(uint64(per)), 0, 0
	}
}

// local returns the number of the window that a local clock shows.
func (w *windows) local(unix int64) int64 {
	t := time.Unix(floor(unix, second), 0).In(w.zone)
	if w.unit == Month {
		return int64(t.Year()-1970)*12 + int64(t.Month()-time.January)
	}
	_, offset := t.Zone()
	days := floor(t.Unix()+int64(offset), secondsPerDay)
	if w.unit == Week {
		return floor(days+thursday, 7)
	}
	return days
}

const (
	secondsPerDay = 24 * 60 * 60
	thursday      = 3       // days since Monday, of the first day of 1970
	lastWindow    = 1 << 17 // days, weeks and months of that number begin too late for ns in an int64
)

// midnight returns the first instant of a window of a calendar, in ns of Unix time; Never if that is later than an Instant can be.
func (w *windows) midnight(index int64) int64 {
	if index > lastWindow {
		return Never
	}
	days := index
	switch w.unit {
	case Week:
		days = index*7 - thursday
	case Month:
		days = floor(time.Date(1970, time.January+time.Month(index), 1, 0, 0, 0, 0, time.UTC).Unix(), secondsPerDay)
	}
	at := reaches(days*secondsPerDay, w.zone)
	switch {
	case at > math.MaxInt64/second:
		return Never
	case at < math.MinInt64/second:
		return math.MinInt64
	}
	return at * second
}

// reaches returns the first second of Unix time at which a clock of that zone shows a local time, given in seconds as if the
// zone were UTC, or a later one.
func reaches(local int64, zone *time.Location) int64 {
	t := time.Unix(local-secondsPerDay, 0).In(zone) // no zone is as far from UTC
	for {
		_, offset := t.Zone()
		_, end := t.ZoneBounds()
		at := max(t.Unix(), local-int64(offset))
		if !end.IsZero() && !end.After(t) { // as for the last day of a leap year, in years beyond the zone's table
			end = t.AddDate(0, 0, 1)
		}
		if end.IsZero() || at < end.Unix() {
			return at
		}
		t = end
	}
}

// floor returns a/b, rounded down, for b > 0.
func floor(a, b int64) int64 {
	if a < 0 {
		return -1 - (-1-a)/b
	}
	return a / b
}
