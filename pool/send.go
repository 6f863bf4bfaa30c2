package pool

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// RoundTrip sends a request by the first member that can send it. If none can send it in time, the response or the error is that of the
// member that could have sent it first.
//
// If no connection to a member can be made, the request is sent by another one, for which its body must be empty or have a GetBody. The
// errors of all members are joined if none can be reached.
func (p *Pool) RoundTrip(req *http.Request) (*http.Response, error) { return p.roundTrip(req, nil) }

// Retrying returns a RoundTripper that sends requests by the Pool and, after one has failed, asks next whether to send it by another member.
// It does so as long as next returns a request, and there is a member that has not sent it yet. The request that next gets is the one that
// failed, and what it returns is that or a copy. It gets a response with its body unread, or an error.
//
// It is for package retry, whose NewClient uses it and whose Policy.Elsewhere is such a next. Requests with a status below 400 are not
// passed to next, nor those with a body that have no GetBody.
func (p *Pool) Retrying(next func(*http.Request, *http.Response, error) *http.Request) http.RoundTripper {
	return &retrying{p, next}
}

type retrying struct {
	*Pool
	next func(*http.Request, *http.Response, error) *http.Request
}

func (r *retrying) RoundTrip(req *http.Request) (*http.Response, error) {
	return r.roundTrip(req, r.next)
}

func (p *Pool) roundTrip(req *http.Request, next func(*http.Request, *http.Response, error) *http.Request) (*http.Response, error) {
	var tried []*state
	var unreached []error
	for start := p.now(); ; {
		by, resp, err := p.send(req, tried, start)
		if by == nil {
			return resp, err
		}
		unsent := isUnsent(err)
		if !unsent && (next == nil || err == nil && resp.StatusCode < 400 || !isRepeatable(req)) {
			return resp, err
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
	errLater   = errors.New("pool: bug: no member of the tier can send the request in time")
	errChanged = errors.New("pool: bug: the members have changed")
)

// send sends a request once, and returns the member that it was sent by; nil: none.
func (p *Pool) send(req *http.Request, tried []*state, start time.Duration) (by *member, resp *http.Response, err error) {
	for err = errChanged; err == errChanged; {
		set := p.set.Load()
		by, resp, err = p.sendBy(req, set, tried, start)
	}
	return by, resp, err
}

// sendBy is send for the members of a set, tier after tier. The error is errChanged if they were replaced.
func (p *Pool) sendBy(req *http.Request, set *set, tried []*state, start time.Duration) (by *member, resp *http.Response, err error) {
	key, tries := "", set.all
	if p.sticky != nil {
		if key = p.sticky(req); key != "" {
			tries = set.home(key, set.all)
		}
	}
	now := p.now()
	usable, trial := set.usable(tried, tries, now)
	if key != "" {
		home := set.home(key, usable)
		if extra := set.extra(home, usable, now); extra <= p.within {
			if by, resp, err = p.step(req, set, tried, tier{mask: home, after: -1, within: p.within - extra}, start, now); err != errLater {
				return by, resp, err
			}
			now = p.now() // the request may have waited
		}
	}
	for t := (tier{}); ; now = p.now() {
		t = set.next(t.mask, usable, now)
		t.trial = trial & t.mask
		if by, resp, err = p.step(req, set, tried, t, start, now); err != errLater {
			return by, resp, err
		}
	}
}

// step sends a request by a member of a tier. The error is errLater if none can in time, and there is another tier.
func (p *Pool) step(req *http.Request, set *set, tried []*state, t tier, start, now time.Duration) (by *member, resp *http.Response, err error) {
	for rest := t.slow | t.trial; rest != 0; rest &= rest - 1 {
		if by = &set.members[rest.first()]; rest&-rest == t.trial || by.toCheck(now) {
			if resp, sent, err := p.tryBy(by, req, now); sent {
				return by, resp, err
			}
		}
	}
	for rest, sum := t.mask, set.weight(t.mask); rest != 0; {
		i := set.pick(rest, sum)
		by = &set.members[i]
		if resp, sent, err := p.tryBy(by, req, now); sent {
			return by, resp, err
		}
		rest, sum = rest&^(1<<i), sum-by.Weight
	}
	w := wait{pool: p, req: req, tried: tried, tier: t, start: start}
	return w.wait(set)
}
