package pool

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/bridge"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// A state is what is known of a Transport while it is a member. It is out if requests to it fail, until one succeeds. Then its door is shut,
// at which all requests of the pool wait that wait for the Transport, unless no member is in: a pool whose members all fail sends requests
// as if none did, because their callers are to see why.
type state struct {
	by       bridge.Member
	door     *limiter.Door
	failures atomic.Int32 // in succession
	out      atomic.Bool
	opening  atomic.Bool            // it is new, and shut until those that waited when it came have places there
	last     atomic.Pointer[string] // why the last request failed that did; nil: none has
	sent     atomic.Uint64
	latency
}

const (
	outFor       = time.Second // the time between two trials of a member that is out
	mostFailures = 3           // in succession; then a member is out
)

func newState(m *Member) *state {
	req, by := bridge.Ask()
	_, _ = m.Transport.Enqueue(req)
	return &state{by: *by, door: (*by).Core().NewDoor(outFor)}
}

// isLeftOut reports whether only trials are sent to the member. Its door is shut for another reason, too, while it is new.
func (s *state) isLeftOut() bool { return s.door.IsShut() && !s.opening.Load() }

// ended notes how a request fared that the member has sent, and which has ended now.
func (p *Pool) ended(s *state, req *http.Request, resp *http.Response, unsent bool, err error, took, now time.Duration) {
	s.took(resp, err, took, now)
	failed := isFailure(req, resp, err)
	if unsent || failed {
		last := failureOf(resp, err)
		s.last.Store(&last)
	}
	switch {
	case unsent, bridge.IsDialError(err), failed && s.failures.Add(1) >= mostFailures:
		if !s.out.Swap(true) {
			p.turn()
		}
	case err == nil && !failed && (s.failures.Load() != 0 || s.out.Load()):
		s.failures.Store(0)
		if s.out.Swap(false) {
			p.turn()
		}
	}
}

// turn shuts and opens the doors of the members after one has gone out or come back.
func (p *Pool) turn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turnLocked()
}

func (p *Pool) turnLocked() {
	members := p.set.Load().members
	in := false
	for i := range members {
		in = in || !members[i].out.Load()
	}
	for i := range members {
		if m := &members[i]; in && m.out.Load() || m.opening.Load() {
			m.door.Shut()
		} else {
			m.door.Open()
		}
	}
	turned := make(chan struct{})
	if before := p.turned.Swap(&turned); before != nil {
		close(*before)
	}
}

// isFailure reports whether a request has failed because of the member and not because of its sender: it got no response, a 5xx except 501,
// or a 401 or 402, because the credential is the member's.
func isFailure(req *http.Request, resp *http.Response, err error) bool {
	if err != nil {
		return req.Context().Err() != context.Canceled
	}
	switch status := resp.StatusCode; status {
	case http.StatusUnauthorized, http.StatusPaymentRequired:
		return true
	default:
		return status >= 500 && status != http.StatusNotImplemented
	}
}
