package throttle

import (
	"context"
	"maps"
	"math"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/bridge"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
)

// A downServer is a server to which the last attempt to connect failed. Such an attempt costs no tokens, so limits alone would not
// bound how often the server is dialed. Attempts are made one by one, at the slowest rate of the limits that apply, until one succeeds. A
// request does not wait for an attempt of its own: the first one that fails while the request waits gives the request its error, so that a
// server that is down never looks like a long wait.
type downServer struct {
	err     error // of the last attempt
	failed  meter.Instant
	tried   meter.Instant // when the last attempt was made
	changed chan struct{} // closed with each attempt that fails, and when one succeeds
}

const (
	slowestAttempts   = int64(time.Second) / 10 // the longest time between two attempts, where a limit has a rate
	unlimitedAttempts = int64(time.Second) / 5  // the time between two, where only server hints may report a rate
	downStale         = int64(time.Minute)      // after this time without an attempt, a server is forgotten

	// maxDown is how many such servers are remembered. Requests to others are charged, and sent as the limits allow.
	maxDown = 1024
)

// serverOf returns the server that is dialed for a request.
func serverOf(req *http.Request) string {
	if req.URL == nil {
		return ""
	}
	return req.URL.Host
}

// gap returns the time between two attempts: by the slowest rate of the limits that apply, but at most slowestAttempts. If none of the
// limits has a rate, it is unlimitedAttempts, or 0 without server hints: then attempts are not paced.
func (t *Transport) gap(r *limiter.Request) int64 {
	longest := t.limiter.core.RefillTime(r)
	if longest == 0 {
		if t.noHints {
			return 0
		}
		return unlimitedAttempts
	}
	return int64(math.Ceil(min(1e9*longest, float64(slowestAttempts))))
}

// attempt waits until the request may be sent, where its server is down. The error is that of another attempt that failed
// meanwhile, or of the last one if the context's deadline comes before the next, or the cause of a context that has ended. The
// wait is part of the attempt, as a dial would be, and not of the wait in the queue that MaxWait bounds.
func (t *Transport) attempt(req *http.Request, r *limiter.Request) error {
	ctx := req.Context()
	if t.limiter.dry {
		return nil
	}
	gap, arrived := t.gap(r), r.At-r.Waited
	if gap == 0 {
		return nil
	}
	for {
		now := t.limiter.sinceStart()
		changed, due, err := t.connections.try(serverOf(req), now, arrived, gap)
		if changed == nil {
			return err
		}
		if d, ok := ctx.Deadline(); ok && time.Until(d) <= time.Duration(due-now) {
			return err
		}
		//lint:ignore SA1019 http.Client sets Cancel with its Timeout
		if err := waitFor(ctx, req.Cancel, changed, time.Duration(due-now)); err != nil {
			return err
		}
	}
}

// waitFor waits for a change, for at most d. The error is why the request has ended.
func waitFor(ctx context.Context, cancel, changed <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
	case <-cancel:
	}
	return limiter.Ended(ctx, cancel)
}

// down reports whether a server could not be connected to the last time.
func (c *connections) down(server string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hosts[server] != nil
}

// try decides about a request: it may be sent (no channel, no error), it has failed with an attempt that was made since it arrived (no
// channel), or it waits until due or a change. The error is that of the last attempt.
func (c *connections) try(server string, now, arrived meter.Instant, gap int64) (changed <-chan struct{}, due meter.Instant, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.purgeStale(now)
	down := c.hosts[server]
	switch {
	case down == nil:
		return nil, 0, nil
	case now >= down.tried+gap:
		down.tried = now
		return nil, 0, nil
	case down.failed > arrived:
		return nil, 0, down.err
	}
	return down.changed, down.tried + gap, down.err
}

// failed notes that a server could not be connected to, for a request that was sent then.
func (c *connections) failed(server string, sent, now meter.Instant, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.purgeStale(now)
	down := c.hosts[server]
	if down == nil {
		if len(c.hosts) == maxDown {
			return
		}
		if c.hosts == nil {
			c.hosts = make(map[string]*downServer)
		}
		down = &downServer{tried: sent}
		c.hosts[server] = down
		c.failing.Store(int32(len(c.hosts)))
	} else {
		close(down.changed)
	}
	down.failed, down.err, down.changed = now, err, make(chan struct{})
}

// reached notes that a server could be connected to.
func (c *connections) reached(server string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if down := c.hosts[server]; down != nil {
		close(down.changed)
		delete(c.hosts, server)
		c.failing.Store(int32(len(c.hosts)))
	}
}

// purgeStale forgets servers that no request has tried to reach for long.
func (c *connections) purgeStale(now meter.Instant) {
	if now < c.purge {
		return
	}
	c.purge = now + downStale
	maps.DeleteFunc(c.hosts, func(_ string, down *downServer) bool {
		stale := down.failed < now-downStale && down.tried < now-downStale
		if stale {
			close(down.changed)
		}
		return stale
	})
	c.failing.Store(int32(len(c.hosts)))
}

// Connections distinguish requests that certainly never reached a server, which are refunded, from those that may have.
//
// An error alone is no proof. A request body can fail with a dial error of its own, and an [http.Transport] returns one
// when a server took a request on an idle connection, closed it, and the second connection could not be made. There is
// proof where [httptrace] shows that no connection was obtained, and where there was no body and no response before.
//
// A trace costs more than a grant, and it needs a copy of the request, which [http.Transport.CancelRequest] does not know.
// So only requests to a host that could not be connected to the last time have one, those to an unknown base until its
// first response, and those of a pool, which sends a request that has not reached the server by another member. When a server goes down, the requests under way are charged, and the ones after them are not.
type connections struct {
	answered atomic.Bool   // there was a response
	tracing  atomic.Uint32 // one of the constants below
	failing  atomic.Int32  // the number of hosts

	mu    sync.Mutex
	hosts map[string]*downServer // to which the last attempt to connect failed
	purge meter.Instant          // when to forget servers without an attempt for long
}

// A reach is how far a request got.
type reach uint8

const (
	reachedServer   reach = iota // as far as is known
	reachedNoServer              // certainly
	reachedNoBase                // a Transport did not pass it on, which says nothing about the server
)

const (
	tracingUnknown = iota // until the first response all requests are traced
	tracingWorks          // the base calls the hooks of a trace
	tracingIgnored        // the base does not: only the error shows what happened
)

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

// forward passes a request that was granted to the base, and reports how far it got.
func (t *Transport) forward(req *http.Request, r *limiter.Request) (*http.Response, reach, error) {
	if !t.connections.answered.Load() || t.connections.failing.Load() > 0 || t.pooled.Load() {
		return t.forwardWarily(req, r)
	}
	resp, far, err := t.sendOn(req)
	if err != nil {
		far = t.noteError(req, r.At, far, err)
	}
	return resp, far, err
}

// forwardWarily is forward as long as there was no response, where some server is down, and in a pool.
func (t *Transport) forwardWarily(req *http.Request, r *limiter.Request) (resp *http.Response, far reach, err error) {
	c := &t.connections
	down := c.failing.Load() > 0 && c.down(serverOf(req))
	if down {
		if err := t.attempt(req, r); err != nil {
			closeBody(req)
			return nil, reachedNoBase, err
		}
	}
	tracing := c.tracing.Load()
	if !c.answered.Load() && tracing == tracingUnknown || down || tracing == tracingWorks && t.pooled.Load() {
		return t.forwardTraced(req, r.At)
	}
	resp, far, err = t.sendOn(req)
	if err != nil {
		far = t.noteError(req, r.At, far, err)
	} else if far != reachedNoBase {
		c.answered.Store(true)
	}
	return resp, far, err
}

// noteError notes an error of the base for a request that was granted then, and returns how far the request got.
func (t *Transport) noteError(req *http.Request, granted meter.Instant, far reach, err error) reach {
	c := &t.connections
	if far == reachedNoBase || !bridge.IsDialError(err) {
		return far
	}
	c.failed(serverOf(req), granted, t.limiter.sinceStart(), err)
	if !hasBody(req) && (!c.answered.Load() || c.tracing.Load() == tracingIgnored) {
		return reachedNoServer
	}
	return far
}

// sendOn passes a request to the base. A base that is a Transport reports how far the request got.
func (t *Transport) sendOn(req *http.Request) (*http.Response, reach, error) {
	if t.inner != nil {
		return t.inner.roundTrip(req)
	}
	resp, err := t.base.RoundTrip(req)
	return resp, reachedServer, err
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
		unsent = unsent || bridge.IsDialError(err) && !hasBody(req)
	}
	switch {
	case err == nil || got:
		c.reached(serverOf(req))
	case bridge.IsDialError(err):
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

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }
