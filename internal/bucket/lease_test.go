package bucket

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

var errDown = errors.New("connection refused")

// A shop is a store for some limits, with a clock that the test sets.
type shop struct {
	testing.TB
	supply *Supply
	leases Leases
	book   *store.Book
	now    meter.Instant
}

func newShop(t testing.TB) *shop {
	terms := supply.Terms{Timeout: 250 * time.Millisecond, Grace: 3 * time.Second}
	return &shop{TB: t, supply: &Supply{Supply: &supply.Supply[*Bucket]{Terms: terms}}, book: store.NewBook(), now: second}
}

// shared makes a limit one of the shop.
func (s *shop) shared(li *Limit) {
	li.Store, li.Stored = &Sharing{Name: "me"}, store.Bucket
	li.Supply, li.Leases = s.supply, &s.leases
}

// lease returns a new bucket of a shared limit.
func (s *shop) lease(li *Limit, key string) *Bucket {
	b := &Bucket{Limit: li, Key: key}
	r, burst := li.Terms(meter.Rate{})
	b.needs().lease = li.lease(b, key, r, burst)
	b.Meter = b.lease.Meter
	if key == "" {
		li.Single = b
	} else {
		li.buckets[key] = b
	}
	li.NoteMeter(b.Meter)
	return b
}

// waits has a request wait at some buckets.
func waits(o *order.Order, now meter.Instant, cost int64, buckets ...*Bucket) *order.Waiter {
	w := &order.Waiter{Last: meter.Never}
	for _, b := range buckets {
		w.At, w.Costs = append(w.At, &b.needs().point), append(w.Costs, cost)
	}
	o.Join(w, now)
	for in, _ := o.Next(now); in != nil; in, _ = o.Next(now) {
		for i, cost := range in.Costs {
			Of(in.Point(i)).Meter.Take(now, now, cost, false)
		}
	}
	return w
}

// asks begins a call for what requests at these buckets need.
func (s *shop) asks(buckets ...*Bucket) *Call {
	s.Helper()
	for _, b := range buckets {
		_, asks := b.lease.Due(s.now, b.Demand(s.now), b.Waiting() > 0)
		require.True(s, asks)
	}
	begins, _ := s.supply.Begin(s.now)
	require.True(s, begins)
	c := &Call{Call: s.supply.Collect(s.now), Supply: s.supply}
	for n := c.Next(); n != nil; n = c.Next() {
		c.Ask(n.Of(), s.now)
	}
	require.True(s, c.Send())
	return c
}

func TestABudgetIsWhatAStoreIsToKnow(t *testing.T) {
	r := meter.Rate{N: 10, Per: time.Second}
	rule := &Rule{Name: "calls", Stored: store.Bucket, Initial: -1}
	require.Equal(t, store.Budget{Kind: store.Bucket, Limit: "calls", Key: "a", N: 10, Per: time.Second, Burst: 5, Initial: 5}, rule.Budget("a", r, 5))
	rule.Initial = 2
	require.EqualValues(t, 2, rule.Budget("a", r, 5).Initial)
	rule.Stored = store.Slots
	require.Equal(t, store.Budget{Kind: store.Slots, Limit: "calls", Key: "a", N: 5}, rule.Budget("a", r, 5))
}

func TestABucketIsMarkedOnceUntilItIsSeenTo(t *testing.T) {
	s := newShop(t)
	li := newLimit(10, s.shared)
	b := s.lease(li, "a")
	b.MarkLease()
	b.MarkLease()
	require.Equal(t, []*Bucket{b}, s.leases.marked)
	newLimit(1).bucketFor("").MarkLease() // without effect: its budget is not in a store
	require.Len(t, s.leases.marked, 1)
	require.True(t, s.leases.HasMarked())
	require.Same(t, b, s.leases.Next())
	require.False(t, s.leases.HasMarked())
	b.MarkLease()
	require.True(t, s.leases.HasMarked(), "it is marked again")
}

func TestAlarmsRingInOrder(t *testing.T) {
	s := newShop(t)
	li := newLimit(10, s.shared)
	first, at := s.leases.FirstAlarm()
	require.Nil(t, first)
	require.Equal(t, meter.Never, at)
	b, other, none := s.lease(li, "a"), s.lease(li, "b"), newLimit(1).bucketFor("")
	s.leases.SetAlarm(none, meter.Never) // without effect: its budget is not in a store
	require.Equal(t, meter.Never, s.leases.AlarmOf(none))
	s.leases.SetAlarm(b, 5)
	s.leases.SetAlarm(other, 3)
	require.Equal(t, meter.Instant(5), s.leases.AlarmOf(b))
	first, at = s.leases.FirstAlarm()
	require.Same(t, other, first)
	require.Equal(t, meter.Instant(3), at)
	s.leases.SetAlarm(other, meter.Never)
	require.Equal(t, meter.Never, s.leases.AlarmOf(other))
	first, _ = s.leases.FirstAlarm()
	require.Same(t, b, first)
}

func TestTheDemandOfABucketIsThatOfItsWaiters(t *testing.T) {
	s := newShop(t)
	b := s.lease(newLimit(10, s.shared), "")
	require.Equal(t, lease.Demand{Until: s.now}, b.Demand(s.now))
	b.lease.Wanted = 2
	require.Equal(t, lease.Demand{First: 2, All: 2, Until: s.now}, b.Demand(s.now))
	var o order.Order
	first := waits(&o, s.now, 3, b)
	waits(&o, s.now, 4, b)
	_, wants := b.wants(s.now)
	require.Same(t, first, wants)
	require.Equal(t, lease.Demand{First: 3, All: 7, Soon: 7, Next: 3, Whole: 3, Until: meter.Never - 1}, b.Demand(s.now))
	b.Hold(s.now, 3*second)
	require.Equal(t, 3*second, max(b.Demand(s.now).From, b.Ready(0, 0, 0)))
}

// Tokens are not leased for requests that another bucket stops.
func TestADemandIsWhatRequestsCanUse(t *testing.T) {
	s := newShop(t)
	b := s.lease(newLimit(10, s.shared), "")
	slow := newLimit(1).bucketFor("")
	slow.Meter.Take(0, 0, 1, false)
	slow.Meter.Take(s.now, s.now, 1, false)
	var o order.Order
	for range 5 {
		waits(&o, s.now, 1, b, slow)
	}
	d := b.Demand(s.now)
	require.Zero(t, d.First, "it would be leased for nothing")
	require.Zero(t, d.All)
	require.Equal(t, 2*second, d.From)
	for _, at := range []meter.Instant{2 * second, 60 * second} {
		d = b.Demand(at)
		require.EqualValues(t, 1, d.First)
		require.EqualValues(t, 1, d.All, "the other holds one")
	}

	b = s.lease(newLimit(10, s.shared), "")
	faster := newLimit(3).bucketFor("")
	faster.Meter.Take(s.now, s.now, 3, false)
	for range 5 {
		waits(&o, s.now, 1, b, faster)
	}
	for _, c := range []struct {
		at   meter.Instant
		want int64
	}{{s.now + second/3 + 1, 1}, {s.now + 2*second/3, 1}, {s.now + 2*second/3 + 1, 2}, {s.now + second, 3}, {s.now + 60*second, 3}} {
		require.Equal(t, c.want, b.Demand(c.at).All, "as many as the other lets go by %v", time.Duration(c.at))
	}
}

func TestBucketsOfOneStoreAreAskedForTogether(t *testing.T) {
	s := newShop(t)
	one, two := newLimit(10, s.shared), newLimit(5, s.shared)
	two.Name = "others"
	a, b, other := s.lease(one, "a"), s.lease(two, "b"), s.lease(two, "a")
	require.True(t, a.isAskedWith(b))
	require.False(t, a.isAskedWith(newLimit(1).bucketFor("")))
	require.False(t, newLimit(1).bucketFor("").isAskedWith(a))
	require.False(t, a.isAskedWith(s.anotherStore().lease(newLimit(1, s.anotherStore().shared), "")))
	s.supply.Apart = true
	require.False(t, a.isAskedWith(b))
	require.True(t, a.isAskedWith(other), "of one key")
	s.supply.Apart = false

	var o order.Order
	waits(&o, s.now, 2, a, b)
	c := s.asks(a)
	require.Equal(t, 2, c.Parts())
	require.Len(t, c.Asks, 1)
	require.Same(t, a, c.Of(0))
	require.Same(t, b, c.Of(1))
}

func (s *shop) anotherStore() *shop { return newShop(s) }

func TestAResponseOfAStorePaysWaiters(t *testing.T) {
	s := newShop(t)
	b := s.lease(newLimit(10, s.shared), "")
	var o order.Order
	w := waits(&o, s.now, 3, b)
	require.True(t, w.IsWaiting())
	c := s.asks(b)
	require.True(t, c.Return(false, s.now+1))
	require.Nil(t, c.Note(nil, s.now+1))
	for i, l := range s.book.Lease(time.Unix(0, s.now), c.Asks) {
		c.Book(i, &supply.Outcome{LeasedPart: l.Parts[0], Err: l.Err}, true, s.now+1)
		o.Touch(&b.point)
	}
	in, due := o.Next(s.now + 1)
	require.Same(t, w, in)
	require.LessOrEqual(t, due, s.now+1)
}

func TestAnOutageIsWaitedForAsLongAsItsGrace(t *testing.T) {
	s := newShop(t)
	b := s.lease(newLimit(10, s.shared), "")
	var o order.Order
	waits(&o, s.now, 3, b)
	require.Zero(t, b.BlockedUntil())
	c := s.asks(b)
	require.True(t, c.Return(false, s.now))
	require.NotNil(t, c.Note(errDown, s.now))
	c.Book(0, &supply.Outcome{Err: errDown}, false, s.now)
	until := s.now + int64(s.supply.Grace)
	require.Equal(t, until, b.BlockedUntil())
	require.Equal(t, until, b.PlanFor(s.now, 0, 1))
	b.lease.Update(until)
	require.Equal(t, supply.Shut, b.BlockedUntil())
	require.Equal(t, b.lease.Out().Again(), b.Soonest(supply.Shut, 1))
}

func TestAHoldOfASharedBucketIsOneOfAllProcesses(t *testing.T) {
	s := newShop(t)
	b := s.lease(newLimit(10, s.shared), "")
	b.Hold(s.now, s.now+second)
	require.Zero(t, b.held)
	require.Equal(t, s.now+second, b.HeldUntil())
	require.True(t, b.Lift(s.now))
	require.LessOrEqual(t, b.HeldUntil(), s.now)
	require.False(t, b.Lift(s.now))
}

func TestFewWaitersAreCheckedAgainAfterEachResponse(t *testing.T) {
	s := newShop(t)
	b := s.lease(newLimit(10, s.shared), "")
	var o order.Order
	for range maxRechecked {
		waits(&o, s.now, 1, b)
	}
	require.True(t, b.FewWait())
	waits(&o, s.now, 1, b)
	require.False(t, b.FewWait())
}
