package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/supply"
)

// The tests of this package make a Core from rules (kit_rules_test.go) and drive it by what is in this file, as the package above it
// does.

// A driven is a Core with one User, which it observes itself. In each call of a function of its users it checks that the lock is free.
type driven struct {
	*limiter.Core
	t     testing.TB
	user  *limiter.User
	rules []rule // by index of limit
	dry   bool

	// What a test does when it is called; nil: nothing.
	onWait   func(at limiter.Place, cost int64, wait time.Duration)
	onGrant  func(at limiter.Place, waited time.Duration)
	onReject func(r *rejection)
	onCancel func(at limiter.Place)
	onStore  func(supply.Event)
}

// An option is a rule, or something else that a Core is made with.
type option interface{ applyTo(*setup) }

type setup struct {
	rules []rule
	limiter.Options
}

type setting func(*setup)

func (f setting) applyTo(s *setup) { f(s) }

func maxKeys(n int) option { return setting(func(s *setup) { s.MaxKeys = n }) }

func maxQueue(n int) option { return setting(func(s *setup) { s.MaxQueue = n }) }

func dryRun() option { return setting(func(s *setup) { s.DryRun = true }) }

// limits are several rules.
func limits(all ...rule) option {
	return setting(func(s *setup) { s.rules = append(s.rules, all...) })
}

// drive returns a Core with these rules, or one that grants everything but what is held if there are none.
func drive(t testing.TB, opts ...option) *driven {
	s := setup{Options: limiter.Options{MaxQueue: 100_000, MaxKeys: 1 << 20}}
	for _, o := range opts {
		o.applyTo(&s)
	}
	if len(s.rules) == 0 {
		s.rules = []rule{unlimited()}
	}
	l := &driven{t: t, rules: s.rules, dry: s.DryRun}
	s.Rate, s.StoreEvent = l.rateOf, l.storeChanged
	rules := make([]bucket.Rule, len(s.rules))
	for i := range rules {
		rules[i] = s.rules[i].Rule
	}
	l.Core = limiter.New(rules, s.Options)
	l.user = &limiter.User{Observer: l, Granted: true, Rejected: true}
	return l
}

// checkUnlocked fails the test if its goroutine has the lock. Others may have it for a while.
func (l *driven) checkUnlocked() {
	for range 10_000_000 {
		if l.TryLock() {
			l.Unlock()
			return
		}
		runtime.Gosched()
	}
	l.t.Error("a function of the users was called under the lock")
}

// rateOf asks the rule for the rate of a key.
func (l *driven) rateOf(li *bucket.Limit, key string) (meter.Rate, error) {
	l.checkUnlocked()
	n, per := l.rules[li.Index].rateFor(key)
	r := meter.Rate{N: n, Per: per}
	if r != (meter.Rate{}) && (n <= 0 || per <= 0) {
		return r, fmt.Errorf("the rate of %q is %d in %v", key, n, per)
	}
	return r, nil
}

func (l *driven) storeChanged(e supply.Event) {
	if l.checkUnlocked(); l.onStore != nil {
		l.onStore(e)
	}
}

func (l *driven) Waits(at limiter.Place, cost int64, wait time.Duration) {
	if l.checkUnlocked(); l.onWait != nil {
		l.onWait(at, cost, wait)
	}
}

func (l *driven) Granted(at limiter.Place, waited time.Duration) {
	if l.checkUnlocked(); l.onGrant != nil {
		l.onGrant(at, waited)
	}
}

func (l *driven) Rejected(_ context.Context, why limiter.Rejection, _ time.Duration) error {
	r := &rejection{why}
	if l.checkUnlocked(); l.onReject != nil {
		l.onReject(r)
	}
	return r
}

func (l *driven) Canceled(at limiter.Place, _ error, _ time.Duration) {
	if l.checkUnlocked(); l.onCancel != nil {
		l.onCancel(at)
	}
}

func (l *driven) Held(limiter.Place, limiter.Hold) { l.checkUnlocked() }

func (l *driven) Retuned(limiter.Place, aimd.Retune) { l.checkUnlocked() }

func (l *driven) Forgot(context.Context, string) { l.checkUnlocked() }

// A rejection is the error for a request that was rejected.
type rejection struct{ limiter.Rejection }

var errRejected = errors.New("rejected")

func (r *rejection) Error() string {
	return fmt.Sprintf("limit %q rejected a cost of %d for reason %d, for %v: %v", r.Limit.Name, r.Cost, r.Reason, r.Wait, r.Err)
}

func (r *rejection) Unwrap() []error {
	if r.Err == nil {
		return []error{errRejected}
	}
	return []error{errRejected, r.Err}
}

// An ask is what a request asks for.
type ask struct {
	Key      string
	Host     string            // instead of an empty Key, in limits that are hosted
	Cost     int64             // in each limit except slots, where it is 1; 0 stands for 1
	Keys     map[string]string // by limit, instead of Key
	Costs    map[string]int64  // by limit, instead of Cost; 0: the limit does not apply
	Caller   string
	Priority int
	MaxWait  *time.Duration // nil: no bound
}

// request returns a request that was not made yet.
func (l *driven) request(a ask) *limiter.Request {
	r := &limiter.Request{User: l.user, Context: context.Background()}
	for _, li := range l.Limits {
		key, cost := a.Key, max(1, a.Cost)
		if a.Cost < 0 {
			cost = a.Cost
		}
		if li.Frees {
			cost = 1
		}
		if k, ok := a.Keys[li.Name]; ok {
			key = k
		}
		if c, ok := a.Costs[li.Name]; ok {
			cost = c
		}
		switch {
		case cost == 0:
		case key == "" && a.Host != "" && li.Hosted:
			r.AddByHost(li, a.Host, cost)
		default:
			r.Add(li, key, cost)
		}
	}
	return r
}

// waiterFor returns a Waiter for a request that has to wait.
func (l *driven) waiterFor(r *limiter.Request, a ask) *limiter.Waiter {
	w := r.Waiter()
	w.Priority = a.Priority
	if a.MaxWait != nil {
		w.MaxWait = max(0, *a.MaxWait)
	}
	if l.Fair != nil {
		w.SetCaller(a.Caller, l.rules[l.Fair.Index].weightOf(a.Caller))
	}
	return w
}

// waiter returns a Waiter for a request that was not made yet.
func (l *driven) waiter(a ask) *limiter.Waiter { return l.waiterFor(l.request(a), a) }

// enqueue has a request wait, and reports whether it does.
func (l *driven) enqueue(ctx context.Context, w *limiter.Waiter) (waits bool) {
	waits, _ = l.Enqueue(ctx, w)
	return waits
}

// isDecided reports whether a Waiter was granted or rejected.
func isDecided(w *limiter.Waiter) bool {
	select {
	case <-w.Decided():
		return true
	default:
		return false
	}
}

func isGranted(w *limiter.Waiter) bool { return isDecided(w) && !w.Rejected() }

// dueOf returns when w was decided, or is expected to be granted.
func dueOf(l *driven, w *limiter.Waiter) meter.Instant {
	_, _, _, due, _ := l.WaitsFor(w)
	return due
}

// pass makes a request and waits until it is granted.
func (l *driven) pass(ctx context.Context, a ask) (*limiter.Request, error) {
	r := l.request(a)
	r.Context = ctx
	if err := limiter.Ended(ctx, nil); err != nil {
		return nil, err
	}
	if l.Now(r, nil) {
		return r, nil
	}
	w := l.waiterFor(r, a)
	if err := l.Acquire(ctx, w); err != nil {
		return nil, err
	}
	r = &limiter.Request{Context: ctx}
	w.Take(r)
	return r, nil
}

// acquire makes a request and waits until it is granted. Its slots are kept until they are given back.
func (l *driven) acquire(ctx context.Context, a ask) (*grant, error) {
	r, err := l.pass(ctx, a)
	if err != nil {
		return nil, err
	}
	charges := r.Charges()
	for i := range charges {
		charges[i].Kept = charges[i].Limit().Frees
	}
	return &grant{r, l}, nil
}

// wait makes a request whose outcome does not matter, and waits until it is granted.
func (l *driven) wait(ctx context.Context, a ask) error {
	r, err := l.pass(ctx, a)
	if err == nil {
		l.Report(r, &limiter.Answer{Outcome: aimd.Ignore})
	}
	return err
}

// try makes a request that does not wait, and reports an outcome that does not matter. [limiter.Core.Try] only makes it.
func (l *driven) try(a ask) (wait time.Duration, ok bool) {
	r := l.request(a)
	if wait, ok = l.Try(r); ok {
		l.Report(r, &limiter.Answer{Outcome: aimd.Ignore})
	}
	return wait, ok
}

// exchange makes a request that passes a gate once a server has sent hints, and reports the answer, as a Transport does.
func (l *driven) exchange(ctx context.Context, gate *quota.Key, a ask, answer *limiter.Answer) {
	r, at := l.request(a), gate
	r.Context = ctx
	if !l.HasHints.Load() {
		at = nil
	}
	if !l.Now(r, at) {
		w := l.waiterFor(r, a)
		w.Gate, w.Late = gate, at == nil
		if l.Acquire(ctx, w) != nil {
			return
		}
		r = &limiter.Request{Context: ctx}
		w.Take(r)
	}
	l.Report(r, answer)
	if !r.IsGated() && answer.Hints != nil && !answer.Unsent {
		l.ReportUngated(r, gate, answer)
	}
}

// A grant is a request that was granted.
type grant struct {
	*limiter.Request
	l *driven
}

func (g *grant) done() { g.l.Free(g.Request) }

func (g *grant) cancel() { g.l.Cancel(g.Request) }

func (g *grant) report(o aimd.Outcome) { g.answer(&limiter.Answer{Outcome: o}) }

func (g *grant) answer(a *limiter.Answer) { g.l.Report(g.Request, a) }

// settle corrects the cost in a limit.
func (g *grant) settle(limit string, cost int64) error {
	i := slices.IndexFunc(g.Charges(), func(c limiter.Charge) bool { return c.Limit().Name == limit })
	if i < 0 {
		return fmt.Errorf("limit %q does not apply", limit)
	}
	_, err := g.l.Settle(g.Request, i, min(cost, meter.MaxCount))
	return err
}

// limit returns the limit of that name.
func (l *driven) limit(name string) *bucket.Limit {
	for _, li := range l.Limits {
		if li.Name == name {
			return li
		}
	}
	panic("there is no limit " + name)
}

func (l *driven) setRate(limit string, n int64, per time.Duration) {
	l.SetRate(l.limit(limit), meter.Rate{N: n, Per: per})
}

func (l *driven) setBurst(limit string, n int64) {
	require.NoError(l.t, l.SetBurst(l.limit(limit), n))
}

func (l *driven) setInFlight(limit string, n int64) {
	l.SetSlots(l.limit(limit), n)
}

// refresh asks for rates again. The error has all keys without one.
func (l *driven) refresh(limit string, keys ...string) error {
	var faults []error
	l.Refresh(l.limit(limit), keys, func(err error) {
		l.checkUnlocked()
		faults = append(faults, err)
	})
	return errors.Join(faults...)
}

// hold holds a key, and returns the limits that had no room for that.
func (l *driven) hold(key string, d time.Duration) []*bucket.Limit {
	return l.Hold(key, min(int64(d), meter.MaxPer))
}

func (l *driven) holdAll(d time.Duration) { l.HoldAll(min(int64(d), meter.MaxPer)) }

// heldUntil returns when the last hold in a limit ends; 0: nothing is held.
func (l *driven) heldUntil(li *bucket.Limit) time.Duration {
	l.Lock()
	defer l.Unlock()
	if until := max(li.AllHeldUntil(), li.KeysHeldUntil()); until > l.NowLocked() {
		return time.Duration(until)
	}
	return 0
}

// counts are the counters of a Core.
type counts struct {
	bucket.Counts
	Callers, Buckets int
}

func (l *driven) counts() (c counts) {
	c.Counts, c.Callers, c.Buckets = l.Counters(nil)
	return c
}

// rejected returns how many requests were rejected, for any reason.
func (c counts) rejected() uint64 { return sum(c.Rejected[:]) }

// A view is a bucket at an instant.
type view struct {
	Limit, Key string
	Tokens     float64
	Rate       float64
	HeldUntil  time.Duration // 0: it is not held
	InFlight   int64
	Callers    int
}

// views returns the buckets that say anything.
func (l *driven) views() (all []view) {
	l.LookAtBuckets(func(b *bucket.Bucket, now meter.Instant) { all = append(all, viewOf(b, now)) }, func() bool { return true })
	return all
}

func viewOf(b *bucket.Bucket, now meter.Instant) view {
	v := view{Limit: b.Limit.Name, Key: b.Key, Tokens: b.Meter.Tokens(now), Rate: b.PerSecond(now), Callers: b.Callers()}
	if m, ok := b.Meter.(meter.Flier); ok {
		v.InFlight = m.InFlight()
	}
	if until := b.HeldUntil(); until > now {
		v.HeldUntil = time.Duration(until)
	}
	return v
}

// now returns how long the Core has been there.
func (l *driven) now() time.Duration { return time.Since(l.Start) }

// accounts returns how many accounts of servers there are.
func (l *driven) accounts() (n int) {
	l.LookAtServers(func(*quota.Account, meter.Instant) { n++ }, func() {})
	return n
}

// drain takes all tokens that a key has, and returns how many there were.
func (l *driven) drain(key string) (n int) {
	for {
		if _, ok := l.try(ask{Key: key}); !ok {
			return n
		}
		n++
	}
}

// requireRejection returns why a request was rejected.
func requireRejection(t testing.TB, err error) *rejection {
	t.Helper()
	var r *rejection
	ok := errors.As(err, &r)
	require.True(t, ok, "%v is no rejection", err)
	return r
}

// never is the wait for a grant that is impossible.
const never = time.Duration(math.MaxInt64)
