package throttletest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"
)

// An Option configures a [Handler] or a [Server].
type Option interface{ apply(*config) }

type option func(*config)

func (f option) apply(c *config) { f(c) }

type config struct {
	limits []Limit
	key    func(*http.Request) string
	cost   func(*http.Request) int64

	status  int
	words   wording
	refusal func(http.ResponseWriter, *http.Request, Refusal)
	next    http.Handler
	handles bool // next is the user's

	trip, jitter time.Duration
	service      Latency
	refusalTime  Latency
	workers      *workers
	seed         uint64

	faults []Fault

	record int

	inMemory, http2 bool

	errs []error
}

func (c *config) problem(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(format, args...))
}

// problems adds what is wrong with that option. Joined errors are split.
func (c *config) problems(option string, errs ...error) {
	for _, err := range errs {
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			c.problems(option, joined.Unwrap()...)
			continue
		}
		c.problem("%s: %w", option, err)
	}
}

func newConfig(opts []Option, server bool) (*config, error) {
	c := &config{
		key:         func(*http.Request) string { return "" },
		cost:        func(*http.Request) int64 { return 1 },
		status:      http.StatusTooManyRequests,
		next:        http.HandlerFunc(ok),
		service:     Constant(0),
		refusalTime: Constant(0),
		seed:        1,
		record:      1 << 20,
	}
	for i, o := range opts {
		if o == nil {
			c.problem("Option %d is nil", i+1)
			continue
		}
		o.apply(c)
	}
	if !server && (c.inMemory || c.http2) {
		c.problem("WithInMemory() and WithHTTP2() are for a Server: a Handler has no connections")
	}
	c.validateLimits()
	if len(c.errs) == 0 {
		return c, nil
	}
	errs := make([]error, len(c.errs))
	for i, err := range c.errs {
		errs[i] = fmt.Errorf("throttletest: %w", err)
	}
	return nil, errors.Join(errs...)
}

// validateLimits fills in what the limits leave to the server, and gives each a name of its own.
func (c *config) validateLimits() {
	taken := make(map[string]bool)
	for _, l := range c.limits {
		if l.name != "" && taken[l.name] {
			c.problem("WithLimits: there are two limits named %q", l.name)
		}
		taken[l.name] = true
	}
	for i, l := range c.limits {
		l, err := l.validated()
		if err != nil {
			c.problems("WithLimits", err)
			continue
		}
		for n := 1; l.name == ""; n++ {
			name := l.kind.word()
			if n > 1 {
				name += "-" + strconv.Itoa(n)
			}
			if !taken[name] {
				taken[name] = true
				l.name = name
			}
		}
		c.limits[i] = c.completed(l)
	}
}

// completed is l with the server's defaults.
func (c *config) completed(l Limit) Limit {
	if l.key == nil {
		l.key = c.key
	}
	if l.cost == nil {
		l.cost = c.cost
	}
	if l.status == 0 {
		l.status = c.status
	}
	return l
}

// WithLimits adds limits. Without any, everything is accepted.
func WithLimits(limits ...Limit) Option {
	return option(func(c *config) { c.limits = append(c.limits, limits...) })
}

// WithKey sets the key by which a request is counted, in the limits that have no [Key] of their own. The default is one budget
// for all requests. The function is called concurrently and must not change the request.
func WithKey(key func(*http.Request) string) Option {
	return option(func(c *config) {
		if key == nil {
			c.problem("WithKey(nil)")
		}
		c.key = key
	})
}

// WithCost sets what a request costs, in the limits that have no [Cost] of their own. The default is 1. The function is
// called concurrently and must not change the request.
func WithCost(cost func(*http.Request) int64) Option {
	return option(func(c *config) {
		if cost == nil {
			c.problem("WithCost(nil)")
		}
		c.cost = cost
	})
}

// WithHandler sets the handler of accepted requests. The default responds with 200 and the body "ok\n". The handler is called
// when the response is due, after all latency. [Server.Close] waits for it, so it must heed the request's context if it
// blocks.
func WithHandler(next http.Handler) Option {
	return option(func(c *config) {
		if next == nil {
			c.problem("WithHandler(nil)")
		}
		c.next, c.handles = next, true
	})
}

// WithStatus sets the status of refusals, from 200 to 599, for the limits that have no [Status] of their own. The default
// is 429. A full queue of [WithWorkers] is always 503.
func WithStatus(code int) Option {
	return option(func(c *config) {
		if code < 200 || code > 599 {
			c.problem("WithStatus(%d) must be from 200 to 599", code)
		}
		c.status = code
	})
}

// WithRetryAfter sets the form in which refusals say how long to wait. The default is [RetryAfterSeconds].
func WithRetryAfter(form RetryAfter) Option {
	return option(func(c *config) {
		if form < RetryAfterSeconds || form > NoRetryAfter {
			c.problem("WithRetryAfter(%d) is not one of its constants", form)
		}
		c.words.retryAfter = form
	})
}

// WithRetryAfterAlways sets Retry-After on accepted requests too, to the time until the reset of the limit that has the
// smallest share left, as Flask-Limiter does. The default is refusals only.
func WithRetryAfterAlways() Option {
	return option(func(c *config) { c.words.always = true })
}

// WithFields adds rate-limit fields to every response that the limits decided, accepted or refused. The default is
// none. Of [XEpoch] and [XDelta], and of [Draft], [Draft6] and [Draft7], there can be only one.
func WithFields(forms ...Fields) Option {
	return option(func(c *config) {
		for _, f := range forms {
			if f < Draft || f > Anthropic {
				c.problem("WithFields(%d) is not one of its constants", f)
			}
		}
		c.words.fields = append(c.words.fields, forms...)
		if c.words.hasSome(XEpoch, XDelta) > 1 {
			c.problem("WithFields: XEpoch and XDelta use the same names: choose one")
		}
		if c.words.hasSome(Draft, Draft6, Draft7) > 1 {
			c.problem("WithFields: Draft, Draft6 and Draft7 use the same names: choose one")
		}
	})
}

// WithRounding sets how waits and resets are rounded to whole seconds. The default is [RoundUp].
func WithRounding(r Rounding) Option {
	return option(func(c *config) {
		if r < RoundUp || r > RoundDown {
			c.problem("WithRounding(%d) is not one of its constants", r)
		}
		c.words.rounding = r
	})
}

// WithFullResets makes resets the time until the whole limit is available, as OpenAI, Anthropic and Flask-Limiter's moving
// window report it: until a bucket is full, or until the newest request no longer counts in a sliding window. By default, resets are the time
// until anything becomes available. The Retry-After of a refusal is the time until the request could be accepted in any case.
func WithFullResets() Option {
	return option(func(c *config) { c.words.whenFull = true })
}

// WithLateResets makes the server report every reset, and every time in Retry-After, later than it is: by d, before it is
// rounded. The default is 0; d must not be negative. Flask-Limiter, for example, adds a second before it rounds.
func WithLateResets(d time.Duration) Option {
	return option(func(c *config) {
		if d < 0 {
			c.problem("WithLateResets(%v) must not be negative", d)
		}
		c.words.late = d
	})
}

// WithRefusal sets the function that writes refusals, for APIs with responses of their own. When f is called, the latency is
// over, and Retry-After and the rate-limit fields are in w.Header(); f writes the status. It is called concurrently.
func WithRefusal(f func(w http.ResponseWriter, r *http.Request, refusal Refusal)) Option {
	return option(func(c *config) {
		if f == nil {
			c.problem("WithRefusal(nil)")
		}
		c.refusal = f
	})
}

// WithRoundTrip sets how long a request and its response travel: half of it before the limits see the request, half
// after the response is ready. Each half is longer or shorter by up to jitter, evenly distributed. The default is 0. It applies
// to every response, also to refusals and faults. A request continues after its client has canceled it, as on a real network.
func WithRoundTrip(d, jitter time.Duration) Option {
	return option(func(c *config) {
		if d < 0 || jitter < 0 || jitter > d/2 {
			c.problem("WithRoundTrip(%v, %v) must not be negative, and the jitter at most half of the round trip", d, jitter)
		}
		c.trip, c.jitter = d, jitter
	})
}

// WithServiceTime sets how long the server works on an accepted request. The default is 0. The work continues when the client
// has given up, as on most servers.
func WithServiceTime(l Latency) Option {
	return option(func(c *config) { c.service = c.checked("WithServiceTime", l) })
}

// WithRefusalTime sets how long the server takes for a refusal, or for the response of an [Outage]. The default is 0.
func WithRefusalTime(l Latency) Option {
	return option(func(c *config) { c.refusalTime = c.checked("WithRefusalTime", l) })
}

func (c *config) checked(name string, l Latency) Latency {
	if l.err != nil {
		c.problem("%s: %w", name, l.err)
	} else if l.draw == nil {
		c.problem("%s(Latency{}): use a constructor such as Constant", name)
	}
	return l
}

// WithWorkers sets how many workers serve accepted requests, so that latency grows with load. Each serves one request at a
// time, in order of acceptance; up to queue more requests wait. If the queue is full, a request is refused with 503 and
// without Retry-After, and no limit is charged. By default there are as many workers as requests.
func WithWorkers(n, queue int) Option {
	return option(func(c *config) {
		if n < 1 || queue < 0 {
			c.problem("WithWorkers(%d, %d) needs at least one worker, and a queue that is not negative", n, queue)
			return
		}
		c.workers = newWorkers(n, queue)
	})
}

// WithSeed sets the seed of everything random: jitter, latencies and [Fault.Chance]. The default is 1. The random values of
// a request depend only on the seed and the request's number, so a run can be repeated.
func WithSeed(seed uint64) Option {
	return option(func(c *config) { c.seed = seed })
}

// WithFaults adds faults. If several apply to a request, the first one happens.
func WithFaults(faults ...Fault) Option {
	return option(func(c *config) {
		for _, f := range faults {
			if len(f.errs) > 0 {
				c.problems("WithFaults", f.errs...)
			} else if f.kind == 0 {
				c.problem("WithFaults: Fault{} is empty: use a constructor such as Hang")
			}
		}
		c.faults = append(c.faults, faults...)
	})
}

// WithRecording sets how many charges are kept for [Handler.Accepted] and [Handler.MaxAccepted]: for each accepted request
// one of 8 bytes, and one of 24 bytes for each limit. The default is 1,048,576, which is 24 MiB at most; 0 keeps none.
func WithRecording(n int) Option {
	return option(func(c *config) {
		if n < 0 {
			c.problem("WithRecording(%d) must not be negative", n)
		}
		c.record = n
	})
}

// WithInMemory connects client and server in memory instead of over a loopback socket, so that a [Server] works in a
// bubble of testing/synctest: see the package's overview. It is an error for [NewHandler].
func WithInMemory() Option {
	return option(func(c *config) { c.inMemory = true })
}

// WithHTTP2 makes the [Server]'s own Client and Transport use HTTP/2 (without TLS, by prior knowledge) instead of HTTP/1.1.
// The server accepts both in any case. It is an error for [NewHandler].
func WithHTTP2() Option {
	return option(func(c *config) { c.http2 = true })
}

func ok(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
}

// rng is the source of everything random about one request.
func (c *config) rng(number int64) *rand.Rand {
	// Neighbouring numbers are spread over the state (the odd constant is that of SplitMix64).
	return rand.New(rand.NewPCG(c.seed, uint64(number)*0x9e3779b97f4a7c15))
}
