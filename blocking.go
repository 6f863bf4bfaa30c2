package throttle

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/seen"
)

// A Limiter has budgets without HTTP, for work other than HTTP requests and for several Transports that share budgets. It is safe
// for concurrent use, runs no background goroutine and need not be closed. Make one with [NewLimiter].
type Limiter struct {
	policies []policy      // of all limits, in order; the last one is that of gates
	maxWait  time.Duration // the default of asks; negative: no bound
	maxQueue int
	maxKeys  int
	dry      bool // see WithDryRun
	tracks   bool // some limit needs the outcome or the response of requests
	slots    bool // some limit is InFlight
	judges   bool // some limit has Classify
	follows  bool // some limit is settled, or given back slots, after the response
	seed     maphash.Seed
	core     *limiter.Core
	user     *limiter.User // for callers of the Limiter itself, without a Transport
	observer *observer     // of the user
}

// NewLimiter returns a Limiter with full budgets. It takes [WithLimit], [WithAdaptive], [WithAdaptiveInFlight], [WithMaxWait],
// [WithFailFast], [WithMaxQueue], [WithDeadlineOrder], [WithMaxKeys], [WithHooks] and [WithLogger]. The error names everything that is
// wrong with the options.
func NewLimiter(opts ...Option) (*Limiter, error) {
	c := newConfig(opts)
	for _, name := range c.given[ofTransport] {
		c.fault("%s is an option of New, not of NewLimiter", name)
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	l := newLimiter(c)
	l.maxWait = c.maxWait
	return l, nil
}

func newLimiter(c *config) *Limiter {
	if len(c.limits) == 0 {
		c.limits = []Limit{newLimit(kindNone, meter.MaxCount, 1, []LimitOption{Name("none")})}
	}
	l := &Limiter{maxWait: -1, maxQueue: c.maxQueue, maxKeys: c.maxKeys, dry: c.dry, seed: maphash.MakeSeed(), observer: newObserver(c)}
	l.user = l.observer.user()
	rates := slices.ContainsFunc(c.limits, func(l Limit) bool { return l.kind.learns() && l.kind.spends() })
	slots := slices.ContainsFunc(c.limits, func(l Limit) bool { return l.kind.learns() && !l.kind.spends() })
	known := knownRate(c.limits)
	rules := make([]bucket.Rule, len(c.limits))
	for i, described := range c.limits {
		described.beside = rates && slots
		if !described.costs() {
			described.known = known
		}
		r := described.atWork()
		r.Keyed = c.key != nil || described.key != nil
		rules[i] = r
		p := policy{Limit: described, priced: described.cost != nil || r.Frees}
		if described.costAt != nil {
			p.paths = seen.LookFor(len(described.costPaths))
		}
		if r.Unit != "" {
			p.names = seen.LookFor(2)
		}
		l.policies = append(l.policies, p)
		l.slots, l.tracks = l.slots || r.Frees, l.tracks || r.Tracked
		l.judges, l.follows = l.judges || described.judge != nil, l.follows || r.Frees || described.settled()
	}
	l.core = limiter.New(rules, limiter.Options{
		MaxQueue: c.maxQueue, MaxKeys: c.maxKeys, DryRun: c.dry, DeadlineAge: c.deadline, Rate: l.rateOf, StoreEvent: l.observer.storeChanged,
	})
	for i, li := range l.core.Limits {
		l.policies[i].at = li
	}
	l.policies = append(l.policies, policy{Limit: Limit{rule: l.core.Gate.Rule, kind: kindServer}, at: l.core.Gate, priced: true})
	if guessing := guessingLimits(c.limits); len(guessing) > 0 {
		l.observer.guesses(guessing)
	}
	return l
}

// A policy is a Limit at work in a Limiter.
type policy struct {
	Limit                  // as it was made
	at     *bucket.Limit   // the same limit in the core
	priced bool            // it says itself what requests cost
	paths  *seen.Sightings // of numbers at its paths; nil: it has none
	names  *seen.Sightings // of its unit, and of an estimated cost; nil: it is not in a unit of servers
}

// What the names of a policy see.
const (
	sawUnit = 1 << iota
	sawCost
)

// own returns the policies without that of gates.
func (l *Limiter) own() []policy { return l.policies[:len(l.policies)-1] }

// policyOf returns the policy of a limit, which may be that of gates.
func (l *Limiter) policyOf(li *bucket.Limit) *policy { return &l.policies[li.Index] }

// warning returns what is probably wrong with a limit, as its responses show; "": nothing.
func (p *policy) warning() string {
	var all []string
	if missing := p.paths.Missing(); missing != 0 && (p.costBy == nil || missing == p.paths.All) {
		var at []string
		for i, path := range p.costPaths {
			if missing&(1<<i) != 0 {
				at = append(at, fmt.Sprintf("%q", path))
			}
		}
		all = append(all, fmt.Sprintf("none of %d responses had a number at %s", seen.Enough, strings.Join(at, ", nor at ")))
	}
	missing := p.names.Missing()
	if missing&sawUnit != 0 {
		all = append(all, fmt.Sprintf("none of %d responses named the unit %q", seen.Enough, p.rule.Unit))
	}
	if missing&sawCost != 0 {
		all = append(all, fmt.Sprintf("each of %d requests was taken to cost 1 %s: estimate it by Cost", seen.Enough, p.rule.Unit))
	}
	return strings.Join(all, "; ")
}

func (l *Limiter) mustBeMade() {
	if l.core == nil {
		panic("throttle: the zero Limiter has no limits; make it with NewLimiter")
	}
}

// An Ask describes the tokens that [Limiter.Wait], [Limiter.Try], [Limiter.Acquire] and [Limiter.Enqueue] take. The zero Ask is one
// token of the key "" in every limit, adaptive ones included.
//
// A context may override it: [ContextWithKey] for Key, [ContextWithCost] for Cost and, by name of the limit, for Costs,
// [ContextWithCaller], [ContextWithPriority] and [ContextWithMaxWait]. [ContextWithExempt] takes no token, and
// [ContextWithReceipt] records the charge.
type Ask struct {
	Key      string            // the key under which it is counted; "" is a key like any other, and the one that a Transport without keys uses, except in adaptive limits, where it uses the host
	Cost     int64             // cost in each limit except InFlight, where it is a slot; 0 stands for 1
	Keys     map[string]string // keys by limit, instead of Key
	Costs    map[string]int64  // costs by limit, instead of Cost; 0: the limit does not apply
	Caller   string            // the caller that takes turns where a limit has FairBy; "" is one caller
	Priority int               // see ContextWithPriority
	MaxWait  *time.Duration    // the longest wait; nil: as set by WithMaxWait; 0 or less: no wait
}

// Acquire waits until all limits can be charged at one instant, and charges them. The error is a [*Rejection], the cause of a
// context that has ended (see [Limiter.Wait]), or an error that names unknown limits of the Ask.
func (l *Limiter) Acquire(ctx context.Context, ask Ask) (*Grant, error) {
	l.mustBeMade()
	o := overridesOf(ctx)
	g, w, err := l.acquire(ctx, o, &ask)
	switch {
	case err != nil:
		return nil, err
	case w != nil:
		if err := l.wait(ctx, w); err != nil {
			return nil, err
		}
		g = l.grantOf(w)
	}
	g.deliver(ctx, o.receipt)
	return g, nil
}

// acquire returns a Grant if the request is granted immediately, and otherwise the request as one that waits.
func (l *Limiter) acquire(ctx context.Context, o *overrides, ask *Ask) (*Grant, *limiter.Waiter, error) {
	g := &Grant{limiter: l, request: limiter.Request{User: l.user, Context: ctx}}
	w, err := l.enter(&g.request, o, ask, true)
	if w != nil || err != nil {
		return nil, w, err
	}
	return g, nil, nil
}

// enter grants a request if it can be granted immediately, or returns it as one that waits. returns says that something returns its slots.
func (l *Limiter) enter(r *limiter.Request, o *overrides, ask *Ask, returns bool) (*limiter.Waiter, error) {
	if err := l.charge(r, o, ask); err != nil || o.exempt {
		return nil, err
	}
	if !returns && l.slots && r.Frees() {
		return nil, errNoWait
	}
	if err := limiter.Ended(r.Context, nil); err != nil {
		return nil, err
	}
	if !l.core.Now(r, nil) {
		return l.waiter(r, o, ask), nil
	}
	return nil, nil
}

// grantOf returns the Grant of a request that has waited.
func (l *Limiter) grantOf(w *limiter.Waiter) *Grant {
	g := &Grant{limiter: l}
	w.Take(&g.request)
	return g
}

// waiter returns a request as one that waits.
func (l *Limiter) waiter(r *limiter.Request, o *overrides, ask *Ask) *limiter.Waiter {
	w := r.Waiter()
	w.MaxWait, w.Priority = o.longestWait(l.maxWait), o.priority
	if o.priority == 0 {
		w.Priority = ask.Priority
	}
	if !o.hasWait && ask.MaxWait != nil {
		w.MaxWait = max(0, *ask.MaxWait)
	}
	caller := ask.Caller
	if o.called {
		caller = o.caller
	}
	l.setCaller(w, caller)
	return w
}

// check returns an error for each unknown limit that an Ask names.
func (l *Limiter) check(ask *Ask) error {
	if len(ask.Keys) == 0 && len(ask.Costs) == 0 {
		return nil
	}
	return l.checkNames(ask)
}

func (l *Limiter) checkNames(ask *Ask) error {
	var faults []error
	for name := range ask.Keys {
		if _, err := l.named(name); err != nil {
			faults = append(faults, fmt.Errorf("Ask.Keys: %w", err))
		}
	}
	for name := range ask.Costs {
		if _, err := l.named(name); err != nil {
			faults = append(faults, fmt.Errorf("Ask.Costs: %w", err))
		}
	}
	return join("throttle", faults...)
}

func (l *Limiter) named(name string) (*bucket.Limit, error) {
	i := slices.IndexFunc(l.core.Limits, func(li *bucket.Limit) bool { return li.Name == name && !li.Open })
	if i < 0 {
		return nil, unknownLimit(name, l.core.Limits)
	}
	return l.core.Limits[i], nil
}

var errNoWait = errors.New("throttle: nothing would return the slots of InFlight: use Acquire and Grant.Done, or a cost of 0 there")

// Wait waits until all limits can be charged at one instant, and charges them. The error is a [*Rejection], the cause of a
// context that has ended, an error that names unknown limits of the Ask, or an error if the Ask costs a slot of an [InFlight] limit,
// because nothing would return it: use [Limiter.Acquire], or a cost of 0 in that limit.
//
// As with net/http, the cause of a context is [context.Cause], which is [context.Canceled] only if the context was canceled without
// a cause. Under an errgroup it is the first error of the group. To find out whether the context has ended, look at its Err.
func (l *Limiter) Wait(ctx context.Context, ask Ask) error {
	l.mustBeMade()
	w, err := l.pass(ctx, &ask)
	if w == nil {
		return err
	}
	if err := l.wait(ctx, w); err != nil {
		return err
	}
	l.forgetWaited(ctx, w)
	return nil
}

// wait waits until a request is granted.
func (l *Limiter) wait(ctx context.Context, w *limiter.Waiter) error {
	waits, err := l.core.Enqueue(ctx, w)
	if !waits {
		return err
	}
	l.show(ctx, w)
	return l.core.Await(ctx, nil, w)
}

// show lets the Receipt of a context see that a request waits.
func (l *Limiter) show(ctx context.Context, w *limiter.Waiter) {
	if receipt := overridesOf(ctx).receipt; receipt != nil {
		receipt.wait(queued{limiter: l, waiter: w})
	}
}

// pass is acquire for a request whose end nothing reports. Its frame has left the stack before the request waits.
func (l *Limiter) pass(ctx context.Context, ask *Ask) (*limiter.Waiter, error) {
	o := overridesOf(ctx)
	r := limiter.Request{User: l.user, Context: ctx}
	w, err := l.enter(&r, o, ask, false)
	if w == nil && err == nil && !o.exempt {
		l.forget(&r, o.receipt)
	}
	return w, err
}

// charge adds the charges for an Ask to a request. The overrides of its context come first.
func (l *Limiter) charge(r *limiter.Request, o *overrides, ask *Ask) error {
	if err := l.check(ask); err != nil || o.exempt {
		return err
	}
	key, cost := ask.Key, ask.Cost
	if o.hasKey {
		key = o.key
	}
	switch {
	case o.hasCost:
		cost = o.cost
	case cost == 0:
		cost = 1
	}
	for _, li := range l.core.Limits {
		k, c := key, cost
		if li.Frees {
			c = 1
		}
		if ask.Keys != nil {
			if named, ok := ask.Keys[li.Name]; ok {
				k = named
			}
		}
		if ask.Costs != nil {
			if named, ok := ask.Costs[li.Name]; ok {
				c = named
			}
		}
		if o.costs != nil {
			if named, ok := o.costFor(li.Name); ok {
				c = named
			}
		}
		if c != 0 {
			r.Add(li, k, c)
		}
	}
	return nil
}

// Try charges every limit if it can do so immediately and no request waits for these buckets. If it cannot, wait is the time
// until it could: exact with one limit and an empty queue, otherwise a lower bound. It is math.MaxInt64 if the cost can never be
// paid, if the Ask names unknown limits, and if it costs a slot of an [InFlight] limit, because nothing would return it. Try ignores
// Ask.MaxWait.
//
// Try does not wait for the store of a [Shared] limit. If the process has no tokens, it asks for some, which go back if no request uses them
// within about 100 ms. If calls are further apart than that, use [Limiter.Wait] with an [Ask.MaxWait] instead: it waits for the response.
func (l *Limiter) Try(ask Ask) (wait time.Duration, ok bool) {
	l.mustBeMade()
	r := limiter.Request{User: l.user, Context: context.Background()}
	if l.charge(&r, noOverrides, &ask) != nil || l.slots && r.Frees() {
		return math.MaxInt64, false
	}
	if wait, ok = l.core.Try(&r); ok {
		l.forget(&r, nil)
	}
	return wait, ok
}

// forget records the charges of a request whose outcome will not be reported.
func (l *Limiter) forget(r *limiter.Request, receipt *Receipt) {
	if receipt != nil {
		r = &receipt.file(l, r).request
	}
	if l.tracks {
		l.core.Report(r, &limiter.Answer{Outcome: aimd.Ignore})
	}
}

// forgetWaited is forget for a request that has waited.
func (l *Limiter) forgetWaited(ctx context.Context, w *limiter.Waiter) {
	receipt := overridesOf(ctx).receipt
	if receipt == nil && !l.tracks {
		return
	}
	var r limiter.Request
	w.Take(&r)
	r.Context = ctx
	l.forget(&r, receipt)
}

// longestWait returns how long a request may wait, given the default; negative: there is no bound.
func (o *overrides) longestWait(maxWait time.Duration) time.Duration {
	if o.hasWait {
		return o.maxWait
	}
	return maxWait
}

// callerOf returns the caller of a request.
func (l *Limiter) callerOf(o *overrides, req *http.Request) string {
	if o.called {
		return o.caller
	}
	return l.policyOf(l.core.Fair).fairBy(req)
}

// setCaller sets the caller of a request, before the lock is taken.
func (l *Limiter) setCaller(w *limiter.Waiter, caller string) {
	if l.core.Fair != nil {
		w.SetCaller(caller, l.policyOf(l.core.Fair).weightOf(caller))
	}
}

// rateOf asks RateFor for the rate of a key, which is not "", for a request.
func (l *Limiter) rateOf(li *bucket.Limit, key string) (meter.Rate, error) {
	r, err := l.policyOf(li).askRate(key)
	if err != nil {
		err = fmt.Errorf("throttle: limit %q: %w", li.Name, err)
	}
	return r, err
}

// askRate asks RateFor for the rate of a key, which is not "".
func (p *policy) askRate(key string) (meter.Rate, error) {
	n, per := p.rateFor(key)
	r := meter.Rate{N: n, Per: per}
	if r == (meter.Rate{}) {
		return r, nil
	}
	if err := p.check(r); err != nil {
		return r, join(fmt.Sprintf("RateFor(%q) = %d, %v (0, 0 keeps the limit's rate)", key, n, per), err)
	}
	return r, nil
}

// sinceStart returns the time, on the Limiter's clock.
func (l *Limiter) sinceStart() meter.Instant { return meter.Instant(time.Since(l.core.Start)) }
