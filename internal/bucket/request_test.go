package bucket

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/quota"
)

// charged returns charges of a cost in a bucket of each limit.
func charged(cost int64, limits ...*Limit) []Charge {
	p := Paid{Charges: make([]Charge, 0, len(limits))}
	for _, li := range limits {
		if li.Single == nil {
			li.bucketFor("")
		}
		p.Add(li, "", cost)
	}
	return p.Charges
}

func TestChargesFindTheirBuckets(t *testing.T) {
	li, gates := newLimit(10), newLimit(1, func(li *Limit) { li.Gates = true })
	single, a := li.bucketFor(""), li.bucketFor("a")
	gate := gates.bucketWith("host", meter.Unlimited{})
	p := Paid{Charges: make([]Charge, 0, 4)}
	p.Add(li, "", math.MaxInt64)
	p.Add(li, "a", 2)
	p.Add(li, "none", 2)
	p.Pass(gate)
	require.Equal(t, meter.MaxCount, p.Charges[0].Cost)
	for i, b := range []*Bucket{single, a, nil, gate} {
		require.Equal(t, b != nil, p.Charges[i].Find())
		require.Same(t, b, p.Charges[i].Bucket)
	}
	other := Paid{Charges: make([]Charge, 0, 4)}
	other.AddAll(p.Charges)
	require.Equal(t, p, other)
}

func TestAllChargesArePayableOrNone(t *testing.T) {
	one, two := newLimit(10), newLimit(5)
	charges := charged(5, one, two)
	ok, missing := Payable(charges, 0)
	require.True(t, ok)
	require.False(t, missing)
	two.Single.Meter.Take(0, 0, 1, false)
	ok, missing = Payable(charges, 0)
	require.False(t, ok)
	require.False(t, missing)
	ok, _ = Payable(charges, second/5)
	require.True(t, ok)
	one.Single.Hold(0, second)
	ok, _ = Payable(charges, second/5)
	require.False(t, ok)
	charges[0].Key = "none"
	_, missing = Payable(charges, second)
	require.True(t, missing)
	require.False(t, (&Charge{Cost: -1, Bucket: two.Single}).Passes(0))
}

func TestCostsAreClampedWhereTheLimitSaysSo(t *testing.T) {
	one, two := newLimit(10), newLimit(5, func(li *Limit) { li.Clamps = true })
	charges := charged(20, one, two)
	require.True(t, Clamp(charges))
	require.EqualValues(t, 20, charges[0].Cost)
	require.EqualValues(t, 5, charges[1].Cost)
	require.False(t, Clamp(charges))
}

func TestAChargeThatCannotBeMade(t *testing.T) {
	charges := charged(1, newLimit(1), newLimit(1))
	reason, c, _ := Unpayable(charges, nil, 0)
	require.Zero(t, reason)
	require.Nil(t, c)
	charges[1].Cost = -1
	reason, c, due := Unpayable(charges, nil, 0)
	require.Equal(t, ReasonCost, reason)
	require.Same(t, &charges[1], c)
	require.Equal(t, meter.Never, due)
	reason, c, due = Unpayable(charges, &charges[0], 7)
	require.Equal(t, ReasonKeys, reason)
	require.Same(t, &charges[0], c)
	require.Equal(t, 7+int64(SweepEvery), due)
}

func TestAGrantKeepsItsCharges(t *testing.T) {
	for n := range 9 {
		var limits []*Limit
		for range n {
			limits = append(limits, newLimit(10))
		}
		charges := charged(3, limits...)
		var g Grant
		g.Keep(charges)
		require.Equal(t, n, len(g.Charges()))
		for i := range charges {
			require.Equal(t, charges[i], g.Charges()[i])
		}
		require.Equal(t, n > len(g.room), g.More != nil)
		space := append(g.Space(n), charges...)
		g.Hold(len(space))
		require.Len(t, g.Charges(), n)
	}
}

func TestCallsCountOnceForAGrant(t *testing.T) {
	var g Grant
	require.True(t, g.First(GrantDone))
	require.False(t, g.First(GrantDone))
	require.True(t, g.First(GrantReported))
	require.False(t, g.First(GrantCanceled), "something was done")
}

func TestRatesAreAskedForBeforeABucketIsMade(t *testing.T) {
	li := newLimit(10, func(li *Limit) { li.Asks = true })
	li.bucketFor("kept")
	pending := func(key string) *Pending { return Pend([]Charge{{Limit: li, Key: key}}, Ask{}, nil) }
	li.bucketFor("")
	require.True(t, pending("kept").Asked())
	require.True(t, pending("").Asked())
	p := pending("new")
	require.False(t, p.Asked())
	p.Rates = []meter.Rate{{N: 1, Per: time.Second}}
	require.True(t, p.Asked())
	li.Refreshed = 1
	require.False(t, p.Asked(), "as of an earlier Refresh")
	p.Refresh = 1
	require.True(t, p.Asked())
	require.Equal(t, p.Rates[0], RateAt(p.Rates, 0))
	require.Zero(t, RateAt(p.Rates, 1))
}

func TestAPendingRequestHasItsOwnCharges(t *testing.T) {
	charges, key := charged(3, newLimit(10)), quota.Key{Host: "a"}
	p := Pend(charges, Ask{Priority: 2}, &key)
	charges[0].Cost, key.Host = 9, "b"
	require.EqualValues(t, 3, p.Charges[0].Cost)
	require.Equal(t, "a", p.Gate.Host)
	require.Equal(t, 2, p.Ask.Priority)
	require.Same(t, &p.Room, p.Refusal)
}

// placed returns the place of a request with these charges, which waits until last at most.
func placed(charges []Charge, last meter.Instant) *Place {
	w := &Place{Bounds: Bounds{Expiry: last, Deadline: meter.Never}}
	w.Enter(charges, &Ask{Caller: "me", Weight: 3}, w)
	return w
}

func TestAPlaceKnowsItsBuckets(t *testing.T) {
	one, two := newLimit(10), newLimit(1)
	gates := newLimit(1, func(li *Limit) { li.Gates = true })
	gate := gates.bucketWith("host", meter.Unlimited{})
	p := Paid{Charges: append(make([]Charge, 0, 3), charged(1, one, two)...)}
	p.Pass(gate)
	w := placed(p.Charges, meter.Never)
	require.Len(t, w.In.At, 2)
	require.Same(t, &gate.Point, w.In.Gate)
	for i, b := range []*Bucket{one.Single, two.Single, gate} {
		require.Same(t, b, w.BucketAt(i))
	}
	require.Equal(t, meter.Never, w.In.Last)
	require.Equal(t, "me", w.In.Caller)
	require.EqualValues(t, 3, w.In.Weight)

	open := newLimit(1, func(li *Limit) { li.Open = true })
	open.bucketWith("", meter.Unlimited{})
	p = Paid{Charges: append(make([]Charge, 0, 2), charged(1, open)...)}
	p.Pass(gate)
	w = placed(p.Charges, 7)
	require.Nil(t, w.In.Gate, "where nothing else is limited, a gate is a point like others")
	require.Len(t, w.In.At, 2)
	require.EqualValues(t, 7, w.In.Last)
	w.Deadline = 5
	w.Enter(p.Charges, &Ask{}, w)
	require.EqualValues(t, 4, w.In.Last, "the last instant before its deadline")
	require.EqualValues(t, 1, w.In.Weight)
}

func TestAGrantedPlaceHasPaid(t *testing.T) {
	fair := newLimit(10, func(li *Limit) { li.Fair = true })
	charges := charged(2, fair, newLimit(10))
	w := placed(charges, meter.Never)
	var o order.Order
	o.Join(&w.In, 0)
	in, _ := o.Next(0)
	require.Same(t, &w.In, in)
	w.Paid()[0], w.Paid()[1] = 11, 12
	w.Arrived, w.At, w.Verdict = 0, second, Granted
	p := w.Granted()
	require.Equal(t, time.Second, p.Waited)
	require.Equal(t, second, p.Mark.At)
	require.Equal(t, &Caller{"me", 3}, p.Caller)
	for i, paid := range []int64{11, 12} {
		require.Equal(t, Charge{Limit: charges[i].Limit, Bucket: charges[i].Bucket, Cost: 2, Paid: paid}, p.Charges[i])
	}
	require.Nil(t, placed(charged(1, newLimit(1)), meter.Never).Caller(), "there are no turns")
}

func TestAChargeOfAGhostIsMadeWhenThatIsGranted(t *testing.T) {
	charges := charged(2, newLimit(10), newLimit(10))
	w := placed(charges, meter.Never)
	c := charges[1]
	at, _ := c.Unmade()
	require.Nil(t, at, "it is not of a ghost")
	c.Ghost = w
	at, i := c.Unmade()
	require.Same(t, w, at)
	require.Equal(t, 1, i)
	require.True(t, c.Hear(7, 5))
	require.True(t, c.Hear(6, -1))
	require.Equal(t, []Heard{{1, 6, -1}, {1, 7, 5}}, w.Heard, "in the order in which the responses come")
	var o order.Order
	o.Join(&w.In, 0)
	in, _ := o.Next(0)
	require.NotNil(t, in)
	w.Paid()[1], w.Verdict = 17, Granted
	at, _ = c.Unmade()
	require.Nil(t, at)
	require.EqualValues(t, 17, c.Paid)
	require.True(t, c.Hear(8, 6), "its response is yet to come")
	w.Made = 1 << 1
	require.False(t, c.Hear(9, 6), "the charge was made when the response came")
}

func TestMaxWaitIsCheckedBeforeTheDeadline(t *testing.T) {
	b := newLimit(10).bucketFor("")
	held := newLimit(10).bucketFor("")
	held.Hold(0, meter.Never)
	for i, c := range []struct {
		by     Bounds
		due    meter.Instant
		at     *Bucket
		reason Reason
	}{
		{Bounds{Expiry: meter.Never, Deadline: meter.Never}, 5, b, 0},
		{Bounds{Expiry: meter.Never, Deadline: meter.Never}, meter.Never, b, ReasonCost},
		{Bounds{Expiry: 5, Deadline: meter.Never}, 5, b, 0},
		{Bounds{Expiry: 5, Deadline: meter.Never}, 6, b, ReasonMaxWait},
		{Bounds{Expiry: 5, Deadline: 5}, 5, b, ReasonDeadline},
		{Bounds{Expiry: 5, Deadline: 6}, 5, b, 0},
		{Bounds{Expiry: 5, Deadline: 3}, 6, b, ReasonMaxWait},
		{Bounds{Expiry: meter.Never, Deadline: 3}, 3, b, ReasonDeadline},
		{Bounds{Deadline: meter.Never}, 0, b, ReasonNoTokens},
		{Bounds{Deadline: meter.Never}, 1, b, ReasonNoTokens},
		{Bounds{Deadline: meter.Never}, 1, held, ReasonHeld},
		{Bounds{Expiry: 5, Deadline: meter.Never}, 6, held, ReasonHeld},
		{Bounds{Deadline: meter.Never, Respite: 10}, 0, b, 0},
		{Bounds{Deadline: meter.Never, Respite: 10}, 1, b, ReasonNoTokens},
	} {
		require.Equal(t, c.reason, c.by.Check(c.due, 0, c.at), "case %d", i)
	}
	require.EqualValues(t, 12, (&Bounds{Arrived: 2, Expiry: 5, Respite: 10}).Last())
	require.EqualValues(t, 15, (&Bounds{Arrived: 2, Expiry: 15, Respite: 10}).Last())
}

func TestARefusalHasThePatienceThatWasTooShort(t *testing.T) {
	li := newLimit(1)
	by := Bounds{Arrived: 10, Expiry: 110, Deadline: 60}
	for reason, patience := range map[Reason]time.Duration{
		ReasonNoTokens: 100, ReasonMaxWait: 100, ReasonHeld: 100, ReasonDeadline: 50, ReasonQueueFull: 50, ReasonCost: 50, ReasonKeys: 50, ReasonStore: 50,
	} {
		r := by.Refuse(reason, li, "a", 3, 200, 10)
		require.Equal(t, Refusal{Reason: reason, Limit: li, Key: "a", Cost: 3, Wait: 190, Patience: patience}, r, strconv.Itoa(int(reason)))
	}
	by = Bounds{Expiry: meter.Never, Deadline: meter.Never}
	require.Zero(t, by.Refuse(ReasonQueueFull, li, "", 1, 5, 10).Patience)
	require.Zero(t, by.Refuse(ReasonQueueFull, li, "", 1, 5, 10).Wait, "it is over")
	require.EqualValues(t, int64(math.MaxInt64), Until(meter.Never, 10))
}
