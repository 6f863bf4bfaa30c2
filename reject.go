package throttle

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strconv"
	"time"

	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/words"
	"github.com/httpthrottle/throttle/store"
)

// ErrThrottled matches every rejection: errors.Is(err, ErrThrottled) holds. The error behind it is a [*Rejection]. The error of a
// request whose context ends while it waits is not ErrThrottled.
var ErrThrottled = errors.New("throttle: request rejected by the rate limiter")

// A Reason is why a request was rejected.
type Reason uint8

const (
	ReasonNoTokens  Reason = iota + 1 // no tokens now, and the request may not wait
	ReasonMaxWait                     // the wait would be, or has become, longer than the maximum
	ReasonDeadline                    // the wait would not end before the context's deadline
	ReasonQueueFull                   // the queue is full
	ReasonCost                        // the cost is negative, or larger than the limit can ever pay
	ReasonHeld                        // the limit is held, or the server lets nothing more through, for longer than the request may wait
	ReasonKeys                        // no room for another key, and none can be forgotten
	ReasonStore                       // the store of a shared limit is unreachable, or set up wrongly
	ReasonFinal                       // the server refuses for a reason that no waiting ends, such as used-up credit
	ReasonShutdown                    // the Limiter or the Transport is shut down
)

// A reason has the same number in the queue: the array has one element, at the index 0.
var _ = [1]struct{}{}[ReasonShutdown-Reason(bucket.ReasonShutdown)]

var reasonNames = [bucket.Reasons]string{
	ReasonNoTokens: "no tokens", ReasonMaxWait: "max wait", ReasonDeadline: "deadline", ReasonQueueFull: "queue full",
	ReasonCost: "cost", ReasonHeld: "held", ReasonKeys: "too many keys",
	ReasonStore: "store unreachable", ReasonFinal: "no waiting helps",
	ReasonShutdown: "shut down",
}

var reasonLabels = [bucket.Reasons]string{
	ReasonNoTokens: "no_tokens", ReasonMaxWait: "max_wait", ReasonDeadline: "deadline", ReasonQueueFull: "queue_full",
	ReasonCost: "cost", ReasonHeld: "held", ReasonKeys: "keys", ReasonStore: "store",
	ReasonFinal: "final", ReasonShutdown: "shutdown",
}

// String returns the reason in one to three words, for people.
func (r Reason) String() string {
	if r == 0 || r >= Reason(bucket.Reasons) {
		return "Reason(" + strconv.Itoa(int(r)) + ")"
	}
	return reasonNames[r]
}

// Label returns the reason as an identifier for logs and metrics, which stays the same in later versions: no_tokens,
// max_wait, deadline, queue_full, cost, held, keys, store, final or shutdown; "" for another value.
func (r Reason) Label() string {
	if r >= Reason(bucket.Reasons) {
		return ""
	}
	return reasonLabels[r]
}

// A Rejection explains why a request was not sent. It is also the error returned to the caller. errors.Is(err, ErrThrottled) holds,
// and errors.Is(err, context.DeadlineExceeded) if the context's deadline is the reason.
type Rejection struct {
	Reason Reason
	Limit  string // the name of the limit that the request would have waited for; "server" for what a server reported
	Key    string // the key of its bucket; "" if the limit has one bucket
	Cost   int64  // what the request would have cost there, in tokens

	// Wait is the time until the request could have been sent: exact with one limit and an empty queue, otherwise a lower bound, or what
	// a Forecast says where costs are corrected later; math.MaxInt64 if that is not known, or never. For ReasonFinal, it is the time until one request asks the server again.
	Wait time.Duration
	// Least reports that Wait is a lower bound: no members of a pool, together, could have sent the request earlier.
	Least bool
	// MaxWait is the longest time that the request could have waited, counted from its arrival: by its MaxWait for
	// ReasonNoTokens, ReasonMaxWait and ReasonHeld, by the deadline of its context for ReasonDeadline, and otherwise by the
	// shorter of the two; 0 if there is no such bound.
	MaxWait time.Duration
	// Verdict is why the server stops the request, if the request would have waited because of a refusal or an empty quota; 0: it would not.
	Verdict Verdict
	// Most is the largest cost that the limit can pay for its key, for ReasonCost: its burst, its n or its slots; 0: not known.
	Most int64
	// Err is why the store of a shared limit is unreachable, for ReasonStore, and what the server said, a *FinalError, for ReasonFinal.
	// It is in the chain of the Rejection.
	Err error

	held  bool          // what stops the request is a hold, or a server
	bound [2]string     // what Most is, in words before and after it; empty: not known
	cause quota.Cause   // why a server stops requests, if the request would have waited because of that
	ago   time.Duration // since the refusal that is the cause
}

// rejected returns a rejection as users see it.
func rejected(r *limiter.Rejection) *Rejection {
	of := &Rejection{Reason: Reason(r.Reason), Limit: r.Limit.Name, Key: r.Key, Cost: r.Cost, Wait: r.Wait, Least: r.Least, MaxWait: r.Patience, Verdict: Verdict(r.Cause.Verdict), Most: r.Most, Err: r.Err, held: r.Held, cause: r.Cause, ago: r.Ago}
	if r.Most > 0 {
		switch {
		case r.Limit.Stored == store.Bucket:
			of.bound = [2]string{"the burst of ", ""}
		case r.Limit.Windowed:
			of.bound = [2]string{"the ", " tokens of a window"}
		case r.Limit.Frees:
			of.bound = [2]string{"the ", " slots"}
		}
	}
	return of
}

// Error returns why the request was rejected, with the numbers.
func (r *Rejection) Error() string { return string(r.appendCause(r.appendText(make([]byte, 0, 160)))) }

// appendCause appends what a server said that is the cause of a wait.
func (r *Rejection) appendCause(b []byte) []byte {
	c := &r.cause
	if r.Reason == ReasonFinal {
		return b
	}
	if c.Quota != "" {
		b = append(append(append(b, "; the server's quota "...), words.Quota(c.Quota, c.Left, c.Limit)...), " left"...)
	}
	if c.Refusal.Status != 0 {
		b = strconv.AppendInt(append(b, "; the server refused a request with "...), int64(c.Refusal.Status), 10)
		b = appendDuration(b, ", ", words.Rounded(r.ago, false), " ago (")
		b = append(append(b, Verdict(c.Refusal.Verdict).String()...), ')')
	}
	if c.Rate > 0 {
		b = append(append(b, "; "...), words.Paced(c.Rate, c.Why.String())...)
	}
	return b
}

// String returns what [Rejection.Error] returns. Package fmt calls it for a Rejection, because only a *Rejection is an error.
func (r Rejection) String() string { return r.Error() }

// appendText appends what Error returns. Waits are rounded up for people, and bounds down.
func (r *Rejection) appendText(b []byte) []byte {
	b = words.AppendQuoted(append(b, "throttle: limit "...), r.Limit)
	if r.Key != "" {
		b = words.AppendQuoted(append(b, ", key "...), r.Key)
	}
	b = append(b, ": "...)
	wait, most := words.Rounded(r.Wait, true), words.Rounded(r.MaxWait, false)
	switch r.Reason {
	case ReasonNoTokens:
		if r.Wait == math.MaxInt64 {
			return append(appendCost(b, r.Cost), " cannot be paid now, it is not known when it can, and the request may not wait"...)
		}
		return appendDuration(appendCost(b, r.Cost), " can be paid in ", wait, ", and the request may not wait")
	case ReasonMaxWait:
		if r.Wait > r.MaxWait && r.Wait < math.MaxInt64 {
			return appendDuration(appendDuration(b, r.waitOf(), wait, ""), " exceeds the maximum of ", most, "")
		}
		return appendRest(appendDuration(b, "the wait exceeds the maximum of ", most, ""), wait)
	case ReasonDeadline:
		if r.Wait >= r.MaxWait && r.Wait < math.MaxInt64 {
			b = appendDuration(appendDuration(b, r.waitOf(), wait, ""), " exceeds the context's deadline (", most, " left)")
		} else {
			b = appendRest(append(b, "the wait exceeds the context's deadline"...), wait)
		}
		if r.held {
			b = append(b, "; the limit is held"...)
		}
		return b
	case ReasonQueueFull:
		return appendRest(append(b, "the queue is full"...), wait)
	case ReasonCost:
		if r.Cost < 0 {
			return append(appendCost(b, r.Cost), " is negative"...)
		}
		if r.bound[0] != "" {
			b = append(append(appendCost(b, r.Cost), " exceeds "...), r.bound[0]...)
			return append(strconv.AppendInt(b, r.Most, 10), r.bound[1]...)
		}
		if r.Most > 0 {
			b = strconv.AppendInt(append(appendCost(b, r.Cost), " exceeds "...), r.Most, 10)
			return append(b, ", the most that the limit can pay at once"...)
		}
		return append(appendCost(b, r.Cost), " exceeds what the limit can ever pay"...)
	case ReasonHeld:
		b = appendDuration(b, "held for ", wait, "")
		if most > 0 {
			b = appendDuration(b, ", and the maximum wait is ", most, "")
		}
		return b
	case ReasonKeys:
		return append(b, "no room for another key; raise WithMaxKeys"...)
	case ReasonStore:
		if errors.Is(r.Err, store.ErrSetup) {
			return append(b, r.Err.Error()...)
		}
		return append(append(b, "the store is unreachable: "...), r.Err.Error()...)
	case ReasonFinal:
		b = append(b, "the server refuses, and no waiting helps"...)
		if r.Err != nil {
			b = append(append(b, ": "...), r.Err.Error()...)
		}
		return appendDuration(b, "; it is asked again in ", wait, "")
	case ReasonShutdown:
		return append(b, "shut down, so no request is sent any more"...)
	}
	return append(append(b, "rejected: "...), r.Reason.String()...)
}

// waitOf returns the words before Wait.
func (r *Rejection) waitOf() string {
	if r.Least {
		return "a wait of at least "
	}
	return "a wait of "
}

// appendRest appends when the request could be sent. A wait of 0 says nothing.
func appendRest(b []byte, wait time.Duration) []byte {
	switch wait {
	case 0:
		return b
	case math.MaxInt64:
		return append(b, "; when the request could be sent is not known"...)
	}
	return appendDuration(b, "; the request could be sent in ", wait, "")
}

func appendCost(b []byte, cost int64) []byte {
	return strconv.AppendInt(append(b, "cost "...), cost, 10)
}

func appendDuration(b []byte, before string, d time.Duration, after string) []byte {
	return append(append(append(b, before...), d.String()...), after...)
}

// Is reports whether target is [ErrThrottled], or context.DeadlineExceeded if the context's deadline is the reason.
func (r *Rejection) Is(target error) bool {
	return target == ErrThrottled || target == context.DeadlineExceeded && r.Reason == ReasonDeadline
}

// Unwrap returns Err, or for [ReasonCost] and [ReasonShutdown] an error that has a method NonRetriable, which stops the retries of the
// Azure SDK.
func (r *Rejection) Unwrap() error {
	if r.Reason == ReasonCost || r.Reason == ReasonShutdown {
		return hopeless{}
	}
	return r.Err
}

// hopeless is in the chain of a rejection that no retry can change.
type hopeless struct{}

func (hopeless) Error() string { return "throttle: no retry can succeed" }

func (hopeless) NonRetriable() {}

// A FinalError is what a server said when it refused a request for a reason that no waiting ends, such as used-up credit. It has a method
// NonRetriable, which stops the retries of the Azure SDK. Words that may be credentials are left out.
type FinalError struct {
	Code    string `json:"code"`    // such as insufficient_quota; at most 64 characters; "" if the server sent none, or its body was not read
	Message string `json:"message"` // for people; at most 256 bytes; "" as for Code
}

// Error returns the code and the message.
func (e *FinalError) Error() string {
	switch {
	case e.Code != "" && e.Message != "":
		return e.Code + ": " + e.Message
	case e.Code != "" || e.Message != "":
		return e.Code + e.Message
	}
	return "it gave no reason"
}

// NonRetriable marks the error as one that no retry can change.
func (e *FinalError) NonRetriable() {}

// finalError returns what a server said with a final refusal.
func finalError(s *headers.Signal) *FinalError {
	code := []rune(words.WithoutSecrets(s.Reason))
	return &FinalError{Code: string(code[:min(len(code), 64)]), Message: words.WithoutSecrets(s.Message)}
}

// Timeout reports whether the deadline of the context is the reason; so does url.Error.Timeout then.
func (r *Rejection) Timeout() bool { return r.Reason == ReasonDeadline }

// RetryableError reports whether a later attempt may succeed. The AWS SDK calls it by this name.
func (r *Rejection) RetryableError() bool { return !r.onlyError() && r.Reason != ReasonFinal }

// onlyError reports whether the rejection is an error even where the user wants responses: no later attempt can pass, or
// the caller has no time left to read one.
func (r *Rejection) onlyError() bool {
	return r.Reason == ReasonDeadline || r.Reason == ReasonCost || r.Reason == ReasonShutdown
}

// MarshalJSON returns an object with reason (its [Reason.Label]), limit, key, cost, wait, max_wait and, if there is one, verdict.
// Durations are in seconds; a wait is null if the request could never be sent, or if it is not known when.
func (r Rejection) MarshalJSON() ([]byte, error) {
	b := words.AppendJSON(append(make([]byte, 0, 160), `{"reason":`...), []byte(r.Reason.Label()))
	b = words.AppendJSON(append(b, `,"limit":`...), []byte(r.Limit))
	b = words.AppendJSON(append(b, `,"key":`...), []byte(r.Key))
	b = strconv.AppendInt(append(b, `,"cost":`...), r.Cost, 10)
	b = append(b, `,"wait":`...)
	if r.Wait == math.MaxInt64 {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendFloat(b, r.Wait.Seconds(), 'g', -1, 64)
	}
	b = strconv.AppendFloat(append(b, `,"max_wait":`...), r.MaxWait.Seconds(), 'g', -1, 64)
	if r.Verdict > 0 {
		b = words.AppendJSON(append(b, `,"verdict":`...), []byte(r.Verdict.Label()))
	}
	return append(b, '}'), nil
}

// LogValue returns a group with the attributes reason, limit, key, cost, wait and, if there is one, verdict.
func (r Rejection) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("reason", r.Reason.Label()), slog.String("limit", r.Limit), slog.String("key", r.Key),
		slog.Int64("cost", r.Cost), r.waitAttr()}
	if r.Verdict > 0 {
		attrs = append(attrs, slog.String("verdict", r.Verdict.Label()))
	}
	return slog.GroupValue(attrs...)
}

// waitAttr returns the attribute wait, and keeps "never" and "not known" apart.
func (r *Rejection) waitAttr() slog.Attr {
	switch {
	case r.Wait < math.MaxInt64:
		return slog.Duration("wait", r.Wait)
	case r.Reason == ReasonCost || r.Reason == ReasonShutdown:
		return slog.String("wait", "never")
	}
	return slog.String("wait", "not known")
}
