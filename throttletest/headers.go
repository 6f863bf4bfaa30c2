package throttletest

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// RetryAfter is a form in which a refusal says how long to wait.
type RetryAfter int

// The forms of Retry-After (RFC 9110, section 10.2.3). All are rounded up unless [WithRounding] says otherwise, so that
// a request at that time is not too early. There is no header if the wait is unknown: for [InFlight], for a full queue, and
// for a cost that can never be paid.
const (
	RetryAfterSeconds RetryAfter = iota // "2": delta seconds, at least 1 if rounded up
	RetryAfterDate                      // "Fri, 13 Feb 2009 23:31:30 GMT"
	NoRetryAfter                        // left out
)

// Rounding is how a server rounds times to whole seconds.
type Rounding int

// The ways to round. With RoundDown, a client that obeys the header comes up to a second too early, and gets "Retry-After: 0" in
// the last second of a wait.
const (
	RoundUp Rounding = iota
	RoundDown
)

// Fields is a form in which responses report what is left of limits.
type Fields int

// The forms of rate-limit fields. The reset is the time until more is left: until the end of a fixed window, the next token of a
// bucket, or the end of the oldest request in a sliding window (but see [WithFullResets]).
const (
	// Draft is the form of draft-ietf-httpapi-ratelimit-headers-08 and later: every limit in one list.
	//
	//	RateLimit-Policy: "minute";q=100;w=60, "calls";q=5;qu="concurrent-requests"
	//	RateLimit: "minute";r=42;t=17, "calls";r=3
	//
	// A period that is not a whole number of seconds is rounded up, with a quota in proportion.
	Draft Fields = iota + 1
	// XEpoch is X-RateLimit-Limit, -Remaining and -Reset of the limit that has the smallest share left (InFlight aside),
	// the reset in seconds since the Unix epoch, rounded up. The limit of a bucket is how much it holds.
	XEpoch
	// XDelta is the same with the reset in seconds from now, rounded up.
	XDelta
	// Draft6 is the form of drafts 04 to 06. It names the limit that has the smallest share left (InFlight aside).
	//
	//	RateLimit-Policy: 100;w=60
	//	RateLimit-Limit: 100
	//	RateLimit-Remaining: 42
	//	RateLimit-Reset: 17
	Draft6
	// Draft7 is the form of draft 07, of the same limit.
	//
	//	RateLimit-Policy: 100;w=60
	//	RateLimit: limit=100, remaining=42, reset=17
	Draft7
	// OpenAI is a triple for each limit (InFlight aside), by its Name. The reset is a duration as OpenAI and Groq write it.
	//
	//	X-RateLimit-Limit-Tokens: 200000
	//	X-RateLimit-Remaining-Tokens: 198400
	//	X-RateLimit-Reset-Tokens: 480ms
	OpenAI
	// Anthropic is a triple for each limit (InFlight aside), by its Name, with the reset in RFC 3339, rounded up to a second.
	//
	//	Anthropic-Ratelimit-Output-Tokens-Limit: 80000
	//	Anthropic-Ratelimit-Output-Tokens-Remaining: 76200
	//	Anthropic-Ratelimit-Output-Tokens-Reset: 2009-02-13T23:31:30Z
	Anthropic
)

// A Refusal reports why and for how long the server refused a request.
type Refusal struct {
	Limit  string        // the limit that refused: of several, the one with the longest wait; "" for a full queue
	Status int           // the status of the response, as Status or WithStatus set it
	Wait   time.Duration // until the request could be accepted; 0 if unknown, math.MaxInt64 if never
}

// standing is what one limit has left for the key of a request.
type standing struct {
	limit *Limit
	left  int64
	reset time.Duration // until something returns, or until everything has
}

func (s standing) share() float64 { return float64(s.left) / float64(s.limit.holds()) }

// A wording is how a server puts times and limits into headers.
type wording struct {
	retryAfter RetryAfter
	always     bool // Retry-After on accepted requests too
	fields     []Fields
	rounding   Rounding
	late       time.Duration // added to each reported time
	whenFull   bool          // a reset is the time until everything is back
}

// hasSome returns how many of these forms are used.
func (w *wording) hasSome(forms ...Fields) (n int) {
	for _, f := range forms {
		if slices.Contains(w.fields, f) {
			n++
		}
	}
	return n
}

// speaksOfLimits reports whether the standings of a request's limits are in the headers.
func (w *wording) speaksOfLimits() bool { return w.always || len(w.fields) > 0 }

// seconds returns the header value for a time that is d away. A d of 0 means that there is nothing to wait for.
func (w *wording) seconds(d time.Duration) int64 {
	if d == 0 {
		return 0
	}
	return w.whole(satAdd(int64(d), int64(w.late)))
}

// epoch returns the header value for the instant d after now.
func (w *wording) epoch(now int64, d time.Duration) int64 {
	if d == 0 {
		return w.whole(now)
	}
	return w.whole(satAdd(satAdd(now, int64(d)), int64(w.late)))
}

func (w *wording) whole(ns int64) int64 {
	if w.rounding == RoundDown {
		return ns / int64(time.Second)
	}
	return ceilDiv(ns, int64(time.Second))
}

func (w *wording) setRetryAfter(h http.Header, now int64, wait time.Duration) {
	if wait == 0 || wait == never {
		return
	}
	switch w.retryAfter {
	case RetryAfterSeconds:
		h.Set("Retry-After", strconv.FormatInt(w.seconds(wait), 10))
	case RetryAfterDate:
		h.Set("Retry-After", time.Unix(w.epoch(now, wait), 0).UTC().Format(http.TimeFormat))
	}
}

// setReset sets Retry-After of an accepted request to the time until the reset of the tightest limit.
func (w *wording) setReset(h http.Header, now int64, all []standing) {
	if s, ok := tightest(all); ok {
		w.setRetryAfter(h, now, s.reset)
	}
}

func (w *wording) setFields(h http.Header, now int64, all []standing) {
	s, some := tightest(all)
	for _, form := range w.fields {
		switch {
		case form == Draft && len(all) > 0:
			w.setDraft(h, all)
		case form == Draft6 && some:
			h.Set("RateLimit-Policy", s.limit.policy())
			w.setTriple(h, "RateLimit-", s, w.seconds(s.reset))
		case form == Draft7 && some:
			h.Set("RateLimit-Policy", s.limit.policy())
			h.Set("RateLimit", fmt.Sprintf("limit=%d, remaining=%d, reset=%d", s.limit.holds(), s.left, w.seconds(s.reset)))
		case form == XEpoch && some:
			w.setTriple(h, "X-RateLimit-", s, w.epoch(now, s.reset))
		case form == XDelta && some:
			w.setTriple(h, "X-RateLimit-", s, w.seconds(s.reset))
		case form == OpenAI, form == Anthropic:
			w.setNamed(h, form, now, all)
		}
	}
}

// setNamed sets the fields of each limit by its name.
func (w *wording) setNamed(h http.Header, form Fields, now int64, all []standing) {
	for _, s := range all {
		if s.limit.kind == inFlight {
			continue
		}
		limit, left := strconv.FormatInt(s.limit.holds(), 10), strconv.FormatInt(s.left, 10)
		if name := s.limit.name; form == OpenAI {
			h.Set("X-RateLimit-Limit-"+name, limit)
			h.Set("X-RateLimit-Remaining-"+name, left)
			h.Set("X-RateLimit-Reset-"+name, (s.reset + w.late).Round(time.Millisecond).String())
		} else {
			h.Set("Anthropic-Ratelimit-"+name+"-Limit", limit)
			h.Set("Anthropic-Ratelimit-"+name+"-Remaining", left)
			h.Set("Anthropic-Ratelimit-"+name+"-Reset", time.Unix(w.epoch(now, s.reset), 0).UTC().Format(time.RFC3339))
		}
	}
}

func (w *wording) setTriple(h http.Header, prefix string, s standing, reset int64) {
	h.Set(prefix+"Limit", strconv.FormatInt(s.limit.holds(), 10))
	h.Set(prefix+"Remaining", strconv.FormatInt(s.left, 10))
	h.Set(prefix+"Reset", strconv.FormatInt(reset, 10))
}

func (w *wording) setDraft(h http.Header, all []standing) {
	var policies, limits []string
	for _, s := range all {
		l := s.limit
		if l.kind == inFlight {
			policies = append(policies, fmt.Sprintf(`"%s";q=%d;qu="concurrent-requests"`, l.name, l.n))
			limits = append(limits, fmt.Sprintf(`"%s";r=%d`, l.name, s.left))
			continue
		}
		q, _ := l.perSeconds()
		policies = append(policies, fmt.Sprintf(`"%s";q=%s`, l.name, l.policy()))
		limits = append(limits, fmt.Sprintf(`"%s";r=%d;t=%d`, l.name, min(s.left, q), w.seconds(s.reset)))
	}
	h.Set("RateLimit-Policy", strings.Join(policies, ", "))
	h.Set("RateLimit", strings.Join(limits, ", "))
}

// policy returns the limit as the drafts write it: "100;w=60".
func (l *Limit) policy() string {
	q, w := l.perSeconds()
	return fmt.Sprintf("%d;w=%d", q, w)
}

// perSeconds is the limit as a quota per whole seconds: that is all that the draft can say.
func (l *Limit) perSeconds() (quota, window int64) {
	window = seconds(l.per)
	if l.per%time.Second == 0 {
		return l.n, window
	}
	return rescale(l.n, window*int64(time.Second), int64(l.per)), window
}

// tightest is the standing with the smallest share left, of those that count requests over time.
func tightest(all []standing) (best standing, ok bool) {
	for _, s := range all {
		if s.limit.kind == inFlight {
			continue
		}
		if !ok || s.share() < best.share() {
			best, ok = s, true
		}
	}
	return best, ok
}

// seconds is d in whole seconds, rounded up.
func seconds(d time.Duration) int64 { return ceilDiv(int64(d), int64(time.Second)) }
