package retry

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
)

type outcome uint8

const (
	final     outcome = iota // it failed, and a retry can't help or might do harm
	done                     // the server did what was asked, or said why it doesn't
	retryable                // it failed, and a retry may help
)

// A failure is what became of an attempt, and what was said of the next one.
type failure struct {
	outcome outcome
	cause   Cause
	status  int           // 0: there was no response
	word    time.Duration // how long to wait at least, by what the server or the Transport said
	margin  time.Duration // how much longer than that it may become in the Transport
	invited bool          // a retry is no load that the server has not asked for, so it is not counted in the budget

	elsewhere outcome // for another member of a pool, if outcome is not retryable: after a refusal of the credential, that may help
}

// judge classifies the outcome of an attempt. err may be a response handler's; then resp is what it has handled.
func (p *Policy) judge(resp *http.Response, err error) failure {
	if err == nil {
		return p.judgeResponse(resp)
	}
	if resp == nil {
		return p.judgeError(err)
	}
	if errors.As(err, new(*url.Error)) {
		return failure{status: resp.StatusCode} // from net/http both come together only if it could not follow a redirect
	}
	f := p.judgeResponse(resp)
	if f.outcome == done { // and the handler is not content
		f.outcome, f.cause = p.ifRepeatable(repeatable(resp.Request)), CauseHandler
	}
	return f
}

func (p *Policy) ifRepeatable(ok bool) outcome {
	if ok || p.nonIdempotent {
		return retryable
	}
	return final
}

func (p *Policy) judgeResponse(resp *http.Response) failure {
	return p.orEarlier(p.judgeAlone(resp), resp.Request)
}

func (p *Policy) judgeAlone(resp *http.Response) failure {
	if r, ok := throttle.RejectionOf(resp); ok {
		return judgeRejection(r, resp.StatusCode)
	}
	status := resp.StatusCode
	signal := p.signal(resp)
	word := max(signal.RetryAfter.Or(0), waitOf(&signal))
	f := failure{cause: CauseStatus, status: status, word: word, margin: marginOf(word)}
	_, untouched := origin(resp.Request)
	unprocessed := p.ifRepeatable(untouched || repeatable(resp.Request))
	switch {
	case signal.Final, signal.NoRetry && (signal.Limited || status >= 500):
		f.outcome = final
	case signal.Limited:
		f.outcome, f.cause = unprocessed, CauseLimited
		f.invited = status < 500 && word > 0
	case status == 0 || status >= 500 && status != http.StatusNotImplemented: // as retryablehttp.DefaultRetryPolicy has it
		f.outcome = p.ifRepeatable(repeatable(resp.Request))
	default:
		f.outcome = done
	}
	if f.outcome != retryable && (signal.Final || status == http.StatusUnauthorized || status == http.StatusPaymentRequired) {
		f.elsewhere, f.invited = unprocessed, true
	}
	return f
}

// waitOf returns how long a signal asks to wait. The reset of a quota of which something is left is only a guess, which may be an hour: another
// limit, of which nothing is reported, may have refused the request, so backoff asks again.
func waitOf(s *headers.Signal) time.Duration {
	wait := s.Wait.Or(0)
	guess := func(b headers.Bucket) bool { return b.Remaining.Or(0) > 0 && b.Reset.Known && b.Reset.Value == wait }
	if !s.RetryAfter.Known && !slices.ContainsFunc(s.Buckets, headers.Bucket.Empty) && slices.ContainsFunc(s.Buckets, guess) {
		return 0
	}
	return wait
}

// marginOf returns how much longer than the server asked a Transport may hold a request.
func marginOf(wait time.Duration) time.Duration { return min(wait/10, time.Second) }

// judgeRejection judges what was never sent, so that it may be sent again whatever it is.
func judgeRejection(r *throttle.Rejection, status int) failure {
	switch r.Reason {
	case throttle.ReasonFinal:
		return failure{status: status, elsewhere: retryable, invited: true}
	case throttle.ReasonCost, throttle.ReasonDeadline, throttle.ReasonShutdown:
		return failure{status: status}
	}
	return failure{outcome: retryable, cause: CauseRejected, status: status, word: max(r.Wait, 0), invited: true}
}

func (p *Policy) judgeError(err error) failure {
	var r *throttle.Rejection
	if errors.As(err, &r) {
		return judgeRejection(r, 0)
	}
	if hopeless(err) || overdue(err) && !p.timesOut() {
		return failure{}
	}
	return failure{outcome: p.ifRepeatable(repeatableAfter(err)), cause: CauseError}
}

// timesOut reports whether attempts have a timeout of their own, so that a deadline need not be that of a caller's context.
func (p *Policy) timesOut() bool {
	return p.client.HTTPClient != nil && p.client.HTTPClient.Timeout > 0
}

// signal reads what a response says about limits.
func (p *Policy) signal(resp *http.Response) headers.Signal {
	host := ""
	if resp.Request != nil && resp.Request.URL != nil {
		host = resp.Request.URL.Host
	}
	if p.reader.Silent(host, resp.StatusCode, resp.Header) {
		return headers.Signal{}
	}
	var head []byte
	if p.reader.WantsBody(host, resp.StatusCode, resp.Header) {
		head = peek(resp)
	}
	return p.reader.Parse(host, resp.StatusCode, resp.Header, head, time.Now())
}

// peek reads the first bytes of the body, and puts them back.
func peek(resp *http.Response) []byte {
	if resp.Body == nil {
		return nil
	}
	head, err := io.ReadAll(io.LimitReader(resp.Body, headers.BodyBytes))
	rest := io.Reader(resp.Body)
	if err != nil {
		rest = broken{err} // where it broke, because a body may not fail twice
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), rest), resp.Body}
	return head
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }
