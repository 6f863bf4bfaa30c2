// Package problem makes the body of a synthetic response, a problem document (RFC 9457) in which the clients of several APIs find what
// they look for, and the header that goes with it.
package problem

import (
	"bytes"
	"cmp"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/httpthrottle/throttle/internal/words"
)

// A Problem is why a request was not sent.
type Problem struct {
	Wait     time.Duration // until it could have been sent; math.MaxInt64: that is not known, or never
	Shutdown bool          // another process may serve it at once
	Final    bool          // no waiting helps, as the server said
	Said     string        // by the server, if it is Final
	Code     string        // by the server, if it is Final; "": it sent none
}

// A Room is for what a Problem writes, so that it is one allocation with what refers to it.
type Room struct {
	values [Fields]string
	text   [600]byte // for the detail, and the body after it; more is allocated
}

// Fields are how many fields of a header a Problem sets at most.
const Fields = 4

// Write returns the body, and sets the header to go with it. Both are in the room.
func (p *Problem) Write(room *Room, header http.Header) []byte {
	wait, title, code := p.Wait, "Too many requests", "rate_limit_exceeded"
	problem, kind := `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"detail":`, "rate_limit_error"
	if p.Shutdown {
		wait, title, code = time.Second, "Shutting down", "shutdown"
		problem, kind = `{"type":"about:blank","title":"Service Unavailable","status":503,"detail":`, "service_unavailable"
	}
	waits := !p.Final && wait < math.MaxInt64
	var of [32]byte
	seconds := appendSeconds(of[:0], inWhole(wait, time.Millisecond))
	b := room.text[:0]
	if p.Final {
		b, code = words.AppendJSON(b, []byte(p.Said)), cmp.Or(p.Code, code)
	} else {
		b = append(append(b, '"'), title...)
		if waits {
			b = append(append(append(b, ": retry in "...), seconds...), " s"...)
		}
		b = append(b, '"')
	}
	detail := b
	b = append(b, problem...)
	b = append(b, detail...)
	b = append(append(b, `,"message":`...), detail...) // as GitHub has it
	if waits {
		b = append(append(b, `,"retry_after":`...), seconds...) // as Discord has it
	}
	b = append(append(b, `,"error":{"type":"`...), kind...)
	b = words.AppendJSON(append(b, `","code":`...), []byte(code)) // as OpenAI and Anthropic have it
	b = append(append(append(b, `,"message":`...), detail...), "}}"...)
	text := b[len(detail):]
	values := &room.values
	values[0] = "application/problem+json"
	set := func(name string, i int) { header[name] = values[i : i+1 : i+1] }
	set("Content-Type", 0)
	var digits [64]byte
	numbers := strconv.AppendInt(digits[:0], int64(len(text)), 10)
	length := len(numbers)
	numbers = strconv.AppendInt(numbers, inWhole(wait, time.Second), 10)
	whole := len(numbers)
	all := string(strconv.AppendInt(numbers, inWhole(wait, time.Millisecond), 10))
	values[1], values[2], values[3] = all[:length], all[length:whole], all[whole:]
	set("Content-Length", 1)
	switch {
	case waits:
		set("Retry-After", 2)
		set("Retry-After-Ms", 3) // some SDKs prefer it
	case p.Final:
		values[2] = "false"
		set("X-Should-Retry", 2) // which the SDKs of OpenAI and Anthropic heed
	}
	return text
}

// inWhole returns a wait in whole units, rounded up, and never 0, on which some clients retry immediately.
func inWhole(wait, unit time.Duration) int64 {
	if wait > math.MaxInt64-unit {
		return int64(wait / unit)
	}
	return max(1, int64((wait+unit-1)/unit))
}

// appendSeconds appends a time in ms as a number of seconds.
func appendSeconds(b []byte, ms int64) []byte {
	b = strconv.AppendInt(b, ms/1000, 10)
	if ms %= 1000; ms == 0 {
		return b
	}
	b = append(b, '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10))
	return bytes.TrimRight(b, "0")
}
