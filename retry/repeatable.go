package retry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
)

// idempotent reports whether a method promises that to be done twice is to be done once (RFC 9110, 9.2.2).
func idempotent(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// repeatable reports whether req, or what was redirected to it, may be processed twice. Of an unknown request it may not.
func repeatable(req *http.Request) bool {
	if req == nil {
		return false
	}
	first, _ := origin(req)
	return idempotent(first.Method) || keyed(first.Header)
}

// keyed reports whether there is a key by which the server recognizes a repetition. As in net/http, a header without
// values counts, which is not sent.
func keyed(h http.Header) bool {
	_, is := h["Idempotency-Key"]
	_, was := h["X-Idempotency-Key"]
	return is || was
}

// origin returns the request that was redirected to req, or req itself, and whether no server has acted on it yet: a 307
// or 308 asks to send the same elsewhere, and after other redirects there is an answer to fetch.
func origin(req *http.Request) (first *http.Request, untouched bool) {
	untouched = true
	for req != nil && req.Response != nil && req.Response.Request != nil {
		if s := req.Response.StatusCode; s != http.StatusTemporaryRedirect && s != http.StatusPermanentRedirect {
			untouched = false
		}
		req = req.Response.Request
	}
	return req, untouched
}

// repeatableAfter reports whether a request may be sent again after this error: by what a [RoundTripper] has seen, else by
// the method in a url.Error and the kind of the error.
func repeatableAfter(err error) bool {
	var w *witnessed
	if errors.As(err, &w) {
		return w.repeatable
	}
	var outer *url.Error
	ok := errors.As(err, &outer)
	return ok && idempotent(strings.ToUpper(outer.Op)) || unsent(err)
}

// streamError is http2.StreamError, as errors.As finds it in net/http and golang.org/x/net/http2 by its fields.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (streamError) Error() string { return "stream error" }

// refusedStream says that the server has not processed the request (RFC 9113, 7 and 8.7).
const refusedStream = 0x7

func isRefusedStream(err error) bool {
	var s streamError
	ok := errors.As(err, &s)
	return ok && s.Code == refusedStream
}

// unsent reports whether the error shows that the server has not processed the request.
func unsent(err error) bool {
	if isRefusedStream(err) {
		return true
	}
	var o *net.OpError
	if errors.As(err, &o) && (o.Op == "dial" || o.Op == "proxyconnect") {
		return true
	}
	ok := errors.As(err, new(*net.DNSError))
	return ok
}

// hopeless reports whether the error would come again, or is that of a cancellation.
func hopeless(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, http.ErrSchemeMismatch) || uncertified(err) || unsendable(err)
}

// overdue reports whether the error is that of a context whose deadline has passed, and not one that only claims to be alike,
// as a dialer's timeout does. The Timeout of an http.Client may come as either: it sets a context's deadline and a timer,
// and which is first is chance.
func overdue(err error) bool { return contains(err, context.DeadlineExceeded) }

// contains is errors.Is by identity alone.
func contains(err, target error) bool {
	if err == nil || err == target {
		return err == target
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return contains(e.Unwrap(), target)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if contains(err, target) {
				return true
			}
		}
	}
	return false
}

// uncertified reports whether the server's certificate was not accepted, or it does not speak TLS.
func uncertified(err error) bool {
	var (
		verification *tls.CertificateVerificationError
		record       tls.RecordHeaderError
		authority    x509.UnknownAuthorityError
		hostname     x509.HostnameError
		invalid      x509.CertificateInvalidError
		roots        x509.SystemRootsError
	)
	return errors.As(err, &verification) || errors.As(err, &record) || errors.As(err, &authority) ||
		errors.As(err, &hostname) || errors.As(err, &invalid) || errors.As(err, &roots)
}

// unsendables are how the errors of net/http begin that have no type, on requests that it can't send.
var unsendables = [...]string{
	"unsupported protocol scheme",
	"stopped after ", // … redirects
	"net/http: invalid header field",
	"net/http: invalid trailer field",
	"net/http: invalid method",
	"http: no Host in request URL",
	"http: nil Request.URL",
	"http: ContentLength=", // … with Body length …
}

func unsendable(err error) bool {
	var outer *url.Error
	ok := errors.As(err, &outer)
	if !ok || outer.Err == nil {
		return false
	}
	text := outer.Err.Error()
	for _, beginning := range unsendables {
		if strings.HasPrefix(text, beginning) {
			return true
		}
	}
	return false
}
