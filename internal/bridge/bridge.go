// Package bridge is what other packages of this module do with a Transport, and with each other, that users cannot do.
package bridge

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle/internal/limiter"
)

// Ask returns a request that asks a Transport for the Member that it is: Transport.Enqueue sets it, and takes no place for the request.
func Ask() (*http.Request, *Member) {
	m := new(Member)
	req := &http.Request{}
	return req.WithContext(context.WithValue(context.Background(), askKey{}, m)), m
}

// Asked returns what a request from Ask asks for; nil: it is another request.
func Asked(req *http.Request) *Member {
	m, _ := req.Context().Value(askKey{}).(*Member)
	return m
}

type askKey struct{}

// A Member is a Transport as a pool uses it. A request of a pool waits at several Members with a [limiter.Claim]: the pool passes the
// Waiters from Prepare to their Cores, and the one that is granted to Send.
type Member interface {
	Core() *limiter.Core
	User() *limiter.User
	// Try is Transport.TryRoundTrip. unsent is that of Send.
	Try(req *http.Request) (resp *http.Response, sent, unsent bool, err error)
	// Prepare returns a request as one that waits. The error is one of Transport.Enqueue.
	Prepare(req *http.Request) (*limiter.Waiter, error)
	// PrepareAsk is Prepare for requests with certain costs and keys, a throttle.Ask, for a forecast.
	PrepareAsk(ask any) (*limiter.Waiter, error)
	// Show has the Receipt of a request show that it waits, and for how much longer at least, given how long a member needs alone.
	Show(req *http.Request, w *limiter.Waiter, least func(alone time.Duration) time.Duration)
	// Send sends a request that was granted, and reports whether it has certainly not reached the server although its context has not ended.
	Send(req *http.Request, w *limiter.Waiter, waited bool) (resp *http.Response, unsent bool, err error)
	// TurnAway returns what the caller gets for a Waiter that was refused.
	TurnAway(req *http.Request, w *limiter.Waiter) (*http.Response, error)
}

// IsDialError reports whether an error of a base is one for a connection that could not be made, as net/http returns it. That does not say
// that the request was not sent over another one before.
func IsDialError(err error) bool {
	switch e := err.(type) {
	case *net.OpError:
		return e.Op == "dial" || e.Op == "proxyconnect" || e.Op == "socks connect"
	case *tls.CertificateVerificationError:
		return true
	}
	return err == http.ErrSchemeMismatch
}

// A Next decides whether another member of a pool sends a request after one has failed. It returns the request for that, or nil. It gets
// a response with its body unread, or an error.
type Next func(req *http.Request, resp *http.Response, err error) *http.Request

type nextKey struct{}

// WithNext returns a context under which a pool asks next.
func WithNext(ctx context.Context, next Next) context.Context {
	return context.WithValue(ctx, nextKey{}, next)
}

// NextOf returns the Next of a context; nil: there is none.
func NextOf(ctx context.Context) Next {
	next, _ := ctx.Value(nextKey{}).(Next)
	return next
}
