package pool

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle/internal/bridge"
)

// RoundTrip sends a request by the first member that can send it. If none can send it in time, the response or the error is that of the
// member that could have sent it first.
//
// A request has one arrival: its place in each queue and its maximum wait are counted from then, also if it moves to other members.
//
// If a request has certainly not reached the server of a member, it is sent by another one, for which its body must be empty or have a
// GetBody. The errors of all members are joined if none can be reached.
func (p *Pool) RoundTrip(req *http.Request) (*http.Response, error) {
	if p == nil || p.set.Load() == nil {
		closeBody(req)
		return nil, errUnmade
	}
	if !p.arrive() {
		closeBody(req)
		p.count(nil, errShut)
		return nil, errShut
	}
	defer p.depart()
	start := p.now()
	var tried []*state
	var unreached []error
	for {
		by, resp, unsent, err := p.send(req, tried, start)
		if by == nil {
			p.count(resp, err)
			return resp, err
		}
		var next bridge.Next
		if !unsent {
			if err == nil && resp.StatusCode < 400 {
				return resp, err
			}
			if next = bridge.NextOf(req.Context()); next == nil || !isRepeatable(req) {
				return resp, err
			}
		}
		tried = append(tried, by.state)
		last := p.set.Load().untried(tried) == 0
		switch {
		case unsent:
			unreached = append(unreached, fmt.Errorf("pool: member %q: %w", by.Name, err))
			if last {
				return nil, errors.Join(unreached...)
			}
		case last:
			return resp, err
		default:
			other := next(req, resp, err)
			if other == nil {
				return resp, err
			}
			discard(resp)
			req = other
		}
		if req, err = again(req); err != nil {
			return nil, errors.Join(append(unreached, err)...)
		}
		p.moved.Add(1)
	}
}

// isRepeatable reports whether the body of a request can be read again.
func isRepeatable(req *http.Request) bool {
	return req.Body == nil || req.Body == http.NoBody || req.GetBody != nil
}

// again returns a request with a new body, as the first one was closed.
func again(req *http.Request) (*http.Request, error) {
	switch {
	case req.Body == nil || req.Body == http.NoBody:
		return req, nil
	case req.GetBody == nil:
		return nil, errors.New("pool: the request has a body and no GetBody, so it cannot be sent by another member")
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, fmt.Errorf("pool: GetBody: %w", err)
	}
	other := *req
	other.Body = body
	return &other, nil
}

// discard closes a response, after it has read enough of a short body for the connection to be used again.
func discard(resp *http.Response) {
	if resp != nil {
		_, _ = io.CopyN(io.Discard, resp.Body, 4096)
		resp.Body.Close()
	}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

var (
	errUnmade  = errors.New("pool: there is no Pool: make it with New, and look at the error of that")
	errLater   = errors.New("pool: bug: no member of the tier can send the request in time")
	errChanged = errors.New("pool: bug: the members have changed while the request waited")
	errMissed  = errors.New("pool: bug: the members have changed before the request waited")
)

// send sends a request once, and returns the member that it was sent by; nil: none.
func (p *Pool) send(req *http.Request, tried []*state, start time.Duration) (by *member, resp *http.Response, unsent bool, err error) {
	for moved := (*move)(nil); ; {
		set := p.set.Load()
		switch by, resp, unsent, err = p.sendBy(req, set, tried, start, moved); err {
		case errChanged:
			moved = &move{&set.waits}
		case errMissed:
		default:
			return by, resp, unsent, err
		}
	}
}

// sendBy is send for the members of a set, tier after tier. The error is errChanged or errMissed if it is to begin again, because a member has
// gone out, or the members were replaced.
func (p *Pool) sendBy(req *http.Request, set *set, tried []*state, start time.Duration, moved *move) (by *member, resp *http.Response, unsent bool, err error) {
	key, trials := "", set.all
	if p.sticky != nil {
		if key = p.sticky(req); key != "" {
			trials = set.home(key, set.all)
		}
	}
	now := p.now()
	usable, out, doors := set.usable(tried)
	if key != "" {
		home := set.home(key, usable)
		if extra := set.extra(home, usable, now); extra <= p.within {
			t := tier{mask: home, out: trials & out, trials: trials & out, doors: doors, after: -1, within: p.within - extra}
			if by, resp, unsent, err = p.step(req, set, tried, t, start, now, moved); err != errLater {
				return by, resp, unsent, err
			}
			now = p.now() // the request may have waited
		}
	}
	for t := (tier{}); ; now = p.now() {
		t = set.next(t.mask, usable, now)
		t.out = set.upTo(t, out, usable, now)
		t.trials, t.doors = t.out&trials, doors
		if by, resp, unsent, err = p.step(req, set, tried, t, start, now, moved); err != errLater {
			return by, resp, unsent, err
		}
	}
}

// step sends a request by a member of a tier. The error is errLater if none can in time, and there is another tier. One that moves waits in any
// case, so that it is not sent before those that came before it.
func (p *Pool) step(req *http.Request, set *set, tried []*state, t tier, start, now time.Duration, moved *move) (by *member, resp *http.Response, unsent bool, err error) {
	if !moved.isOpen() {
		if by, resp, sent, unsent, err := p.stepNow(req, set, t, now); sent {
			return by, resp, unsent, err
		}
	}
	w := wait{pool: p, set: set, req: req, tried: tried, tier: t, start: start, move: moved}
	return w.wait()
}

// stepNow sends a request by a member of a tier that can send it now.
func (p *Pool) stepNow(req *http.Request, set *set, t tier, now time.Duration) (by *member, resp *http.Response, sent, unsent bool, err error) {
	for rest := t.trials; rest != 0; rest &= rest - 1 {
		by = &set.members[rest.first()]
		if due, ok := by.door.Try(); ok {
			if resp, sent, unsent, err = p.tryBy(by, req, now); sent {
				return by, resp, true, unsent, err
			}
			by.door.Untry(due)
		}
	}
	for rest := t.slow; rest != 0; rest &= rest - 1 {
		if by = &set.members[rest.first()]; by.toCheck(now) {
			if resp, sent, unsent, err = p.tryBy(by, req, now); sent {
				return by, resp, true, unsent, err
			}
		}
	}
	for rest, sum := t.mask, set.weight(t.mask); rest != 0; {
		i := set.pick(rest, sum)
		by = &set.members[i]
		if !by.opening.Load() {
			if resp, sent, unsent, err = p.tryBy(by, req, now); sent {
				return by, resp, true, unsent, err
			}
		}
		rest, sum = rest&^(1<<i), sum-by.Weight
	}
	return nil, nil, false, false, nil
}
