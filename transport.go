package throttle

import (
	"net/http"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/content"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/seen"
	"github.com/httpthrottle/throttle/internal/traits"
)

// A Transport is an [http.RoundTripper] that makes each request wait until its limits allow it, or rejects it, and sends it with
// another RoundTripper. It never changes a request, reads a request body or sends a request twice. It is safe for concurrent use,
// runs no background goroutine and need not be closed. Make one with [New].
//
// The Timeout of an http.Client includes the wait, so that a request that would wait longer is rejected immediately. To
// limit only the server's time, set the timeouts of the [http.Transport] instead.
type Transport struct {
	base  http.RoundTripper
	inner *Transport // the base, if it is a Transport; nil: it is none
	tariff
	maxWait time.Duration
	rejecter
	exempt  func(*http.Request) bool
	noHints bool
	sells   bool       // a request without overrides needs no more than the price and its order, unless its response says something
	bodies  bool       // some slot is kept until the end of the body of a response
	rooms   *sync.Pool // for the charges of requests that have many; nil: they have few

	connections connections
	user        *limiter.User
	owns        bool          // the limiter is its own, and not that of WithLimiter
	observer    *observer     // of the user
	sampler     *seen.Sampler // by pointer, because it is written while other goroutines read these fields
	readsAll    bool          // each response is read
	exempted    atomic.Uint64
	pooled      atomic.Bool // it is a member of a pool, which has to know whether a request has reached the server
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
	c.sends = true
	if err := c.validate(); err != nil {
		return nil, err
	}
	t := &Transport{
		base: base, tariff: tariff{limiter: c.limiter, key: c.key, cost: c.cost, hints: c.reader}, maxWait: c.maxWait,
		rejecter: rejecter{c.asError, c.shape}, exempt: c.exempt, noHints: c.noHints,
	}
	t.inner, _ = base.(*Transport)
	t.sampler, t.readsAll = new(seen.Sampler), c.hinted
	if t.cost == nil && len(c.weights) > 0 {
		t.cost = c.weigh
	}
	if t.owns = t.limiter == nil; t.owns {
		t.limiter = newLimiter(c)
	}
	if t.maxWait < 0 {
		t.maxWait = t.limiter.maxWait
	}
	if !slices.ContainsFunc(t.limiter.own(), func(p policy) bool { return p.key == nil }) {
		t.key = nil
	}
	if !slices.ContainsFunc(t.limiter.own(), func(p policy) bool { return !p.priced }) {
		t.cost = nil
	}
	t.byHost = t.key == nil && slices.ContainsFunc(t.limiter.own(), func(p policy) bool { return p.key == nil && p.rule.Hosted })
	t.bodies = slices.ContainsFunc(t.limiter.own(), func(p policy) bool { return p.rule.Frees && !p.untilHeaders })
	t.units = slices.ContainsFunc(t.limiter.own(), func(p policy) bool { return p.rule.Unit != "" })
	t.readsAll = t.readsAll || t.units
	if limiter.NeedsRoom(len(t.limiter.own())) {
		t.rooms = &sync.Pool{New: func() any { return new(limiter.ManyCharges) }}
	}
	t.connections.learn(base)
	t.observer = t.limiter.observer
	if c.limiter != nil {
		t.observer = t.limiter.observer.with(c.hooks, c.log)
	}
	t.user = t.observer.user()
	t.user.Flies, t.user.Alone = true, !t.owns
	t.orders = t.key != nil || t.cost != nil
	t.price = t.priceOfAll()
	t.sells = t.price != nil && t.price.IsEnough() && t.exempt == nil && t.maxWait != 0 && t.inner == nil &&
		!slices.ContainsFunc(t.limiter.own(), func(p policy) bool { return p.kind == kindInFlight && p.takesAll(1) })
	return t, nil
}

// priceOfAll returns the price of each request if its key and its cost are the same in all limits; nil: they are not.
func (t *Transport) priceOfAll() *limiter.Price {
	if t.byHost || slices.ContainsFunc(t.limiter.own(), func(p policy) bool { return p.key != nil || p.cost != nil || p.priced && t.cost != nil }) {
		return nil
	}
	return limiter.NewPrice(t.user, t.limiter.core.Limits)
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
	s := t.limiter.statsOf(t.user)
	s.Exempt = t.exempted.Load()
	return s
}

// Forecast is [Limiter.Forecast] for requests like req, with its costs, its keys, and what its server reported. The request is not sent, and
// its body is not read. Under a [Quota] or a [SlidingWindow], requests count from their responses, so the times are lower bounds.
func (t *Transport) Forecast(req *http.Request, n int) (Forecast, error) {
	t.mustBeMade()
	c := callOf(req)
	if err := checkNumber(n); err != nil || t.isExempt(&c) {
		return Forecast{}, err
	}
	r := limiter.Request{User: t.user, Context: req.Context()}
	t.tariff.charge(&c, &r, nil)
	w := r.Waiter()
	t.prepareToWait(&c, w)
	if !t.noHints {
		w.Gate = t.tariff.gateOf(&c)
	}
	f, err := t.limiter.forecast(&r, w, n)
	f.Least = f.Least || slices.ContainsFunc(t.limiter.own(), func(p policy) bool { return p.at.Answered })
	return f, err
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

// roundTrip is RoundTrip, and reports how far the request got. If a function of the user panics, the request is not sent.
//
// A goroutine that waits keeps the largest stack that it has needed, and 100,000 may wait. So arrive, which sends a request that need
// not wait, returns before another one waits, and the other steps are called one after the other instead of one by the other.
func (t *Transport) roundTrip(req *http.Request) (resp *http.Response, far reach, err error) {
	t.mustBeMade()
	c := call{req: req, overrides: overridesOf(req.Context())} // callOf is not inlined
	defer t.leave(&c)
	var asked *limiter.Asked
	switch {
	case t.sells && c.overrides == noOverrides && t.isUsual():
		asked, resp, far, err = t.sell(&c)
	case t.isExempt(&c):
		t.exempted.Add(1)
		c.at = elsewhere
		return t.sendOn(c.req)
	default:
		asked, resp, far, err = t.arrive(&c)
	}
	if asked == nil {
		return resp, far, err
	}
	w := t.waiterOf(&c, asked)
	waits, err := t.enqueue(&c, w)
	if waits {
		err = t.await(&c, w)
	}
	if err == nil {
		return t.sendWaited(&c, w)
	}
	return t.turnAway(c.req, err, w.Rejected())
}

// arrive sends a request if it can go immediately, or rejects it if it may not wait. Otherwise it returns what the request has asked for.
func (t *Transport) arrive(c *call) (asked *limiter.Asked, resp *http.Response, far reach, err error) {
	var r limiter.Request
	r.User, r.Context = t.user, c.req.Context()
	if t.rooms != nil {
		t.lend(&r)
	}
	granted, rejected := false, false
	if t.isHinted() {
		granted, rejected, err = t.payByGate(c, &r)
	} else {
		granted, rejected, err = t.pay(c, &r, nil)
	}
	switch {
	case granted:
		resp, far, err = t.send(c, &r)
	case err != nil:
		resp, far, err = t.turnAway(c.req, err, rejected)
	default:
		if !c.tries {
			asked = r.Asked()
		}
		t.takeBack(&r)
	}
	return asked, resp, far, err
}

// payByGate is pay for a request that passes a gate. The key of the gate is on the stack only meanwhile.
func (t *Transport) payByGate(c *call, r *limiter.Request) (granted, rejected bool, err error) {
	var gate quota.Key
	return t.pay(c, r, &gate)
}

// pay charges a request if it can be sent immediately. One that must never wait is rejected otherwise, unless the queue has to decide.
func (t *Transport) pay(c *call, r *limiter.Request, gate *quota.Key) (granted, rejected bool, err error) {
	t.tariff.charge(c, r, gate)
	if err = c.ended(); err != nil {
		return false, false, err
	}
	if !c.tries && c.longestWait(t.maxWait) == 0 {
		granted, err = t.limiter.core.NowOrNever(r, gate)
		return granted, err != nil, err
	}
	return t.limiter.core.Now(r, gate), false, nil
}

// sell is arrive for a request that needs no more than the price: only an error, or a response that may mean something, makes it a Request.
func (t *Transport) sell(c *call) (asked *limiter.Asked, resp *http.Response, far reach, err error) {
	order := limiter.Order{Cost: 1}
	if t.orders {
		order.Key, order.Cost = t.tariff.keyOf(c), min(t.tariff.costOf(c), meter.MaxCount)
	}
	if err = c.ended(); err != nil {
		return nil, nil, reachedNoBase, err
	}
	var paid limiter.Paid
	ok := false
	if t.orders || t.isHinted() {
		ok = t.payOrder(c, order, &paid)
	} else {
		ok = t.limiter.core.Pay(t.price, &paid)
	}
	if !ok {
		return t.price.Asked(order), nil, 0, nil
	}
	c.at = inFlight
	if t.limiter.tracks || paid.IsGated() {
		resp, far, err = t.sendSold(c, &paid)
		return nil, resp, far, err
	}
	resp, err = t.base.RoundTrip(c.req)
	switch {
	case err != nil:
		resp, far, err = t.learnSold(c, &paid, resp, err, false)
	case t.ignores(c.req, resp):
	case t.reads(c, resp, paid.At):
		resp, far, err = t.learnSold(c, &paid, resp, nil, true)
	}
	return nil, resp, far, err
}

// payOrder pays for a request with a key or a cost, or with a gate, if that can be done now. The key of the gate is on the stack only meanwhile.
func (t *Transport) payOrder(c *call, o limiter.Order, paid *limiter.Paid) bool {
	if !t.isHinted() {
		return t.limiter.core.PayOrder(t.price, o, nil, paid)
	}
	var gate quota.Key
	t.tariff.passBy(c, &gate, quota.CountsModels)
	if o.Key != "" {
		for i := range t.limiter.own() {
			gate.Join(i, o.Key)
		}
	}
	return t.limiter.core.PayOrder(t.price, o, &gate, paid)
}

// sendSold sends a request that was granted at the price, where limits or its gate need to know when it ends.
func (t *Transport) sendSold(c *call, paid *limiter.Paid) (*http.Response, reach, error) {
	done := false // the base has not panicked
	defer func() {
		if !done {
			var r limiter.Request
			t.bought(c, paid, &r)
			t.abort(&r, new(sent))
		}
	}()
	resp, err := t.base.RoundTrip(c.req)
	done = true
	read := err == nil && !t.ignores(c.req, resp) && t.reads(c, resp, paid.At)
	if err != nil || read || t.bodies && resp != nil && !content.IsEmpty(c.req, resp) || paid.IsGated() && !isDone(resp) ||
		!t.limiter.core.Land(t.price, paid) {
		return t.learnSold(c, paid, resp, err, read)
	}
	c.at = elsewhere
	return resp, reachedServer, nil
}

// learnSold is learn for a request that was granted at the price. read says whether the response is to be read.
func (t *Transport) learnSold(c *call, paid *limiter.Paid, resp *http.Response, err error, read bool) (*http.Response, reach, error) {
	var r limiter.Request
	t.bought(c, paid, &r)
	s := sent{resp: resp, err: err, host: traits.Host(c.req), read: read, tracked: t.limiter.tracks || paid.IsGated()}
	defer t.abort(&r, &s)
	if err != nil {
		s.far = t.noteError(c.req, r.At, reachedServer, err)
	}
	return t.conclude(c, &r, &s)
}

// bought makes r the request that was granted at the price.
func (t *Transport) bought(c *call, paid *limiter.Paid, r *limiter.Request) {
	if t.rooms != nil {
		t.lend(r)
	}
	r.Context = c.req.Context()
	r.Bought(t.price, paid)
}

// lend gives a request room for its charges.
func (t *Transport) lend(r *limiter.Request) { r.Use(t.rooms.Get().(*limiter.ManyCharges)) }

// takeBack takes back the room for its charges that a request was given and that nothing else has by now.
func (t *Transport) takeBack(r *limiter.Request) {
	if t.rooms == nil {
		return
	}
	if room := r.Unused(); room != nil {
		t.rooms.Put(room)
	}
}

// leave does what is left to do for a request when its RoundTrip returns or panics.
func (t *Transport) leave(c *call) {
	switch c.at {
	case unsent:
		closeBody(c.req)
	case inFlight:
		t.limiter.core.Finish(t.user)
	}
}

// isExempt reports whether no limit applies to a request.
func (t *Transport) isExempt(c *call) bool {
	return c.exempt || t.exempt != nil && t.exempt(c.req)
}

// isHinted reports whether requests pass gates before they wait.
func (t *Transport) isHinted() bool { return !t.noHints && t.limiter.core.HasHints.Load() }

// await waits until a request is granted, and lets its Receipt see that. In roundTrip, its arguments would be on the stack of what is called
// there, too.
func (t *Transport) await(c *call, w *limiter.Waiter) error {
	if c.receipt != nil {
		c.receipt.wait(queued{limiter: t.limiter, waiter: w})
	}
	//lint:ignore SA1019 http.Client sets Cancel with its Timeout
	return t.limiter.core.Await(c.req.Context(), c.req.Cancel, w)
}

// waiterOf returns a request that was not granted as one that waits.
func (t *Transport) waiterOf(c *call, asked *limiter.Asked) *limiter.Waiter {
	w := asked.Waiter()
	t.prepareToWait(c, w)
	return w
}

// prepareToWait sets how a request waits.
func (t *Transport) prepareToWait(c *call, w *limiter.Waiter) {
	w.MaxWait, w.Priority, w.Late = c.longestWait(t.maxWait), c.priority, !t.isHinted()
	if t.limiter.core.Fair != nil {
		t.limiter.setCaller(w, t.limiter.callerOf(c.overrides, c.req))
	}
}

// enqueue has a request wait, and reports whether it does.
func (t *Transport) enqueue(c *call, w *limiter.Waiter) (waits bool, err error) {
	if err := t.limiter.waitsForItself(c.req.Context(), w); err != nil {
		return false, err
	}
	t.findGate(c, w)
	return t.limiter.core.Enqueue(c.req.Context(), w)
}

// findGate sets the gate of a request that waits. Until a server has sent hints, a request that may not wait has none.
func (t *Transport) findGate(c *call, w *limiter.Waiter) {
	if !w.Late || !t.noHints && w.MaxWait != 0 {
		w.Gate = t.tariff.gateOf(c)
	}
}

// sendWaited sends a request that has waited.
func (t *Transport) sendWaited(c *call, w *limiter.Waiter) (*http.Response, reach, error) {
	r := limiter.Request{Context: c.req.Context()}
	w.Take(&r)
	return t.send(c, &r)
}

// turnAway returns the response or the error for a request that is not sent, because of a Rejection or of the end of its context.
func (t *Transport) turnAway(req *http.Request, err error, rejected bool) (*http.Response, reach, error) {
	if !rejected {
		return nil, reachedNoBase, err
	}
	resp, err := t.rejecter.reject(req, err.(*Rejection))
	return resp, reachedNoBase, err
}
