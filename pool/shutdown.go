package pool

import (
	"context"
	"errors"
	"math"
	"sync"

	"github.com/httpthrottle/throttle"
)

// Shutdown ends the Pool gracefully. From now on, new requests are rejected with [throttle.ReasonShutdown]. Requests that wait are still
// sent, by whatever member. When none is left, or ctx ends, Shutdown calls that of each member's Transport at the same time, with ctx. The
// error joins theirs.
//
// Shutdown may be called several times, and concurrently. The Pool and the Transports cannot be used again.
func (p *Pool) Shutdown(ctx context.Context) error {
	p.shut.Store(true)
	if p.active.Load() == 0 {
		p.drain()
	}
	select {
	case <-p.drained:
	case <-ctx.Done():
	}
	members := p.set.Load().members
	errs := make([]error, len(members))
	var all sync.WaitGroup
	for i := range members {
		all.Go(func() { errs[i] = members[i].Transport.Shutdown(ctx) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// arrive counts a request that comes, and reports whether the Pool takes it.
func (p *Pool) arrive() bool {
	p.active.Add(1)
	if p.shut.Load() {
		p.depart()
		return false
	}
	return true
}

// depart counts a request out whose RoundTrip returns.
func (p *Pool) depart() {
	if p.active.Add(-1) == 0 && p.shut.Load() {
		p.drain()
	}
}

func (p *Pool) drain() { p.drains.Do(func() { close(p.drained) }) }

// errShut is the error of requests that come after Shutdown.
var errShut error = &throttle.Rejection{Reason: throttle.ReasonShutdown, Limit: "pool", Wait: math.MaxInt64}
