package retry

import (
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/bridge"
)

// RoundTripper wraps next (nil: http.DefaultTransport), so that its errors show CheckRetry whether a request that is not
// idempotent may be sent again. CheckRetry itself sees no request, and so neither its Idempotency-Key nor whether there was a
// connection. [NewClient] does this by itself. Without it, such a request is retried only after errors that show that it was not
// processed.
//
// The result forwards CloseIdleConnections, and does not change idempotent requests.
func RoundTripper(next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
	}
	return &witness{next}
}

// RoundTripper is the function of that name. If next is a pool, or has one behind it, a request that failed is also sent by another member
// of the pool, immediately, if it would be retried at all, and after a refusal of the member's credential.
func (p *Policy) RoundTripper(next http.RoundTripper) http.RoundTripper {
	if _, ok := next.(*throttle.Transport); ok || next == nil {
		return RoundTripper(next)
	}
	return RoundTripper(&roaming{p, next})
}

// A roaming RoundTripper lets a pool below try other members.
type roaming struct {
	policy *Policy
	next   http.RoundTripper
}

func (r *roaming) RoundTrip(req *http.Request) (*http.Response, error) {
	return r.next.RoundTrip(req.WithContext(bridge.WithNext(req.Context(), r.policy.elsewhere)))
}

// CloseIdleConnections forwards to the next RoundTripper, if that has it.
func (r *roaming) CloseIdleConnections() { (&witness{r.next}).CloseIdleConnections() }

type witness struct{ next http.RoundTripper }

// CloseIdleConnections forwards to the next RoundTripper, if that has it.
func (w *witness) CloseIdleConnections() {
	if c, ok := w.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (w *witness) RoundTrip(req *http.Request) (*http.Response, error) {
	first, untouched := origin(req)
	if idempotent(first.Method) {
		return w.next.RoundTrip(req)
	}
	if keyed(first.Header) {
		resp, err := w.next.RoundTrip(req)
		return resp, testify(err, true)
	}
	// Only a base that reports that it looks for a connection can prove that there was none.
	var sought, got atomic.Bool
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { sought.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { got.Store(true) },
	})
	resp, err := w.next.RoundTrip(req.WithContext(ctx))
	processed := got.Load() && !isRefusedStream(err) // though the error may look as if there was no connection: the body's can
	if !sought.Load() {
		processed = !unsent(err)
	}
	return resp, testify(err, untouched && !processed)
}

// witnessed is an error, and whether the request may be sent again after it.
type witnessed struct {
	error
	repeatable bool
}

// testify wraps err where CheckRetry would otherwise come to another conclusion. What net/http asserts on is not wrapped.
func testify(err error, repeatable bool) error {
	if err == nil || hopeless(err) || overdue(err) || errors.Is(err, throttle.ErrThrottled) || repeatable == unsent(err) {
		return err
	}
	return &witnessed{err, repeatable}
}

// unwitnessed takes what a witness said out of err, if it is there: callers do not need it.
func unwitnessed(err error) {
	if outer, ok := err.(*url.Error); ok {
		if w, ok := outer.Err.(*witnessed); ok {
			outer.Err = w.error
		}
	}
}

func (w *witnessed) Unwrap() error { return w.error }

// Timeout and Temporary are here because url.Error asks the error itself.
func (w *witnessed) Timeout() bool {
	var t interface {
		error
		Timeout() bool
	}
	ok := errors.As(w.error, &t)
	return ok && t.Timeout()
}

func (w *witnessed) Temporary() bool {
	var t interface {
		error
		Temporary() bool
	}
	ok := errors.As(w.error, &t)
	return ok && t.Temporary()
}
