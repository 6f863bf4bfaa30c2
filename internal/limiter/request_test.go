package limiter

import (
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

const second = int64(time.Second)

// newLimit returns a limit at work: a token bucket of n a second, which holds as many.
func newLimit(n int64, change ...func(*bucket.Limit)) *bucket.Limit {
	li := bucket.NewLimit(bucket.Rule{Name: "calls", Rate: meter.Rate{N: n, Per: time.Second}, Burst: -1, Initial: -1, Share: 1, Rated: true})
	for _, f := range change {
		f(li)
	}
	return li
}

// bucketFor returns a new bucket of a limit.
func bucketFor(li *bucket.Limit, key string) *bucket.Bucket {
	return bucketWith(li, key, meter.NewTokenBucket(0, li.Rate, li.Size, li.Size))
}

func bucketWith(li *bucket.Limit, key string, m meter.Meter) *bucket.Bucket {
	b := li.NewBucket(key, meter.Rate{}, func(meter.Rate, int64) meter.Meter { return m })
	if key != "" {
		li.Keep(b)
	}
	return b
}

// charged returns a request of a cost in a bucket of each limit.
func charged(cost int64, limits ...*bucket.Limit) *Request {
	r := new(Request)
	for _, li := range limits {
		if li.Single == nil {
			bucketFor(li, "")
		}
		r.Add(li, "", cost)
	}
	return r
}

func TestChargesFindTheirBuckets(t *testing.T) {
	li, gates := newLimit(10), newLimit(1, func(li *bucket.Limit) { li.Gates = true })
	single, a := bucketFor(li, ""), bucketFor(li, "a")
	gate := bucketWith(gates, "host", meter.Unlimited{})
	var r Request
	r.Add(li, "", math.MaxInt64)
	r.Add(li, "a", 2)
	r.Add(li, "none", 2)
	r.addGate(gate)
	charges := r.Charges()
	require.Equal(t, meter.MaxCount, charges[0].Cost)
	for i, b := range []*bucket.Bucket{single, a, nil, gate} {
		require.Equal(t, b != nil, charges[i].find())
		require.Equal(t, b != nil, charges[i].isFound())
		if b == nil {
			b = single
		}
		require.Same(t, b, charges[i].Bucket)
	}
	var other Request
	other.AddAll(charges)
	require.Equal(t, r, other)
}

func TestAllChargesArePayableOrNone(t *testing.T) {
	one, two := newLimit(10), newLimit(5)
	charges := charged(5, one, two).Charges()
	ok, missing := payable(charges, 0)
	require.True(t, ok)
	require.False(t, missing)
	two.Single.Meter.Take(0, 0, 1, false)
	ok, missing = payable(charges, 0)
	require.False(t, ok)
	require.False(t, missing)
	ok, _ = payable(charges, second/5)
	require.True(t, ok)
	one.Single.Hold(0, second)
	ok, _ = payable(charges, second/5)
	require.False(t, ok)
	charges[0].Key = "none"
	_, missing = payable(charges, second)
	require.True(t, missing)
	require.False(t, (&Charge{Cost: -1, Bucket: two.Single}).passes(0))
}

func TestCostsAreClampedWhereTheLimitSaysSo(t *testing.T) {
	one, two := newLimit(10), newLimit(5, func(li *bucket.Limit) { li.Clamps = true })
	charges := charged(20, one, two).Charges()
	require.True(t, clamp(charges))
	require.EqualValues(t, 20, charges[0].Cost)
	require.EqualValues(t, 5, charges[1].Cost)
	require.False(t, clamp(charges))
}

// What was clamped can be paid some time, and no other cost is changed: also where the size is another one by then.
func TestAClampedCostCanBePaid(t *testing.T) {
	for seed := range uint64(300) {
		r := metertest.Seeded(t, seed)
		var limits []*bucket.Limit
		var req Request
		for range 1 + r.IntN(4) {
			li := newLimit(1+r.Int64N(20), func(li *bucket.Limit) { li.Clamps = r.IntN(2) == 0 })
			b := bucketFor(li, "")
			b.SetTerms(li.Rate, 1+r.Int64N(20), 0)
			req.Add(li, "", r.Int64N(40))
			limits = append(limits, li)
		}
		charges := req.Charges()
		was, some := slices.Clone(charges), false
		clamped := clamp(charges)
		for i, c := range charges {
			most := limits[i].Single.Meter.Most()
			over := was[i].Cost > most
			some = some || over && c.Limit().Clamps
			switch {
			case over && c.Limit().Clamps:
				require.Equal(t, most, c.Cost)
				require.Less(t, c.Bucket.Ready(0, 0, c.Cost), meter.Never)
			default:
				require.Equal(t, was[i].Cost, c.Cost)
				require.Equal(t, over, c.Bucket.Ready(0, 0, c.Cost) == meter.Never)
			}
		}
		require.Equal(t, some, clamped)
	}
}

func TestAChargeThatCannotBeMade(t *testing.T) {
	charges := charged(1, newLimit(1), newLimit(1)).Charges()
	reason, c, _ := unpayable(charges, nil, 0)
	require.Zero(t, reason)
	require.Nil(t, c)
	charges[1].Cost = -1
	reason, c, due := unpayable(charges, nil, 0)
	require.Equal(t, bucket.ReasonCost, reason)
	require.Same(t, &charges[1], c)
	require.Equal(t, meter.Never, due)
	reason, c, due = unpayable(charges, &charges[0], 7)
	require.Equal(t, bucket.ReasonKeys, reason)
	require.Same(t, &charges[0], c)
	require.Equal(t, 7+int64(sweepEvery), due)
}

// A request takes memory of its own only for many charges, and a gate that is taken back leaves nothing.
func TestARequestHasRoomForItsCharges(t *testing.T) {
	gate := bucketWith(newLimit(1, func(li *bucket.Limit) { li.Gates = true }), "host", meter.Unlimited{})
	for n := range 2*fewCharges + 3 {
		var limits []*bucket.Limit
		for range n {
			limits = append(limits, newLimit(10))
		}
		r := charged(3, limits...)
		require.Equal(t, n > fewCharges, r.many != nil)
		before := slices.Clone(r.Charges())
		r.addGate(gate)
		require.Len(t, r.Charges(), n+1)
		require.Same(t, gate, r.Charges()[n].Bucket)
		r.dropGate()
		require.Equal(t, before, slices.Clone(r.Charges()))
		copied := new(Request)
		copied.AddAll(r.Charges())
		require.Equal(t, before, slices.Clone(copied.Charges()))
		for i, li := range limits {
			require.Same(t, li, copied.Charges()[i].Limit())
		}
	}
}

func TestCallsCountOnceForARequest(t *testing.T) {
	var r Request
	require.True(t, r.first(wasFreed))
	require.False(t, r.first(wasFreed))
	require.True(t, r.first(wasReported))
	require.False(t, r.first(wasCanceled), "something was done")
}

func TestRatesAreAskedForBeforeABucketIsMade(t *testing.T) {
	li := newLimit(10, func(li *bucket.Limit) { li.Asks = true })
	bucketFor(li, "kept")
	bucketFor(li, "")
	charge := func(key string) []Charge { return []Charge{{Bucket: li.Single, Key: key}} }
	require.False(t, isUnrated(charge("kept"), false, 0))
	require.False(t, isUnrated(charge(""), false, 0))
	require.True(t, isUnrated(charge("new"), false, 0))
	require.False(t, isUnrated(charge("new"), true, 0))
	li.Refreshed = 1
	require.True(t, isUnrated(charge("new"), true, 0), "as of an earlier Refresh")
	require.False(t, isUnrated(charge("new"), true, 1))
	rates := []meter.Rate{{N: 1, Per: time.Second}}
	require.Equal(t, rates[0], rateAt(rates, 0))
	require.Zero(t, rateAt(rates, 1))
}

func TestAWaiterHasItsOwnCharges(t *testing.T) {
	r := charged(3, newLimit(10))
	w := r.Waiter()
	r.Charges()[0].Cost = 9
	require.EqualValues(t, 3, w.charges[0].Cost)
	require.Negative(t, w.MaxWait)
}

// entered returns a request as the order of waiters has it, which waits until last at most.
func entered(r *Request, last meter.Instant) *Waiter {
	w := r.Waiter()
	w.SetCaller("me", 3)
	w.expiry, w.deadline = last, meter.Never
	w.enter()
	return w
}

func TestAWaiterKnowsItsBuckets(t *testing.T) {
	one, two := newLimit(10), newLimit(1)
	gate := bucketWith(newLimit(1, func(li *bucket.Limit) { li.Gates = true }), "host", meter.Unlimited{})
	r := charged(1, one, two)
	r.addGate(gate)
	w := entered(r, meter.Never)
	require.Len(t, w.in.At, 2)
	require.Same(t, bucket.PointOf(gate), w.in.Gate)
	for i, b := range []*bucket.Bucket{one.Single, two.Single, gate} {
		require.Same(t, b, w.bucketAt(i))
	}
	require.Equal(t, meter.Never, w.in.Last)
	require.Equal(t, "me", w.in.Caller)
	require.EqualValues(t, 3, w.in.Weight)

	open := newLimit(1, func(li *bucket.Limit) { li.Open = true })
	bucketWith(open, "", meter.Unlimited{})
	r = charged(1, open)
	r.addGate(gate)
	w = entered(r, 7)
	require.Nil(t, w.in.Gate, "where nothing else is limited, a gate is a point like others")
	require.Len(t, w.in.At, 2)
	require.EqualValues(t, 7, w.in.Last)
	w.deadline = 5
	w.SetCaller("", 0)
	w.enter()
	require.EqualValues(t, 4, w.in.Last, "the last instant before its deadline")
	require.EqualValues(t, 1, w.in.Weight)
}

func TestAWaiterThatWasGrantedIsARequest(t *testing.T) {
	fair := newLimit(10, func(li *bucket.Limit) { li.Fair = true })
	asked := charged(2, fair, newLimit(10))
	w := entered(asked, meter.Never)
	var o order.Order
	o.Join(&w.in, 0)
	in, _ := o.Next(0)
	require.Same(t, &w.in, in)
	w.paid()[0], w.paid()[1] = 11, 12
	w.at, w.mark, w.served = second, Mark{At: second}, true
	var r Request
	w.Take(&r)
	require.Equal(t, second, r.Waited)
	require.Equal(t, second, r.At)
	require.Equal(t, turn{"me", 3}, r.turn())
	for i, paid := range []int64{11, 12} {
		require.Equal(t, Charge{Bucket: asked.Charges()[i].Bucket, Cost: 2, Paid: paid}, r.Charges()[i])
	}
	require.Zero(t, entered(charged(1, newLimit(1)), meter.Never).turn(), "there are no turns")

	w.ghost = new(ghost) // a dry run has granted the request when it joined the order
	r = Request{}
	w.Take(&r)
	require.Equal(t, turn{"me", 3}, r.turn())
	at, _ := r.unmade(&r.Charges()[0])
	require.Nil(t, at, "it was charged itself")
}

func TestAChargeOfAGhostIsMadeWhenThatIsGranted(t *testing.T) {
	var l Core
	asked := charged(2, newLimit(10), newLimit(10))
	w := entered(asked, meter.Never)
	c := &asked.Charges()[1]
	at, _ := asked.unmade(c)
	require.Nil(t, at, "it is not of a ghost")
	asked.ghost, w.ghost = w, new(ghost)
	at, i := asked.unmade(c)
	require.Same(t, w, at)
	require.Equal(t, 1, i)
	require.True(t, l.hearLocked(asked, c, 5, 7))
	require.True(t, l.hearLocked(asked, c, -1, 6))
	require.Equal(t, []heard{{1, 6, -1}, {1, 7, 5}}, w.ghost.heard, "in the order in which the responses come")
	var o order.Order
	o.Join(&w.in, 0)
	in, _ := o.Next(0)
	require.NotNil(t, in)
	w.paid()[1], w.verdict = 17, granted
	at, _ = asked.unmade(c)
	require.Nil(t, at)
	require.EqualValues(t, 17, c.Paid)
	require.True(t, l.hearLocked(asked, c, 6, 8), "its response is yet to come")
	w.ghost.made = 1 << 1
	require.False(t, l.hearLocked(asked, c, 6, 9), "the charge was made when the response came")
}

func TestMaxWaitIsCheckedBeforeTheDeadline(t *testing.T) {
	b := bucketFor(newLimit(10), "")
	held := bucketFor(newLimit(10), "")
	held.Hold(0, meter.Never)
	for i, c := range []struct {
		by     bounds
		due    meter.Instant
		at     *bucket.Bucket
		reason bucket.Reason
	}{
		{bounds{expiry: meter.Never, deadline: meter.Never}, 5, b, 0},
		{bounds{expiry: meter.Never, deadline: meter.Never}, meter.Never, b, bucket.ReasonCost},
		{bounds{expiry: 5, deadline: meter.Never}, 5, b, 0},
		{bounds{expiry: 5, deadline: meter.Never}, 6, b, bucket.ReasonMaxWait},
		{bounds{expiry: 5, deadline: 5}, 5, b, bucket.ReasonDeadline},
		{bounds{expiry: 5, deadline: 6}, 5, b, 0},
		{bounds{expiry: 5, deadline: 3}, 6, b, bucket.ReasonMaxWait},
		{bounds{expiry: meter.Never, deadline: 3}, 3, b, bucket.ReasonDeadline},
		{bounds{deadline: meter.Never}, 0, b, bucket.ReasonNoTokens},
		{bounds{deadline: meter.Never}, 1, b, bucket.ReasonNoTokens},
		{bounds{deadline: meter.Never}, 1, held, bucket.ReasonHeld},
		{bounds{expiry: 5, deadline: meter.Never}, 6, held, bucket.ReasonHeld},
		{bounds{deadline: meter.Never, respite: 10}, 0, b, 0},
		{bounds{deadline: meter.Never, respite: 10}, 1, b, bucket.ReasonNoTokens},
	} {
		require.Equal(t, c.reason, c.by.check(c.due, 0, c.at), "case %d", i)
	}
	require.EqualValues(t, 12, (&bounds{arrived: 2, expiry: 5, respite: 10}).last())
	require.EqualValues(t, 15, (&bounds{arrived: 2, expiry: 15, respite: 10}).last())
}

func TestARefusalHasThePatienceThatWasTooShort(t *testing.T) {
	by := bounds{arrived: 10, expiry: 110, deadline: 60}
	for reason, patience := range map[bucket.Reason]time.Duration{
		bucket.ReasonNoTokens: 100, bucket.ReasonMaxWait: 100, bucket.ReasonHeld: 100, bucket.ReasonDeadline: 50,
		bucket.ReasonQueueFull: 50, bucket.ReasonCost: 50, bucket.ReasonKeys: 50, bucket.ReasonStore: 50,
	} {
		r := by.rejection(reason, 200, 10)
		require.Equal(t, &Rejection{Reason: reason, Wait: 190, Patience: patience}, r, strconv.Itoa(int(reason)))
	}
	by = bounds{expiry: meter.Never, deadline: meter.Never}
	require.Zero(t, by.rejection(bucket.ReasonQueueFull, 5, 10).Patience)
	require.Zero(t, by.rejection(bucket.ReasonQueueFull, 5, 10).Wait, "that instant has passed")
	require.EqualValues(t, int64(math.MaxInt64), bucket.Until(meter.Never, 10))
}

// Among all bounds that are small: what may go is granted by its deadline and within its patience, and nothing else is.
func TestARequestIsRejectedIfItCannotGoInTime(t *testing.T) {
	b := bucketFor(newLimit(10), "")
	for n := range 5 * 5 * 5 * 3 {
		due, expiry, deadline, respite := meter.Instant(n%5), meter.Instant(n/5%5), meter.Instant(n/25%5), int64(n/125)
		by := bounds{expiry: expiry, deadline: deadline, respite: respite}
		for now := range meter.Instant(3) {
			waits := expiry > 0 || respite > 0
			patient := due <= expiry || due <= now && due <= respite
			why := by.check(due, now, b)
			require.Equal(t, waits && patient && due < deadline, why == 0, "%+v due at %d, now %d", by, due, now)
			require.Equal(t, waits && patient && due >= deadline, why == bucket.ReasonDeadline, "%+v due at %d, now %d", by, due, now)
			require.Equal(t, bucket.ReasonCost, by.check(meter.Never, now, b))
		}
	}
}

func TestAnOutageThatEndsInTimeIsWaitedFor(t *testing.T) {
	by := bounds{arrived: second, expiry: 5 * second, deadline: 6 * second}
	require.False(t, by.isCutOff(9*second, 0), "there is none")
	require.False(t, by.isCutOff(9*second, 9*second+1), "the request is granted before it ends")
	require.False(t, by.isCutOff(4*second, 4*second))
	require.False(t, by.isCutOff(5*second, 4*second))
	require.True(t, by.isCutOff(5*second+1, 4*second), "it waits for longer than its MaxWait")
	require.True(t, by.isCutOff(supply.Shut, supply.Shut))
	by.expiry = meter.Never
	require.False(t, by.isCutOff(6*second-1, 4*second))
	require.True(t, by.isCutOff(6*second, 4*second), "its deadline comes first")
}

func TestAnAnswerHasTheWaitOfItsHints(t *testing.T) {
	require.Zero(t, (&Answer{}).retryAfter())
	require.Equal(t, time.Minute, (&Answer{Hints: &quota.Hints{Wait: time.Minute}}).retryAfter())
}

func TestDoubtsAreTakenOnce(t *testing.T) {
	var d Doubts
	require.False(t, d.Any())
	b := bucketFor(newLimit(1), "")
	d.add(b, func(meter.Instant, aimd.Outcome) bool { return true })
	require.True(t, d.Any())
	all := d.take()
	require.Len(t, all, 1)
	require.Same(t, b, all[0].bucket)
	require.False(t, d.Any())
	require.Empty(t, d.take())
	require.Empty(t, (*Doubts)(nil).take())
}

// A request that may not wait may still wait for a store that may have its tokens, and no longer than that takes.
func TestARequestMayWaitForAResponseThatMayHaveItsTokens(t *testing.T) {
	terms := supply.Terms{Timeout: 250 * time.Millisecond, Grace: 3 * time.Second}
	l := New([]bucket.Rule{
		{Name: "shared", Rate: meter.Rate{N: 10, Per: time.Second}, Burst: -1, Initial: -1, Share: 1, Stored: store.Bucket,
			Store: &bucket.Sharing{SupplyTerms: bucket.SupplyTerms{Store: store.NewMemory(), Terms: terms}}},
		{Name: "local", Rate: meter.Rate{N: 10, Per: time.Second}, Burst: -1, Initial: -1, Share: 1, Make: tokens},
	}, Options{MaxKeys: 10})
	shared, local := l.Limits[0].Single, l.Limits[1].Single
	charges := []Charge{{Bucket: shared, Cost: 1}, {Bucket: local, Cost: 1}}
	require.Equal(t, int64(terms.Timeout), respite(charges, false, second, second))
	require.Zero(t, respite(charges, true, second, second), "a Try does not wait")
	require.Zero(t, respite(charges[1:], false, second, second), "nothing is to be asked for")
	charges[0].Cost = 11
	require.Zero(t, respite(charges, false, second, second), "no response can have them")
}

// tokens makes the meter of a token bucket.
func tokens(now meter.Instant, r meter.Rate, burst int64, _ *meter.Wall) meter.Meter {
	return meter.NewTokenBucket(now, r, burst, burst)
}
