package headers

import (
	"math"
	"math/bits"
	"strings"
	"time"
)

// maxValue is the length in bytes above which a field line is not believed.
const maxValue = 256

// trim returns s without the white space around it that a field line may have.
func trim(s string) string {
	for s != "" && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for s != "" && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}

// clean returns a field line without the white space around it, and whether it may be read at all: printable ASCII and tabs,
// of a sane length.
func clean(line string) (string, bool) {
	line = trim(line)
	if len(line) > maxValue {
		return "", false
	}
	for i := range len(line) {
		if c := line[i]; (c < ' ' && c != '\t') || c >= 0x7f {
			return "", false
		}
	}
	return line, true
}

// A number is a decimal number as servers write it: digits, and a fraction if need be. strconv.ParseFloat reads NaN, Inf,
// 0x1p4 and 1_000 as well, and rounds.
type number struct {
	whole  uint64 // MaxUint64 if it has more digits than fit
	nano   uint64 // the fraction in billionths, rounded up: 0 to 1e9
	padded bool   // begins with a zero that is not needed
}

func scanNumber(s string) (n number, ok bool) {
	digits, rest := cutDigits(s)
	if digits == "" {
		return n, false
	}
	if rest != "" {
		if rest[0] != '.' {
			return n, false
		}
		fraction, tail := cutDigits(rest[1:])
		if fraction == "" || tail != "" {
			return n, false
		}
		n.nano = billionths(fraction)
	}
	n.whole = parseDigits(digits)
	n.padded = len(digits) > 1 && digits[0] == '0'
	return n, true
}

func cutDigits(s string) (digits, rest string) {
	i := 0
	for i < len(s) && isDigit(s[i]) {
		i++
	}
	return s[:i], s[i:]
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// parseDigits returns the value of a string of digits, MaxUint64 if it is larger.
func parseDigits(digits string) uint64 {
	n := uint64(0)
	for i := range len(digits) {
		high, low := bits.Mul64(n, 10)
		sum, carry := bits.Add64(low, uint64(digits[i]-'0'), 0)
		if high|carry != 0 {
			return math.MaxUint64
		}
		n = sum
	}
	return n
}

// billionths returns the value of the digits after a decimal point, rounded up, so that a wait is long enough.
func billionths(digits string) uint64 {
	if len(digits) > 9 {
		n := parseDigits(digits[:9])
		if strings.Trim(digits[9:], "0") != "" {
			n++
		}
		return n
	}
	n := parseDigits(digits)
	for range 9 - len(digits) {
		n *= 10
	}
	return n
}

// of returns n units of time, and whether it is no longer than ceiling.
func (n number) of(unit time.Duration) (time.Duration, bool) {
	if n.whole > uint64(ceiling/unit) {
		return 0, false
	}
	// A fraction of a day in billionths doesn't fit a uint64.
	high, low := bits.Mul64(n.nano, uint64(unit))
	fraction, rest := bits.Div64(high, low, 1e9)
	if rest > 0 {
		fraction++
	}
	d := time.Duration(n.whole)*unit + time.Duration(fraction)
	return d, d <= ceiling
}

func (n number) float() float64 { return float64(n.whole) + float64(n.nano)/1e9 }

// A count is a number of something that may have been overdrawn.
type count struct {
	n        int64 // negative numbers are all -1
	fraction bool
	padded   bool
	ok       bool // false: malformed, or too large for an int64
}

func scanCount(s string) count {
	digits, negative := strings.CutPrefix(s, "-")
	n, ok := scanNumber(digits)
	switch {
	case !ok || n.whole > math.MaxInt64-1:
		return count{padded: n.padded}
	case negative && (n.whole != 0 || n.nano != 0):
		return count{n: -1, ok: true}
	}
	return count{n: int64(n.whole) + int64(n.nano/1e9), fraction: n.nano%1e9 != 0, padded: n.padded, ok: true}
}

// whole returns the count as a limit: a fraction of a request makes no quota.
func (c count) whole() Maybe[int64] {
	return Maybe[int64]{c.n, true}.only(c.ok && !c.fraction)
}

// down and up return the count rounded so that less is left.
func (c count) down() Maybe[int64] { return Maybe[int64]{c.n, true}.only(c.ok) }

func (c count) up() Maybe[int64] {
	if c.fraction {
		c.n++
	}
	return Maybe[int64]{c.n, true}.only(c.ok && c.n >= 0)
}

// only returns m if ok, else unknown.
func (m Maybe[T]) only(ok bool) Maybe[T] {
	if ok {
		return m
	}
	return Maybe[T]{}
}
