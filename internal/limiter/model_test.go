package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/httpthrottle/throttle/internal/order"
)

// bounds say for how long a request may wait.
type bounds struct{ Rank, Arrived, Expiry, Deadline meter.Instant }

// A modelWaiter is a request as the model sees it.
type modelWaiter struct {
	bounds bounds
	id     int
	cost   int64
	cancel context.CancelFunc
	grant  *grant
	peak   *big.Rat // of the bucket's level, since it was granted
	nth    int      // of those granted
}

// A fate is what has become of a request, and when.
type fate struct {
	at     meter.Instant
	reason bucket.Reason // 0: granted, or its context ended
	wait   time.Duration // of a rejection
	ended  bool
}

// A model is a Limiter with one limit, by brute force.
type model struct {
	ideal  metertest.Meter
	held   meter.Instant
	since  meter.Instant  // none can have been due before: until then another was in the way
	line   []*modelWaiter // in order
	fates  map[int]fate
	grants []*modelWaiter // those that may be given back
	paid   int
	clamps int64 // the most that a request costs, of a limit with ClampCost; else 0

	tooLate meter.Late
}

func (m *model) ready(of metertest.Meter, from meter.Instant, w *modelWaiter) meter.Instant {
	return of.Ready(max(from, m.held, m.since), w.cost)
}

// run lets time pass.
func (m *model) run(until meter.Instant) {
	for len(m.line) > 0 {
		next := m.ready(m.ideal, 0, m.line[0])
		for _, w := range m.line {
			next = min(next, w.bounds.Expiry, w.bounds.Deadline)
		}
		if next > until {
			return
		}
		m.serve(next)
		for _, w := range slices.Clone(m.line) {
			switch next {
			case w.bounds.Expiry:
				m.leave(w, fate{at: next, reason: bucket.ReasonMaxWait})
			case w.bounds.Deadline:
				m.leave(w, fate{at: next, ended: true})
			}
		}
		m.serve(next)
	}
}

// serve grants what is due, as of when it was due but no more than slack ago.
func (m *model) serve(now meter.Instant) {
	for len(m.line) > 0 {
		w := m.line[0]
		due := m.ready(m.ideal, 0, w)
		if due > now {
			return
		}
		due = max(due, now-limiter.Slack)
		m.pay(w, due, now, true)
		since := max(m.since, due)
		m.leave(w, fate{at: now})
		m.since = since // a late timer was in no way
	}
}

func (m *model) leave(w *modelWaiter, f fate) {
	if w == m.line[0] {
		m.since = max(m.since, f.at)
	}
	m.line = slices.DeleteFunc(m.line, func(other *modelWaiter) bool { return other == w })
	m.fates[w.id] = f
}

func (m *model) pay(w *modelWaiter, due, now meter.Instant, waited bool) {
	m.peak(due)
	m.ideal.Pay(due, now, w.cost, waited)
	m.paid++
	w.peak, w.nth = new(big.Rat).SetInt64(-1<<62), m.paid
	m.grants = append(m.grants, w)
}

// peak notes for all that were granted how full the bucket is now, before something is taken.
func (m *model) peak(now meter.Instant) {
	if b, ok := m.ideal.(*metertest.Bucket); ok {
		for _, g := range m.grants {
			if level := b.At(now, nil); g.peak.Cmp(level) < 0 {
				g.peak = level
			}
		}
	}
}

// check says what the plan of a request comes to.
func (m *model) check(w *modelWaiter, due, now meter.Instant) (f fate, ok bool) {
	f = fate{at: now, wait: bucket.Until(due, now)}
	switch {
	case due == meter.Never:
		f.reason = bucket.ReasonCost
	case due <= w.bounds.Expiry && w.bounds.Expiry > w.bounds.Arrived && due >= w.bounds.Deadline:
		f.reason = bucket.ReasonDeadline
	case due <= w.bounds.Expiry && w.bounds.Expiry > w.bounds.Arrived:
		return f, true
	case m.held > w.bounds.Expiry:
		f.reason = bucket.ReasonHeld
	case w.bounds.Expiry == w.bounds.Arrived:
		f.reason = bucket.ReasonNoTokens
	default:
		f.reason = bucket.ReasonMaxWait
	}
	return f, false
}

// arrive grants w, rejects it, or has it wait.
func (m *model) arrive(w *modelWaiter, now meter.Instant, try bool) {
	m.clamp(w)
	plan, from := m.ideal.Clone(), now
	if len(m.line) > 0 {
		from = 0
	}
	i := 0
	for ; i < len(m.line) && w.bounds.Rank >= m.line[i].bounds.Rank; i++ {
		due := m.ready(plan, from, m.line[i])
		plan.Pay(due, due, m.line[i].cost, true)
	}
	due := max(now, m.ready(plan, from, w))
	if i == 0 && m.ready(m.ideal, from, w) <= now && (!try || len(m.line) == 0) {
		m.pay(w, now, now, false)
		m.fates[w.id] = fate{at: now}
		return
	}
	if f, ok := m.check(w, due, now); !ok {
		m.fates[w.id] = f
		return
	}
	if len(m.line) == 0 {
		m.since = now
	}
	m.line = slices.Insert(m.line, i, w)
}

// replan checks all waiters again.
func (m *model) replan(now meter.Instant) {
	for m.rejectFirst(now) {
	}
	m.serve(now)
}

// rejectFirst rejects the first waiter that is too late, and reports whether there is one. That may move others.
func (m *model) rejectFirst(now meter.Instant) bool {
	plan := m.ideal.Clone()
	for _, w := range m.line {
		due := max(now, m.ready(plan, 0, w))
		if f, ok := m.check(w, due, now); !ok {
			m.leave(w, f)
			return true
		}
		plan.Pay(due, due, w.cost, true)
	}
	return false
}

// cancelable returns a grant that can be given back as if it had never been; nil if there is none.
func (m *model) cancelable(now meter.Instant) *modelWaiter {
	b, ok := m.ideal.(*metertest.Bucket)
	for _, w := range slices.Backward(m.grants) {
		if w.grant == nil || m.paid-w.nth >= meter.MaxPeaks {
			continue
		}
		if !ok {
			return w
		}
		peak := w.peak
		if level := b.At(now, nil); peak.Cmp(level) < 0 {
			peak = level
		}
		if new(big.Rat).Add(peak, metertest.Rat(w.cost)).Cmp(b.Burst) <= 0 {
			return w
		}
	}
	return nil
}

func (m *model) giveBack(w *modelWaiter, back int64, now meter.Instant) {
	m.grants = slices.DeleteFunc(m.grants, func(other *modelWaiter) bool { return other == w })
	if back == 0 {
		return
	}
	switch b := m.ideal.(type) {
	case *metertest.Bucket:
		b.GiveBack(back)
		for _, g := range m.grants { // had w never been, there would have been more since
			g.peak = new(big.Rat).Add(g.peak, metertest.Rat(back))
		}
	case *metertest.SlidingWindow:
		b.Advance(now)
		if e := m.eventOf(w, b); e != nil { // else it no longer counts
			e.Cost -= back
			b.Advance(now)
		}
	case *metertest.FixedWindow:
		if m.fates[w.id].at >= b.Opened(now) {
			b.GiveBack(now, back)
		}
	case *metertest.Slots:
		b.Used -= back
	}
	m.since = now
	m.serve(now)
}

// overcharged notes how much of what is given back was of no use in its period.
func (m *model) overcharged(w *modelWaiter, back int64, now meter.Instant) {
	at := m.fates[w.id].at
	switch b := m.ideal.(type) {
	case *metertest.SlidingWindow:
		m.tooLate.Add(now, back, now-at, b.Per)
	case *metertest.FixedWindow:
		if at < b.Opened(now) {
			m.tooLate.Add(now, back, b.Per, b.Per)
		}
	}
}

// owe charges more for a request that was granted, but no more than leaves the bucket once its size in debt.
func (m *model) owe(w *modelWaiter, more int64, now meter.Instant) {
	m.grants = slices.DeleteFunc(m.grants, func(other *modelWaiter) bool { return other == w })
	switch b := m.ideal.(type) {
	case *metertest.Bucket:
		m.peak(now)
		b.Owe(now, more)
		m.paid++
	case *metertest.SlidingWindow:
		b.Owe(now, m.tooLate.Reduce(now, more, b.Per))
	case *metertest.FixedWindow:
		b.Owe(now, m.tooLate.Reduce(now, more, b.Per))
	}
	m.replan(now)
}

// eventOf returns what w left in the window.
func (m *model) eventOf(w *modelWaiter, b *metertest.SlidingWindow) *metertest.Event {
	for i := range b.Events {
		if e := &b.Events[i]; e.At == m.fates[w.id].at && e.Cost >= w.cost {
			return e
		}
	}
	return nil
}

// A modelRun is a Limiter beside its model.
type modelRun struct {
	*testing.T
	r       *rand.Rand
	l       *driven
	m       *model
	name    string
	key     string
	limit   meter.Rate // of keys without one of their own
	size    int64      // the same, or whatever the rate if fixed
	fixed   bool
	rateFor meter.Rate // of the key; zero: it has none
	burst   int64      // the most that a request costs
	mu      sync.Mutex
	fates   map[int]fate
	waiters map[int]*modelWaiter
	watch   watch
}

func (x *modelRun) now() meter.Instant { return meter.Instant(x.l.now()) }

// Anything that can be done is done to a Core with one limit, and the model knows to the nanosecond what becomes of each request.
func TestACoreAgreesWithItsModel(t *testing.T) {
	seeds := uint64(120)
	if testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			r := metertest.Seeded(t, seed)
			x := &modelRun{T: t, r: r, fates: make(map[int]fate), waiters: make(map[int]*modelWaiter)}
			x.make()
			for range 120 {
				x.step()
				x.compare()
			}
			for _, w := range x.m.line {
				w.cancel()
			}
			synctest.Wait()
			x.l.check()
			require.Zero(t, x.l.LineCount())
			require.Zero(t, x.l.counts().Waiting)
		})
		if t.Failed() {
			return
		}
	}
}

func (x *modelRun) rate() meter.Rate {
	return meter.Rate{N: 1 + x.r.Int64N(20), Per: time.Duration(1 + x.r.Int64N(int64(10*time.Second)))}
}

func (x *modelRun) step() {
	switch now := x.now(); x.r.IntN(20) {
	case 0, 1, 2, 3, 4, 5:
		time.Sleep(time.Duration(x.r.Int64N(1 << x.r.IntN(33))))
		synctest.Wait()
		x.m.run(x.now())
	case 6:
		x.try(now)
	case 7:
		if len(x.m.line) > 0 {
			w := x.m.line[x.r.IntN(len(x.m.line))*x.r.IntN(2)]
			w.cancel()
			x.m.leave(w, fate{at: now, ended: true})
			x.m.serve(now)
		}
	case 8:
		if _, slots := x.m.ideal.(*metertest.Slots); !slots && x.r.IntN(3) == 0 {
			x.limit = x.rate()
			x.l.setRate(x.name, x.limit.N, x.limit.Per)
			if (x.rateFor == meter.Rate{}) {
				x.follow(now)
			}
		}
	case 9:
		if x.r.IntN(3) == 0 {
			x.resize(now)
		}
		if x.key != "" && x.r.IntN(3) == 0 {
			x.refresh(now)
		}
	case 10:
		if x.r.IntN(3) == 0 {
			d := 1 + x.r.Int64N(1<<x.r.IntN(34))
			x.l.hold(x.key, time.Duration(d))
			x.m.held = max(x.m.held, now+d)
			x.m.replan(now)
		}
	case 11, 12:
		switch w := x.m.cancelable(now); {
		case w == nil:
		case x.name == "in-flight" && x.r.IntN(2) == 0:
			w.grant.done()
			x.m.giveBack(w, w.cost, now)
		case x.name == "in-flight", x.r.IntN(2) == 0:
			w.grant.cancel()
			x.m.giveBack(w, w.cost, now)
		default:
			cost := x.r.Int64N(2*w.cost + 1)
			if x.r.IntN(8) == 0 {
				cost = math.MaxInt64
			}
			require.NoError(x, w.grant.settle(x.name, cost))
			require.ErrorIs(x, w.grant.settle(x.name, 0), limiter.ErrSettled)
			w.grant.cancel() // does nothing
			if cost <= w.cost {
				x.m.overcharged(w, w.cost-cost, now)
				x.m.giveBack(w, w.cost-cost, now)
			} else {
				x.m.owe(w, min(cost, meter.MaxCount)-w.cost, now)
			}
		}
	default:
		x.arrive(now)
	}
	synctest.Wait()
}

// arrive sends a request in.
func (x *modelRun) arrive(now meter.Instant) {
	w := &modelWaiter{id: len(x.waiters), cost: 1 + x.r.Int64N(x.burst)}
	if x.r.IntN(30) == 0 {
		w.cost = x.burst + 20 // more than can ever be paid, except by a Pace
	}
	w.bounds = bounds{Arrived: now, Expiry: meter.Never, Deadline: meter.Never}
	asked := ask{Key: x.key, Cost: w.cost}
	if x.name == "in-flight" {
		asked.Costs = map[string]int64{x.name: w.cost}
	}
	if x.r.IntN(4) == 0 {
		asked.Priority = x.r.IntN(5) - 2
	}
	w.bounds.Rank = order.RankOf(now, asked.Priority)
	ctx, cancel := context.WithCancel(x.Context())
	if x.r.IntN(3) == 0 {
		w.bounds.Expiry = now + x.r.Int64N(1<<x.r.IntN(35))
		asked.MaxWait = ptr(time.Duration(w.bounds.Expiry - now))
	}
	if x.r.IntN(4) == 0 {
		w.bounds.Deadline = now + 1 + x.r.Int64N(1<<x.r.IntN(35))
		ctx, cancel = context.WithDeadline(ctx, time.Now().Add(time.Duration(w.bounds.Deadline-now)))
	}
	w.cancel = cancel
	x.enter(ctx, w, asked)
}

// enter sends a request in, and has the model do the same.
func (x *modelRun) enter(ctx context.Context, w *modelWaiter, asked ask) {
	x.waiters[w.id] = w
	go func() {
		g, err := x.l.acquire(ctx, asked)
		f := fate{at: x.now()}
		var r *rejection
		if errors.As(err, &r) {
			f.reason, f.wait = r.Reason, r.Wait
		} else {
			f.ended = err != nil
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		w.grant, x.fates[w.id] = g, f
	}()
	synctest.Wait()
	x.m.arrive(w, w.bounds.Arrived, false)
}

// try makes a request that does not wait.
func (x *modelRun) try(now meter.Instant) {
	if x.name == "in-flight" {
		return // nothing would give the slot back
	}
	w := &modelWaiter{id: len(x.waiters), cost: 1 + x.r.Int64N(x.burst), bounds: bounds{Rank: now, Arrived: now, Expiry: now, Deadline: meter.Never}}
	x.waiters[w.id] = w
	wait, ok := x.l.try(ask{Key: x.key, Cost: w.cost})
	x.m.arrive(w, now, true)
	f := x.m.fates[w.id]
	require.Equal(x, f.reason == 0, ok)
	if !ok {
		require.Equal(x, max(1, f.wait), wait)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.fates[w.id] = f
}

// compare compares the Limiter with its model.
func (x *modelRun) compare() {
	what := fmt.Sprintf("%s at %d", x.name, x.now())
	x.compareFates(what)
	waiting := make([]int, 0, len(x.m.line))
	for _, w := range x.m.line {
		waiting = append(waiting, w.id)
	}
	require.Equal(x, len(waiting), x.l.counts().Waiting, "%s: waiting are %v", what, waiting)
	x.compareBalance(what)
	x.watch.look(x.l)
	x.l.check()
}

func (x *modelRun) compareFates(what string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, want := range x.m.fates {
		got, ok := x.fates[id]
		require.True(x, ok, "%s: request %d still waits: %+v", what, id, want)
		if want.reason == bucket.ReasonMaxWait && want.wait == 0 {
			want.wait = got.wait // its MaxWait ended in the queue
		}
		require.Equal(x, want, got, "%s: request %d, %+v", what, id, x.waiters[id].bounds)
	}
	require.Len(x, x.fates, len(x.m.fates), "%s: requests are decided that wait in the model", what)
}

func (x *modelRun) compareBalance(what string) {
	kept := x.bucket()
	switch b := x.m.ideal.(type) {
	case *metertest.Bucket:
		if kept == nil {
			require.Zero(x, b.At(max(b.Last, x.now()), nil).Cmp(b.Burst), "%s: it was forgotten", what)
			return
		}
		real := kept.Meter.(*meter.TokenBucket)
		level, last := levelOf(real), real.AsOf()
		require.Zero(x, b.At(max(b.Last, last), nil).Cmp(maxLevel(real, level, last, max(b.Last, last))), "%s: level", what)
	case *metertest.Slots:
		require.Equal(x, b.Used, kept.Meter.(*meter.Slots).InFlight(), "%s: slots", what)
	}
}

// maxLevel returns the level of a real bucket moved on to t.
func maxLevel(b *meter.TokenBucket, level *big.Rat, last, t meter.Instant) *big.Rat {
	m := metertest.Bucket{Rate: b.Rate(), Burst: metertest.Rat(b.Burst()), Level: level, Last: last}
	return m.At(t, nil)
}

// levelOf returns the balance of a bucket in tokens, exactly.
func levelOf(b *meter.TokenBucket) *big.Rat {
	hi, lo := b.Level()
	units := new(big.Int).Lsh(big.NewInt(hi), 64)
	return new(big.Rat).SetFrac(units.Add(units, new(big.Int).SetUint64(lo)), big.NewInt(int64(b.Rate().Per)))
}
