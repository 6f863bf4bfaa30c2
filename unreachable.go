package throttle

import (
	"context"
	"math"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/bridge"
	"github.com/httpthrottle/throttle/internal/down"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	slowestAttempts   = int64(time.Second) / 10 // the longest time between two attempts at a server that is down, where a limit has a rate
	unlimitedAttempts = int64(time.Second) / 5  // the time between two, where only server hints may report a rate
)

// serverOf returns the server that is dialed for a request.
func serverOf(req *http.Request) string {
	if req.URL == nil {
		return ""
	}
	return req.URL.Host
}

// gap returns the time between two attempts: by the slowest rate of the limits that apply, but at most slowestAttempts. If none of the
// limits has a rate, it is unlimitedAttempts, or 0 without server hints: then attempts are not paced. Nor are they in a dry run.
func (t *Transport) gap(r *limiter.Request) int64 {
	if t.limiter.dry {
		return 0
	}
	longest := t.limiter.core.RefillTime(r)
	if longest == 0 {
		if t.noHints {
			return 0
		}
		return unlimitedAttempts
	}
	return int64(math.Ceil(min(1e9*longest, float64(slowestAttempts))))
}

// attempt waits until the request may be sent, where its server is down, and reports whether it is. The error is that of another attempt
// that failed meanwhile, or of the last one if the context's deadline comes before the next, or the cause of a context that has ended. The
// wait is part of the attempt, as a dial would be, and not of the wait in the queue that MaxWait bounds.
func (t *Transport) attempt(req *http.Request, r *limiter.Request) (isDown bool, err error) {
	if !t.connections.down.Any() {
		return false, nil
	}
	ctx, gap, arrived := req.Context(), t.gap(r), r.At-r.Waited
	for {
		now := t.limiter.sinceStart()
		turn := t.connections.down.Try(serverOf(req), now, arrived, gap)
		wait := time.Duration(turn.Due - now)
		if d, ok := ctx.Deadline(); turn.Changed == nil || ok && time.Until(d) <= wait {
			return turn.Down, turn.Err
		}
		//lint:ignore SA1019 http.Client sets Cancel with its Timeout
		if err := waitFor(ctx, req.Cancel, turn.Changed, wait); err != nil {
			return true, err
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
	down     down.Servers
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

// isUsual reports whether nothing is to be done for a request but to pass it on: there was a response, no server is down, and no pool has to
// know how far it gets.
func (t *Transport) isUsual() bool {
	return t.connections.answered.Load() && !t.connections.down.Any() && !t.pooled.Load()
}

// forward passes a request that was granted to the base, and reports how far it got.
func (t *Transport) forward(req *http.Request, r *limiter.Request) (*http.Response, reach, error) {
	if !t.isUsual() {
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
	isDown, err := t.attempt(req, r)
	if err != nil {
		closeBody(req)
		return nil, reachedNoBase, err
	}
	tracing := c.tracing.Load()
	if !c.answered.Load() && tracing == tracingUnknown || isDown || tracing == tracingWorks && t.pooled.Load() {
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
	c.down.Failed(serverOf(req), granted, t.limiter.sinceStart(), err)
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
	c, tr := &t.connections, new(down.Trace)
	traced := req.WithContext(tr.On(req.Context()))
	resp, far, err = t.sendOn(traced)
	if resp != nil && resp.Request == traced {
		resp.Request = req
	}
	if far == reachedNoBase {
		return resp, far, err
	}
	asked, got := tr.Seen()
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
		c.down.Reached(serverOf(req))
	case bridge.IsDialError(err):
		c.down.Failed(serverOf(req), granted, t.limiter.sinceStart(), err)
	}
	if unsent {
		far = reachedNoServer
	}
	return resp, far, err
}

func hasBody(req *http.Request) bool { return req.Body != nil && req.Body != http.NoBody }

// closeBody closes the body of a request that is not sent, as a RoundTripper must. Nothing was read from it, so its error
// says nothing.
func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}
