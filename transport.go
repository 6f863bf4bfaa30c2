package throttle

import (
	"hash/maphash"
	"net/http"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// A Transport is an [http.RoundTripper] that makes each request wait until its limits allow it, or rejects it, and sends it with
// another RoundTripper. It never changes a request, reads a request body or sends a request twice. It is safe for concurrent use,
// runs no background goroutine and need not be closed. Make one with [New].
//
// The Timeout of an http.Client includes the wait, so that a request that would wait longer is rejected immediately. To
// limit only the server's time, set the timeouts of the [http.Transport] instead.
type Transport struct {
	base    http.RoundTripper
	limiter *Limiter
	key     KeyFunc  // for limits without a key of their own; nil: one key for all
	cost    CostFunc // for limits without a cost of their own; nil: 1
	maxWait time.Duration
	asError bool
	shape   func(*Rejection, *http.Request) *http.Response
	exempt  func(*http.Request) bool
	hints   *headers.Reader
	noHints bool
	plain   []bucket.Charge // of each request without overrides in its context; nil: functions return keys or costs
	byHost  bool            // some limit counts requests without a key by host

	connections connections
	asker       *asker   // by pointer, because it is written while other goroutines read these fields
	sampler     *sampler // by pointer, for that reason too
	readsAll    bool     // each response is read
	exempted    atomic.Uint64
}

// New returns a Transport that sends requests with base, or with [http.DefaultTransport] if base is nil. Without limits it
// follows only what servers report. The error names everything that is wrong with the options, one fault per line.
func New(base http.RoundTripper, opts ...Option) (*Transport, error) {
	c := newConfig(opts)
	if base == nil {
		base = http.DefaultTransport
	} else if v := reflect.ValueOf(base); v.Kind() == reflect.Pointer && v.IsNil() {
		c.fault("New: the base is a nil %T; nil itself stands for http.DefaultTransport", base)
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	t := &Transport{
		base: base, limiter: c.limiter, key: c.key, cost: c.cost, maxWait: c.maxWait,
		asError: c.asError, shape: c.shape, exempt: c.exempt, hints: c.reader, noHints: c.noHints, asker: new(asker),
	}
	t.sampler, t.readsAll = new(sampler), c.hinted
	if t.cost == nil && len(c.weights) > 0 {
		t.cost = c.weigh
	}
	if t.limiter == nil {
		t.limiter = newLimiter(c)
	}
	switch {
	case c.failFast:
		t.maxWait = 0
	case t.maxWait < 0:
		t.maxWait = t.limiter.maxWait
	}
	if !slices.ContainsFunc(t.limiter.own(), func(p policy) bool { return p.key == nil }) {
		t.key = nil
	}
	if !slices.ContainsFunc(t.limiter.own(), func(p policy) bool { return !p.priced }) {
		t.cost = nil
	}
	t.byHost = t.key == nil && slices.ContainsFunc(t.limiter.own(), func(p policy) bool { return p.key == nil && p.rule.Learns })
	t.plain = t.plainCharges()
	t.connections.learn(base)
	t.asker.observer = t.limiter.direct.observer
	if c.limiter != nil {
		t.asker.observer = t.limiter.direct.observer.with(c.hooks, c.log)
	}
	return t, nil
}

// plainCharges returns what each request is charged, if no function returns keys or costs.
func (t *Transport) plainCharges() []bucket.Charge {
	policies := t.limiter.own()
	plain := bucket.Paid{Charges: make([]bucket.Charge, 0, len(policies))}
	for i := range policies {
		p := &policies[i]
		if p.key != nil || p.cost != nil || t.key != nil || t.cost != nil {
			return nil
		}
		p.chargeTo(&plain, "", 1)
	}
	return plain.Charges
}

// Must returns t, or panics if err is not nil. It is meant for package-level variables.
func Must(t *Transport, err error) *Transport {
	if err != nil {
		panic(err)
	}
	return t
}

func (t *Transport) mustBeMade() {
	if t.limiter == nil {
		panic("throttle: the zero Transport has no limits; make it with New")
	}
}

// Limiter returns the Limiter that the Transport takes tokens from.
func (t *Transport) Limiter() *Limiter {
	t.mustBeMade()
	return t.limiter
}

// Stats returns the counters of this Transport, without those of other Transports that share its Limiter.
func (t *Transport) Stats() Stats {
	t.mustBeMade()
	s := t.limiter.statsOf(&t.asker.counts)
	s.Exempt = t.exempted.Load()
	return s
}

// CloseIdleConnections calls the method of the same name of the base, if it has one.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip sends a request when the limits allow it.
//
// A rejected request gets a synthetic 429 response, or an error that is [ErrThrottled] under [WithRejectionError]. It always
// gets an error if it cannot meet the deadline of its context, or its cost can never be paid. If the context ends before the
// request is sent, the error is the context's cause, and nothing is charged. As with net/http, that is [context.Cause], and so
// [context.Canceled] only if the context was canceled without a cause: under an errgroup it is the first error of the group.
//
// While no connection to a server can be made, its requests under limits with a rate are sent one by one, at the slowest of these
// rates and at least ten a second. Other requests wait for the next attempt, and share its error if it fails.
//
// If the next RoundTripper is a Transport too, a request whose context ends while it waits there is not charged here either. If
// another RoundTripper stands between the two, the request is charged here, because the cause of a context does not show where
// the request was.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, _, err := t.roundTrip(req)
	return resp, err
}

// roundTrip is RoundTrip, and reports how far the request got. What a request needs that is granted immediately has left the stack
// before another one waits, because 100,000 requests may wait.
func (t *Transport) roundTrip(req *http.Request) (*http.Response, reach, error) {
	t.mustBeMade()
	p, resp, far, err := t.arrive(req)
	if p != nil {
		return t.sendLater(req, p)
	}
	return resp, far, err
}

// arrive sends a request if it can go immediately, or rejects it if it may not wait. Otherwise it is pending.
func (t *Transport) arrive(req *http.Request) (p *bucket.Pending, resp *http.Response, far reach, err error) {
	var some [bucket.FewCharges]bucket.Charge
	a := admission{Paid: bucket.Paid{Charges: some[:0]}}
	if most := len(t.limiter.policies); most > len(some) {
		a.Charges = make([]bucket.Charge, 0, most)
	}
	decided := false
	defer func() {
		if !decided { // a function of the user panicked, so the request is not sent
			closeBody(req)
		}
	}()
	p, r, err := t.admit(req, &a)
	decided = true
	switch {
	case p != nil:
		return p, nil, 0, nil
	case r != nil || err != nil:
		resp, err = t.turnAway(req, r, err)
		return nil, resp, reachedNoBase, err
	case a.exempt:
		resp, far, err = t.sendOn(req)
	default:
		resp, far, err = t.sendNow(req, &a)
	}
	return nil, resp, far, err
}

// An admission is what is known of a request that was granted immediately. It becomes a [Grant] only if that is needed.
type admission struct {
	bucket.Paid
	tracked bool // the Limiter needs the outcome
	exempt  bool
}

// sendNow sends a request that was granted immediately.
func (t *Transport) sendNow(req *http.Request, a *admission) (*http.Response, reach, error) {
	if a.tracked {
		var g Grant
		t.grant(&g, req, a)
		return t.exchange(req, &a.Paid, &g)
	}
	resp, far, err := t.forward(req, &a.Paid)
	if err != nil || resp != nil && t.mayHint(req, resp, a.Mark.At) {
		var g Grant
		t.grant(&g, req, a)
		t.reportUntracked(req, resp, far, err, &g)
	}
	return resp, far, err
}

// grant makes g that of a request that was granted immediately.
func (t *Transport) grant(g *Grant, req *http.Request, a *admission) {
	g.limiter, g.by, g.ctx, g.tracked = t.limiter, t.asker, req.Context(), a.tracked
	g.receipt = overridesOf(g.ctx).receipt
	g.grant.Mark = a.Mark
	g.grant.Keep(a.Charges)
}

// sendLater waits until a pending request is granted, and sends it.
func (t *Transport) sendLater(req *http.Request, p *bucket.Pending) (*http.Response, reach, error) {
	paid, r, err := t.await(req, p)
	if r != nil || err != nil {
		resp, err := t.turnAway(req, r, err)
		return resp, reachedNoBase, err
	}
	return t.sendWaited(req, paid)
}

// await is [Limiter.await] for a request. If a hook panics, the request is not sent.
func (t *Transport) await(req *http.Request, p *bucket.Pending) (paid *bucket.Paid, r *Rejection, err error) {
	done := false
	defer func() {
		if !done {
			closeBody(req)
		}
	}()
	if err := t.limiter.waitsForItself(req.Context(), p); err != nil {
		done = true
		return nil, nil, err
	}
	if p.Gate == nil && !t.noHints && p.Ask.MaxWait != 0 {
		p.Gate, p.Late = t.gateOf(req), true
	}
	paid, r, err = t.limiter.await(req.Context(), p, t.asker)
	done = true
	return paid, r, err
}

// sendWaited sends a request that has waited.
func (t *Transport) sendWaited(req *http.Request, p *bucket.Paid) (*http.Response, reach, error) {
	g := Grant{limiter: t.limiter, by: t.asker, ctx: req.Context()}
	g.fill(p)
	g.receipt = overridesOf(g.ctx).receipt
	g.tracked = g.receipt != nil
	charges := g.grant.Charges()
	for i := range charges { // no copy of a charge, which another may be settling
		g.tracked = g.tracked || charges[i].Limit.Tracked
	}
	if g.tracked {
		return t.exchange(req, p, &g)
	}
	resp, far, err := t.forward(req, p)
	if err != nil || resp != nil && t.mayHint(req, resp, g.grant.Mark.At) {
		t.reportUntracked(req, resp, far, err, &g)
	}
	return resp, far, err
}

// turnAway returns the response or the error for a request that is not sent.
func (t *Transport) turnAway(req *http.Request, r *Rejection, err error) (*http.Response, error) {
	closeBody(req)
	if r != nil {
		return t.refuse(req, r)
	}
	return nil, err
}

// closeBody closes the body of a request that is not sent, as a RoundTripper must. Nothing was read from it, so its error
// says nothing.
func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}

// admit adds the charges of req to a, and grants it immediately if it can. Otherwise the request is pending, or rejected if it may
// not wait.
func (t *Transport) admit(req *http.Request, a *admission) (*bucket.Pending, *Rejection, error) {
	ctx := req.Context()
	o := overridesOf(ctx)
	if o.exempt || t.exempt != nil && t.exempt(req) {
		t.exempted.Add(1)
		a.exempt = true
		return nil, nil, nil
	}
	l := t.limiter
	var gate *quota.Key
	host, hinted := "", !t.noHints && l.core.HasHints.Load()
	if hinted || t.byHost {
		host = ByHost(req)
	}
	if hinted {
		gate = &quota.Key{Host: host, Family: l.family(req)}
	}
	if t.plain != nil && o == noOverrides {
		a.AddAll(t.plain)
	} else {
		t.charge(o, req, &a.Paid, gate)
	}
	if t.byHost {
		a.SetHost(orNoKey(host))
	}
	//lint:ignore SA1019 http.Client sets Cancel with its Timeout
	if err := limiter.Ended(ctx, req.Cancel); err != nil {
		return nil, nil, err
	}
	var ok bool
	if gate != nil || o.longestWait(t.maxWait) != 0 {
		ok = l.core.Pass(&a.Paid, &t.asker.counts, gate)
	} else {
		var r *Rejection
		if ok, r = t.try(o, req, &a.Paid); r != nil {
			return nil, r, nil
		}
	}
	if !ok {
		return t.pend(o, req, a.Charges, gate), nil, nil
	}
	if t.asker.observer.hooks.OnGrant != nil {
		l.reportGranted(ctx, t.asker, a.Charges, 0, nil)
	}
	a.tracked = l.tracks || gate != nil || o.receipt != nil
	return nil, nil, nil
}

// charge adds what a request costs in each limit to p, and its keys to those of its gate. There must be room for all limits.
func (t *Transport) charge(o *overrides, req *http.Request, p *bucket.Paid, gate *quota.Key) {
	key, shared := t.keyOf(o, req), t.costOf(o, req)
	policies := t.limiter.own()
	for i := range policies {
		by, cost := &policies[i], shared
		if by.priced || o.costs != nil {
			cost = by.costOf(o, req, shared)
		}
		if cost == 0 && gate == nil {
			continue
		}
		key := by.keyOf(req, key)
		if cost != 0 {
			by.chargeTo(p, key, cost)
		}
		if gate != nil {
			gate.Join(i, key)
		}
	}
}

// try grants or rejects a request that may not wait. It does neither if a bucket must be made or other requests wait.
func (t *Transport) try(o *overrides, req *http.Request, p *bucket.Paid) (ok bool, r *Rejection) {
	var why bucket.Refusal
	v := t.limiter.core.Try(p, &t.asker.counts, o.priority, false, &why)
	if v == bucket.Refused {
		r = rejected(&why)
		t.asker.observer.rejected(req.Context(), r, 0, false)
	}
	return v == bucket.Granted, r
}

// pend makes a request pending that cannot be granted immediately.
func (t *Transport) pend(o *overrides, req *http.Request, charges []bucket.Charge, gate *quota.Key) *bucket.Pending {
	a := o.ask(t.maxWait, t.asker)
	if t.limiter.core.Fair != nil {
		t.limiter.setCaller(&a, t.limiter.callerOf(o, req))
	}
	//lint:ignore SA1019 http.Client sets Cancel with its Timeout
	a.Cancel = req.Cancel
	return bucket.Pend(charges, a, gate)
}

// costOf returns the cost of a request in limits without a cost of their own.
func (t *Transport) costOf(o *overrides, req *http.Request) int64 {
	switch {
	case o.hasCost:
		return o.cost
	case t.cost != nil:
		return t.cost(req)
	}
	return 1
}

// gateOf returns the gate of a request.
func (t *Transport) gateOf(req *http.Request) *quota.Key {
	g := &quota.Key{Host: ByHost(req), Family: t.limiter.family(req)}
	key := t.keyOf(overridesOf(req.Context()), req)
	policies := t.limiter.own()
	for i := range policies {
		g.Join(i, policies[i].keyOf(req, key))
	}
	return g
}

func (l *Limiter) family(req *http.Request) uint64 {
	if req.URL == nil {
		return 0
	}
	return maphash.String(l.seed, familyOf(req.URL.Path))
}

// costOf returns the cost of a request in a limit.
func (p *policy) costOf(o *overrides, req *http.Request, shared int64) int64 {
	if cost, ok := o.costFor(p.rule.Name); ok {
		return cost
	}
	switch {
	case p.cost != nil:
		return p.cost(req)
	case p.priced:
		return 1 // slot
	}
	return shared
}

// chargeTo adds a charge of the limit. Without a key, limits that learn count requests by host, because no host shows anything of
// another one; others count them together.
func (p *policy) chargeTo(paid *bucket.Paid, key string, cost int64) {
	if key == "" && p.rule.Learns {
		paid.AddByHost(p.at, cost)
	} else {
		paid.Add(p.at, key, cost)
	}
}

// keyOf returns the key of a request in limits without a key of their own; "": it has none.
func (t *Transport) keyOf(o *overrides, req *http.Request) string {
	switch {
	case o.hasKey:
		return o.key
	case t.key == nil:
		return ""
	}
	return keyBy(t.key, req)
}

// keyOf returns the key of a request in a limit.
func (p *policy) keyOf(req *http.Request, shared string) string {
	if p.key != nil {
		return keyBy(p.key, req)
	}
	return shared
}

// refuse returns what the caller gets for a rejection.
func (t *Transport) refuse(req *http.Request, r *Rejection) (*http.Response, error) {
	if t.asError || r.onlyError() {
		return nil, r
	}
	if t.shape != nil {
		return r.shaped(req, t.shape), nil
	}
	return r.Response(req), nil
}
