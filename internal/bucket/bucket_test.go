package bucket

import (
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/store"
)

const second = int64(time.Second)

// newLimit returns a limit at work: a token bucket of n a second, which holds as many.
func newLimit(n int64, change ...func(*Limit)) *Limit {
	li := &Limit{Rule: Rule{Name: "calls", Rate: meter.Rate{N: n, Per: time.Second}, Burst: -1, Initial: -1, Share: 1, Rated: true}, buckets: make(map[string]*Bucket)}
	for _, f := range change {
		f(li)
	}
	li.Size, li.PerSecond = li.BurstOf(li.Rate), li.Shared(li.Rate).PerSecond()
	return li
}

// bucketFor returns a new bucket of a limit, as long as it has no meter of another kind.
func (li *Limit) bucketFor(key string) *Bucket {
	r, burst := li.Terms(meter.Rate{})
	return li.bucketWith(key, meter.NewTokenBucket(0, r, burst, li.InitialOf(burst)))
}

func (li *Limit) bucketWith(key string, m meter.Meter) *Bucket {
	b := &Bucket{Limit: li, Key: key, Meter: m}
	if key == "" {
		li.Single = b
	} else {
		li.buckets[key] = b
	}
	li.NoteMeter(m)
	return b
}

func TestAShareLeavesWholeTokensAndNeverNone(t *testing.T) {
	for _, c := range []struct {
		share   float64
		n, part int64
	}{{1, 100, 100}, {.29, 100, 29}, {.5, 3, 1}, {.1, 5, 0}, {.7, 10, 7}, {1e-9, 1e9, 1}, {1, math.MaxInt64, math.MaxInt64}} {
		l := &Rule{Share: c.share}
		require.Equal(t, c.part, l.Part(c.n), "%g of %d", c.share, c.n)
		require.Equal(t, max(1, c.part), (&Rule{Share: c.share, Burst: c.n}).BurstOf(meter.Rate{N: 7, Per: 1}))
	}
}

func TestAShareOfARateIsALongerPeriodAndOfAWindowFewerTokens(t *testing.T) {
	r := meter.Rate{N: 10, Per: time.Second}
	require.Equal(t, r, (&Rule{Share: 1}).Shared(r))
	require.Equal(t, meter.Rate{N: 10, Per: 4 * time.Second}, (&Rule{Share: .25}).Shared(r))
	require.Equal(t, meter.Rate{N: 2, Per: time.Second}, (&Rule{Share: .25, Windowed: true}).Shared(r))
	require.Equal(t, r, (&Rule{Share: .25, Frees: true}).Shared(r), "the period of slots is a pause")
	most := (&Rule{Share: .5}).Shared(meter.Rate{N: math.MaxInt64, Per: math.MaxInt64})
	require.Equal(t, meter.Rate{N: meter.MaxCount, Per: time.Duration(meter.MaxPer)}, most)
}

func TestABucketIsAsLargeAsItsRateUnlessItSaysOtherwise(t *testing.T) {
	r := meter.Rate{N: 10, Per: time.Second}
	require.EqualValues(t, 10, (&Rule{Share: 1, Burst: -1}).BurstOf(r))
	require.EqualValues(t, 5, (&Rule{Share: .5, Burst: -1}).BurstOf(r))
	require.EqualValues(t, 3, (&Rule{Share: 1, Burst: 3}).BurstOf(r))
	quota := &Rule{Share: .95, Burst: -1, Counted: true, Stored: store.Pace}
	require.EqualValues(t, 19, quota.BurstOf(meter.Rate{N: 800, Per: 1}), "with 95 %, less than all")
	require.EqualValues(t, 19, quota.Budget("", meter.Rate{N: 800, Per: 1}, 19).Burst)
	require.Zero(t, (&Rule{Stored: store.Pace}).Budget("", meter.Rate{N: 800, Per: 1}, 19).Burst)
	require.EqualValues(t, 10, (&Rule{Initial: -1}).InitialOf(10))
	require.EqualValues(t, 4, (&Rule{Initial: 4}).InitialOf(10))
	require.EqualValues(t, 10, (&Rule{Initial: 40}).InitialOf(10))
	require.Zero(t, (&Rule{}).InitialOf(10))
}

func TestAKeyHasTheTermsOfItsLimitOrItsOwn(t *testing.T) {
	own := meter.Rate{N: 3, Per: time.Second}
	li := newLimit(10)
	r, burst := li.Terms(meter.Rate{})
	require.Equal(t, li.Rate, r)
	require.EqualValues(t, 10, burst)
	r, burst = li.Terms(own)
	require.Equal(t, own, r)
	require.EqualValues(t, 3, burst, "as large as its own rate")
	_, burst = newLimit(10, func(li *Limit) { li.Burst = 7 }).Terms(own)
	require.EqualValues(t, 7, burst)

	b := li.bucketFor("a")
	require.False(t, b.HasOwnRate())
	require.Equal(t, li.Rate, b.Rate())
	require.InDelta(t, 10, b.PerSecondAsSet(), 0)
	b.needs().own = own
	require.True(t, b.HasOwnRate())
	require.Equal(t, own, b.Rate())
	require.InDelta(t, 3, b.PerSecondAsSet(), 0)
	require.InDelta(t, 3, b.PerSecond(0), 0)
}

func TestNothingGoesBeforeTheEndOfAHold(t *testing.T) {
	li := newLimit(10)
	b, other := li.bucketFor("a"), li.bucketFor("b")
	require.True(t, b.IsOpen(0))
	require.EqualValues(t, 5, b.Ready(5, 0, 1))
	b.Hold(0, 2*second)
	b.Hold(0, second) // does not shorten it
	require.False(t, b.IsOpen(2*second-1))
	require.True(t, b.IsOpen(2*second))
	require.Equal(t, 2*second, b.Ready(0, 0, 1))
	require.Equal(t, 2*second, b.HeldUntil())
	require.True(t, other.IsOpen(0))
	li.held = 3 * second
	require.Equal(t, 3*second, other.Ready(0, 0, 1))
	require.Equal(t, 3*second, b.HeldUntil())
	require.Equal(t, 2*second, b.HeldAlone())
	require.Zero(t, other.HeldAlone())
	require.True(t, b.Lift(second))
	require.Equal(t, second, b.HeldAlone())
	require.False(t, b.Lift(second), "there is none any more")
	require.False(t, other.Lift(second))
}

// A holding is a meter that holds by itself.
type holding struct {
	meter.Unlimited
	until meter.Instant
}

func (h holding) HeldUntil() meter.Instant { return h.until }

func TestAMeterMayHoldToo(t *testing.T) {
	li := newLimit(1)
	b := li.bucketWith("a", holding{until: 5 * second})
	require.Equal(t, 5*second, b.HeldAlone())
	b.Hold(0, 7*second)
	require.Equal(t, 7*second, b.HeldAlone())
}

func TestABucketMattersAsLongAsItIsNotFullOrHeld(t *testing.T) {
	li := newLimit(10)
	b := li.bucketFor("a")
	must, full := b.Matters(0)
	require.Zero(t, must)
	require.Zero(t, full)
	b.Meter.Take(0, 0, 5, false)
	_, full = b.Matters(0)
	require.Equal(t, second/2, full)
	b.Hold(0, second)
	must, full = b.Matters(0)
	require.Equal(t, second, must)
	require.Equal(t, second, full)
	var o order.Order
	o.Join(&order.Waiter{At: []*order.Point{&b.point}, Costs: []int64{1}, Last: meter.Never}, 0)
	must, full = b.Matters(0)
	require.Equal(t, meter.Never, must)
	require.Equal(t, meter.Never, full)
	require.Positive(t, b.Waiting())
	require.Equal(t, 1, b.Waiting())
}

func TestWaitIsThatOfARequestBehindAllOthers(t *testing.T) {
	li := newLimit(10)
	b := li.bucketFor("")
	require.Zero(t, b.Wait(0))
	require.Zero(t, b.Waiting())
	require.Zero(t, b.Callers())
	b.Meter.Take(0, 0, 10, false)
	require.Equal(t, 100*time.Millisecond, b.Wait(0))
	var o order.Order
	for range 5 {
		o.Join(&order.Waiter{At: []*order.Point{&b.needs().point}, Costs: []int64{2}, Last: meter.Never}, 0)
		w, _ := o.Next(0)
		require.Nil(t, w)
	}
	require.Equal(t, 1100*time.Millisecond, b.Wait(0))
	require.Equal(t, 5, b.Waiting())
}

func TestCapacityIsWhatAFullBucketHas(t *testing.T) {
	li := newLimit(10)
	require.InDelta(t, 10, li.bucketFor("").Capacity(), 0)
	require.Zero(t, li.bucketWith("", meter.Unlimited{}).Capacity())
}

func TestTermsReachTheMeter(t *testing.T) {
	b := newLimit(10).bucketFor("")
	b.SetTerms(meter.Rate{N: 1, Per: time.Second}, 2, 0)
	require.EqualValues(t, 2, b.Meter.Most())
	require.Equal(t, second, b.Ready(0, 2, 1))
}

// A planner knows that a response is missing.
type planner struct {
	meter.Unlimited
	ready, plan meter.Instant
}

func (p planner) Ready(from meter.Instant, _, _ int64) meter.Instant { return max(from, p.ready) }
func (p planner) Plan(from meter.Instant, _, _ int64) meter.Instant  { return max(from, p.plan) }

func TestAPlanIsALowerBoundWhereAResponseIsMissing(t *testing.T) {
	li := newLimit(1)
	b := li.bucketWith("", planner{ready: meter.Never, plan: 3})
	require.True(t, li.Plans)
	require.EqualValues(t, 3, b.PlanFor(0, 0, 1))
	require.EqualValues(t, 5, b.PlanFor(5, 0, 1))
	require.EqualValues(t, 3, b.Soonest(3, 1), "it is not known when")
	b.Meter = planner{ready: 9, plan: 3}
	require.EqualValues(t, 9, b.Soonest(3, 1))
	b.Hold(0, 7)
	require.EqualValues(t, 7, b.PlanFor(0, 0, 1))
	b = newLimit(10).bucketFor("")
	require.Equal(t, second/10, b.PlanFor(0, 10, 1))
	require.Equal(t, meter.Never, b.PlanFor(0, 0, 11))
}

func TestWhyARequestMayNotGo(t *testing.T) {
	b := newLimit(10).bucketFor("")
	require.Equal(t, ReasonNoTokens, b.WhyRejected(second, 0))
	require.Equal(t, ReasonCost, b.WhyRejected(meter.Never, 0))
	b.Hold(0, second)
	require.Equal(t, ReasonHeld, b.WhyRejected(second, second-1))
	require.Equal(t, ReasonNoTokens, b.WhyRejected(second, second))
	gates := newLimit(1, func(li *Limit) { li.Gates = true })
	require.Equal(t, ReasonHeld, gates.bucketWith("host", meter.Unlimited{}).WhyRejected(second, second), "by a server")
}

func TestThePayerIsTheBucketItself(t *testing.T) {
	b := newLimit(10).bucketFor("a")
	p := &b.needs().point
	require.Same(t, b, Of(p))
	require.Equal(t, second/10, p.Plan(0, 10, 1))
	require.EqualValues(t, 7, p.Ready(7, 7, 10))
	require.EqualValues(t, 10, p.Most())
	require.Equal(t, second/10, p.Interval())
	require.Zero(t, newLimit(1).bucketWith("", meter.Unlimited{}).needs().point.Interval())
	fair := newLimit(1, func(li *Limit) { li.Fair, li.Wall = true, true }).bucketFor("").needs()
	require.True(t, fair.point.Fair)
	require.Equal(t, int64(time.Minute), fair.point.Recheck)
	require.Same(t, b.extra, b.needs())
}

func TestHoldsOfKeysWithoutRoomAreBounded(t *testing.T) {
	const documented = 1024 // by Limiter.Hold
	li := newLimit(1)
	for i := range documented {
		require.True(t, li.KeepHold(strconv.Itoa(i), second+int64(i), 0))
	}
	require.True(t, li.KeepHold("5", 9*second, 0), "it is there")
	require.Equal(t, 9*second, li.heldMost)
	require.False(t, li.KeepHold("one more", 10*second, 0))
	require.Equal(t, 10*second, li.takeHold("another"), "all new keys are held")
	require.Equal(t, 10*second, li.heldMost)
	require.True(t, li.KeepHold("one more", 11*second, second+100), "some are over")
	require.Len(t, li.holds, documented-101+1+1, "and that of 5")
	li.holdNew = 0
	require.Equal(t, 9*second, li.takeHold("5"))
	require.Zero(t, li.takeHold("5"), "it is taken")
}

func TestBucketsAreFoundByKey(t *testing.T) {
	li := newLimit(1)
	require.Nil(t, li.Bucket(""))
	single, a := li.bucketFor(""), li.bucketFor("a")
	require.Same(t, single, li.Bucket(""))
	require.Same(t, a, li.Bucket("a"))
	require.Nil(t, li.Bucket("b"))
}

func TestInFlightIsWhatHasNotCome(t *testing.T) {
	li := newLimit(10)
	li.Counts.Took(3)
	require.Zero(t, li.InFlight(), "that does not count")
	li.Reported = true
	require.Equal(t, 1, li.InFlight())
	li.Counts.Ended++
	require.Zero(t, li.InFlight())
	li.Frees = true
	require.Equal(t, 3, li.InFlight(), "slots")
	li.Counts.Gave(2)
	require.Equal(t, 1, li.InFlight())
}

func TestWaitsAreCountedUpToTheirBounds(t *testing.T) {
	var w WaitCounts
	for i, bound := range WaitBounds {
		w.Add(bound)
		require.EqualValues(t, min(2, i+1), w.Counts[i], "%v", bound)
		w.Add(bound + 1)
		require.EqualValues(t, 1, w.Counts[i+1])
	}
	var c Counts
	c.GrantedAfter(second)
	c.Granted, c.Undone = c.Granted+4, 2
	require.EqualValues(t, 3, c.Sent())
	require.EqualValues(t, 1, c.Delayed)
	require.Equal(t, time.Second, c.Waited)
	var of limitCounts
	of.Waited(second)
	require.EqualValues(t, 1, of.Delayed)
	require.Equal(t, time.Second, of.Waits.Sum)
}

func TestALimitKeepsItsBucketsUntilTheyAreForgotten(t *testing.T) {
	li := NewLimit(Rule{Rate: meter.Rate{N: 3, Per: time.Second}, Burst: -1, Initial: -1, Share: 1, Asks: true})
	require.Equal(t, int64(3), li.Size)
	require.InDelta(t, 3, li.PerSecond, 0)
	makes := func(r meter.Rate, burst int64) meter.Meter { return meter.NewTokenBucket(0, r, burst, burst) }
	single := li.NewBucket("", meter.Rate{}, makes)
	require.Same(t, single, li.Bucket(""))
	require.Zero(t, li.Keys())
	require.False(t, li.Keyed)

	li.KeepHold("a", 5*second, 0)
	own := meter.Rate{N: 7, Per: time.Second}
	b := li.NewBucket("a", own, makes)
	require.Equal(t, own, b.Rate())
	require.Equal(t, int64(7), b.Meter.Most())
	require.Equal(t, 5*second, b.HeldByCaller(), "the hold of its key")
	require.Zero(t, li.Release("a"), "which is the bucket's now")
	require.Nil(t, li.Bucket("a"))
	li.Keep(b)
	require.Same(t, b, li.Bucket("a"))
	require.Equal(t, []*Bucket{b}, slices.Collect(li.All()))
	require.Equal(t, 1, li.Keys())
	require.True(t, li.Keyed)
	li.Forget(b)
	require.Nil(t, li.Bucket("a"))
	require.Zero(t, li.Keys())
}

func TestARateIsRefreshedUnlessItWasAskedForSince(t *testing.T) {
	li := newLimit(3)
	li.Asks, li.Refreshed = true, 2
	b := li.bucketFor("a")
	b.needs()
	require.True(t, b.IsStale())
	own := meter.Rate{N: 7, Per: time.Second}
	require.True(t, b.Refresh(own, 2, 0))
	require.Equal(t, []any{own, int64(7), false}, []any{b.Rate(), b.Meter.Most(), b.IsStale()})
	require.False(t, b.Refresh(meter.Rate{N: 9, Per: time.Second}, 2, 0), "it was asked for since")
	require.False(t, b.Refresh(own, 3, 0), "it is no other rate")
	require.False(t, b.Refresh(meter.Rate{}, 3, 0))
	require.Equal(t, own, b.Rate())
}

func TestTheLatestHoldOfALimitIsCountedAgain(t *testing.T) {
	li := newLimit(3)
	b, other := li.bucketFor("a"), li.bucketFor("b")
	b.Hold(0, 5*second)
	other.Hold(0, 3*second)
	li.KeepHold("gone", 4*second, 0)
	li.HoldAll(2 * second)
	li.HoldAll(second)
	require.Equal(t, []meter.Instant{2 * second, 5 * second}, []meter.Instant{li.AllHeldUntil(), li.KeysHeldUntil()})
	b.Lift(second)
	li.Recount()
	require.Equal(t, 4*second, li.KeysHeldUntil())
	other.NoteHold()
	b.NoteHold()
	require.Equal(t, 4*second, li.KeysHeldUntil())
	require.Equal(t, 4*second, li.Release("gone"))
	li.ReleaseAll(second)
	require.Equal(t, second, li.AllHeldUntil())
	require.Equal(t, 3*second, other.HeldByCaller(), "that of a bucket stays")
}
