package throttle

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/queue"
)

// Connections tell requests that certainly never reached a server from those that may have. The former are refunded.
//
// An error alone is no proof. A request body can fail with a dial error of its own, and an [http.Transport] returns one
// when a server took a request on an idle connection, closed it, and the second connection could not be made. There is
// proof where no connection was ever got, as [httptrace] tells, and where there was no body and no response before.
//
// A trace costs more than a grant, and it needs a copy of the request, which [http.Transport.CancelRequest] does not know.
// So only requests to a host that could not be connected to the last time have one, and those to an unknown base until its
// first response. When a server goes down, the requests under way are charged, and the ones after them are not.
type connections struct {
	answered atomic.Bool   // there was a response
	tracing  atomic.Uint32 // one of the below
	failing  atomic.Int32  // how many there are in hosts

	mu    sync.Mutex
	hosts map[string]*downServer // those that could not be connected to the last time
	purge meter.Instant          // when those are to be forgotten that were not tried for long
}

// A reach is how far a request got.
type reach uint8

const (
	reachedServer   reach = iota // as far as is known
	reachedNoServer              // certainly
	reachedNoBase                // no Transport has handed it on, which is no news of a server
)

const (
	tracingUnknown = iota // until the first response all requests are traced
	tracingWorks          // the base calls the hooks of a trace
	tracingIgnored        // the base does not: only the error shows what happened
)

// learn sets what is known of a base before it is used.
func (c *connections) learn(base http.RoundTripper) {
	switch b := base.(type) {
	case *http.Transport:
		c.tracing.Store(tracingWorks)
	case *Transport:
		c.tracing.Store(b.connections.tracing.Load())
	}
}

// A trace notes how far a request got.
type trace struct {
	asked atomic.Bool // for a connection
	got   atomic.Bool // a connection
}

// forward hands a request to the base, given what it has paid, and reports how far it got.
func (t *Transport) forward(req *http.Request, p *queue.Paid) (*http.Response, reach, error) {
	if !t.connections.answered.Load() || t.connections.failing.Load() > 0 {
		return t.forwardWarily(req, p)
	}
	resp, far, err := t.sendOn(req)
	if err != nil {
		far = t.noteError(req, p.Mark.At, far, err)
	}
	return resp, far, err
}

// forwardWarily is forward as long as there was no response, or where some server is down.
func (t *Transport) forwardWarily(req *http.Request, p *queue.Paid) (resp *http.Response, far reach, err error) {
	c := &t.connections
	down := c.failing.Load() > 0 && c.down(serverOf(req))
	if down {
		if err := t.attempt(req, p); err != nil {
			closeBody(req)
			return nil, reachedNoBase, err
		}
	}
	if !c.answered.Load() && c.tracing.Load() == tracingUnknown || down {
		return t.forwardTraced(req, p.Mark.At)
	}
	resp, far, err = t.sendOn(req)
	if err != nil {
		far = t.noteError(req, p.Mark.At, far, err)
	} else if far != reachedNoBase {
		c.answered.Store(true)
	}
	return resp, far, err
}

// noteError notes an error of the base for a request that was granted then, and returns how far the request got.
func (t *Transport) noteError(req *http.Request, granted meter.Instant, far reach, err error) reach {
	c := &t.connections
	if far == reachedNoBase || !isDialError(err) {
		return far
	}
	c.failed(serverOf(req), granted, t.limiter.sinceStart(), err)
	if !hasBody(req) && (!c.answered.Load() || c.tracing.Load() == tracingIgnored) {
		return reachedNoServer
	}
	return far
}

// sendOn hands a request to the base. A Transport tells how far it got.
func (t *Transport) sendOn(req *http.Request) (*http.Response, reach, error) {
	if inner, ok := t.base.(*Transport); ok {
		return inner.roundTrip(req)
	}
	resp, err := t.base.RoundTrip(req)
	return resp, reachedServer, err
}

// nested reports whether the base is a Transport.
func (t *Transport) nested() bool {
	_, nested := t.base.(*Transport)
	return nested
}

func (t *Transport) forwardTraced(req *http.Request, granted meter.Instant) (resp *http.Response, far reach, err error) {
	c, tr := &t.connections, new(trace)
	traced := req.WithContext(tr.on(req.Context()))
	resp, far, err = t.sendOn(traced)
	if resp != nil && resp.Request == traced {
		resp.Request = req
	}
	if far == reachedNoBase {
		return resp, far, err
	}
	asked, got := tr.asked.Load(), tr.got.Load()
	unsent := far == reachedNoServer
	if asked {
		c.tracing.Store(tracingWorks)
	}
	switch {
	case err == nil:
		c.answered.Store(true)
		c.tracing.CompareAndSwap(tracingUnknown, tracingIgnored)
	case asked:
		unsent = !got
	default:
		unsent = unsent || isDialError(err) && !hasBody(req)
	}
	switch {
	case err == nil || got:
		c.reached(serverOf(req))
	case isDialError(err):
		c.failed(serverOf(req), granted, t.limiter.sinceStart(), err)
	}
	if unsent {
		far = reachedNoServer
	}
	return resp, far, err
}

// on returns a context under which tr records connections.
func (tr *trace) on(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { tr.asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { tr.got.Store(true) },
	})
}

// isDialError reports whether an error of a base is one for a connection that could not be made, as net/http returns it.
func isDialError(err error) bool {
	switch e := err.(type) {
	case *net.OpError:
		return e.Op == "dial" || e.Op == "proxyconnect" || e.Op == "socks connect"
	case *tls.CertificateVerificationError:
		return true
	}
	return err == http.ErrSchemeMismatch
}

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }
