package throttle

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
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
	seed     maphash.Seed
	core     limiter.Core // beside direct, because both are written under the lock
	direct   asker        // for callers of the Limiter itself, without a Transport
}

// NewLimiter returns a Limiter with full budgets. It takes [WithLimit], [WithAdaptive], [WithMaxWait],
// [WithMaxQueue], [WithMaxKeys], [WithHooks] and [WithLogger]. The error names everything that is wrong with the options.
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
	l := &Limiter{maxWait: -1, maxQueue: c.maxQueue, maxKeys: c.maxKeys, dry: c.dry, seed: maphash.MakeSeed(), direct: asker{observer: newObserver(c.hooks, c.log)}}
	l.core.Open(c.maxQueue, c.maxKeys, c.dry)
	l.core.DeadlineAge = c.deadline
	rates := slices.ContainsFunc(c.limits, func(l Limit) bool { return l.kind.learns() && l.kind.spends() })
	slots := slices.ContainsFunc(c.limits, func(l Limit) bool { return l.kind.learns() && !l.kind.spends() })
	known := knownRate(c.limits)
	for _, described := range c.limits {
		described.beside = rates && slots
		if !described.costs() {
			described.known = known
		}
		li := l.core.Add(described.atWork(), c.key != nil || described.key != nil)
		l.policies = append(l.policies, policy{described, li, described.cost != nil || li.Frees})
		l.slots, l.tracks = l.slots || li.Frees, l.tracks || li.Tracked
	}
	l.policies = append(l.policies, policy{Limit{rule: l.core.Gate.Rule, kind: kindServer}, l.core.Gate, true})
	l.core.CallStore = func(s *bucket.Supply) { go l.callStore(s) }
	if guessing := guessingLimits(c.limits); len(guessing) > 0 {
		l.direct.observer.guesses(guessing)
	}
	return l
}

// A policy is a Limit at work in a Limiter.
type policy struct {
	Limit                // as it was made
	at     *bucket.Limit // what has become of it
	priced bool          // it says itself what requests cost
}

// own returns the policies without that of gates.
func (l *Limiter) own() []policy { return l.policies[:len(l.policies)-1] }

// policyOf returns the policy of a limit, which may be that of gates.
func (l *Limiter) policyOf(li *bucket.Limit) *policy { return &l.policies[li.Index] }

// An asker is a Transport, or the Limiter itself.
type asker struct {
	counts   bucket.Counts // guarded by the Limiter's mu
	observer *observer
}

func (l *Limiter) mustBeMade() {
	if l.core.Gate == nil {
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
	g, p, err := l.acquire(ctx, o, &ask)
	if p != nil {
		paid, r, err := l.await(ctx, p, &l.direct)
		switch {
		case r != nil:
			return nil, r
		case err != nil:
			return nil, err
		}
		g.fill(paid)
	}
	if err != nil {
		return nil, err
	}
	g.deliver(ctx, o.receipt)
	return g, nil
}

func (l *Limiter) acquire(ctx context.Context, o *overrides, ask *Ask) (*Grant, *bucket.Pending, error) {
	if err := l.check(ask); err != nil {
		return nil, nil, err
	}
	g := &Grant{limiter: l, by: &l.direct}
	if o.exempt {
		return g, nil, nil
	}
	paid := bucket.Paid{Charges: g.grant.Space(len(l.core.Limits))}
	l.charge(&paid, o, ask)
	if err := limiter.Ended(ctx, nil); err != nil {
		return nil, nil, err
	}
	if !l.core.Pass(&paid, &l.direct.counts, nil) {
		return g, bucket.Pend(paid.Charges, l.askOf(o, ask), nil), nil
	}
	if l.direct.observer.hooks.OnGrant != nil {
		l.reportGranted(ctx, &l.direct, paid.Charges, 0, nil)
	}
	g.grant.Mark = paid.Mark
	g.grant.Hold(len(paid.Charges))
	return g, nil, nil
}

// askOf returns the ask of a request that may wait.
func (l *Limiter) askOf(o *overrides, ask *Ask) bucket.Ask {
	a := o.ask(l.maxWait, &l.direct)
	if o.priority == 0 {
		a.Priority = ask.Priority
	}
	if !o.hasWait && ask.MaxWait != nil {
		a.MaxWait = max(0, *ask.MaxWait)
	}
	caller := ask.Caller
	if o.called {
		caller = o.caller
	}
	l.setCaller(&a, caller)
	return a
}

// check returns an error for each unknown limit that an Ask names.
func (l *Limiter) check(ask *Ask) error {
	if len(ask.Keys) == 0 && len(ask.Costs) == 0 {
		return nil
	}
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
	ok, err := l.passFor(ctx, &ask)
	if ok || err != nil {
		return err
	}
	p, r, err := l.await(ctx, l.pendFor(ctx, &ask), &l.direct)
	if r != nil {
		return r
	}
	if err == nil {
		l.forget(p, overridesOf(ctx).receipt)
	}
	return err
}

// passFor is pass for an Ask, and the overrides of the context.
func (l *Limiter) passFor(ctx context.Context, ask *Ask) (ok bool, err error) {
	if err := l.check(ask); err != nil {
		return false, err
	}
	o := overridesOf(ctx)
	if o.exempt {
		return true, nil
	}
	var room [3]bucket.Charge // enough for most, and little on the stack of waiters
	paid := bucket.Paid{Charges: slices.Grow(room[:0], len(l.core.Limits))}
	l.charge(&paid, o, ask)
	if l.takesSlots(&paid) {
		return false, errNoWait
	}
	if err := limiter.Ended(ctx, nil); err != nil {
		return false, err
	}
	if !l.core.Pass(&paid, &l.direct.counts, nil) {
		return false, nil
	}
	if l.direct.observer.hooks.OnGrant != nil {
		l.reportGranted(ctx, &l.direct, paid.Charges, 0, nil)
	}
	l.forgetNow(&paid, o.receipt)
	return true, nil
}

// takesSlots reports whether some charge is to be given back at the end of a request.
func (l *Limiter) takesSlots(p *bucket.Paid) bool {
	return l.slots && slices.ContainsFunc(p.Charges, func(c bucket.Charge) bool { return c.Limit.Frees })
}

// pendFor is pend for an Ask, with charges of its own that outlive those that pass was called with.
func (l *Limiter) pendFor(ctx context.Context, ask *Ask) *bucket.Pending {
	o := overridesOf(ctx)
	p := &bucket.Pending{Ask: l.askOf(o, ask)}
	p.Refusal = &p.Room
	p.Charges = make([]bucket.Charge, 0, len(l.core.Limits))
	l.charge(&p.Paid, o, ask)
	return p
}

// charge adds the charges for an Ask, and the overrides of the context. There must be room for all limits.
func (l *Limiter) charge(p *bucket.Paid, o *overrides, ask *Ask) {
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
			p.Add(li, k, c)
		}
	}
}

// Try charges every limit if it can do so immediately and no request waits for these buckets. If it cannot, wait is the time
// until it could: exact with one limit and an empty queue, otherwise a lower bound. It is math.MaxInt64 if the cost can never be
// paid, if the Ask names unknown limits, and if it costs a slot of an [InFlight] limit, because nothing would return it. Try ignores
// Ask.MaxWait.
func (l *Limiter) Try(ask Ask) (wait time.Duration, ok bool) {
	l.mustBeMade()
	if l.check(&ask) != nil {
		return math.MaxInt64, false
	}
	var room [4]bucket.Charge
	paid := bucket.Paid{Charges: slices.Grow(room[:0], len(l.core.Limits))}
	l.charge(&paid, noOverrides, &ask)
	if l.takesSlots(&paid) {
		return math.MaxInt64, false
	}
	var r bucket.Refusal
	o := l.direct.observer
	v := l.core.Try(&paid, &l.direct.counts, 0, true, &r)
	switch {
	case v == bucket.Unasked: // a bucket must be made
		return l.tryLater(paid.Charges)
	case v == bucket.Refused:
		if o.hooks.OnReject != nil || o.log != nil {
			o.rejected(context.Background(), rejected(&r), 0, false)
		}
		return max(1, r.Wait), false
	case o.hooks.OnGrant != nil:
		l.reportGranted(context.Background(), &l.direct, paid.Charges, 0, nil)
	}
	l.forgetNow(&paid, nil)
	return 0, true
}

// tryLater is Try where a bucket must be made, or a dry run pretends to wait.
func (l *Limiter) tryLater(charges []bucket.Charge) (wait time.Duration, ok bool) {
	a := bucket.Ask{Try: true, By: &l.direct.counts}
	p, r, err := l.await(context.Background(), bucket.Pend(charges, a, nil), &l.direct)
	switch {
	case err != nil:
		return math.MaxInt64, false // RateFor has an invalid rate for this key
	case r != nil:
		return max(1, r.Wait), false
	}
	l.forgetNow(p, nil)
	return 0, true
}

// await grants a request that can be paid by now or may overtake by its priority, rejects it, or makes it wait. The result
// replaces p, which is garbage while the request waits, so that a waiting request takes only a waiter and a small stack.
func (l *Limiter) await(ctx context.Context, p *bucket.Pending, by *asker) (*bucket.Paid, *Rejection, error) {
	cancel := p.Ask.Cancel
	w, r, err := l.lineUp(ctx, p, by)
	if w == nil {
		return &p.Paid, r, err
	}
	return l.waited(ctx, w, by, l.core.Await(ctx, cancel, w))
}

// lineUp is await until a request waits; without a Waiter, it was granted or rejected.
func (l *Limiter) lineUp(ctx context.Context, p *bucket.Pending, by *asker) (*limiter.Waiter, *Rejection, error) {
	w, v := l.core.Decide(ctx, p)
	for v == bucket.Unasked {
		if err := l.askRates(p); err != nil {
			return nil, nil, err
		}
		w, v = l.core.Decide(ctx, p)
	}
	if v != bucket.Waiting {
		return nil, l.decided(ctx, p, by, v), nil
	}
	if o := by.observer; o.hooks.OnWait != nil || o.log != nil {
		l.announce(ctx, o, w)
	}
	return w, nil, nil
}

// decided reports the outcome of a request that does not wait to the observer.
func (l *Limiter) decided(ctx context.Context, p *bucket.Pending, by *asker, v bucket.Verdict) *Rejection {
	if v == bucket.Granted {
		l.reportGranted(ctx, by, p.Charges, p.Pretended, p.Binding)
		return nil
	}
	r := rejected(p.Refusal)
	by.observer.rejected(ctx, r, 0, l.dry)
	if l.dry {
		p.Charges = nil // it is sent, but nothing is charged for it
		return nil
	}
	return r
}

// waited reports the fate of w to the observer.
func (l *Limiter) waited(ctx context.Context, w *limiter.Waiter, by *asker, err error) (p *bucket.Paid, r *Rejection, _ error) {
	if w.Refusal != nil {
		r = rejected(w.Refusal)
	}
	if err != nil || r != nil {
		by.observer.waited(ctx, w, r, err)
		return nil, r, err
	}
	p = w.Granted()
	l.reportGranted(ctx, by, p.Charges, p.Waited, w.Bucket())
	return p, nil, nil
}

// announce reports that w begins to wait. If a hook panics, w does not wait.
func (l *Limiter) announce(ctx context.Context, o *observer, w *limiter.Waiter) {
	returned := false
	defer func() {
		if !returned {
			l.core.Abandon(w) // its caller gets the panic
		}
	}()
	b, cost := l.core.WaitsFor(w)
	o.waits(WaitEvent{Place: placeOf(ctx, b), Cost: cost, Wait: bucket.Until(w.Due, w.Arrived)})
	returned = true
}

// fill makes g that of a request that was granted. It sets fields, because a Grant as a result would be on the stack of waiters.
func (g *Grant) fill(p *bucket.Paid) {
	g.waited, g.grant.Mark, g.grant.Caller, g.grant.More = p.Waited, p.Mark, p.Caller, p.Charges
}

// ask returns the ask of a request with that default of MaxWait, and the overrides of its context.
func (o *overrides) ask(maxWait time.Duration, by *asker) bucket.Ask {
	return bucket.Ask{Priority: o.priority, MaxWait: o.longestWait(maxWait), By: &by.counts}
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
func (l *Limiter) setCaller(a *bucket.Ask, caller string) {
	if l.core.Fair != nil {
		a.Caller, a.Weight = caller, l.policyOf(l.core.Fair).weightOf(caller)
	}
}

// askRates asks the users' RateFor for the rates of a request's charges, without the lock.
func (l *Limiter) askRates(p *bucket.Pending) (err error) {
	rates := make([]meter.Rate, len(p.Charges))
	for i := range p.Charges {
		c := &p.Charges[i]
		if rates[i], err = l.rateOf(c); err != nil {
			return fmt.Errorf("throttle: limit %q: %w", c.Limit.Name, err)
		}
	}
	p.Rates = rates
	return nil
}

// rateOf asks RateFor for the rate of a charge's bucket. The zero rate is the limit's own.
func (l *Limiter) rateOf(c *bucket.Charge) (meter.Rate, error) {
	if !c.Limit.Asks || c.Key == "" {
		return meter.Rate{}, nil
	}
	return l.policyOf(c.Limit).askRate(c.Key)
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

// reportGranted reports that a request was granted, after a wait for a bucket if it waited. If the hook panics, the charges are undone.
func (l *Limiter) reportGranted(ctx context.Context, by *asker, charges []bucket.Charge, waited time.Duration, bucket *bucket.Bucket) {
	o := by.observer
	if o.hooks.OnGrant == nil {
		return
	}
	returned := false
	defer func() {
		if !returned {
			l.core.Undo(charges, &by.counts)
		}
	}()
	e := GrantEvent{Place: Place{Context: ctx}, Waited: waited, DryRun: l.dry}
	if bucket != nil {
		e.Place = placeOf(ctx, bucket)
	}
	o.hooks.OnGrant(e)
	returned = true
}

// report reports the outcome of a request to the buckets that it was charged in, and to the hooks what that has changed.
func (l *Limiter) report(g *Grant, a *bucket.Answer) {
	n := l.core.Report(&g.grant, a, &g.by.counts)
	g.by.observer.news(g.ctx, &n)
}

// reportUngated takes a response to a request that passed no gate, because no server had sent hints when it left.
func (l *Limiter) reportUngated(ctx context.Context, key *quota.Key, m bucket.Mark, a *bucket.Answer, charges []bucket.Charge, by *asker) {
	n := l.core.ReportUngated(key, m, a, charges, &by.counts)
	by.observer.news(ctx, &n)
}

// forget records the charges of a request whose outcome will not be reported.
func (l *Limiter) forget(p *bucket.Paid, r *Receipt) {
	if r == nil && !l.tracks {
		return
	}
	g := Grant{limiter: l, by: &l.direct}
	g.fill(p)
	if g.receipt = r; r != nil {
		g.filed()
	}
	if l.tracks {
		l.report(&g, &bucket.Answer{Outcome: aimd.Ignore})
	}
}

// forgetNow is forget for a request that did not wait.
func (l *Limiter) forgetNow(p *bucket.Paid, r *Receipt) {
	if r != nil || l.tracks {
		l.forget(&bucket.Paid{Mark: p.Mark, Charges: slices.Clone(p.Charges)}, r)
	}
}

// sinceStart returns the time, on the Limiter's clock.
func (l *Limiter) sinceStart() meter.Instant { return meter.Instant(time.Since(l.core.Start)) }
