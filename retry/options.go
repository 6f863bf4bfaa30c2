package retry

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/httpthrottle/throttle/headers"
)

const (
	defaultMaxWait = time.Minute
	defaultReserve = 100
	defaultRatio   = 0.1
)

// An Option configures a [Policy].
type Option interface{ applyTo(*config) }

type option func(*config)

func (o option) applyTo(c *config) { o(c) }

// A config is the sum of all options.
type config struct {
	faults        []error
	maxWait       time.Duration
	reserve       int
	ratio         float64
	boundless     bool
	nonIdempotent bool
	reader        *headers.Reader
	log           *slog.Logger
	onRetry       func(RetryEvent)
}

func newConfig(opts []Option) *config {
	c := &config{maxWait: defaultMaxWait, reserve: defaultReserve, ratio: defaultRatio}
	for _, o := range opts {
		if o == nil {
			c.fault("an Option is nil")
			continue
		}
		o.applyTo(c)
	}
	return c
}

func (c *config) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Errorf("retry: "+format, args...))
}

func (c *config) validate() error { return errors.Join(c.faults...) }

// WithMaxWait sets the longest wait before a retry. If the server or the Transport asked for a longer wait, the request is not
// retried, because it would fail again. Backoff is reduced to it. It must be positive. The default is one minute, twice
// retryablehttp's default RetryWaitMax.
func WithMaxWait(d time.Duration) Option {
	return option(func(c *config) {
		if d <= 0 {
			c.fault("WithMaxWait(%v): must be positive", d)
		}
		c.maxWait = d
	})
}

// WithBudget limits retries to the reserve, which must not be negative, plus a share of the successes, from 0 to 1: there are
// never more retries than reserve + share · successes. The default is 100 and 0.1. A success is a response of the server that
// needs no retry, whatever its status. With a response handler it counts twice.
//
// The budget belongs to the Policy, and so to all goroutines that use the client. Retries of requests that the Transport
// rejected, and after a 4xx that reports when to retry, are not counted. When the budget is empty, the response or the error is
// returned as it is.
func WithBudget(reserve int, share float64) Option {
	return option(func(c *config) {
		if reserve < 0 {
			c.fault("WithBudget: reserve %d: must not be negative", reserve)
		}
		if !(share >= 0 && share <= 1) { // nor NaN
			c.fault("WithBudget: share %v: must be from 0 to 1", share)
		}
		c.reserve, c.ratio, c.boundless = reserve, share, false
	})
}

// WithoutBudget limits retries only by the client's RetryMax.
func WithoutBudget() Option {
	return option(func(c *config) { c.boundless = true })
}

// WithNonIdempotent retries POST, PATCH and other requests that are not idempotent like all others, even if the server may
// have processed them. The default is not to.
func WithNonIdempotent() Option {
	return option(func(c *config) { c.nonIdempotent = true })
}

// WithReader sets the Reader that reads responses. It may read the first headers.BodyBytes of their bodies.
// The default, also for nil, is [headers.Parse].
func WithReader(r *headers.Reader) Option {
	return option(func(c *config) { c.reader = r })
}

// WithLogger logs at level Warn why a request that could have been retried was not. [NewClient] also sets it as the Logger of its
// client, which logs every attempt (Debug) and every error (Error), with URLs. The default is to log nothing.
func WithLogger(log *slog.Logger) Option {
	return option(func(c *config) {
		if log == nil {
			c.fault("WithLogger(nil): to log nothing, leave it out")
		}
		c.log = log
	})
}

// WithOnRetry sets a function that is called when a request will be retried, before the wait, by the goroutine of the request. It
// must be safe for concurrent use. The default is none.
func WithOnRetry(f func(RetryEvent)) Option {
	return option(func(c *config) {
		if f == nil {
			c.fault("WithOnRetry(nil): a function is needed")
		}
		c.onRetry = f
	})
}
