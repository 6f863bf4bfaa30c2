package jsonfinder

import "math"

// A number is one in the syntax of JSON. It takes any count of digits, and is exact.
type number struct {
	mantissa        uint64 // up to 19 digits
	scale, exponent int64  // the power of ten that the last of them counts, without the exponent
	more            bool   // less than that, but not 0, is to be added

	minus                            bool // it begins with one
	digits, point, e, sign, negative bool // seen: digits since the last of the others; a minus of the exponent
}

// next takes the next byte, and returns whether it belongs to the number, which is complete if there are digits.
func (n *number) next(c byte) bool {
	switch {
	case c == '-' && *n == number{}:
		n.minus = true
	case '0' <= c && c <= '9':
		if n.digits && n.mantissa == 0 && !n.point && !n.e {
			return false // nothing follows a zero at the start
		}
		n.digits = true
		n.digit(c - '0')
	case c == '.' && n.digits && !n.point && !n.e:
		n.point, n.digits = true, false
	case (c == 'e' || c == 'E') && n.digits && !n.e:
		n.e, n.digits = true, false
	case (c == '+' || c == '-') && n.e && !n.digits && !n.sign:
		n.sign, n.negative = true, c == '-'
	default:
		return false
	}
	return true
}

func (n *number) digit(d byte) {
	switch {
	case n.e:
		if n.exponent < 1e17 { // more than a body has digits
			n.exponent = n.exponent*10 + int64(d)
		}
		return
	case n.mantissa < 1e18:
		n.mantissa = n.mantissa*10 + uint64(d)
	default:
		n.more = n.more || d != 0
		n.scale++
	}
	if n.point {
		n.scale--
	}
}

// Value returns the number, rounded up, unless it is negative or above the range of int64. Minus zero is 0.
func (n *number) Value() (int64, bool) {
	if n.minus && (n.mantissa > 0 || n.more) {
		return 0, false
	}
	v, more, power := n.mantissa, n.more, n.scale+n.exponent
	if n.negative {
		power = n.scale - n.exponent
	}
	for ; power < 0 && v > 0; power++ {
		more = more || v%10 != 0
		v /= 10
	}
	for ; power > 0 && v > 0; power-- {
		if v > math.MaxInt64/10 {
			return 0, false
		}
		v *= 10
	}
	if more {
		v++
	}
	return int64(v), v <= math.MaxInt64
}
