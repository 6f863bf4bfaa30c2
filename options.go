package throttle

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/headers"
)

// An Option configures a [Transport] or a [Limiter]. [New] takes all of them. [NewLimiter] takes those that do not need HTTP, and
// names the others in its error.
type Option interface{ applyTo(*config) }

// An option implements Option.
type option struct {
	of    owner
	name  string
	apply func(*config)
}

// An owner is what an option configures.
type owner uint8

const (
	ofTransport owner = iota // how requests are counted, sent and rejected: only New takes it
	ofLimiter                // the budgets: New takes it unless they are those of WithLimiter
	ofBoth                   // each may have its own
)

func (o option) applyTo(c *config) {
	c.given[o.of] = append(c.given[o.of], o.name)
	o.apply(c)
}

const (
	defaultMaxQueue = 100_000
	defaultMaxKeys  = 1 << 20
)

// A config is the sum of all options.
type config struct {
	given    [ofBoth + 1][]string // the names of options, by owner
	faults   []error
	sends    bool // it is of a Transport
	limits   []Limit
	limiter  *Limiter
	key      KeyFunc
	cost     CostFunc
	weights  map[string]int64
	weigh    CostFunc      // by weights
	maxWait  time.Duration // negative: no bound
	failFast bool
	maxQueue int
	deadline time.Duration // of WithDeadlineOrder; 0: it is not set
	maxKeys  int
	asError  bool
	shape    func(*Rejection, *http.Request) *http.Response
	exempt   func(*http.Request) bool
	dry      bool
	hooks    Hooks
	log      *slog.Logger
	hints    []headers.Hint
	hinted   bool // WithServerHints was given, maybe without a dialect
	noHints  bool
	reader   *headers.Reader
}

func newConfig(opts []Option) *config {
	c := &config{maxWait: -1, maxQueue: defaultMaxQueue, maxKeys: defaultMaxKeys}
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
	c.faults = append(c.faults, fmt.Errorf(format, args...))
}

// WithLimit adds limits. A request is sent only when all limits that apply to it can pay at the same instant. Without any
// limit, only [Limiter.Hold] and server hints delay requests.
func WithLimit(limits ...Limit) Option {
	return option{ofLimiter, "WithLimit", func(c *config) { c.limits = append(c.limits, limits...) }}
}

// WithAdaptive adds an [Adaptive] limit for each configuration, or one with the zero [AIMD] if there is none. Without [WithKey], each
// host has a rate of its own.
func WithAdaptive(configs ...AIMD) Option {
	return option{ofLimiter, "WithAdaptive", func(c *config) {
		if len(configs) == 0 {
			configs = []AIMD{{}}
		}
		for _, a := range configs {
			c.limits = append(c.limits, Adaptive(a))
		}
	}}
}

// WithAdaptiveInFlight adds an [AdaptiveInFlight] limit for each configuration, or one with the zero [Concurrency] if there is
// none. Without [WithKey], each host has a number of its own.
func WithAdaptiveInFlight(configs ...Concurrency) Option {
	return option{ofLimiter, "WithAdaptiveInFlight", func(c *config) {
		if len(configs) == 0 {
			configs = []Concurrency{{}}
		}
		for _, a := range configs {
			c.limits = append(c.limits, AdaptiveInFlight(a))
		}
	}}
}

// WithServerHints sets which dialects of rate-limit headers are read, in addition to those that mean the same on every
// server ([headers.Parse]), which are read by default. A hint is a preset such as [headers.GitHub], a [headers.Dialect] of your
// own, or [headers.Auto], which selects a preset by host. Repeated use adds hints. An unknown hint is an error.
//
// A 429 with a known wait holds all requests to that host under the same keys. A 503 or 529 holds all requests to that host, those
// under other keys for a minute at most. A hold lasts up to a tenth longer, a second at most, at random. After a day, the server
// is asked by one request whether a longer wait has ended; the same applies to an empty quota. A 429 without a known wait holds
// for as long as eight requests take at the rate that was accepted, from 1/8 s to 1 s. If the next request is refused, too, one
// request at a time asks, after ever longer waits, until one is accepted. If an [Adaptive] limit was charged, that limit decides
// instead, except for a 503. After a refusal that no empty quota explains, requests are sent one by one: at the rate that was
// accepted before, which doubles every second until the next refusal, or evenly at the rate of the client's own limits, if there
// are any.
//
// What is left of a quota bounds what is sent before its reset; requests in flight count. If it falls by more than the client has
// sent, other clients use it, and its last requests are left to them. The rest of a quota that was exhausted before is spread
// until its reset. A client with limits of its own, none of which is adaptive, is stopped only after a refusal. A quota whose unit
// is not requests stops requests only while nothing is left of it, unless there is a [ServerQuota] in that unit. A quota applies
// to the requests that the server counts together, as far as is known: at first to all requests to that host under the same keys,
// and to fewer once responses show that some are counted separately. One with a name applies only to requests like those for which
// the server named it, with the same first segment of the path, ignoring "api" and versions. A refusal that names its quota, by an
// empty quota or by a problem document ([headers.Problem]), stops only requests of that quota. [Fraction] also leaves a part of a
// server's quotas to others; of several limits, the smallest fraction counts.
//
// What a dialect reads in a body is found while the caller reads it: the first 4 KiB are kept. A body in gzip is decoded for that, up to
// 4 KiB of text; the caller gets it as it is. Bodies in other codings are not read; see Unread of [LimitStats]. An event of a stream is a
// refusal when the caller has read it, if a rule names it ([headers.Rule]); limits that learn take it as [OutcomeThrottled], unless they
// have a [Classify]. Of each event, 4 KiB are kept until the next one. Streams in any coding are not read.
//
// At most 32 quotas are kept of requests that are counted together, and at most 64 such groups of a host and set of keys.
//
// Without this option, the headers of successful responses that report nothing are read at a bounded rate: those of about 100 responses of
// a host, and then of one a second. The first response with each number of headers is always read, because a server sends more of them
// when it reports limits. Once one with that number has reported limits, all such responses are read. So are those with a status of 400 or
// more.
func WithServerHints(hints ...headers.Hint) Option {
	return option{ofTransport, "WithServerHints", func(c *config) { c.hints, c.hinted = append(c.hints, hints...), true }}
}

// WithoutServerHints makes the Transport ignore rate-limit headers, including those that other Transports with the same Limiter
// have read.
func WithoutServerHints() Option {
	return option{ofTransport, "WithoutServerHints", func(c *config) { c.noHints = true }}
}

// WithLimiter makes the Transport use the limits of l, which may be shared with others, instead of limits of its own. It excludes
// [WithLimit], [WithAdaptive], [WithAdaptiveInFlight], [WithMaxQueue], [WithDeadlineOrder], [WithMaxKeys] and [WithDryRun]. With
// [WithHooks] beside it, the hooks of l are called first, and then those of the Transport for its own requests. [WithLogger]
// replaces the logger of l for these requests.
func WithLimiter(l *Limiter) Option {
	return option{ofTransport, "WithLimiter", func(c *config) {
		c.limiter = l
		if l == nil || l.core == nil {
			c.fault("WithLimiter: the Limiter is nil or zero; make it with NewLimiter")
			c.limiter = nil
		}
	}}
}

// WithKey sets the key of requests in limits without a [Key] of their own. By default all requests have the same key, except in
// [Adaptive] and [AdaptiveInFlight] limits, which count them by host. For one learned rate over all hosts, return a constant.
func WithKey(f KeyFunc) Option {
	return option{ofTransport, "WithKey", func(c *config) {
		c.key = f
		if f == nil {
			c.fault("WithKey(nil): a function is needed")
		}
	}}
}

// WithWeights sets the cost of requests by patterns of [net/http.ServeMux], such as "POST /upload" or
// "api.example.com/search/". The most specific pattern applies. A request that no pattern matches costs 1; limits do not
// apply to a request of cost 0. The host comes from the URL if Request.Host is empty, and matches in any case. Repeated use
// adds patterns. An invalid pattern, a conflict of patterns and a negative cost are errors.
func WithWeights(costs map[string]int64) Option {
	return option{ofTransport, "WithWeights", func(c *config) {
		if c.weights == nil {
			c.weights = make(map[string]int64, len(costs))
		}
		maps.Copy(c.weights, costs)
	}}
}

// WithCost sets the cost of requests by a function, instead of [WithWeights]. The default is 1. In [InFlight] and [AdaptiveInFlight] limits,
// a request takes one slot whatever it costs here.
func WithCost(f CostFunc) Option {
	return option{ofTransport, "WithCost", func(c *config) {
		c.cost = f
		if f == nil {
			c.fault("WithCost(nil): a function is needed")
		}
	}}
}

// WithMaxWait sets the longest time for which a request may wait in the queue. A request that would wait longer is rejected
// immediately. By default requests wait until their context ends. With 0, no request waits. Another time below a millisecond is an
// error.
func WithMaxWait(d time.Duration) Option {
	return option{ofBoth, "WithMaxWait", func(c *config) {
		c.maxWait = d
		switch {
		case d < 0:
			c.fault("WithMaxWait(%v) is negative", d)
		case d > 0 && d < shortest:
			c.fault("WithMaxWait: %w", unitForgotten("a wait", d))
		}
	}}
}

// WithFailFast rejects every request that cannot be sent now. It is short for WithMaxWait(0), and an error beside [WithMaxWait].
func WithFailFast() Option {
	return option{ofBoth, "WithFailFast", func(c *config) { c.failFast = true }}
}

// WithMaxQueue sets how many requests may wait for the same buckets. It must be positive. The default is 100,000.
func WithMaxQueue(n int) Option {
	return option{ofLimiter, "WithMaxQueue", func(c *config) {
		c.maxQueue = n
		if n <= 0 {
			c.fault("WithMaxQueue(%d) is not positive", n)
		}
	}}
}

// WithDeadlineOrder sends requests in the order of their deadlines (earliest deadline first; Liu and Layland, Scheduling Algorithms for
// Multiprogramming in a Hard-Real-Time Environment, 1973) instead of the order of arrival. The deadline is the end of
// the maximum wait ([WithMaxWait], [ContextWithMaxWait]) or that of the context, whichever is earlier. A request without a deadline,
// or with a later one, counts as if it had to be sent within age after its arrival. So nothing starves: a request is overtaken only
// by requests that arrive less than age later. age must be at least a millisecond; ten minutes suit most programs.
//
// A priority ([ContextWithPriority]) still counts as ten seconds. With [FairBy], each caller's requests stay
// in the order of arrival, and deadlines apply between the first requests of the callers.
//
// A request that is overtaken may miss its own deadline, and is rejected at the end of its wait. With random deadlines, fewer
// requests were rejected in all than in the order of arrival, under any load, also when there was more work than the limit allows.
func WithDeadlineOrder(age time.Duration) Option {
	return option{ofLimiter, "WithDeadlineOrder", func(c *config) {
		c.deadline = age
		switch {
		case age <= 0:
			c.fault("WithDeadlineOrder(%v) is not positive", age)
		case age < shortest:
			c.fault("WithDeadlineOrder: %w", unitForgotten("an age", age))
		}
	}}
}

// WithMaxKeys sets how many buckets are kept in all limits together, except those of limits without keys. It must be
// positive. The default is 1,048,576.
//
// A bucket that is full again is forgotten after about a second. If too many buckets are not full, the one that will be full
// first is forgotten, unless it has debt, a hold, waiters or a request in flight, or remembers a refusal or a silence that still
// counts. If there is no such bucket, one is forgotten that is kept only because a server refused or was silent: the one that would be
// kept the longest. So servers cannot keep other hosts out, however many of their names refuse. If no bucket can be forgotten, a request
// with a new key is rejected with [ReasonKeys].
//
// What servers reported is counted separately: at most n entries, each for one host, one set of keys and one kind of request
// there, such as those to one family of paths, and at most 64 MB. If there is no room, the least important of it is forgotten; a
// refusal always finds room.
func WithMaxKeys(n int) Option {
	return option{ofLimiter, "WithMaxKeys", func(c *config) {
		c.maxKeys = n
		if n <= 0 {
			c.fault("WithMaxKeys(%d) is not positive", n)
		}
	}}
}

// WithRejectionError makes a rejection an error, a [*Rejection], instead of a response.
func WithRejectionError() Option {
	return option{ofTransport, "WithRejectionError", func(c *config) { c.asError = true }}
}

// WithRejectionResponse sets a function that makes the response to a rejected request, instead of a 429 with a problem+json body.
// The Transport sets the Request of the response, and fills in a missing status, protocol, header or body. If f returns nil, the
// usual response is used. A rejection for the context's deadline, or of a cost that can never be paid, is an error regardless.
func WithRejectionResponse(f func(*Rejection, *http.Request) *http.Response) Option {
	return option{ofTransport, "WithRejectionResponse", func(c *config) {
		c.shape = f
		if f == nil {
			c.fault("WithRejectionResponse(nil): a function is needed")
		}
	}}
}

// WithExempt sets a function that returns true for requests that are exempt: they are sent without limits, and counted only in
// [Stats].Exempt. By default there are none.
func WithExempt(f func(*http.Request) bool) Option {
	return option{ofTransport, "WithExempt", func(c *config) {
		c.exempt = f
		if f == nil {
			c.fault("WithExempt(nil): a function is needed")
		}
	}}
}

// WithDryRun makes the Transport count what would happen, without delaying or rejecting requests. A request that would wait
// is sent immediately. Its place in the queue stays taken, and it is charged, until and when a real run would send it. So the figures are
// those of a real run, with priorities and [WithMaxQueue] too, if servers respond alike. There is one difference: if the context of a
// request ends while the request would wait, nothing happens. GrantEvent.Waited is the wait that was planned when the request came, a lower
// bound like WaitEvent.Wait.
func WithDryRun() Option {
	return option{ofTransport, "WithDryRun", func(c *config) { c.dry = true }}
}

// WithHooks adds functions that observe requests: they are called when a request waits, is granted, is rejected, and so on. Hooks
// that are added later are called later. By default there are none.
func WithHooks(h Hooks) Option {
	return option{ofBoth, "WithHooks", func(c *config) { c.hooks = c.hooks.and(h) }}
}

// WithLogger logs rejections and holds at level Warn, and waits and changes of an adaptive rate at level Info. It logs at most
// one line a second of each kind and reason, with the number of lines that were suppressed. At level Warn it also logs, once for each
// limit, that the limit cannot read a response because it is compressed, or that none of its first 100 responses had a number at a path of
// [SettleJSON] or named the unit of a [ServerQuota], or that each of its first 100 requests was taken to cost 1 there. The
// default is to log nothing.
func WithLogger(log *slog.Logger) Option {
	return option{ofBoth, "WithLogger", func(c *config) {
		c.log = log
		if log == nil {
			c.fault("WithLogger(nil): a Logger is needed")
		}
	}}
}

// validate returns every problem of the options.
func (c *config) validate() error {
	faults := append(c.faults, c.nameLimits()...)
	for i := range c.limits {
		faults = append(faults, c.limits[i].validate())
	}
	faults = append(faults, checkFairness(c.limits)...)
	faults = append(faults, c.checkUnits()...)
	if c.sends {
		faults = append(faults, c.checkCosts()...)
	}
	if c.limiter != nil {
		own := c.given[ofLimiter]
		if c.dry {
			own = append(own, "WithDryRun")
		}
		for _, name := range own {
			faults = append(faults, fmt.Errorf("%s has no effect beside WithLimiter", name))
		}
	}
	for _, pair := range []struct {
		excluded bool
		names    string
	}{
		{c.failFast && c.maxWait >= 0, "WithFailFast and WithMaxWait"},
		{c.asError && c.shape != nil, "WithRejectionError and WithRejectionResponse"},
		{c.hinted && c.noHints, "WithServerHints and WithoutServerHints"},
	} {
		if pair.excluded {
			faults = append(faults, fmt.Errorf("%s exclude each other", pair.names))
		}
	}
	if c.failFast {
		c.maxWait = 0
	}
	if i := slices.IndexFunc(c.limits, func(l Limit) bool { return l.rule.Store != nil }); i >= 0 && c.dry {
		faults = append(faults, fmt.Errorf("WithDryRun: limit %q is Shared, and the use of other processes is not known without leasing", c.limits[i].rule.Name))
	}
	var err error
	if c.reader, err = headers.NewReader(c.hints...); err != nil {
		faults = append(faults, join("WithServerHints", err))
	}
	if c.weigh, err = costByPattern(c.weights); err != nil {
		faults = append(faults, join("WithWeights", err))
	}
	return join("throttle", faults...)
}

// checkUnits returns the faults of the limits whose numbers servers report.
func (c *config) checkUnits() (faults []error) {
	taken := make(map[string]string)
	for i := range c.limits {
		l := &c.limits[i]
		unit := l.rule.Unit
		if unit == "" {
			continue
		}
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Errorf("limit %q: "+format, append([]any{l.rule.Name}, args...)...))
		}
		if other, ok := taken[unit]; ok {
			fault("ServerQuota: its unit is that of limit %q", other)
		}
		taken[unit] = l.rule.Name
		if c.noHints {
			fault("ServerQuota has no effect beside WithoutServerHints: its numbers are those that servers report")
		}
	}
	return faults
}

// checkCosts returns an error for each limit of a Transport that needs true costs, and gets none.
func (c *config) checkCosts() (faults []error) {
	for i := range c.limits {
		l := &c.limits[i]
		if l.rule.Lowers && !l.settled() {
			faults = append(faults, fmt.Errorf("limit %q: LearnCost needs a Settle, SettleJSON or SettleJSONFunc, from which it learns", l.rule.Name))
		}
	}
	return faults
}

// nameLimits names each limit without a name by its kind, and returns an error for each name that was given twice.
func (c *config) nameLimits() (faults []error) {
	taken := make(map[string]bool, len(c.limits))
	for i := range c.limits {
		name := c.limits[i].rule.Name
		if name != "" && taken[name] {
			faults = append(faults, fmt.Errorf("WithLimit: two limits are named %q", name))
		}
		taken[name] = true
	}
	for i := range c.limits {
		l := &c.limits[i]
		for n := 2; l.rule.Name == "" && l.kind != nil; n++ {
			name := l.kind.name
			if taken[name] {
				name = fmt.Sprintf("%s-%d", l.kind.name, n)
			}
			if !taken[name] {
				l.rule.Name, taken[name] = name, true
			}
		}
	}
	return faults
}
