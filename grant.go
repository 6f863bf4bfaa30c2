package throttle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/words"
)

// A Grant represents tokens taken from a Limiter.
type Grant struct {
	limiter *Limiter
	request limiter.Request
}

// deliver hands g to a caller and records it. From now on the caller frees its slots.
func (g *Grant) deliver(ctx context.Context, receipt *Receipt) {
	g.request.Context = ctx
	charges := g.request.Charges()
	for i := range charges {
		charges[i].Kept = charges[i].Limit().Frees
	}
	if receipt != nil {
		receipt.file(g.limiter, &g.request)
	}
}

// observerOf returns the observer of the Transport that a request was granted to, or of the Limiter itself.
func observerOf(r *limiter.Request) *observer { return r.User.Observer.(*observer) }

// Cancel returns the tokens of work that was never done. They are available to waiters immediately. Tokens are not returned to a
// bucket that has been full since, or to a window that has ended, because that would create tokens. A second call, and a call
// after [Grant.Report], [Grant.Done] or [Grant.Settle], has no effect.
func (g *Grant) Cancel() {
	g.limiter.core.Cancel(&g.request)
}

// Report reports to an [Adaptive] or [AdaptiveInFlight] limit the outcome of the work; the time since the grant is its latency.
// Callers that acquire from an Adaptive limit must call Report or [Grant.Cancel], because the limit bounds the number of grants
// without an outcome. Other limits ignore it. Only the first call of either method counts.
func (g *Grant) Report(o Outcome) {
	g.limiter.core.Report(&g.request, &limiter.Answer{Outcome: aimd.Outcome(o)})
}

// Done returns the slots of [InFlight] and [AdaptiveInFlight] limits when the work is done. Callers that acquire from such a limit
// must call Done or [Grant.Cancel]. A second call has no effect.
func (g *Grant) Done() {
	g.limiter.core.Free(&g.request)
}

// Settle corrects the charge in the limit of that name to the true cost, which may be 0. Overcharged tokens go back to the bucket
// immediately and may release waiters, except if the window of the charge has ended or its bucket has been full since. An undercharge is
// charged when Settle is called. Tokens that are missing then are a debt, which those that come in next pay before any request. Only a
// [CalendarWindow] forgets its debt when it ends.
//
// A debt is at most the burst of a [TokenBucket], four times the n of a window, or one minute's worth of a [Pace] (but at least n), an
// [Adaptive] limit or a [Shared] TokenBucket (but at least the burst). In a window, overcharged tokens that were returned too late to be
// used reduce the undercharges of about one period, so estimates that are right on average lose little.
//
// It is an error without effect if there is no such limit, if it is [InFlight], if nothing was charged there or the charge was
// given back, if it was settled before, or if cost is negative.
func (g *Grant) Settle(limit string, cost int64) error {
	if err := g.settle(limit, cost); err != nil {
		return fmt.Errorf("throttle: Settle(%q, %d): %w", limit, cost, err)
	}
	return nil
}

// chargeOf returns the index of the charge in the limit of that name; -1: there is none.
func (g *Grant) chargeOf(limit string) int {
	charges := g.request.Charges()
	for i := range charges { // without a copy, because another goroutine may be settling the charge
		if li := charges[i].Limit(); li.Name == limit && !li.Gates && !li.Open {
			return i
		}
	}
	return -1
}

func (g *Grant) settle(limit string, cost int64) error {
	if _, err := g.limiter.named(limit); err != nil {
		return err
	}
	i := g.chargeOf(limit)
	if i < 0 {
		return errUncharged
	}
	return g.limiter.settleCharge(&g.request, i, cost)
}

var (
	errUncharged = errors.New("nothing was charged there")
	errNegative  = errors.New("the cost is negative")
	errSlots     = errors.New("a limit of kind " + KindInFlight + " has no cost to settle")
)

// settleCharge corrects the i-th charge of a request.
func (l *Limiter) settleCharge(r *limiter.Request, i int, cost int64) error {
	e, err := l.correct(r, i, cost)
	if err == nil {
		observerOf(r).settled(e)
	}
	return err
}

// settleWith settles the i-th charge of a request, or has the report of an answer do so where that needs the lock in any case: for
// limits in units of servers. A wrong cost is ignored, as SettleFunc documents.
func (l *Limiter) settleWith(r *limiter.Request, i int, cost int64, a *limiter.Answer) {
	if r.Charges()[i].Limit().Unit == "" || cost >= 0 && !a.Settle(i, min(cost, meter.MaxCount)) {
		_ = l.settleCharge(r, i, cost)
	}
}

// saySettled calls the hook for the charges of a request that the report of its answer has settled.
func saySettled(r *limiter.Request, a *limiter.Answer) {
	if observerOf(r).hooks.OnSettle == nil {
		return
	}
	for i := range r.Charges() {
		if charged, ok := a.Settled(i); ok {
			c := &r.Charges()[i]
			observerOf(r).settled(SettleEvent{Place{r.Context, c.Limit().Name, c.Key}, charged, c.Cost})
		}
	}
}

// correct is settleCharge without a hook.
func (l *Limiter) correct(r *limiter.Request, i int, cost int64) (e SettleEvent, err error) {
	c := &r.Charges()[i]
	switch {
	case cost < 0:
		return e, errNegative
	case c.Limit().Frees:
		return e, errSlots
	}
	charged, err := l.core.Settle(r, i, min(cost, meter.MaxCount))
	return SettleEvent{Place{r.Context, c.Limit().Name, c.Key}, charged, cost}, err
}

// A Receipt records how long a request waited and what it was charged, and settles the charge. It is for SDKs that do not return
// the response. After several attempts it has the last one that a Transport or [Limiter.Wait] granted. It is safe for concurrent
// use. Each request that is in flight at the same time needs a Receipt of its own.
type Receipt struct {
	mu     sync.Mutex
	grants []*Grant // the last one of each Limiter, the latest first
	waits  []queued // of the last request that waited, at each Transport
}

// ContextWithReceipt returns a context under which requests are recorded in the Receipt.
func ContextWithReceipt(ctx context.Context) (context.Context, *Receipt) {
	r := new(Receipt)
	return with(ctx, func(o *overrides) { o.receipt = r }), r
}

// file records a request that was granted, and returns the Grant with a copy of it.
func (r *Receipt) file(l *Limiter, request *limiter.Request) *Grant {
	g := &Grant{l, *request}
	r.mu.Lock()
	defer r.mu.Unlock()
	if request.Waited == 0 { // what the attempt before has waited for there is no news
		r.waits = slices.DeleteFunc(r.waits, func(at queued) bool { return at.limiter == l })
	}
	// Grants after the last one of this Limiter belong to inner Transports, and so to the attempt before.
	before := slices.IndexFunc(r.grants, func(other *Grant) bool { return other.limiter == l })
	r.grants = append([]*Grant{g}, r.grants[before+1:]...)
	return g
}

// A queued is a request that waits at a Limiter, or has waited.
type queued struct {
	limiter *Limiter
	waiter  *limiter.Waiter
	ahead   int                                     // requests that waited before it
	quota   string                                  // of the server, that it waits for; "": none, or not known
	verdict Verdict                                 // why the server stopped it when it came
	least   func(alone time.Duration) time.Duration // see bridge.Member.Show; nil: it is in no pool
}

// wait records a request that waits. In a pool, it waits at other Limiters, too.
func (r *Receipt) wait(at queued) {
	ahead, why := at.limiter.core.Began(at.waiter)
	at.ahead, at.quota, at.verdict = ahead, why.Quota, Verdict(why.Verdict)
	r.mu.Lock()
	defer r.mu.Unlock()
	if at.least == nil || len(r.waits) > 0 && r.waits[0].waiter.Claim != at.waiter.Claim {
		r.waits = nil
	}
	r.waits = append(r.waits, at)
}

// Waiting returns what the request waits for; in a pool, at the member that is expected to send it first. It reports false if the
// request does not wait, or not yet.
func (r *Receipt) Waiting() (Waiting, bool) {
	r.mu.Lock()
	all := slices.Clone(r.waits)
	r.mu.Unlock()
	first, waits := Waiting{}, false
	for _, at := range all {
		if w, ok := at.limiter.waiting(at.waiter); ok && (!waits || !w.Due.IsZero() && (first.Due.IsZero() || w.Due.Before(first.Due))) {
			first, waits = w, true
		}
	}
	if waits && all[0].least != nil {
		now, alone := time.Now(), time.Duration(math.MaxInt64)
		if !first.Due.IsZero() {
			alone = first.Due.Sub(now)
		}
		if least := all[0].least(alone); least == math.MaxInt64 {
			first.Due, first.Least = time.Time{}, false
		} else {
			first.Due, first.Least = now.Add(least), true
		}
	}
	return first, waits
}

// A Delay is why a request has waited. It prints as one line, and is a group of attributes for package slog.
type Delay struct {
	Waited     time.Duration
	Limit, Key string  // of the bucket that was the last to let it go
	Quota      string  // of the server, where Limit is "server"; "": a hold or a pace, or it is not known
	Verdict    Verdict // why the server stopped it when it began to wait; 0: it had refused nothing, and no quota was empty
	Ahead      int     // requests that waited before it when it came; of different costs, all that waited there
	Priority   int     // see ContextWithPriority
}

// String returns why the request has waited, for people.
func (d Delay) String() string {
	b := fmt.Appendf(nil, "waited %v for limit %q", words.Rounded(d.Waited, false), d.Limit)
	if d.Quota != "" {
		b = fmt.Appendf(b, ", quota %q", d.Quota)
	}
	if d.Key != "" {
		b = fmt.Appendf(b, ", key %q", d.Key)
	}
	if d.Verdict > 0 {
		b = fmt.Appendf(b, ", %v", d.Verdict)
	}
	b = fmt.Appendf(b, ", behind %d", d.Ahead)
	if d.Priority != 0 {
		b = fmt.Appendf(b, ", at priority %d", d.Priority)
	}
	return string(b)
}

// LogValue returns a group with the attributes waited, limit, key, quota, ahead, priority and verdict.
func (d Delay) LogValue() slog.Value {
	return slog.GroupValue(slog.Duration("waited", d.Waited), slog.String("limit", d.Limit), slog.String("key", d.Key),
		slog.String("quota", d.Quota), slog.Int("ahead", d.Ahead), slog.Int("priority", d.Priority), slog.String("verdict", d.Verdict.Label()))
}

// Delay returns why the request has waited, once it does not wait any more: of the last attempt, and of several Limiters, at the last one
// where it waited. It reports false if it has not waited, or still does; see [Receipt.Waiting].
func (r *Receipt) Delay() (Delay, bool) {
	r.mu.Lock()
	all := slices.Clone(r.waits)
	r.mu.Unlock()
	for _, at := range slices.Backward(all) {
		if of, waited, ok := at.limiter.core.DelayOf(at.waiter); ok {
			return Delay{time.Duration(waited), of.Limit, of.Key, at.quota, at.verdict, at.ahead, at.waiter.Priority}, true
		}
	}
	return Delay{}, false
}

// Waited returns how long the request waited, in all Limiters together.
func (r *Receipt) Waited() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var waited time.Duration
	for _, g := range r.grants {
		waited += time.Duration(g.request.Waited)
	}
	return waited
}

// Cost returns the charge in the limit of that name: the true cost once it is settled. ok is false if nothing was charged
// there, or if it was refunded.
func (r *Receipt) Cost(limit string) (cost int64, ok bool) {
	g, i := r.find(limit)
	if g == nil {
		return 0, false
	}
	return g.limiter.core.Charged(&g.request, i)
}

// Settle settles the charge in the limit of that name, as [Grant.Settle] does, with the same errors.
func (r *Receipt) Settle(limit string, cost int64) error {
	err := errUncharged
	if g, i := r.find(limit); g != nil {
		err = g.limiter.settleCharge(&g.request, i, cost)
	}
	if err != nil {
		return fmt.Errorf("throttle: Settle(%q, %d): %w", limit, cost, err)
	}
	return nil
}

// find returns the latest Grant with a charge in the limit of that name, and the index of the charge.
func (r *Receipt) find(limit string) (*Grant, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.grants {
		if i := g.chargeOf(limit); i >= 0 {
			return g, i
		}
	}
	return nil, 0
}
