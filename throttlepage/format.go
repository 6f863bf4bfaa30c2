package throttlepage

import (
	"math"
	"strconv"
	"strings"
	"time"
)

const none = "–"

// number returns x with about three digits, for people: 0.12, 8.3, 212, 4,231, 12.3 M.
func number(x float64) string {
	switch size := math.Abs(x); {
	case math.IsNaN(x):
		return none
	case math.IsInf(x, 0) || size >= 1e18:
		return "∞"
	case size >= 1e7:
		const powers = " MGTP"
		p := min(len(powers)-1, int(math.Log10(size))/3-1)
		return minus(strconv.FormatFloat(x/math.Pow(1000, float64(p+1)), 'f', 1, 64)) + "\u00a0" + powers[p:p+1]
	case size >= 99.95:
		return minus(grouped(strconv.FormatFloat(x, 'f', 0, 64)))
	case size >= 0.995:
		return minus(decimals(x, 10))
	default:
		return minus(decimals(x, 100))
	}
}

// decimals returns x rounded to parts of one, without trailing zeros.
func decimals(x, parts float64) string {
	return strconv.FormatFloat(math.Round(x*parts)/parts+0, 'f', -1, 64) // +0: not -0
}

// rate returns tokens per second in the unit that gives at least 1: 8.3/s, 15/min, 7/day.
func rate(perSecond float64) string {
	if perSecond <= 0 {
		return none
	}
	for _, unit := range []struct {
		seconds float64
		name    string
	}{{1, "/s"}, {60, "/min"}, {3600, "/h"}} {
		if x := perSecond * unit.seconds; x >= 0.995 {
			return number(x) + unit.name
		}
	}
	return number(perSecond*86400) + "/day"
}

// minus returns the figure with a real minus sign.
func minus(figure string) string { return strings.Replace(figure, "-", "−", 1) }

// grouped returns digits, which may have a sign, in groups of three.
func grouped(digits string) string {
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// count returns n, for people.
func count(n uint64) string { return number(float64(n)) }

// duration returns d in one unit, for people: 40 ms, 1.1 s, 12 min.
func duration(d time.Duration) string {
	in := func(unit time.Duration, name string) string {
		return number(float64(d)/float64(unit)) + "\u00a0" + name
	}
	whole := func(unit time.Duration, name string) string {
		return number(math.Round(float64(d)/float64(unit))) + "\u00a0" + name
	}
	switch {
	case d <= 0:
		return "0"
	case d == math.MaxInt64:
		return "never"
	case d < time.Millisecond:
		return "<\u00a01\u00a0ms"
	case d < time.Second:
		return whole(time.Millisecond, "ms")
	case d < 10*time.Second:
		return in(time.Second, "s")
	case d < time.Minute:
		return whole(time.Second, "s")
	case d < 2*time.Hour:
		return whole(time.Minute, "min")
	case d < 48*time.Hour:
		return whole(time.Hour, "h")
	default:
		return whole(24*time.Hour, "d")
	}
}

// percent returns part of whole.
func percent(part, whole uint64) string {
	if whole == 0 {
		return "0\u00a0%"
	}
	return number(math.Round(float64(part)/float64(whole)*1000)/10) + "\u00a0%"
}

// plural returns n things: "1 request", "41 requests".
func plural(n uint64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return count(n) + " " + thing + "s"
}
