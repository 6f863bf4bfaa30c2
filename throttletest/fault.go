package throttletest

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"
)

// A Fault is a failure of the server and the conditions under which it happens. The constructors set the failure. The methods
// return a copy with one more condition. A Fault happens to each request that meets all of its conditions, and to every request
// if it has none:
//
//	throttletest.Hang().Between(60*time.Second, 90*time.Second)
//	throttletest.Respond(500, nil).Chance(0.01)
//	throttletest.CutBody(10).OnRequests(3, 4).Matching(isUpload)
//
// [Outage], [Hang] and [Abort] happen when a request arrives, before the limits: such a request is neither accepted nor
// refused, and no limit is charged for it. [Respond], [CutBody] and [SlowBody] change the responses to accepted requests.
// If several faults apply to a request, the first one in the order of [WithFaults] happens.
type Fault struct {
	kind   faultKind
	status int
	header http.Header
	size   int
	every  time.Duration
	when   []func(*attempt) bool
	errs   []error
}

type faultKind int

const (
	outage faultKind = iota + 1
	hang
	abort
	respond
	cutBody
	slowBody
)

// strikesFirst reports whether the fault comes before the limits.
func (k faultKind) strikesFirst() bool { return k <= abort }

// An attempt is what the conditions of a fault see of a request.
type attempt struct {
	r      *http.Request
	number int64
	since  time.Duration // since the start of the server, at the arrival of the request
	rng    *rand.Rand
}

// Outage responds with a status from 200 to 599, typically 503, after [WithRefusalTime], which is 0 by default.
func Outage(status int) Fault {
	return Fault{kind: outage, status: status}.checked("Outage")
}

// Hang never responds. It ends when the client cancels the request or the server is closed.
func Hang() Fault { return Fault{kind: hang} }

// Abort closes the connection, or resets the HTTP/2 stream, before the response. Note that net/http's Transport sends an
// idempotent request again by itself if its connection was used before.
func Abort() Fault { return Fault{kind: abort} }

// Respond responds with a status from 200 to 599 and these headers after the service time, instead of the handler of
// [WithHandler]. A nil header stands for none. The header is copied.
func Respond(status int, header http.Header) Fault {
	return Fault{kind: respond, status: status, header: header.Clone()}.checked("Respond")
}

// CutBody breaks the connection after n bytes of the body, or at the end of a shorter body. The client gets the whole header,
// and then io.ErrUnexpectedEOF, unless the handler set a Content-Length and the body ends before n.
func CutBody(n int) Fault {
	f := Fault{kind: cutBody, size: n}
	if n < 0 {
		f = f.wrong("CutBody(%d) must not be negative", n)
	}
	return f
}

// SlowBody sends the body in pieces of that many bytes, and rests after each.
func SlowBody(bytes int, rest time.Duration) Fault {
	f := Fault{kind: slowBody, size: bytes, every: rest}
	if bytes < 1 || rest < 0 {
		f = f.wrong("SlowBody(%d, %v) needs at least one byte, and a rest that is not negative", bytes, rest)
	}
	return f
}

// checked notes a status that cannot be.
func (f Fault) checked(name string) Fault {
	if f.status < 200 || f.status > 599 {
		return f.wrong("%s(%d) must have a status from 200 to 599", name, f.status)
	}
	return f
}

// OnRequests limits the fault to the requests with these numbers. The first request that the server receives is number 1; every
// request counts, whatever its outcome.
func (f Fault) OnRequests(numbers ...int64) Fault {
	numbers = slices.Clone(numbers)
	return f.and(func(a *attempt) bool { return slices.Contains(numbers, a.number) })
}

// First limits the fault to the first n requests.
func (f Fault) First(n int64) Fault {
	return f.and(func(a *attempt) bool { return a.number <= n })
}

// Every limits the fault to each n-th request: n, 2n, 3n. n must be at least 1.
func (f Fault) Every(n int64) Fault {
	if n < 1 {
		return f.wrong("Every(%d) must be at least 1", n)
	}
	return f.and(func(a *attempt) bool { return a.number%n == 0 })
}

// Between limits the fault to requests that arrive at or after from, and before to, both counted from the moment at which
// the server was made.
func (f Fault) Between(from, to time.Duration) Fault {
	if to <= from {
		return f.wrong("Between(%v, %v) is never", from, to)
	}
	return f.and(func(a *attempt) bool { return from <= a.since && a.since < to })
}

// Chance lets the fault happen with probability p, from 0 to 1.
func (f Fault) Chance(p float64) Fault {
	if !(p >= 0 && p <= 1) {
		return f.wrong("Chance(%v) must be from 0 to 1", p)
	}
	return f.and(func(a *attempt) bool { return a.rng.Float64() < p })
}

// Matching limits the fault to requests for which match is true. It is called concurrently and must not change the request.
func (f Fault) Matching(match func(*http.Request) bool) Fault {
	if match == nil {
		return f.wrong("Matching(nil)")
	}
	return f.and(func(a *attempt) bool { return match(a.r) })
}

func (f Fault) and(when func(*attempt) bool) Fault {
	f.when = append(slices.Clip(f.when), when)
	return f
}

func (f Fault) wrong(format string, args ...any) Fault {
	f.errs = append(slices.Clip(f.errs), fmt.Errorf(format, args...))
	return f
}

// strikes is the fault that happens to a request, or nil.
func strikes(faults []Fault, a *attempt) *Fault {
	for i := range faults {
		f := &faults[i]
		if !slices.ContainsFunc(f.when, func(holds func(*attempt) bool) bool { return !holds(a) }) {
			return f
		}
	}
	return nil
}

// write responds with the fault's status instead of the server's response.
func (f *Fault) write(w http.ResponseWriter) {
	for name, values := range f.header {
		w.Header()[name] = slices.Clone(values)
	}
	writeStatus(w, f.status)
}

// writeStatus is http.Error without its cleaning of headers.
func writeStatus(w http.ResponseWriter, status int) {
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "%d %s\n", status, http.StatusText(status)) // 204 and 304 take no body, and say so
}

// A cutWriter breaks the connection after left bytes.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (w *cutWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *cutWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p[:min(len(p), w.left)])
	if w.left -= n; w.left == 0 {
		w.cut()
	}
	return n, err
}

// cut sends what is there, because a server that aborts drops what it has buffered.
func (w *cutWriter) cut() {
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}

// A slowWriter rests after every piece.
type slowWriter struct {
	http.ResponseWriter
	size int
	rest func()
}

func (w *slowWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *slowWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		m, err := w.ResponseWriter.Write(p[:min(len(p), w.size)])
		n += m
		if err != nil {
			return n, err
		}
		p = p[m:]
		if err := http.NewResponseController(w.ResponseWriter).Flush(); err != nil {
			return n, err
		}
		w.rest()
	}
	return n, nil
}
