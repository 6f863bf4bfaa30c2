// Package words puts figures, and what servers said, into words for people, in statistics and in the texts of rejections.
package words

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/httpthrottle/throttle/internal/quota"
)

// Quota returns how much of a quota is left, as far as is known.
func Quota(name string, left, limit int64) string {
	text := quota.Plain(name) + ": unknown"
	if left >= 0 {
		text = quota.Plain(name) + ": " + strconv.FormatInt(left, 10)
	}
	if limit >= 0 {
		text += " of " + strconv.FormatInt(limit, 10)
	}
	return text
}

// Paced returns at which rate requests are sent after a refusal, and why.
func Paced(rate float64, why string) string {
	text := "paced at " + Number(rate) + "/s"
	if why != "" {
		text += " (" + why + ")"
	}
	return text
}

// Number returns a figure with four digits, or a whole one, for people: 8,000.
func Number(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1e15 {
		text := strconv.FormatFloat(f, 'f', 0, 64)
		for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
		return text
	}
	return strconv.FormatFloat(f, 'g', 4, 64)
}

// Reset returns the end of a window: with seconds if there are some, and with the date if it may be after tomorrow's midnight.
func Reset(at time.Time, per string) string {
	format := "15:04 MST"
	if at.Second() != 0 || at.Nanosecond() != 0 {
		format = "15:04:05.999 MST"
	}
	if d, err := time.ParseDuration(per); per != "day" && (err != nil || d > 24*time.Hour) {
		format = "2006-01-02 " + format
	}
	return at.Format(format)
}

// Rate returns a rate per second, or per the first longer unit in which it is at least 1.
func Rate(perSecond float64) string {
	for _, unit := range []struct {
		seconds float64
		name    string
	}{{1, "/s"}, {60, "/min"}, {3600, "/h"}} {
		if perSecond*unit.seconds >= 1 {
			return Number(perSecond*unit.seconds) + unit.name
		}
	}
	return Number(perSecond*86400) + "/day"
}

// Held returns until when something is held; "" if it is not.
func Held(until time.Time) string {
	if until.IsZero() {
		return ""
	}
	return ", held until " + until.Format(time.RFC3339)
}

// Keys returns keys as ServerStats.Account has them, and anything else quoted.
func Keys(keys string) string {
	if strings.ContainsFunc(keys, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(keys)
	}
	return keys
}

// Rounded rounds a Duration, up or down, to a thousandth of its leading unit.
func Rounded(d time.Duration, up bool) time.Duration {
	unit := time.Nanosecond
	switch {
	case d >= time.Second:
		unit = time.Millisecond
	case d >= time.Millisecond:
		unit = time.Microsecond
	}
	if d == math.MaxInt64 { // never, or not known
		return d
	}
	short := d.Truncate(unit)
	if up && short < d && d <= math.MaxInt64-unit {
		short += unit
	}
	return short
}

// WithoutSecrets leaves out the words that may be credentials: long ones with letters and digits.
func WithoutSecrets(text string) string {
	words := strings.Fields(text)
	for i, word := range words {
		if len(word) >= 20 && strings.ContainsFunc(word, unicode.IsDigit) && strings.ContainsFunc(word, unicode.IsLetter) {
			words[i] = "…"
		}
	}
	return strings.Join(words, " ")
}
