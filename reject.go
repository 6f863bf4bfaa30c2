package throttle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"
)

// ErrThrottled is what every refusal is: errors.Is(err, ErrThrottled). The error behind it is a [*Rejection].
// A context that ends while a request waits is no refusal.
var ErrThrottled = errors.New("throttle: refused")

// errCanceled is returned when Request.Cancel was closed while the request stood in line.
var errCanceled = fmt.Errorf("throttle: request canceled while waiting: %w", context.Canceled)

// A Reason says why a request was refused.
type Reason uint8

const (
	_               Reason = iota
	ReasonNoTokens         // fail fast, and there are no tokens now
	ReasonMaxWait          // the wait would be, or has become, longer than it may be
	ReasonDeadline         // the wait would not end before the context's deadline
	ReasonQueueFull        // as many wait in this line as may
	ReasonCost             // the cost is negative, or larger than the limit can ever pay
	ReasonHeld             // held, by the user or a server's word, for longer than the request may wait
	ReasonKeys             // as many keys are in use as may be kept, and none can be forgotten
	reasons
)

var reasonNames = [reasons]string{
	ReasonNoTokens: "no tokens", ReasonMaxWait: "max wait", ReasonDeadline: "deadline", ReasonQueueFull: "queue full",
	ReasonCost: "cost", ReasonHeld: "held", ReasonKeys: "too many keys",
}

// String returns the reason in one or two words.
func (r Reason) String() string {
	if r == 0 || r >= reasons {
		return "Reason(" + strconv.Itoa(int(r)) + ")"
	}
	return reasonNames[r]
}

// A Rejection is the decision not to send a request, and the error that a refusal is: errors.Is(err, ErrThrottled)
// holds, and errors.Is(err, context.DeadlineExceeded) where the context's deadline was the reason.
type Rejection struct {
	Reason Reason
	Limit  string // the limit that binds, by name; "server" for what a server said
	Key    string // the key of its bucket; "" is the one key of a limit that has no keys
	Cost   int64  // what the request would have cost there

	// Wait is how long until the request could have gone: exact with one limit and no line, else a lower bound;
	// math.MaxInt64 if never.
	Wait time.Duration
	// Patience is the longest that the request could have waited, by its MaxWait or by the deadline of its context,
	// whichever the Reason speaks of; else the shorter.
	Patience time.Duration
}

// Error says why the request was refused, with the numbers.
func (r *Rejection) Error() string {
	subject := fmt.Sprintf("throttle: limit %q", r.Limit)
	if r.Key != "" {
		subject += fmt.Sprintf(", key %q", r.Key)
	}
	wait, patience := shortened(r.Wait, true), shortened(r.Patience, false)
	switch r.Reason {
	case ReasonNoTokens:
		return fmt.Sprintf("%s: a cost of %d can be paid in %v, not now", subject, r.Cost, wait)
	case ReasonMaxWait:
		return fmt.Sprintf("%s: a wait of %v is longer than the %v allowed", subject, wait, patience)
	case ReasonDeadline:
		return fmt.Sprintf("%s: a wait of %v would not end before the context's deadline, after %v", subject, wait, patience)
	case ReasonQueueFull:
		return fmt.Sprintf("%s: the line is full, and its end would wait %v", subject, wait)
	case ReasonCost:
		return fmt.Sprintf("%s: a cost of %d can never be paid", subject, r.Cost)
	case ReasonHeld:
		return fmt.Sprintf("%s: held for %v, longer than the %v allowed", subject, wait, patience)
	}
	return fmt.Sprintf("%s: refused: %v", subject, r.Reason)
}

// shortened rounds a Duration for people, up or down, to a thousandth of its leading unit.
func shortened(d time.Duration, up bool) time.Duration {
	unit := time.Nanosecond
	switch {
	case d >= time.Second:
		unit = time.Millisecond
	case d >= time.Millisecond:
		unit = time.Microsecond
	}
	short := d.Truncate(unit)
	if up && short < d && d <= math.MaxInt64-unit {
		short += unit
	}
	return short
}

// Is reports whether target is [ErrThrottled], or context.DeadlineExceeded where that was the reason.
func (r *Rejection) Is(target error) bool {
	return target == ErrThrottled || target == context.DeadlineExceeded && r.Reason == ReasonDeadline
}

// Timeout reports whether the deadline of the context was the reason; so does url.Error.Timeout then.
func (r *Rejection) Timeout() bool { return r.Reason == ReasonDeadline }

// RetryableError reports whether a later try may pass; the AWS SDK asks for it under this name.
func (r *Rejection) RetryableError() bool { return !r.onlyError() }

// onlyError reports whether the refusal is an error even where the user wants responses: no later try can pass, or
// nobody has the time left to read one.
func (r *Rejection) onlyError() bool { return r.Reason == ReasonDeadline || r.Reason == ReasonCost }

type localKey struct{}

// local marks a response as made here. It names the response, since its Request, and so the mark, may be sent again.
type local struct {
	response  *http.Response
	rejection *Rejection
}

// RejectionOf returns the rejection behind a response that was made here, and whether it was: it tells a synthetic 429
// from the server's own. It goes by the context of the response's Request, which nobody outside can forge, and wants the
// response itself, not a copy; http.Client hands out the response itself.
func RejectionOf(resp *http.Response) (*Rejection, bool) {
	if resp == nil || resp.Request == nil {
		return nil, false
	}
	if l, ok := resp.Request.Context().Value(localKey{}).(local); ok && l.response == resp {
		return l.rejection, true
	}
	return nil, false
}

// localResponse turns a rejection into a whole response, of the user's shape if there is one.
func localResponse(r *Rejection, req *http.Request, shape func(*Rejection, *http.Request) *http.Response) *http.Response {
	resp := tooManyRequests(r)
	if shape != nil {
		if shaped := shape(r, req); shaped != nil {
			*resp = *shaped // which the user may hand out more than once
		}
	}
	if resp.Body != nil && req.Method == http.MethodHead {
		resp.Body.Close() // the caller does not get it
		resp.Body = nil
	}
	switch {
	case resp.Body == nil:
		resp.Body = http.NoBody
	case resp.ContentLength == 0 && resp.Body != http.NoBody:
		resp.ContentLength = -1
	}
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	if resp.StatusCode == 0 {
		resp.StatusCode = http.StatusTooManyRequests
	}
	if resp.Status == "" {
		resp.Status = strconv.Itoa(resp.StatusCode) + " " + http.StatusText(resp.StatusCode)
	}
	if resp.Proto == "" {
		resp.Proto, resp.ProtoMajor, resp.ProtoMinor = "HTTP/1.1", 1, 1
	}
	resp.Request = req.WithContext(context.WithValue(req.Context(), localKey{}, local{resp, r}))
	return resp
}

// problem is the body of a synthetic 429: RFC 9457, with the problem type of the draft "RateLimit header fields for HTTP",
// and extension members by which SDKs find out what it says.
type problem struct {
	Type     string       `json:"type"`
	Title    string       `json:"title"`
	Status   int          `json:"status"`
	Detail   string       `json:"detail"`
	Policies []string     `json:"violated-policies"`
	Message  string       `json:"message"` // as GitHub has it
	Error    problemError `json:"error"`   // as OpenAI and Anthropic have it
}

type problemError struct {
	Type    string `json:"type"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

func tooManyRequests(r *Rejection) *http.Response {
	detail := r.Error()
	body, err := json.Marshal(problem{
		Type:     "https://iana.org/assignments/http-problem-types#quota-exceeded",
		Title:    "Request not sent: refused by the client's own throttle",
		Status:   http.StatusTooManyRequests,
		Detail:   detail,
		Policies: []string{r.Limit},
		Message:  detail,
		Error:    problemError{"rate_limit_error", "rate_limit_exceeded", detail},
	})
	if err != nil {
		panic("throttle: bug: " + err.Error())
	}
	return &http.Response{
		StatusCode:    http.StatusTooManyRequests,
		ContentLength: int64(len(body)),
		Body:          io.NopCloser(bytes.NewReader(body)),
		Header: http.Header{
			"Content-Type":   {"application/problem+json"},
			"Content-Length": {strconv.Itoa(len(body))},
			"Retry-After":    {strconv.FormatInt(retryAfter(r.Wait, time.Second), 10)},
			"Retry-After-Ms": {strconv.FormatInt(retryAfter(r.Wait, time.Millisecond), 10)}, // some SDKs prefer it
		},
	}
}

// retryAfter returns a wait in whole units, rounded up, and never 0, on which some clients retry at once.
func retryAfter(wait, unit time.Duration) int64 {
	if wait > math.MaxInt64-unit {
		return int64(wait / unit)
	}
	return max(1, int64((wait+unit-1)/unit))
}
