package retry

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
)

// A Policy decides which requests a retryablehttp.Client retries, and when. Its methods are the values for the fields of the
// same names of that client. It is made by [New], and safe for concurrent use.
//
// Use all four together. Without PrepareRetry, the other methods treat every attempt as the first: CheckRetry checks deadlines
// against the shortest backoff, and takes one retry too many from the budget. Without ErrorHandler, retryablehttp drains the last
// response when the attempts are used up, and returns "giving up". With another CheckRetry, Backoff still follows the headers and
// synthetic 429s, but reduces their waits to WithMaxWait, because it cannot prevent a retry.
type Policy struct {
	client        *retryablehttp.Client // whose waits and number of retries count
	maxWait       time.Duration
	nonIdempotent bool
	reader        *headers.Reader
	log           *slog.Logger // nil: none
	budget        *budget
	onRetry       func(RetryEvent) // nil: none
	counts        counts
}

// A Client is a retryablehttp.Client with the Policy that decides its retries.
type Client struct {
	*retryablehttp.Client
	Policy *Policy
}

// NewClient returns a client that retries, and sends every attempt with t, a *throttle.Transport or a *pool.Pool. Set its RetryMax (4),
// RetryWaitMin (1 s), RetryWaitMax (30 s) and other fields before its first use. A PrepareRetry of your own should call the present one.
// Its HTTPClient.Transport is the [Policy.RoundTripper] of t. It logs nothing unless [WithLogger] is used.
//
// NewClient panics if t is nil or options are invalid, with every problem, as regexp.MustCompile does: options are usually
// constant. Use [New] first to get an error instead.
func NewClient(t http.RoundTripper, opts ...Option) *Client {
	c := retryablehttp.NewClient()
	p, err := New(c, opts...)
	if t == nil || t == http.RoundTripper((*throttle.Transport)(nil)) {
		err = errors.Join(errors.New("retry: NewClient: the Transport is nil"), err)
	}
	if err != nil {
		panic(err)
	}
	c.HTTPClient = &http.Client{Transport: p.RoundTripper(t)}
	c.Logger = nil
	if p.log != nil {
		c.Logger = p.log
	}
	c.CheckRetry, c.Backoff, c.PrepareRetry, c.ErrorHandler = p.CheckRetry, p.Backoff, p.PrepareRetry, p.ErrorHandler
	return &Client{c, p}
}

// New returns a Policy for client c, which it does not change. The Policy uses the RetryMax, RetryWaitMin and RetryWaitMax that
// the client has at the time of a request, so it serves one client. The error names every problem.
//
//	c.HTTPClient.Transport = p.RoundTripper(transport)
//	c.CheckRetry, c.Backoff, c.PrepareRetry, c.ErrorHandler = p.CheckRetry, p.Backoff, p.PrepareRetry, p.ErrorHandler
func New(c *retryablehttp.Client, opts ...Option) (*Policy, error) {
	cfg := newConfig(opts)
	if c == nil {
		cfg.fault("New: the Client is nil")
	}
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Policy{
		client:        c,
		maxWait:       cfg.maxWait,
		nonIdempotent: cfg.nonIdempotent,
		reader:        cfg.reader,
		log:           cfg.log,
		budget:        newBudget(cfg),
		onRetry:       cfg.onRetry,
	}, nil
}

// CheckRetry reports whether to retry, as the package documentation describes. It returns an error only if the context ends
// while it waits: otherwise the caller gets the response or the error of the attempt.
func (p *Policy) CheckRetry(ctx context.Context, resp *http.Response, err error) (bool, error) {
	p.counts.attempts.Add(1)
	f := p.judge(resp, err)
	unwitnessed(err)
	switch {
	case f.outcome == done:
		p.budget.succeeded()
		return false, nil
	case f.outcome == final || ctx.Err() != nil:
		return false, nil
	}

	n := p.attempt(ctx)
	shortest, longest := p.pause(p.client.RetryWaitMin, p.client.RetryWaitMax, n)
	missing := time.Duration(0) // of the wait, where Backoff will not know of it
	if resp == nil {
		missing = max(0, f.word-shortest)
	}
	if why := p.tooLong(ctx, f, missing, longest); why != "" {
		p.wontRetry(ctx, why, f, err)
		return false, nil
	}
	if n >= p.client.RetryMax {
		p.counts.exhaustion.Add(1)
		return true, nil // and retryablehttp will see that attempts are used up
	}
	if !f.invited && !p.budget.lend(ctx) {
		p.wontRetry(ctx, whyBudget, f, err)
		return false, nil
	}
	p.willRetry(ctx, f, err, max(f.word, shortest))
	if resp != nil {
		remember(resp, time.Now().Add(f.word))
	}
	return wait(ctx, missing)
}

// tooLong says why the wait before a retry would be too long, "" if it would not.
func (p *Policy) tooLong(ctx context.Context, f failure, missing, longest time.Duration) string {
	if f.word > p.maxWait || missing > 0 && longest > p.maxWait-missing {
		return whyMaxWait
	}
	if deadline, ok := ctx.Deadline(); ok {
		room := time.Until(deadline)
		if f.word >= room-f.margin || longest >= room-missing {
			return whyDeadline
		}
	}
	return ""
}

// report logs why a failure is not retried.
func (p *Policy) report(ctx context.Context, why string, f failure, err error) {
	if p.log == nil {
		return
	}
	attrs := []slog.Attr{slog.String("reason", why), slog.Duration("wait", f.word), slog.Int("attempt", p.attempt(ctx)+1)}
	if why == whyMaxWait {
		attrs = append(attrs, slog.Duration("max", p.maxWait))
	}
	if f.status != 0 {
		attrs = append(attrs, slog.Int("status", f.status))
	}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	p.log.LogAttrs(ctx, slog.LevelWarn, "retry: not retried", attrs...)
}

// Backoff returns how long to wait before the next attempt: the rest of what the Transport or the server asked for, or the
// jittered backoff if that is longer. attemptNum counts from 0.
func (p *Policy) Backoff(least, most time.Duration, attemptNum int, resp *http.Response) time.Duration {
	shortest, longest := p.pause(least, most, attemptNum)
	d := shortest + rand.N(longest-shortest+1)
	if resp != nil {
		due, known := remembered(resp)
		if !known { // CheckRetry was another's
			f := p.judge(resp, nil)
			due = time.Now().Add(min(f.word, p.maxWait))
		}
		d = max(d, time.Until(due))
	}
	return d
}

// PrepareRetry counts attempts in the context of the request, which must be the client's own copy, as retryablehttp makes it.
func (p *Policy) PrepareRetry(req *http.Request) error {
	p.budget.spend(req.Context())
	*req = *req.WithContext(p.next(req.Context(), time.Time{}))
	return nil
}

// ErrorHandler returns the last response, with its body unread, or the last error. After an error it closes the body of
// the response, if there is one.
func (p *Policy) ErrorHandler(resp *http.Response, err error, _ int) (*http.Response, error) {
	if resp != nil && resp.Body != nil {
		if err != nil {
			resp.Body.Close() // unread, so there is nothing to say of its error
		}
		forget(resp)
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}
