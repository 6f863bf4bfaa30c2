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

// An Option changes one thing about a [Policy].
type Option interface{ applyTo(*config) }

type option func(*config)

func (o option) applyTo(c *config) { o(c) }

// config is what the options come to.
type config struct {
	faults        []error
	maxWait       time.Duration
	reserve       int
	ratio         float64
	boundless     bool
	nonIdempotent bool
	reader        *headers.Reader
	log           *slog.Logger
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

// WithMaxWait sets the longest wait before a retry. Where the server or the Transport named a longer one there is no
// retry, since to come earlier would be in vain; backoff is cut to it. It must be positive. The default is one minute,
// twice the RetryWaitMax that retryablehttp has by default.
func WithMaxWait(d time.Duration) Option {
	return option(func(c *config) {
		if d <= 0 {
			c.fault("WithMaxWait(%v): must be positive", d)
		}
		c.maxWait = d
	})
}

// WithBudget bounds retries to the reserve, which must not be negative, and for each success a share more, from 0 to 1:
// at no time were there more than reserve + share · successes. The default is 100 and 0.1. A success is an answer of the
// server that calls for no retry, whatever its status; a response handler makes it count twice.
//
// The budget is the Policy's, so that of all goroutines that use the client. Refusals by the Transport, and a 4xx that says
// when to come back, are retried without it. Where it is empty, the response or the error is returned as it is.
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

// WithoutBudget bounds retries by the client's RetryMax alone.
func WithoutBudget() Option {
	return option(func(c *config) { c.boundless = true })
}

// WithNonIdempotent retries POST, PATCH and other requests that are not idempotent like all others, also where the
// server may have processed them already. The default is not to.
func WithNonIdempotent() Option {
	return option(func(c *config) { c.nonIdempotent = true })
}

// WithReader reads what responses say about limits by the dialects of a Reader, which may look at the first
// headers.BodyBytes of their bodies. The default, and what nil stands for, is [headers.Parse].
func WithReader(r *headers.Reader) Option {
	return option(func(c *config) { c.reader = r })
}

// WithLogger logs why a failure was not retried, where it could have been (Warn); and [NewClient] sets it as the
// Logger of its client, which logs every attempt (Debug) and every error (Error), with URLs. The default is to log nothing.
func WithLogger(log *slog.Logger) Option {
	return option(func(c *config) {
		if log == nil {
			c.fault("WithLogger(nil): to log nothing, leave it out")
		}
		c.log = log
	})
}
