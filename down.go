package throttle

import (
	"context"
	"maps"
	"math"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/queue"
)

// A downServer could not be connected to the last time. Such an attempt costs no tokens, so limits alone would not bound how
// often the server is dialed: attempts leave one by one, at the slowest rate of the limits that they fall under, until one gets
// through. A request does not wait for an attempt of its own: the error of the first one that fails while the request waits is
// its error too, so that a server that is down never looks like a long wait.
type downServer struct {
	err     error // of the last attempt
	failed  meter.Instant
	tried   meter.Instant // when the last attempt was made
	changed chan struct{} // closed with each attempt that fails, and when one got through
}

const (
	slowestAttempts = int64(time.Second) / 10 // is the longest between two attempts
	downStale       = int64(time.Minute)      // a server that was not tried for so long is forgotten

	// maxDown is how many servers are remembered that could not be connected to. Requests to others are charged, and leave
	// as the limits allow.
	maxDown = 1024
)

// serverOf returns what is dialed for a request.
func serverOf(req *http.Request) string {
	if req.URL == nil {
		return ""
	}
	return req.URL.Host
}

// sinceStart returns the time, on the Limiter's clock.
func (l *Limiter) sinceStart() meter.Instant { return meter.Instant(time.Since(l.core.Start)) }

// gap returns how far apart the limits that a request falls under let such requests leave in the long run, and no more than a
// tenth of a second; 0: none of them has a rate.
func (t *Transport) gap(charges []queue.Charge) int64 {
	return int64(math.Ceil(min(1e9*t.limiter.core.Longest(charges), float64(slowestAttempts))))
}

// attempt waits until the request may be sent, where its server is down. The error is that of another attempt that failed
// meanwhile, or of the last one if the context's deadline comes before the next, or the cause of a context that is over. The
// wait is part of the attempt, as a dial would be, and not of the wait in line that MaxWait bounds.
func (t *Transport) attempt(req *http.Request, p *queue.Paid) error {
	ctx := req.Context()
	if t.limiter.core.Dry {
		return nil
	}
	gap, arrived := t.gap(p.Charges), p.Mark.At-meter.Instant(p.Waited)
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

// waitFor waits for a change, for d at most. The error is why the request is over.
func waitFor(ctx context.Context, cancel, changed <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return queue.CauseOf(ctx)
	case <-cancel:
		return queue.CauseOf(ctx)
	}
	return nil
}

// down reports whether a server could not be connected to the last time.
func (c *connections) down(server string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hosts[server] != nil
}

// try decides about a request that arrived then: it may be sent (no channel, no error), it has failed with an attempt that was
// made meanwhile (no channel), or it waits until due or a change. The error is that of the last attempt then.
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
