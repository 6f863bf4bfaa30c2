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
// when a server took a request on an idle connection, closed it, and the second connection could not be made. Proof is
// that no connection was ever got, as [httptrace] tells. A trace costs more than a grant, so only those requests have one
// whose base has not answered yet or whose host could not be connected to the last time. When a server goes down, the
// requests under way are charged; the ones after them are not.
type connections struct {
	tracing atomic.Uint32 // one of the below
	failing atomic.Int32  // how many there are in hosts

	mu    sync.Mutex
	hosts map[string]bool // that could not be connected to the last time
}

const (
	tracingUnknown = iota // nothing was answered yet
	tracingWorks          // the base calls the hooks of a trace
	tracingIgnored        // the base answered without: what an error looks like is all there is
)

// maxFailing is how many hosts are remembered that could not be connected to. Requests to others are charged.
const maxFailing = 1024

// A trace notes how far a request got.
type trace struct {
	asked atomic.Bool // for a connection
	got   atomic.Bool // a connection
}

// forward hands a request to the base. With an error it reports whether the request certainly never reached a server.
func (t *Transport) forward(req *http.Request) (resp *http.Response, unsent bool, err error) {
	c := &t.connections
	tracing := c.tracing.Load()
	if tracing == tracingUnknown || c.failing.Load() > 0 && c.fails(hostOf(req)) {
		return t.forwardTraced(req)
	}
	if resp, err = t.base.RoundTrip(req); err != nil && isDialError(err) {
		c.note(hostOf(req), true)
		unsent = tracing == tracingIgnored && !hasBody(req)
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
	switch {
	case err == nil && asked:
		c.tracing.Store(tracingWorks)
	case err == nil:
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
