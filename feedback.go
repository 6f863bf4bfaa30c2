package throttle

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"

	"github.com/httpthrottle/throttle/headers"
)

// An answer is what became of a request that was let go. The zero answer is news of nothing.
type answer struct {
	outcome Outcome
	unsent  bool  // it never reached the server
	local   bool  // it is a refusal of a Transport further in
	word    *word // what the server said of its limits; nil: nothing
}

// retryAfter returns how long the server said to stay away; 0: it did not say.
func (a *answer) retryAfter() time.Duration {
	if a.word == nil {
		return 0
	}
	return a.word.wait.Value
}

// A word is what a server said of its limits, as far as it says for how long to stay away.
type word struct {
	limited  bool
	host     bool // for reasons of the server's own, and so to everybody who asks that host
	global   bool // not only by the limits that it tells of
	wait     headers.Maybe[time.Duration]
	quotas   []headers.Bucket
	violated []string // the names of those that the request was too much for
	share    float64  // of each quota is ours
}

// tells returns what is news for a gate, and whether the limit that a refusal is for is named there.
func (w *word) tells(now instant) (tells []tell, named bool) {
	for i := range w.quotas {
		q := &w.quotas[i]
		left, known := q.Remaining.Get()
		reset, ends := q.Reset.Get()
		if w.limited && w.wait.Value > 0 && (left > 0 || !known) && slices.Contains(w.violated, q.Name) {
			left, known, reset, ends = 0, true, w.wait.Value, true // not enough is nothing, for as long as the server says
		}
		empty := w.limited && left <= 0 && q.Name != anyQuota
		if !known || q.Advisory || !ends && !empty {
			continue // nothing to count, or nobody knows until when
		}
		t := tell{name: q.Name, left: left, limit: q.Limit.Or(-1), counted: q.Unit == "" || q.Unit == "requests"}
		if ends {
			t.reset = meter.AddInstant(now, int64(reset))
		}
		if w.share < 1 && t.limit > 0 {
			t.reserve = int64(math.Ceil((1 - w.share) * float64(t.limit)))
		}
		if empty {
			named = true
			t.reset = max(t.reset, meter.AddInstant(now, int64(w.wait.Value)))
		}
		tells = append(tells, t)
	}
	return tells, named
}

// exchange sends a request of which the Limiter wants to know what becomes.
func (t *Transport) exchange(req *http.Request, g *Grant) (*http.Response, error) {
	var kept *Grant // the same, where it outlives this call
	if g.receipt != nil {
		kept = g.filed()
	}
	var resp *http.Response
	a := answer{outcome: OutcomeIgnore} // if base panics
	done := false
	defer func() {
		if !done { // base, or a function of the user's, has panicked
			t.abort(kept.or(g), resp, &a)
		}
	}()
	resp, err := t.base.RoundTrip(req)
	a = t.answerOf(req, resp, err)
	charges := kept.or(g).charges()
	gated, adaptive, after := false, false, false
	for i := range charges {
		li := charges[i].limit
		gated = gated || li.gates
		adaptive = adaptive || li.kind == kindAIMD
		after = after || li.kind == kindInFlight || li.settled()
		if li.judge != nil && !a.local {
			charges[i].outcome = li.judge(resp, err)
		}
	}
	if !gated && a.word != nil {
		t.limiter.hear(t.gateOf(req), mark{at: g.mark.at}, &a, adaptive, t.asker.observer)
	}
	if after && resp != nil && !a.unsent {
		kept = t.follow(req, resp, g, kept)
	}
	t.limiter.report(kept.or(g), &a)
	done = true
	return resp, err
}

// abort ends an exchange in which somebody panicked, so that nobody gets the body, which is closed.
func (t *Transport) abort(g *Grant, resp *http.Response, a *answer) {
	if resp != nil && resp.Body != nil {
		defer resp.Body.Close() // last, and whatever else happens: there is nobody to be told of its error
	}
	g.Done()
	t.limiter.report(g, a)
}

// hear takes in the answer to a request of which the Limiter did not want to know what becomes.
func (t *Transport) hear(req *http.Request, resp *http.Response, err error, g *Grant) {
	switch a := t.answerOf(req, resp, err); {
	case a.unsent:
		t.limiter.report(g, &a)
	case a.word != nil:
		t.limiter.hear(t.gateOf(req), g.mark, &a, false, t.asker.observer)
	}
}

// answerOf returns what is news in an answer or an error.
func (t *Transport) answerOf(req *http.Request, resp *http.Response, err error) answer {
	if resp != nil && mayBeLocal(req, resp) && isLocal(resp) {
		return answer{outcome: OutcomeIgnore, unsent: true, local: true}
	}
	word := t.listen(req, resp)
	a := answer{outcome: outcomeOf(req.Context(), resp, err, word), word: word}
	if err != nil {
		a.local = errors.Is(err, ErrThrottled)
		a.unsent = a.local || unsent(err)
	}
	return a
}

func isLocal(resp *http.Response) bool {
	_, local := RejectionOf(resp)
	return local
}

// outcomeOf is the rule that counts without a Classify.
func outcomeOf(ctx context.Context, resp *http.Response, err error, said *word) Outcome {
	if err != nil || resp == nil {
		return outcomeOfError(ctx, err)
	}
	switch status := resp.StatusCode; {
	case status == http.StatusTooManyRequests, said != nil && said.limited:
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

// unsent reports whether an error says that the request never reached a server, which no Transport further in refused.
func unsent(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		switch op.Op {
		case "dial", "proxyconnect", "socks connect":
			return true
		}
	}
	_, cert := errors.AsType[*tls.CertificateVerificationError](err)
	return cert || errors.Is(err, http.ErrSchemeMismatch)
}

// listen returns what a response says of limits; nil: nothing.
func (t *Transport) listen(req *http.Request, resp *http.Response) *word {
	if t.deaf || resp == nil {
		return nil
	}
	host := hostOf(req)
	if t.hints.Silent(host, resp.StatusCode, resp.Header) {
		return nil
	}
	var body []byte
	if t.hints.WantsBody(host, resp.StatusCode, resp.Header) {
		body = peek(resp)
	}
	signal := t.hints.Parse(host, resp.StatusCode, resp.Header, body, time.Now())
	return &word{
		share:   t.limiter.share,
		limited: signal.Limited, wait: signal.Wait, quotas: signal.Buckets, violated: signal.Violated,
		host:   resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == 529,
		global: signal.Scope == "global",
	}
}

// peek returns the first bytes of a body, which are put back.
func peek(resp *http.Response) []byte {
	if resp.Body == nil {
		return nil
	}
	first := make([]byte, headers.BodyBytes)
	n, _ := io.ReadFull(resp.Body, first) // an error comes again when the caller gets there
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(first[:n]), resp.Body), resp.Body}
	return first[:n]
}
