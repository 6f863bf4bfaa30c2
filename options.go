package throttle

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/headers"
)

// An Option changes one thing about a [Transport] or a [Limiter].
type Option interface{ applyTo(*config) }

type option struct {
	name  string
	apply func(*config)
}

func (o option) applyTo(c *config) {
	c.used = append(c.used, o.name)
	o.apply(c)
}

const (
	defaultMaxQueue = 100_000
	defaultMaxKeys  = 1 << 20
)

// config is what the options come to.
type config struct {
	used     []string
	faults   []error
	limits   []Limit
	limiter  *Limiter
	key      KeyFunc
	cost     CostFunc
	weights  map[string]int64
	weigh    CostFunc      // by weights
	maxWait  time.Duration // negative: no bound
	maxQueue int
	maxKeys  int
	asError  bool
	shape    func(*Rejection, *http.Request) *http.Response
	exempt   func(*http.Request) bool
	dry      bool
	hooks    Hooks
	log      *slog.Logger
	hints    []headers.Hint
	deaf     bool
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

// WithLimit adds limits. A request is sent only when all that it falls under can pay at the same instant. Without any,
// nothing but a [Limiter.Hold] stops a request.
func WithLimit(limits ...Limit) Option {
	return option{"WithLimit", func(c *config) { c.limits = append(c.limits, limits...) }}
}

// WithAdaptive adds a limit that finds its rate by itself, [Adaptive] with that configuration, or one for each of several;
// without any, with the zero AIMD.
func WithAdaptive(configs ...AIMD) Option {
	return option{"WithAdaptive", func(c *config) {
		if len(configs) == 0 {
			configs = []AIMD{{}}
		}
		for _, a := range configs {
			c.limits = append(c.limits, Adaptive(a))
		}
	}}
}

// WithServerHints sets which dialects of rate-limit headers are listened to beside those that are certain for every server
// ([headers.Parse]), which are listened to by default: presets such as [headers.GitHub], one's own ([headers.Dialect]), or
// [headers.Auto], which goes by host. Used again it adds to them. The error names hints that there are not.
//
// A refusal that tells for how long to stay away holds whoever asks that host under the same keys, and a 503 or 529 all who
// ask that host; up to a tenth of that (a second at most) is added at random. One that does not tell holds for 1 s, and
// for twice as long after each further one, up to 64 s. Where an [Adaptive] limit is charged, that decides about both but
// for a 503. Afterwards those in line leave one by one, from the rate of the last ten seconds before, at least one a
// second, which doubles every two seconds.
//
// What is left of a quota bounds what is sent before its reset, requests in flight taken off. If its unit is not requests
// it stops them only while nothing is left. A quota with a name is that of requests to which the server has named it: of
// those with the same host, the same keys and the same first segment of the path ("api" and versions left out). Without a
// name it is everybody's who asks that host under the same keys. A refusal that names the quota it is for, be it by an empty
// one or by a problem document ([headers.Problem]), stops nobody else. [Share] leaves that part of quotas to others as well,
// the smallest of the limits counting.
//
// Of a host at most 32 quotas are kept for each set of keys, and what is over is forgotten with the buckets.
func WithServerHints(hints ...headers.Hint) Option {
	return option{"WithServerHints", func(c *config) { c.hints = append(c.hints, hints...) }}
}

// WithoutServerHints listens to no header about limits. Nor is the Transport stopped by what a server said to others that
// share its Limiter.
func WithoutServerHints() Option {
	return option{"WithoutServerHints", func(c *config) { c.deaf = true }}
}

// WithLimiter draws on the budgets of a Limiter that others use too, in place of limits of the Transport's own: it
// excludes [WithLimit], [WithAdaptive], [WithMaxQueue], [WithMaxKeys] and [WithDryRun]. [WithHooks] and [WithLogger] beside it take the
// place of the Limiter's for the requests of this Transport.
func WithLimiter(l *Limiter) Option {
	return option{"WithLimiter", func(c *config) {
		c.limiter = l
		if l == nil {
			c.fault("WithLimiter(nil): a Limiter is needed")
		}
	}}
}

// WithKey sets whom the limits count for that have no [Key] of their own. The default is one key for all.
func WithKey(f KeyFunc) Option {
	return option{"WithKey", func(c *config) {
		c.key = f
		if f == nil {
			c.fault("WithKey(nil): a function is needed")
		}
	}}
}

// WithWeights sets what requests cost by patterns as [net/http.ServeMux] has them, the most specific one first:
// "POST /upload": 10, "api.example.com/search/": 3. What no pattern matches costs 1, and a cost of 0 is not limited.
// The host is that of the URL where the request's Host is empty. Patterns that conflict are an error.
func WithWeights(costs map[string]int64) Option {
	return option{"WithWeights", func(c *config) {
		if c.weights == nil {
			c.weights = make(map[string]int64, len(costs))
		}
		maps.Copy(c.weights, costs)
	}}
}

// WithCost sets what requests cost, by function, in place of [WithWeights]. The default is 1.
func WithCost(f CostFunc) Option {
	return option{"WithCost", func(c *config) {
		c.cost = f
		if f == nil {
			c.fault("WithCost(nil): a function is needed")
		}
	}}
}

// WithMaxWait sets the longest that a request may stand in line. One that would have to wait longer is refused at
// once. The default is to wait until the context ends; 0 is to fail fast.
func WithMaxWait(d time.Duration) Option {
	return option{"WithMaxWait", func(c *config) {
		c.maxWait = d
		if d < 0 {
			c.fault("WithMaxWait(%v) is negative", d)
		}
	}}
}

// WithFailFast refuses what can't be sent now: WithMaxWait(0).
func WithFailFast() Option {
	return option{"WithFailFast", func(c *config) { c.maxWait = 0 }}
}

// WithMaxQueue sets how many requests may stand in one line, those that wait for the same buckets. It must be
// positive. The default is 100,000.
func WithMaxQueue(n int) Option {
	return option{"WithMaxQueue", func(c *config) {
		c.maxQueue = n
		if n <= 0 {
			c.fault("WithMaxQueue(%d) is not positive", n)
		}
	}}
}

// WithMaxKeys sets how many buckets are kept, of all limits together, but for those of limits without keys. It must be
// positive. The default is 1,048,576.
//
// A bucket that is full again is forgotten by itself, about a second later, and costs nothing any more. Where there
// are too many that are not, the one that would be full first is forgotten, unless it has debt, is held, or somebody
// waits for it; where there is none such, a request of a new key is refused.
func WithMaxKeys(n int) Option {
	return option{"WithMaxKeys", func(c *config) {
		c.maxKeys = n
		if n <= 0 {
			c.fault("WithMaxKeys(%d) is not positive", n)
		}
	}}
}

// WithRejectionError refuses by an error, a [*Rejection], in place of a response.
func WithRejectionError() Option {
	return option{"WithRejectionError", func(c *config) { c.asError = true }}
}

// WithRejectionResponse refuses by a response of the user's shape, in place of a 429 with a problem+json body. The
// Request of the response is set, and what is missing of status, protocol, header and body is filled in; for nil the
// usual response is made. A refusal for the deadline of the context, or of a cost that can never be paid, is an error
// all the same.
func WithRejectionResponse(f func(*Rejection, *http.Request) *http.Response) Option {
	return option{"WithRejectionResponse", func(c *config) {
		c.shape = f
		if f == nil {
			c.fault("WithRejectionResponse(nil): a function is needed")
		}
	}}
}

// WithExempt lets the requests pass untouched and uncounted for which f returns true. The default is none.
func WithExempt(f func(*http.Request) bool) Option {
	return option{"WithExempt", func(c *config) {
		c.exempt = f
		if f == nil {
			c.fault("WithExempt(nil): a function is needed")
		}
	}}
}

// WithDryRun measures what would have happened, and delays and refuses nothing. A request that would have had to wait
// is booked for when it would have gone, in order of arrival: priorities, cancellations and [WithMaxQueue] don't
// count, since nobody stands in line.
func WithDryRun() Option {
	return option{"WithDryRun", func(c *config) { c.dry = true }}
}

// WithHooks sets functions that are told what happens. The default is none.
func WithHooks(h Hooks) Option {
	return option{"WithHooks", func(c *config) { c.hooks = h }}
}

// WithLogger logs refusals and holds (Warn), waits and changes of a learned rate (Info), of each kind and reason at most
// one line a second, which says how many were suppressed. The default is to log nothing.
func WithLogger(log *slog.Logger) Option {
	return option{"WithLogger", func(c *config) {
		c.log = log
		if log == nil {
			c.fault("WithLogger(nil): a Logger is needed")
		}
	}}
}

// validate returns everything that is wrong.
func (c *config) validate() error {
	faults := append(c.faults, c.nameLimits()...)
	for i := range c.limits {
		faults = append(faults, c.limits[i].validate())
	}
	if c.limiter != nil {
		for _, name := range c.usedOf("WithLimit", "WithAdaptive", "WithMaxQueue", "WithMaxKeys", "WithDryRun") {
			faults = append(faults, fmt.Errorf("%s has no effect beside WithLimiter", name))
		}
	}
	if names := c.usedOf("WithRejectionError", "WithRejectionResponse"); len(names) > 1 {
		faults = append(faults, fmt.Errorf("%s exclude each other", strings.Join(names, " and ")))
	}
	if names := c.usedOf("WithServerHints", "WithoutServerHints"); len(names) > 1 {
		faults = append(faults, fmt.Errorf("%s exclude each other", strings.Join(names, " and ")))
	}
	var err error
	if c.reader, err = headers.NewReader(c.hints...); err != nil {
		faults = append(faults, fmt.Errorf("WithServerHints: %w", err))
	}
	if c.weigh, err = costByPattern(c.weights); err != nil {
		faults = append(faults, fmt.Errorf("WithWeights: %w", err))
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("throttle: %w", err)
	}
	return nil
}

// forLimiter adds what is wrong with the options for a Limiter without HTTP.
func (c *config) forLimiter() {
	allowed := []string{"WithLimit", "WithAdaptive", "WithMaxQueue", "WithMaxKeys", "WithHooks", "WithLogger"}
	for _, name := range c.used {
		if !slices.Contains(allowed, name) {
			c.fault("%s is an option of New, not of NewLimiter", name)
		}
	}
}

// usedOf returns which of the options were given.
func (c *config) usedOf(names ...string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(c.used, name) })
}

// nameLimits gives each limit without a name that of its kind, and returns which names were given twice.
func (c *config) nameLimits() (faults []error) {
	taken := make(map[string]bool, len(c.limits))
	for i := range c.limits {
		name := c.limits[i].name
		if name != "" && taken[name] {
			faults = append(faults, fmt.Errorf("WithLimit: two limits are named %q", name))
		}
		taken[name] = true
	}
	for i := range c.limits {
		l := &c.limits[i]
		for n := 2; l.name == ""; n++ {
			name := string(l.kind)
			if taken[name] {
				name = fmt.Sprintf("%s-%d", l.kind, n)
			}
			if !taken[name] {
				l.name, taken[name] = name, true
			}
		}
	}
	return faults
}
