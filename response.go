package throttle

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/queue"
)

// A result is an answer with what the Transport alone needs.
type result struct {
	answer queue.Answer
	local  bool      // an inner Transport rejected it
	more   *listener // reads more of what the server says in the body; nil: the body adds nothing
}

// exchange sends a request and reports its outcome to the Limiter. p is what the request has paid, and g is its Grant.
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

// speaks reports whether a response to a request that was granted then may say something about limits, or may come from an
// inner Transport.
func (t *Transport) speaks(req *http.Request, resp *http.Response, granted meter.Instant) bool {
	if mayBeLocal(req, resp) {
		return true
	}
	host := hostOf(req)
	if resp.StatusCode < 400 {
		if t.deaf || len(resp.Header) == 0 || t.quiet != nil && !t.limiter.core.Heard.Load() && !t.quiet.reads(host, granted) {
			return false
		}
	}
	return !t.hints.Silent(host, resp.StatusCode, resp.Header)
}

// mayBeLocal reports whether a response may have been made by a Transport, which does so for a copy of the request.
func mayBeLocal(req *http.Request, resp *http.Response) bool {
	return resp.Request != nil && resp.Request != req
}

// A quiet bounds how many good responses are read until a server first sends rate-limit information, because to look at each
// header of a response takes about as long as everything else that is done for a request. It is a leaky bucket for each of 64
// sets of hosts, and holds the instant at which that is empty.
type quiet [64]atomic.Int64

const (
	quietEvery = int64(time.Second) / 10_000 // between two responses that are read
	quietBurst = 100                         // responses that are read without a pause
)

// reads reports whether a good response of a host, to a request that was granted then, is to be read. A host's place depends on
// the beginning and the end of its name, because a hash of all of it would take longer than everything else that is done here.
func (q *quiet) reads(host string, granted meter.Instant) bool {
	var first, last uint64
	if n := len(host); n >= 8 {
		first, last = le64(host), le64(host[n-8:])
	} else {
		for i := range n {
			first = first<<8 | uint64(host[i])
		}
	}
	const odd = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio
	place := &q[(first*odd^last)*odd>>(64-6)]
	empty := place.Load()
	if empty > granted+(quietBurst-1)*quietEvery {
		return false
	}
	place.CompareAndSwap(empty, max(empty, granted)+quietEvery) // else another response counts, and both are read
	return true
}

// le64 returns the first eight bytes of s as a number.
func le64(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// listen returns what the headers of a response say about limits, nil if nothing, and a listener if its body may say more.
func (t *Transport) listen(req *http.Request, resp *http.Response) (*queue.Word, *listener) {
	if resp == nil || t.deaf && resp.StatusCode < 400 {
		return nil, nil
	}
	host := hostOf(req)
	if t.hints.Silent(host, resp.StatusCode, resp.Header) {
		return nil, nil
	}
	now := time.Now()
	signal := t.hints.Parse(host, resp.StatusCode, resp.Header, nil, now)
	if signal.Limited {
		t.refused(req.Context(), ByHost(req), resp.StatusCode, signal.Wait.Value)
	}
	if t.deaf {
		return nil, nil
	}
	w := t.wordOf(resp.StatusCode, &signal)
	var more *listener
	if hasContent(req, resp) && t.hints.WantsBody(host, resp.StatusCode, resp.Header) {
		more = &listener{
			transport: t, ctx: req.Context(), gate: t.gateOf(req), at: now, host: host, status: resp.StatusCode, header: resp.Header.Clone(), told: signal, word: w,
		}
	}
	return w, more
}

// refused counts and tells that a server refused a request because of a limit.
func (t *Transport) refused(ctx context.Context, host string, status int, wait time.Duration) {
	t.limiter.core.CountRefusal(&t.asker.counts)
	if f := t.asker.observer.hooks.OnServerRefusal; f != nil {
		f(ServerRefusalEvent{Context: ctx, Host: host, Status: status, RetryAfter: wait})
	}
}

// hasContent reports whether the body of a response may have content to read.
func hasContent(req *http.Request, resp *http.Response) bool {
	return !isEmpty(req, resp) && resp.StatusCode != http.StatusSwitchingProtocols
}

// isEmpty reports whether the body of a response certainly has nothing to read, so that callers need not close it.
// The empty body of HTTP/2 has no name to compare with. A length of 0 may be one that a RoundTripper has left unset.
func isEmpty(req *http.Request, resp *http.Response) bool {
	if resp.Body == nil || resp.Body == http.NoBody {
		return true
	}
	switch resp.StatusCode {
	case http.StatusSwitchingProtocols:
		return false
	case http.StatusNoContent, http.StatusNotModified:
		return true
	}
	return req.Method == http.MethodHead ||
		resp.ContentLength == 0 && (resp.ProtoMajor > 1 || resp.Header.Get("Content-Length") == "0")
}

func (t *Transport) wordOf(status int, s *headers.Signal) *queue.Word {
	w := &queue.Word{
		Limited: s.Limited, Wait: s.Wait.Value,
		Host:   status == http.StatusServiceUnavailable || status == 529,
		Global: s.Scope == "global",
	}
	if len(s.Buckets) > 0 {
		w.Quotas = make([]queue.QuotaWord, len(s.Buckets))
	}
	for i := range s.Buckets {
		b := &s.Buckets[i]
		left, known := b.Remaining.Get()
		reset, ends := b.Reset.Get()
		w.Quotas[i] = queue.QuotaWord{
			Name: b.Name, Unit: b.Unit, Limit: b.Limit.Or(-1), Left: left, Known: known, Reset: reset, Ends: ends,
			Violated: slices.Contains(s.Violated, b.Name), Advisory: b.Advisory,
		}
	}
	return w
}

// A listener keeps the beginning of a body as the caller reads it, and reports what it says about limits beyond the headers.
type listener struct {
	transport *Transport
	ctx       context.Context // of the request
	gate      *queue.GateKey
	sent      meter.Instant // when the request was granted
	at        time.Time     // when the headers came
	host      string
	status    int
	header    http.Header // a copy, because the caller may change the original
	told      headers.Signal
	word      *queue.Word // the same, as it was reported
	begin     []byte
}

// observe keeps what was read, and reports whether that is enough.
func (m *listener) observe(p []byte) bool {
	m.begin = append(m.begin, p[:min(len(p), headers.BodyBytes-len(m.begin))]...)
	return len(m.begin) == headers.BodyBytes
}

// tell reports what the body says beyond the headers. If it names the policies that were violated, the hold that the
// headers asked for becomes one of these quotas alone.
func (m *listener) tell() {
	if m == nil || len(m.begin) == 0 {
		return
	}
	t := m.transport
	signal := t.hints.Parse(m.host, m.status, m.header, m.begin, m.at)
	passed := time.Since(m.at)
	again := m.told.Limited && signal.Wait == m.told.Wait && len(signal.Violated) == 0
	if wait := signal.Wait.Value; again || 0 < wait && wait <= passed {
		signal.Limited = false
	}
	signal.Wait.Value = max(0, signal.Wait.Value-passed)
	signal.Buckets = slices.DeleteFunc(signal.Buckets, func(b headers.Bucket) bool {
		return slices.Contains(m.told.Buckets, b) && !slices.Contains(signal.Violated, b.Name)
	})
	for i := range signal.Buckets {
		signal.Buckets[i].Reset.Value -= passed
	}
	if signal.Limited || len(signal.Buckets) > 0 {
		w := t.wordOf(m.status, &signal)
		w.After = m.word
		if w.Limited && !m.told.Limited {
			t.refused(m.ctx, m.gate.Host, m.status, w.Wait)
		}
		t.limiter.hear(m.ctx, m.gate, queue.Mark{At: m.sent}, &queue.Answer{Word: w}, nil, t.asker)
	}
}

// report tells the outcome of a request to the buckets that it was charged in, and then the hooks what that has changed.
func (l *Limiter) report(g *Grant, a *queue.Answer) {
	n := l.core.ReportAndServe(&g.grant, a, &g.by.counts)
	for _, r := range n.Retunes {
		g.by.observer.retuned(RetuneEvent{g.ctx, r.Bucket.Limit.Name, r.Bucket.Key, r.Cause.String(), r.From, r.To})
	}
	if n.Forgot != "" {
		g.by.observer.forgot(g.ctx, n.Forgot)
	}
	for i := range n.Holds {
		g.by.observer.held(holdEventOf(g.ctx, &n.Holds[i]))
	}
}

// holdEventOf returns a hold as users see it.
func holdEventOf(ctx context.Context, e *queue.HeldEvent) HoldEvent {
	source := SourceAdaptive
	if e.Bucket.Limit.Gates {
		source = SourceServer
	}
	return HoldEvent{Context: ctx, Key: e.Bucket.Key, For: e.By, Source: source}
}

// forget records the charges of a request whose outcome will not be reported. It is not inlined, to keep the stack small on
// which its callers waited.
//
//go:noinline
func (l *Limiter) forget(p *queue.Paid, r *Receipt) {
	if r == nil && !l.tracks {
		return
	}
	g := l.grantOf(p, &l.direct)
	if g.receipt = r; r != nil {
		g.filed()
	}
	if l.tracks {
		l.report(&g, &queue.Answer{Outcome: aimd.Ignore})
	}
}

// forgetNow is forget for a request that did not wait.
func (l *Limiter) forgetNow(p *queue.Paid, r *Receipt) {
	if r != nil || l.tracks {
		l.forget(&queue.Paid{Mark: p.Mark, Charges: slices.Clone(p.Charges)}, r)
	}
}

// A RetuneEvent says that an [Adaptive] limit has changed the rate of a key, or an [AdaptiveInFlight] limit the requests that may be
// in flight.
//
// Reason stays the same in later versions: growth, throttled, errors, errors_stayed, latency, queue_drained, latency_stayed,
// silence, probe_answered or restored.
type RetuneEvent struct {
	Context    context.Context // of the request whose response caused it; nil: unknown
	Limit, Key string
	Reason     string  // see above
	Old, New   float64 // tokens per second, or requests in flight; growth is told when it comes to a tenth, or to a third
}

// settled reports whether responses tell the limit the true cost of requests.
func (li *Limit) settled() bool { return li.settles != nil || li.costAt != nil }
