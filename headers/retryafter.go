package headers

import (
	"iter"
	"strings"
	"time"
)

// A pause is the longest of several delays that a server gave in its Retry-After or one of the relatives.
type pause struct {
	d         time.Duration
	known     bool
	saturated bool
}

// longest takes the moment that text gives, if it is a later one. Numbers are always valid and never wrap: what is no delay
// and no epoch is too long to be true, and becomes ceiling.
func (p *pause) longest(text string, unit TimeUnit, clock *serverClock) {
	m := readMoment(text, unit, clock)
	if _, isNumber := scanNumber(text); isNumber && m.is == stale {
		m.is = beyond
	}
	switch {
	case m.is == beyond:
		*p = pause{ceiling, true, true}
	case m.is == given && (!p.known || m.d > p.d):
		*p = pause{m.d, true, false}
	}
}

// read takes the longest valid value of all lines. Some servers quote the value, as JSON would, or add a word for the unit.
func (p *pause) read(lines []string, unit TimeUnit, clock *serverClock) {
	for _, line := range lines {
		if text, ok := clean(line); ok {
			for value := range joined(strings.ReplaceAll(text, `"`, "")) {
				p.longest(inUnits(value), unit, clock)
			}
		}
	}
}

// inUnits returns "30 seconds" as 30s, and other text as it is.
func inUnits(text string) string {
	n, word, _ := strings.Cut(text, " ")
	switch strings.ToLower(word) {
	case "ms", "msec", "millisecond", "milliseconds":
		return n + "ms"
	case "s", "sec", "secs", "second", "seconds":
		return n + "s"
	case "m", "min", "mins", "minute", "minutes":
		return n + "m"
	case "h", "hour", "hours":
		return n + "h"
	}
	return text
}

// joined yields the values of a line, which commas separate. An HTTP date has a comma of its own, after its weekday.
func joined(line string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for line != "" {
			value, rest, _ := strings.Cut(line, ",")
			if isWeekday(value) {
				date, after, _ := strings.Cut(rest, ",")
				value, rest = value+","+date, after
			}
			if line = rest; !yield(trim(value)) {
				return
			}
		}
	}
}

// isWeekday reports whether s is the name of a day, or its first three letters, in any case, as package time reads dates.
func isWeekday(s string) bool {
	s = trim(s)
	for day := time.Sunday; day <= time.Saturday; day++ {
		if name := day.String(); strings.EqualFold(s, name) || strings.EqualFold(s, name[:3]) {
			return true
		}
	}
	return false
}

// refined returns p with the precision of a finer header, which has the same wait in milliseconds where Retry-After had to be
// rounded up to seconds. If they differ by more, the longer wait counts; a fine zero is ignored.
func (p pause) refined(fine pause) pause {
	switch {
	case !fine.known || fine.d == 0:
		return p
	case !p.known:
		return fine
	case fine.d > p.d, p.d-fine.d < time.Second:
		return fine
	}
	return p
}
