package headers

import (
	"net/http"
	"strings"
	"time"
)

// A TimeUnit is the meaning of a bare number where a time is expected.
type TimeUnit uint8

const (
	ByMagnitude       TimeUnit = iota // seconds below 1e8, else an epoch in seconds, milli-, micro- or nanoseconds
	Seconds                           // seconds from now
	Milliseconds                      // milliseconds from now
	EpochSeconds                      // seconds since 1970
	EpochMilliseconds                 // milliseconds since 1970
	Minutes                           // minutes from now
)

// Numbers are distinguished by their size: no server gives a delay of three years or more, and an epoch in seconds has had ten
// digits since 2001. What lies between is neither.
const (
	notDelta   = 1e8
	epochSecs  = 1e9
	epochMilli = 1e11
	epochMicro = 1e14
	epochNano  = 1e17
)

// recent is how old an instant may be to count as one that has just passed, and how far the server's clock may be off.
const recent = 24 * time.Hour

// A moment is how far away a time is that a server gave.
type moment struct {
	d  time.Duration // 0 to ceiling if given
	is verdict
}

type verdict uint8

const (
	malformed verdict = iota
	stale             // too long ago to be meant
	beyond            // further away than ceiling, or a number that is neither delay nor epoch
	given
)

func (m moment) known() Maybe[time.Duration] {
	return Maybe[time.Duration]{m.d, true}.only(m.is == given)
}

// A serverClock is the clock of a server: ours, set by the Date of the response. The Date is not read until a time is to be compared with
// the clock, because most servers send a number of seconds.
type serverClock struct {
	now   time.Time // ours, until the Date is read
	dates []string  // the lines of Date that are to be read
}

// until returns how far away t is by the clock.
func (c *serverClock) until(t time.Time) moment {
	c.set()
	switch d := t.Sub(c.now); { // saturates
	case d < -recent:
		return moment{is: stale}
	case d > ceiling:
		return moment{is: beyond}
	default:
		return moment{max(d, 0), given}
	}
}

// set sets the clock by the Date if that is within a day of ours: else one of the two is wrong, and not by a time zone.
func (c *serverClock) set() {
	for _, line := range c.dates {
		if date, ok := httpDate(line); ok {
			if off := date.Sub(c.now); -recent <= off && off <= recent {
				c.now = date
			}
			break
		}
	}
	c.dates = nil
}

// readMoment reads a time in any of the forms that servers write: a number, a date, a duration.
func readMoment(s string, unit TimeUnit, clock *serverClock) moment {
	if n, is := scanNumber(s); is {
		return n.moment(unit, clock)
	}
	if d, is := scanDuration(s); is != malformed {
		return moment{d, is}
	}
	if t, is := scanDate(s); is {
		return clock.until(t)
	}
	return moment{}
}

func (n number) moment(unit TimeUnit, clock *serverClock) moment {
	switch unit {
	case Seconds:
		return n.delta(time.Second)
	case Milliseconds:
		return n.delta(time.Millisecond)
	case Minutes:
		return n.delta(time.Minute)
	case EpochSeconds:
		return n.epoch(time.Second, clock)
	case EpochMilliseconds:
		return n.epoch(time.Millisecond, clock)
	}
	switch {
	case n.whole < notDelta:
		return n.delta(time.Second)
	case n.whole < epochSecs:
		if m := n.epoch(time.Second, clock); m.is == given {
			return m
		}
		return moment{is: beyond}
	case n.whole < epochMilli:
		return n.epoch(time.Second, clock)
	case n.whole < epochMicro:
		return n.epoch(time.Millisecond, clock)
	case n.whole < epochNano:
		return n.epoch(time.Microsecond, clock)
	default:
		return n.epoch(time.Nanosecond, clock)
	}
}

func (n number) delta(unit time.Duration) moment {
	d, fits := n.of(unit)
	if !fits {
		return moment{is: beyond}
	}
	return moment{d, given}
}

func (n number) epoch(unit time.Duration, clock *serverClock) moment {
	perSecond := uint64(time.Second / unit)
	seconds := n.whole / perSecond
	if seconds > 1<<40 { // the year 36,812: far from where time.Unix overflows
		return moment{is: beyond}
	}
	rest := number{n.whole % perSecond, n.nano, false}
	nanos, _ := rest.of(unit)
	return clock.until(time.Unix(int64(seconds), int64(nanos)))
}

// scanDuration reads a duration as Go writes it (1h2m59.56s), with days besides, of units in any order; or as ISO 8601 does (P1DT2H30.5S),
// without years, months and weeks.
func scanDuration(s string) (time.Duration, verdict) {
	if iso, found := strings.CutPrefix(s, "P"); found {
		days, clock, timed := strings.Cut(iso, "T")
		if strings.Trim(days, "0123456789D") != "" || strings.Trim(clock, "0123456789.HMS") != "" || timed != (clock != "") {
			return 0, malformed
		}
		s = strings.ToLower(days + clock)
	}
	total, is := time.Duration(0), malformed
	for s != "" {
		i := strings.IndexFunc(s, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
		if i < 0 {
			return 0, malformed
		}
		n, isNumber := scanNumber(s[:i])
		unit, width := unitAt(s[i:])
		if !isNumber || unit == 0 {
			return 0, malformed
		}
		s = s[i+width:]
		d, fits := n.of(unit)
		if total += d; !fits || total > ceiling || is == beyond {
			total, is = 0, beyond
		} else {
			is = given
		}
	}
	return total, is
}

func unitAt(s string) (unit time.Duration, width int) {
	switch {
	case strings.HasPrefix(s, "ns"):
		return time.Nanosecond, 2
	case strings.HasPrefix(s, "us"):
		return time.Microsecond, 2
	case strings.HasPrefix(s, "ms"):
		return time.Millisecond, 2
	case s[0] == 's':
		return time.Second, 1
	case s[0] == 'm':
		return time.Minute, 1
	case s[0] == 'h':
		return time.Hour, 1
	case s[0] == 'd':
		return 24 * time.Hour, 1
	}
	return 0, 0
}

// scanDate reads the three forms of an HTTP date, in GMT or UTC, ISO 8601, and what Date.toString of JavaScript writes. A time of no known
// zone is refused: hours too short are worse than none.
func scanDate(s string) (time.Time, bool) {
	if s == "" {
		return time.Time{}, false
	}
	if isDigit(s[0]) {
		return scanISO(s)
	}
	if day, found := strings.CutSuffix(s, " UTC"); found { // as time.RFC1123 writes it
		s = day + " GMT"
	}
	// http.ParseTime reads any abbreviation at the end of an RFC 850 date as UTC.
	if rfc850 := strings.IndexByte(s, '-') > 0 && strings.IndexByte(s, ',') > 0; !rfc850 || strings.HasSuffix(s, " GMT") {
		if t, ok := httpDate(s); ok {
			return t, true
		}
	}
	s, _, _ = strings.Cut(s, " (")
	for _, layout := range [...]string{"Mon Jan _2 2006 15:04:05 GMT-0700", time.RFC1123Z} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// httpDate is http.ParseTime. It reads the form that servers are to send by itself, in a tenth of the time.
func httpDate(s string) (time.Time, bool) {
	if len(s) == len(http.TimeFormat) && s[3:5] == ", " && s[7] == ' ' && s[11] == ' ' && s[16] == ' ' && s[19] == ':' && s[22] == ':' && s[25:] == " GMT" {
		weekday, month := strings.Index(weekdays, s[:3]), strings.Index(months, s[8:11])
		if weekday%4 == 0 && month%4 == 0 {
			if t, ok := date(fixed(s[12:16]), 1+month/4, fixed(s[5:7]), fixed(s[17:19]), fixed(s[20:22]), fixed(s[23:25])); ok {
				return t, true
			}
		}
	}
	t, err := http.ParseTime(s)
	return t, err == nil
}

const (
	weekdays = "Sun Mon Tue Wed Thu Fri Sat"
	months   = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"
)

// date returns a time in UTC, unless there is none; a part that is negative was not read.
func date(year, month, day, hour, minute, second int) (t time.Time, ok bool) {
	if year < 0 || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59 {
		return t, false
	}
	t = time.Date(year, time.Month(month), day, hour, minute, second, 0, time.UTC)
	y, m, d := t.Date()
	return t, y == year && int(m) == month && d == day // no 31st of February
}

// scanISO reads yyyy-mm-ddThh:mm[:ss[.f]] and a zone, which is Z, ±hh:mm, ±hhmm or UTC. time.RFC3339 wants the seconds, and
// a colon in the zone.
func scanISO(s string) (time.Time, bool) {
	fail := time.Time{}
	if len(s) < len("2006-01-02T15:04Z") || s[4] != '-' || s[7] != '-' || s[13] != ':' || strings.IndexByte("Tt ", s[10]) < 0 {
		return fail, false
	}
	year, month, day := fixed(s[:4]), fixed(s[5:7]), fixed(s[8:10])
	hour, minute, second := fixed(s[11:13]), fixed(s[14:16]), 0
	nanos, rest := uint64(0), s[16:]
	if len(rest) >= 3 && rest[0] == ':' {
		second, rest = fixed(rest[1:3]), rest[3:]
		if rest != "" && rest[0] == '.' {
			fraction, tail := cutDigits(rest[1:])
			if fraction == "" {
				return fail, false
			}
			nanos, rest = billionths(fraction), tail
		}
	}
	zone, hasZone := scanZone(rest)
	t, ok := date(year, month, day, hour, minute, second)
	return t.Add(time.Duration(nanos) - zone), ok && hasZone
}

func scanZone(s string) (offset time.Duration, ok bool) {
	switch s {
	case "Z", "z", " UTC", " GMT":
		return 0, true
	}
	s = strings.TrimPrefix(s, " ")
	if len(s) == 6 && s[3] == ':' {
		s = s[:3] + s[4:]
	}
	if len(s) != 5 || (s[0] != '+' && s[0] != '-') {
		return 0, false
	}
	hours, minutes := fixed(s[1:3]), fixed(s[3:])
	if hours < 0 || hours > 23 || minutes < 0 || minutes > 59 {
		return 0, false
	}
	offset = time.Duration(hours)*time.Hour + time.Duration(minutes)*time.Minute
	if s[0] == '-' {
		offset = -offset
	}
	return offset, true
}

// fixed returns the value of a few digits, -1 if they are not all digits.
func fixed(s string) int {
	digits, rest := cutDigits(s)
	if rest != "" {
		return -1
	}
	return int(parseDigits(digits))
}
