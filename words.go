package throttle

import (
	"math"
	"strconv"

	"github.com/httpthrottle/throttle/internal/quota"
)

// This file is how figures and what servers said are put for people, in statistics and in the texts of rejections.

// quotaText returns how much of a quota is left, as far as is known.
func quotaText(name string, left, limit int64) string {
	text := quota.Plain(name) + ": unknown"
	if left >= 0 {
		text = quota.Plain(name) + ": " + strconv.FormatInt(left, 10)
	}
	if limit >= 0 {
		text += " of " + strconv.FormatInt(limit, 10)
	}
	return text
}

// pacedText returns at which rate requests are sent after a refusal, and why.
func pacedText(rate float64, why string) string {
	text := "paced at " + number(rate) + "/s"
	if why != "" {
		text += " (" + why + ")"
	}
	return text
}

// number returns a figure with four digits, or a whole one, for people: 8,000.
func number(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1e15 {
		text := strconv.FormatFloat(f, 'f', 0, 64)
		for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
		return text
	}
	return strconv.FormatFloat(f, 'g', 4, 64)
}
