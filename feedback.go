package throttle

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/queue"
)

// A result is an answer with what the Transport alone needs.
type result struct {
	answer queue.Answer
	local  bool      // an inner Transport rejected it
	more   *listener // reads more of what the server says in the body; nil: the body adds nothing
}

// exchange sends a request and tells the Limiter its outcome. p is what the request has paid, and g is its Grant.
func (t *Transport) exchange(req *http.Request, p *queue.Paid, g *Grant) (*http.Response, reach, error) {
	var kept *Grant // the same Grant, where it outlives this call
	if g.receipt != nil {
		kept = g.filed()
	}
	var resp *http.Response
	a := result{answer: queue.Answer{Outcome: aimd.Ignore}} // if base panics
	done := false
	defer func() {
		if !done { // base or a user's function has panicked
			t.abort(kept.or(g), resp, &a.answer)
		}
	}()
	resp, far, err := t.forward(req, p)
	heeded := resp
	if err != nil { // a response beside an error is ignored
		heeded = nil
	}
	a = t.answerOf(req, heeded, far, err, heeded != nil && t.speaks(req, heeded, g.grant.Mark.At))
	charges := kept.or(g).grant.Charges()
	gated, after := false, false
	for i := range charges {
		li := charges[i].Limit
		policy := t.limiter.policyOf(li)
		gated = gated || li.Gates
		after = after || li.Frees || policy.settled()
		if policy.judge != nil && !a.local {
			charges[i].Outcome = aimd.Outcome(policy.judge(heeded, err))
		}
	}
	if !gated && a.answer.Word != nil {
		t.limiter.hear(req.Context(), t.gateOf(req), queue.Mark{At: g.grant.Mark.At}, &a.answer, charges, t.asker)
	}
	if heeded != nil && (a.more != nil || after && !a.answer.Unsent) {
		kept = t.follow(req, heeded, g, kept, a.more)
	}
	t.limiter.report(kept.or(g), &a.answer)
	done = true
	return resp, far, err
}

// abort ends an exchange that panicked. No caller gets the response body, so it is closed.
func (t *Transport) abort(g *Grant, resp *http.Response, a *queue.Answer) {
	if resp != nil && resp.Body != nil {
		defer resp.Body.Close() // last, whatever else happens; no caller could get its error
	}
	g.Done()
	t.limiter.report(g, a)
}

// hear processes the outcome of a request that the Limiter does not track. A response beside an error is ignored.
func (t *Transport) hear(req *http.Request, resp *http.Response, far reach, err error, g *Grant) {
	if err != nil {
		resp = nil
	}
	done := false
	defer func() {
		if !done && resp != nil && resp.Body != nil { // a hook has panicked
			resp.Body.Close()
		}
	}()
	a := t.answerOf(req, resp, far, err, true)
	switch {
	case a.answer.Unsent:
		t.limiter.report(g, &a.answer)
	case a.answer.Word != nil:
		t.limiter.hear(req.Context(), t.gateOf(req), g.grant.Mark, &a.answer, g.grant.Charges(), t.asker)
	}
	if a.more != nil {
		a.more.sent = g.grant.Mark.At
		b := &body{ReadCloser: resp.Body, more: a.more, watched: true}
		resp.Body = b.as(resp.Body)
	}
	done = true
}

// answerOf returns what a response or an error means. speaks is what the method of that name reports.
func (t *Transport) answerOf(req *http.Request, resp *http.Response, far reach, err error, speaks bool) result {
	if far == reachedNoBase || resp != nil && mayBeLocal(req, resp) && isLocal(resp) {
		return result{answer: queue.Answer{Outcome: aimd.Ignore, Unsent: true}, local: true}
	}
	var said *queue.Word
	var more *listener
	if speaks {
		said, more = t.listen(req, resp)
	}
	a := result{answer: queue.Answer{Outcome: aimd.Outcome(outcomeOf(req.Context(), resp, err, said)), Unsent: far == reachedNoServer, Word: said}, more: more}
	if err != nil && errors.Is(err, ErrThrottled) { // with which the body of a request, too, can fail
		a.local = true
		a.answer.Unsent = a.answer.Unsent || !hasBody(req) && !t.nested() // which would have said so
	}
	return a
}

func isLocal(resp *http.Response) bool {
	_, local := RejectionOf(resp)
	return local
}

// outcomeOf is the rule for limits without Classify.
func outcomeOf(ctx context.Context, resp *http.Response, err error, said *queue.Word) Outcome {
	if err != nil || resp == nil {
		return outcomeOfError(ctx, err)
	}
	switch status := resp.StatusCode; {
	case status == http.StatusTooManyRequests, said != nil && said.Limited:
		return OutcomeThrottled
	case status == http.StatusServiceUnavailable:
		return OutcomeUnavailable
	case status >= 500:
		return OutcomeError
	case status >= 400:
		return OutcomeClientError
	}
	return OutcomeOK
}

func outcomeOfError(ctx context.Context, err error) Outcome {
	var (
		name *net.DNSError
		cert *tls.CertificateVerificationError
		tls  tls.RecordHeaderError
	)
	switch {
	case errors.Is(ctx.Err(), context.Canceled), errors.Is(err, ErrThrottled), errors.Is(err, http.ErrSchemeMismatch),
		errors.As(err, &name) && name.IsNotFound, errors.As(err, &cert), errors.As(err, &tls):
		return OutcomeIgnore
	}
	return OutcomeUnavailable
}
