package throttle

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
)

// Connections tell requests that certainly never reached a server, whose tokens are given back, from those that may have.
//
// An error alone is no proof. A request body can fail with a dial error of its own, and an [http.Transport] returns one
// when a server took a request on an idle connection, closed it, and the second connection could not be made. There is
// proof where no connection was ever got, as [httptrace] tells, and where there was no body and no response before. A trace
// costs more than a grant, and a copy of the request, so only requests have one that could not be told apart otherwise and
// are not on a busy way: to a host that could not be connected to the last time, and, before the first response, those
// with a body. When a server goes down, the requests under way are charged; the ones after them are not.
type connections struct {
	answered atomic.Bool   // there was a response
	tracing  atomic.Uint32 // one of the below
	failing  atomic.Int32  // how many there are in hosts

	mu    sync.Mutex
	hosts map[string]bool // that could not be connected to the last time
}

const (
	tracingUnknown = iota // until the first response all requests are traced
	tracingWorks          // the base calls the hooks of a trace
	tracingIgnored        // the base answered without: what an error looks like is all there is
)

// maxFailing is how many hosts are remembered that could not be connected to. Requests to others are charged.
const maxFailing = 1024

// learn notes what is known of a base before it is used.
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

// forward hands a request to the base. With an error it reports whether the request certainly never reached a server.
func (t *Transport) forward(req *http.Request) (resp *http.Response, unsent bool, err error) {
	c := &t.connections
	answered, tracing := c.answered.Load(), c.tracing.Load()
	if !answered && (tracing == tracingUnknown || hasBody(req)) || c.failing.Load() > 0 && c.fails(hostOf(req)) {
		return t.forwardTraced(req)
	}
	resp, err = t.base.RoundTrip(req)
	switch {
	case err == nil:
		if !answered {
			c.answered.Store(true)
		}
	case isDialError(err):
		c.note(hostOf(req), true)
		unsent = !hasBody(req) && (!answered || tracing == tracingIgnored)
	}
	return resp, unsent, err
}

func (t *Transport) forwardTraced(req *http.Request) (resp *http.Response, unsent bool, err error) {
	c, tr := &t.connections, new(trace)
	traced := req.WithContext(tr.on(req.Context()))
	resp, err = t.base.RoundTrip(traced)
	if resp != nil && resp.Request == traced {
		resp.Request = req
	}
	asked, got := tr.asked.Load(), tr.got.Load()
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
		unsent = isDialError(err) && !hasBody(req)
	}
	if err == nil || got || isDialError(err) {
		c.note(hostOf(req), err != nil && !got)
	}
	return resp, unsent, err
}

// on returns a context that has tr told of connections.
func (tr *trace) on(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { tr.asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { tr.got.Store(true) },
	})
}

func (c *connections) fails(host string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hosts[host]
}

// note notes whether a host could not be connected to.
func (c *connections) note(host string, failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !failed:
		delete(c.hosts, host)
	case c.hosts == nil:
		c.hosts = map[string]bool{host: true}
	case len(c.hosts) < maxFailing:
		c.hosts[host] = true
	}
	c.failing.Store(int32(len(c.hosts)))
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
