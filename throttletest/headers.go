package throttletest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// RetryAfter is a form in which a refusal says how long to wait.
type RetryAfter int

// The forms of Retry-After (RFC 9110, section 10.2.3). All are rounded up, so that whoever comes then does not come too
// early. The header is left out where nobody knows: for [InFlight], for a full queue, and for a cost that can never be paid.
const (
	RetryAfterSeconds RetryAfter = iota // "2": delta seconds, at least 1
	RetryAfterDate                      // "Fri, 13 Feb 2009 23:31:30 GMT"
	NoRetryAfter                        // left out
)

// Fields is a form in which answers tell what is left.
type Fields int

// The forms of rate-limit fields. The reset is the time until something comes back: the end of a fixed window, the next
// token of a bucket, the oldest request leaving a sliding window.
const (
	// Draft is the form of draft-ietf-httpapi-ratelimit-headers-08 and later: every limit in one list.
	//
	//	RateLimit-Policy: "minute";q=100;w=60, "calls";q=5;qu="concurrent-requests"
	//	RateLimit: "minute";r=42;t=17, "calls";r=3
	//
	// A period that is no whole number of seconds is told as the next whole number, with a quota in proportion.
	Draft Fields = iota + 1
	// XEpoch is X-RateLimit-Limit, -Remaining and -Reset of the limit that has the smallest share left (InFlight aside),
	// the reset in seconds since the Unix epoch, rounded up. The limit of a bucket is how much it holds.
	XEpoch
	// XDelta is the same with the reset in seconds from now, rounded up.
	XDelta
)

// A Refusal is what the server decided about a request that it does not serve.
type Refusal struct {
	Limit  string        // the limit that refused, of several the one with the longest wait; "" for a full queue
	Status int           // the status that the server was told to answer with
	Wait   time.Duration // until it could be accepted; 0 if unknown, math.MaxInt64 if never
}

// standing is what one limit has left for the key of a request.
type standing struct {
	limit *Limit
	left  int64
	more  time.Duration
}

func (s standing) share() float64 { return float64(s.left) / float64(s.limit.holds()) }

func setRetryAfter(h http.Header, form RetryAfter, now int64, wait time.Duration) {
	if wait == 0 || wait == never {
		return
	}
	switch form {
	case RetryAfterSeconds:
		h.Set("Retry-After", strconv.FormatInt(seconds(wait), 10))
	case RetryAfterDate:
		at := time.Unix(ceilDiv(satAdd(now, int64(wait)), int64(time.Second)), 0)
		h.Set("Retry-After", at.UTC().Format(http.TimeFormat))
	}
}

func setFields(h http.Header, form Fields, now int64, all []standing) {
	if form == Draft {
		setDraft(h, all)
		return
	}
	s, ok := tightest(all)
	if !ok {
		return
	}
	reset := seconds(s.more)
	if form == XEpoch {
		reset = ceilDiv(satAdd(now, int64(s.more)), int64(time.Second))
	}
	h.Set("X-RateLimit-Limit", strconv.FormatInt(s.limit.holds(), 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(s.left, 10))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(reset, 10))
}

func setDraft(h http.Header, all []standing) {
	var policies, limits []string
	for _, s := range all {
		l := s.limit
		if l.kind == inFlight {
			policies = append(policies, fmt.Sprintf(`"%s";q=%d;qu="concurrent-requests"`, l.name, l.n))
			limits = append(limits, fmt.Sprintf(`"%s";r=%d`, l.name, s.left))
			continue
		}
		q, w := l.perSeconds()
		policies = append(policies, fmt.Sprintf(`"%s";q=%d;w=%d`, l.name, q, w))
		limits = append(limits, fmt.Sprintf(`"%s";r=%d;t=%d`, l.name, min(s.left, q), seconds(s.more)))
	}
	if len(all) > 0 {
		h.Set("RateLimit-Policy", strings.Join(policies, ", "))
		h.Set("RateLimit", strings.Join(limits, ", "))
	}
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
