package throttle

import (
	"context"
	"crypto/tls"
	"errors"
	"math"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/content"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/traits"
)

// A sent is a request that was granted and sent, with its response or error.
type sent struct {
	kept    *Grant // of a Receipt or a body, which has the request from then on; nil: there is none
	resp    *http.Response
	far     reach
	err     error
	answer  limiter.Answer
	more    *bodyHints // finds more reports in the body; nil: the body adds nothing
	host    string     // as the request has it
	read    bool       // the response is to be read; see Transport.reads
	tracked bool       // its outcome is to be reported, whatever it is
	local   bool       // an inner Transport rejected it
	done    bool       // neither the base nor a function of the user has panicked
}

// request returns the request, which was r when it was granted. A sent that pointed to r would move it to the heap.
func (s *sent) request(r *limiter.Request) *limiter.Request {
	if s.kept != nil {
		return &s.kept.request
	}
	return r
}

// send sends a request that was granted, and reports what its response or error means.
func (t *Transport) send(c *call, r *limiter.Request) (*http.Response, reach, error) {
	c.at = inFlight
	s := sent{tracked: c.receipt != nil || t.limiter.tracks && r.IsTracked() || r.IsGated()}
	s.done = !s.tracked // if the base panics, that means nothing to any limit
	defer t.abort(r, &s)
	if c.receipt != nil {
		s.kept = c.receipt.file(t.limiter, r)
	}
	s.resp, s.far, s.err = t.forwardHolding(c.req, s.request(r))
	s.read = s.err == nil && !t.ignores(c.req, s.resp) && t.reads(c, s.resp, r.At)
	s.host = traits.Host(c.req)
	return t.conclude(c, r, &s)
}

// conclude has the limits learn what has become of a request, which was r when it was granted, and returns that.
func (t *Transport) conclude(c *call, r *limiter.Request, s *sent) (*http.Response, reach, error) {
	if s.tracked || s.read || s.err != nil {
		s.done = false
		t.learn(c, s.request(r), s)
		s.done = true
	}
	if s.kept == nil {
		t.takeBack(r)
	}
	return s.resp, s.far, s.err
}

// learn reports what a response or an error means. A response beside an error is ignored.
func (t *Transport) learn(c *call, r *limiter.Request, s *sent) {
	resp := s.resp
	if s.err != nil {
		resp = nil
	}
	t.answer(c, resp, s)
	if t.limiter.judges && !s.local {
		t.judge(r, resp, s.err)
	}
	if s.answer.Hints != nil {
		gated := r.IsGated()
		gate := t.tariff.passAfter(c, &s.answer, gated, !gated || s.more != nil)
		if s.more != nil {
			s.more.gate = gate
		}
		if !gated {
			t.limiter.core.ReportUngated(r, gate, &s.answer)
		}
	}
	if resp != nil && (s.more != nil || t.limiter.follows && !s.answer.Unsent) {
		t.follow(c, resp, r, s)
	}
	if s.tracked || s.answer.Unsent {
		r = s.request(r)
		s.answer.Ended, c.at = c.at == inFlight, elsewhere
		t.limiter.core.Report(r, &s.answer)
		if t.units && resp != nil && !s.local {
			t.sawUnits(r.Charges(), s.answer.Named)
		}
		if s.answer.Settles() {
			saySettled(r, &s.answer)
		}
	}
}

// sawUnits takes which of the limits in units of servers a response has named, by charge as bits.
func (t *Transport) sawUnits(charges []limiter.Charge, named uint64) {
	for i := range charges {
		p := t.limiter.policyOf(charges[i].Limit())
		if p.names == nil {
			continue
		}
		found := uint16(named >> i & sawUnit)
		if p.cost != nil || charges[i].Cost != 1 {
			found |= sawCost
		}
		if p.names.See(found) {
			t.observer.suspicious(p)
		}
	}
}

// judge asks the limits with Classify for the outcome of a request.
func (t *Transport) judge(r *limiter.Request, resp *http.Response, err error) {
	charges := r.Charges()
	for i := range charges {
		if judge := t.limiter.policyOf(charges[i].Limit()).judge; judge != nil {
			charges[i].Outcome = aimd.Outcome(judge(resp, err))
		}
	}
}

// abort ends an exchange that panicked, which is not done. No caller gets the response body, so it is closed.
func (t *Transport) abort(r *limiter.Request, s *sent) {
	if s.done {
		return
	}
	if s.resp != nil && s.resp.Body != nil {
		defer s.resp.Body.Close() // last, whatever else happens; no caller could get its error
	}
	if s.answer.Outcome == 0 {
		s.answer.Outcome = aimd.Ignore
	}
	r = s.request(r)
	t.limiter.core.Free(r)
	t.limiter.core.Report(r, &s.answer)
}

// answer finds out what a response or an error means; without an error, resp is that of s.
func (t *Transport) answer(c *call, resp *http.Response, s *sent) {
	a, req := &s.answer, c.req
	if s.far == reachedNoBase || resp != nil && mayBeLocal(req, resp) && isLocal(resp) {
		a.Outcome, a.Unsent, s.local = aimd.Ignore, true, true
		return
	}
	if s.read {
		a.Hints, s.more = t.readHints(c, s.host, resp)
	}
	a.Outcome, a.Unsent = aimd.Outcome(outcomeOf(req.Context(), resp, s.err, a.Hints)), s.far == reachedNoServer
	if s.err != nil && errors.Is(s.err, ErrThrottled) { // the body of a request can fail with it, too
		s.local = true
		a.Unsent = a.Unsent || !hasBody(req) && t.inner == nil // a nested Transport would have reported that
	}
	if s.more != nil {
		a.Doubts = s.more.doubts
	}
}

func isLocal(resp *http.Response) bool {
	_, local := RejectionOf(resp)
	return local
}

// outcomeOf returns the outcome of a request for limits without Classify.
func outcomeOf(ctx context.Context, resp *http.Response, err error, hints *quota.Hints) Outcome {
	if err != nil || resp == nil {
		return outcomeOfError(ctx, err)
	}
	switch {
	case hints == nil:
	case hints.Final != nil: // which says nothing of a rate
		return OutcomeIgnore
	case hints.NotLimited: // although it looks so
		return outcomeOfClass(resp.StatusCode)
	case hints.Limited:
		return OutcomeThrottled
	}
	return meaningOf(resp.StatusCode).outcome
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

// ignores reports whether a response is not to be read because there are no hints to look for. Of others, reads decides.
func (t *Transport) ignores(req *http.Request, resp *http.Response) bool {
	return t.noHints && resp != nil && resp.StatusCode < 400 && !mayBeLocal(req, resp)
}

// reads reports whether a response to a request that was granted then is to be read, because it may have hints or come from an inner
// Transport.
func (t *Transport) reads(c *call, resp *http.Response, granted meter.Instant) bool {
	failed := resp != nil && resp.StatusCode >= 400
	switch {
	case resp == nil:
		return false
	case mayBeLocal(c.req, resp):
		return true
	case !t.noHints && failed && meaningOf(resp.StatusCode).bare != quota.NotBare:
		return true
	}
	host := traits.Host(c.req)
	if !failed && (!t.sampler.Reads(host, granted, len(resp.Header)) && !t.readsAll || len(resp.Header) == 0) {
		return false
	}
	return !t.hints.Silent(host, resp.StatusCode, resp.Header)
}

// mayBeLocal reports whether a response may have been made by a Transport, which does so for a copy of the request.
func mayBeLocal(req *http.Request, resp *http.Response) bool {
	return resp.Request != nil && resp.Request != req
}

// readHints returns the hints in the headers of a response, nil if there are none, and a bodyHints if its body may have more.
func (t *Transport) readHints(c *call, host string, resp *http.Response) (*quota.Hints, *bodyHints) {
	if t.noHints && resp.StatusCode < 400 {
		return nil, nil
	}
	req, bare := c.req, meaningOf(resp.StatusCode).bare
	if (bare != quota.NotBare || mayBeLocal(req, resp)) && t.hints.Silent(host, resp.StatusCode, resp.Header) { // reads has asked that of all others
		if bare != quota.NotBare && !t.noHints {
			return &quota.Hints{Status: resp.StatusCode, Bare: bare, Given: t.sampler.Gave(host)}, nil
		}
		return nil, nil
	}
	now, header := time.Now(), content.Decoded(resp.Header)
	signal := t.hints.Parse(host, resp.StatusCode, header, nil, now)
	if signal.Limited {
		t.serverRefused(req.Context(), traits.Name(req), resp.StatusCode, signal.Wait.Value)
	}
	if t.noHints {
		return nil, nil
	}
	w := t.hintsFrom(resp.StatusCode, &signal)
	if !signal.Limited && !signal.NotLimited && (bare != quota.Forbidden || len(signal.Buckets) == 0) {
		w.Bare, w.Given = bare, t.sampler.Gave(host)
	}
	streamed := t.hints.WantsEvents(host, resp.StatusCode, header)
	inBody := content.MayHave(req, resp) && (streamed || t.hints.WantsBody(host, resp.StatusCode, header) ||
		t.units && signal.Limited && content.MayBeJSON(header) && content.TypeOf(header) != content.EventStream)
	if resp.StatusCode < 400 && (inBody || signal.Limited || len(signal.Buckets) > 0) {
		t.sampler.Spoke(host, len(resp.Header))
	}
	if !inBody {
		return w, nil
	}
	coding := content.CodingOf(resp.Header)
	if coding == content.Unreadable || streamed && coding != content.Plain {
		t.observer.unread(t.limiter.core, t.limiter.core.Gate, c.req, host, resp)
		return w, nil
	}
	w.Final = nil // until the body says why
	return w, &bodyHints{
		transport: t, ctx: req.Context(), at: now, host: host, status: resp.StatusCode, header: header.Clone(), gzipped: coding == content.Gzipped,
		streamed: streamed, signal: signal, hints: w, doubts: new(limiter.Doubts),
	}
}

// serverRefused counts and reports that a server refused a request because of a limit.
func (t *Transport) serverRefused(ctx context.Context, host string, status int, wait time.Duration) {
	t.limiter.core.CountRefusal(t.user)
	if f := t.observer.hooks.OnServerRefusal; f != nil {
		f(ServerRefusalEvent{Context: ctx, Host: host, Status: status, RetryAfter: wait})
	}
}

func (t *Transport) hintsFrom(status int, s *headers.Signal) *quota.Hints {
	w := &quota.Hints{
		Status: status, Limited: s.Limited, NotLimited: s.NotLimited, Wait: s.Wait.Value, Asked: s.RetryAfter.Known,
		Host:   meaningOf(status).host || s.Limited && s.Scope == "host",
		Global: s.Scope == "global", Unit: s.Unit,
	}
	if s.Final {
		w.Final = finalError(s)
	}
	if len(s.Buckets) > 0 {
		w.Quotas = make([]quota.QuotaHint, len(s.Buckets))
	}
	for i := range s.Buckets {
		b := &s.Buckets[i]
		left, known := b.Remaining.Get()
		reset, ends := b.Reset.Get()
		w.Quotas[i] = quota.QuotaHint{
			Name: b.Name, Unit: b.Unit, Limit: b.Limit.Or(-1), Left: left, Known: known, Reset: reset, Ends: ends,
			Violated: slices.Contains(s.Violated, b.Name), Advisory: b.Advisory,
		}
		if b.Rate.Value > 0 && b.Limit.Known && known {
			w.Quotas[i].Full = time.Duration(min(float64(b.Limit.Value-left)/b.Rate.Value*1e9, math.MaxInt64/2))
		}
	}
	return w
}

// A bodyHints keeps the beginning of a body as the caller reads it, or of an event stream the beginning of one event after the other, and
// reports what it says about limits beyond the headers.
type bodyHints struct {
	transport *Transport
	ctx       context.Context // of the request
	gate      *quota.Key
	sent      meter.Instant    // when the request was granted
	charges   []limiter.Charge // of the request
	at        time.Time        // when the headers came
	host      string
	status    int
	header    http.Header // a copy, because the caller may change the original
	gzipped   bool        // so begin is
	streamed  bool        // it is an event stream, and begin is of the present event
	lines     content.Lines
	signal    headers.Signal
	hints     *quota.Hints // of the headers, as they were reported
	doubts    *limiter.Doubts
	begin     []byte
}

// observe keeps what was read, and reports whether that is enough.
func (m *bodyHints) observe(p []byte) bool {
	if m.streamed {
		return m.observeEvents(p)
	}
	m.begin = append(m.begin, p[:min(len(p), headers.BodyBytes-len(m.begin))]...)
	return len(m.begin) == headers.BodyBytes
}

// observeEvents is observe for an event stream: an event that says something is enough.
func (m *bodyHints) observeEvents(p []byte) bool {
	for len(p) > 0 {
		line, rest, ends := m.lines.Next(p)
		m.begin = append(m.begin, line[:min(len(line), headers.BodyBytes-len(m.begin))]...)
		p = rest
		if !ends {
			continue
		}
		if s := m.transport.hints.Parse(m.host, m.status, m.header, m.begin, m.at); s.Limited || len(s.Buckets) > 0 {
			m.at = time.Now() // waits count from the event
			return true
		}
		m.begin = m.begin[:0]
	}
	return false
}

// report applies what the body adds to the headers. If it names the policies that were violated, the hold that the
// headers asked for becomes one of these quotas alone. If it says that the response was no refusal, or a final one, what the headers
// have caused is undone.
func (m *bodyHints) report() {
	if m == nil {
		return
	}
	t := m.transport
	signal, text := m.signal, m.begin
	if m.gzipped {
		text = content.Gunzip(text, headers.BodyBytes)
	}
	if len(text) > 0 {
		signal = t.hints.Parse(m.host, m.status, m.header, text, m.at)
	}
	switch {
	case signal.Final:
		m.doubts.As = aimd.Ignore
	case signal.NotLimited:
		m.doubts.As = aimd.Outcome(outcomeOfClass(m.status))
	}
	passed := time.Since(m.at)
	again := !signal.Final && m.signal.Limited && signal.Wait == m.signal.Wait && len(signal.Violated) == 0 && (signal.Unit == "" || !t.units)
	if signal.Wait == m.signal.Wait && len(signal.Violated) == 0 {
		signal.Wait.Value = m.hints.Wait // 0: the headers have shown that it is no wait
	}
	if wait := signal.Wait.Value; again || !signal.Final && 0 < wait && wait <= passed {
		signal.Limited = false
	}
	signal.Wait.Value = max(0, signal.Wait.Value-passed)
	signal.Buckets = slices.DeleteFunc(slices.Clone(signal.Buckets), func(b headers.Bucket) bool {
		return slices.Contains(m.signal.Buckets, b) && !slices.Contains(signal.Violated, b.Name)
	})
	for i := range signal.Buckets {
		signal.Buckets[i].Reset.Value -= passed
	}
	if signal.Limited || len(signal.Buckets) > 0 || m.doubts.Any() {
		w := t.hintsFrom(m.status, &signal)
		w.After = m.hints
		if w.Limited && !m.signal.Limited {
			t.serverRefused(m.ctx, m.gate.Host, m.status, w.Wait)
		}
		r := limiter.Request{User: t.user, Context: m.ctx, Mark: limiter.Mark{At: m.sent}}
		a := &limiter.Answer{Hints: w, Doubts: m.doubts, Charges: m.charges}
		if t.limiter.core.ReportUngated(&r, m.gate, a); a.Named != 0 {
			t.sawUnits(m.charges, a.Named)
		}
	}
}
