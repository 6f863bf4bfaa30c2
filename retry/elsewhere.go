package retry

import (
	"net/http"
	"time"
)

// elsewhere returns the request with which to try another member of a pool after one has failed, or nil. See [bridge.Next].
//
// A request is sent by another member immediately if it would be retried at all, whatever wait its server asked for, and also after a
// refusal that no waiting ends, a 401 or a 402, because these concern a member's credential. It counts as a retry for RetryMax and
// the budget. Those three take nothing from the budget.
//
// After the last member, CheckRetry decides, and waits until the first of them may be tried again.
func (p *Policy) elsewhere(req *http.Request, resp *http.Response, err error) *http.Request {
	ctx := req.Context()
	f := p.judgeMember(req, resp, err)
	due := p.attemptOf(ctx).due
	switch {
	case f.outcome == retryable:
		if again := time.Now().Add(f.word); due.IsZero() || again.Before(due) {
			due = again
		}
	case f.elsewhere != retryable:
		return nil
	}
	if ctx.Err() != nil || p.attempt(ctx) >= p.client.RetryMax {
		return nil
	}
	if !f.invited {
		if !p.budget.lend(ctx) {
			return nil
		}
		p.budget.spend(ctx)
	}
	p.counts.attempts.Add(1)
	p.willRetry(ctx, f, err, 0)
	return req.WithContext(p.next(ctx, due))
}

// judgeMember is judge for an attempt by one of several members.
func (p *Policy) judgeMember(req *http.Request, resp *http.Response, err error) failure {
	if err != nil {
		f := p.judge(nil, err)
		if first, _ := origin(req); f.outcome == final && f.cause == CauseError && (idempotent(first.Method) || keyed(first.Header)) {
			f.outcome = retryable // a RoundTripper's error does not say the method
		}
		return f
	}
	if resp.Request == nil {
		resp.Request = req
	}
	return p.judge(resp, nil)
}

// orEarlier changes what is known of a failure by the attempts before, each by another member of a pool: one of those may be tried earlier.
func (p *Policy) orEarlier(f failure, req *http.Request) failure {
	if req == nil {
		return f
	}
	due := p.attemptOf(req.Context()).due
	if due.IsZero() {
		return f
	}
	if f.elsewhere == retryable {
		f.outcome = retryable
	}
	if wait := max(0, time.Until(due)); f.word > wait || f.elsewhere == retryable {
		f.word, f.margin = wait, marginOf(wait)
	}
	return f
}
