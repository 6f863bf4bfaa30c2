package bucket

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

// respond books what the store responds to a call.
func (s *shop) respond(c *Call) {
	s.Helper()
	require.True(s, c.Return(false, s.now))
	require.Nil(s, c.Note(nil, s.now))
	for i, l := range s.book.Lease(time.Unix(0, s.now), c.Asks) {
		c.Book(i, &supply.Outcome{LeasedPart: l.Parts[0], Err: l.Err}, true, s.now)
	}
}

// The store is asked for tokens of two buckets together. Of one bucket there are tokens, but they are held: of the other, tokens are
// wanted a moment before the hold ends, as long before as the store takes.
func TestABucketAskedForTogetherThatIsReadyLaterStopsTheOther(t *testing.T) {
	s := newShop(t)
	one, two := newLimit(10, s.shared), newLimit(5, s.shared)
	two.Name = "others"
	a, b := s.lease(one, ""), s.lease(two, "")
	b.lease.Wanted = 5
	s.respond(s.asks(b))
	require.Equal(t, s.now, b.Ready(s.now, 0, 4))

	var o order.Order
	waits(&o, s.now, 2, a, b)
	waits(&o, s.now, 2, a, b)
	require.Equal(t, lease.Demand{First: 2, All: 4, Soon: 4, Next: 2, Whole: 2, Even: true, Until: meter.Never - 1, Joint: true}, a.Demand(s.now))
	until := s.now + 2*second
	b.Hold(s.now, until)
	near := int64(5 * time.Millisecond)
	require.EqualValues(t, near, a.lease.Lead(), "the other one is in the same store")
	require.Equal(t, lease.Demand{From: until - near, Until: s.now, Keeps: true}, a.Demand(s.now))
	require.Equal(t, lease.Demand{From: until - near, Until: until - near - 1, Keeps: true}, a.Demand(until-near-1))
	require.Equal(t, lease.Demand{First: 2, All: 4, Soon: 4, Next: 2, Whole: 2, Even: true, Until: meter.Never - 1, Joint: true}, a.Demand(until-near))

	a.lease.Wanted = 1
	s.now += second
	c := s.asks(a)
	s.now += int64(4 * time.Millisecond)
	s.respond(c)
	a.Meter.Take(s.now, s.now, 1, false)
	lead := int64(13 * time.Millisecond)
	require.EqualValues(t, lead, a.lease.Lead(), "two round trips and 5 ms")
	require.Equal(t, lease.Demand{From: until - lead, Until: until - lead - 1, Keeps: true}, a.Demand(until-lead-1))
	require.Equal(t, lease.Demand{First: 2, All: 4, Soon: 4, Next: 2, Whole: 4, Even: true, Until: meter.Never - 1, Joint: true}, a.Demand(until-lead))
}

// Tokens of a sliding window are void some time after their ask. From then on, they are asked for again, together with those of the other
// bucket, whether or not anything else has looked at the window meanwhile.
func TestVoidTokensAreAskedForTogetherWithOthers(t *testing.T) {
	for _, early := range []meter.Instant{1, 0} {
		s := newShop(t)
		slots, window := newLimit(10, s.shared), newLimit(5, s.shared)
		slots.Stored, window.Stored, window.Name = store.Slots, store.Sliding, "others"
		a, b := s.lease(slots, ""), s.lease(window, "")
		b.lease.Wanted = 5
		s.respond(s.asks(b))
		b.lease.Wanted = 0
		var o order.Order
		waits(&o, s.now, 2, a, b)

		s.now += int64(10*time.Millisecond) - early
		parts := s.asks(a).Asks[0].Parts
		require.Equal(t, store.Slots, parts[0].Budget.Kind)
		if early > 0 {
			require.Len(t, parts, 1)
			continue
		}
		require.Len(t, parts, 2)
		require.EqualValues(t, 2, parts[1].Need)
		require.EqualValues(t, 5, parts[1].Back[0].Tokens)
	}
}

// A response takes 16 ms, so the tokens of the window may be used for 34 ms after their ask, and not with the response to an ask that is
// made 18 ms after theirs. Then they are asked for again, with those of the other window.
func TestTokensThatAreVoidWithTheResponseAreAskedForTogetherWithOthers(t *testing.T) {
	const trip, use = int64(16 * time.Millisecond), int64(34 * time.Millisecond)
	for name, c := range map[string]struct {
		kind     store.Kind
		after    int64 // the ask before
		behind   bool  // another request is the first one at the window
		together bool
	}{
		"in time":                     {store.Sliding, use - trip - 1, false, false},
		"void":                        {store.Sliding, use - trip, false, true},
		"behind another":              {store.Sliding, use - trip, true, false},
		"a fixed window keeps tokens": {store.Fixed, use - trip, false, false},
		"a bucket keeps tokens":       {store.Bucket, use - trip, false, false},
		"slots come at any time":      {store.Slots, use - trip, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			one, two, three := newLimit(10, s.shared), newLimit(5, s.shared), newLimit(10, s.shared)
			one.Stored, two.Stored, two.Name, three.Name = c.kind, store.Sliding, "others", "third"
			a, window := s.lease(one, ""), s.lease(two, "")
			window.lease.Wanted = 5
			asked, sent := s.asks(window), s.now
			s.now += trip
			s.respond(asked)
			window.lease.Wanted = 0
			var o order.Order
			if c.behind {
				waits(&o, s.now, 2, window, s.lease(three, ""))
			}
			waits(&o, s.now, 2, a, window)

			s.now = sent + c.after
			parts := s.asks(a).Asks[0].Parts
			require.Equal(t, one.Name, parts[0].Budget.Limit)
			if !c.together {
				require.Len(t, parts, 1)
				require.Equal(t, s.now, window.Ready(s.now, 0, 5), "they are kept")
				return
			}
			require.Len(t, parts, 2)
			require.EqualValues(t, 2, parts[1].Need)
			require.EqualValues(t, 5, parts[1].Back[0].Tokens)
		})
	}
}

// It is not asked for together with the other, so that nothing is known of when it has tokens.
func TestABucketOfAnotherStoreWithoutTokensStopsTheOther(t *testing.T) {
	s, other := newShop(t), newShop(t)
	a, b := s.lease(newLimit(10, s.shared), ""), other.lease(newLimit(5, other.shared), "")
	var o order.Order
	waits(&o, s.now, 2, a, b)
	waits(&o, s.now, 2, a, b)
	require.Equal(t, lease.Demand{First: 2, All: 2, Next: 2, Whole: 2, Even: true, Until: meter.Never - 1}, a.Demand(s.now))
}

// A request in flight may report that the window has more, but not before an hour has passed. Tokens and slots that were leased until then
// would be missing in other processes.
func TestABucketWhoseResponseChangesNothingForAnHourStopsTheOther(t *testing.T) {
	s := newShop(t)
	slots := newLimit(10, s.shared)
	slots.Stored = store.Slots
	until := s.now + int64(time.Hour)
	a, b := s.lease(slots, ""), newLimit(1).bucketWith("", planner{ready: meter.Never, plan: until})
	var o order.Order
	waits(&o, s.now, 2, a, b)
	waits(&o, s.now, 2, a, b)
	require.Equal(t, lease.Demand{From: until, Until: s.now}, a.Demand(s.now))
	require.Equal(t, lease.Demand{From: until, Until: until - 1}, a.Demand(until-1))
	require.Equal(t, lease.Demand{First: 2, All: 2, Next: 2, Whole: 2, Even: true, Until: meter.Never - 1}, a.Demand(until), "the response may come at any time, and no request is sure to go")
}

func TestTheBucketOfAHostIsFoundAgain(t *testing.T) {
	li := newLimit(10)
	require.Nil(t, li.Find("a", true))
	a, b := li.bucketFor("a"), li.bucketFor("b")
	for range 2 {
		require.Same(t, a, li.Find("a", true))
		require.Same(t, b, li.Find("b", true))
	}
	require.True(t, a.extra.unkeyed)
	require.Nil(t, li.Find("c", true))
	require.Same(t, b, li.Find("b", true))
	li.Forget(b)
	require.Nil(t, li.Find("b", true))
}

// Nothing is known yet of the window of a tenth of a second. It still grants no more than all of it, so no more is leased of the day: a
// process that is killed would lose that.
func TestNoMoreIsAskedForThanTheOtherBucketCanHave(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*Limit)
		most int64
	}{
		"window": {func(l *Limit) { l.Stored = store.Fixed }, 20},
		"bucket": {func(l *Limit) { l.Stored = store.Bucket }, 20 + 10}, // which come in within the horizon of 50 ms
		"pace":   {func(l *Limit) { l.Stored = store.Pace }, 1 + 10},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			day, rate := newLimit(8000, s.shared), newLimit(20, s.shared)
			day.Stored, day.Rate.Per, day.Name = store.Fixed, 24*time.Hour, "day"
			rate.Rate.Per = 100 * time.Millisecond
			c.set(rate)
			a, b := s.lease(day, ""), s.lease(rate, "")
			var o order.Order
			for range 100 {
				waits(&o, s.now, 1, a, b)
			}
			require.Equal(t, c.most, a.Demand(s.now).All)
			require.EqualValues(t, 100, b.Demand(s.now).All)
		})
	}
}

// The process has 10 tokens of the day and none of the window or the slots, of which it asks for 10. If these are granted, the other 90
// requests still wait, so nothing of the day is leased for them.
func TestNoMoreIsAskedForBesideTokensAtHandThanGoesWithThem(t *testing.T) {
	for name, kind := range map[string]store.Kind{"fixed": store.Fixed, "sliding": store.Sliding, "slots": store.Slots} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			day, rate := newLimit(8000, s.shared), newLimit(20, s.shared)
			day.Stored, day.Rate.Per, day.Name = store.Fixed, 24*time.Hour, "day"
			rate.Stored, rate.Rate.Per = kind, 100*time.Millisecond
			a, b := s.lease(day, ""), s.lease(rate, "")
			a.lease.Wanted = 10
			s.respond(s.asks(a))
			a.lease.Wanted = 0
			var o order.Order
			for range 100 {
				waits(&o, s.now, 1, a, b)
			}
			_, asks := a.lease.Due(s.now, a.Demand(s.now), a.Waiting() > 0)
			require.False(t, asks, "of the day")
			parts := s.asks(b).Asks[0].Parts
			require.Len(t, parts, 1)
			require.Equal(t, rate.Name, parts[0].Budget.Limit)
			require.EqualValues(t, 10, parts[0].Want)
		})
	}
}

// Requests that wait for two paces have their last token of each in 5 ms. When each pace counted on what there was of the other one, the
// store was asked for neither before both had run out.
func TestTwoBucketsAreAskedForTogetherBeforeTheyRunOut(t *testing.T) {
	s := newShop(t)
	one, two := newLimit(10, s.shared), newLimit(10, s.shared)
	one.Stored, two.Stored, two.Name = store.Pace, store.Pace, "others"
	a, b := s.lease(one, ""), s.lease(two, "")
	var o order.Order
	for range 8 {
		waits(&o, s.now, 1, a, b)
	}
	respond := func(c *Call, tokens int64) {
		require.Len(t, c.Asks, 1)
		require.Len(t, c.Asks[0].Parts, 2)
		require.True(t, c.Return(false, s.now))
		require.Nil(t, c.Note(nil, s.now))
		for i, p := range s.book.Lease(time.Unix(0, s.now), c.Asks)[0].Parts {
			require.Equal(t, tokens, p.Tokens)
			c.Book(i, &supply.Outcome{LeasedPart: p}, true, s.now)
			o.Touch(&c.Of(i).point)
		}
		require.False(t, s.supply.Collect(s.now).Send(), "there is nothing else to ask for")
	}
	serve := func() {
		for w, _ := o.Next(s.now); w != nil; w, _ = o.Next(s.now) {
			a.Meter.Take(s.now, s.now, 1, true)
			b.Meter.Take(s.now, s.now, 1, true)
		}
	}
	respond(s.asks(a), 1)
	serve()
	respond(s.asks(a), 1)
	due := s.now + second/10
	require.Equal(t, due, a.Ready(s.now, 0, 1))
	require.Equal(t, due, b.Ready(s.now, 0, 1))
	lead := int64(5 * time.Millisecond)
	require.EqualValues(t, lead, a.lease.Lead())

	s.now = due - lead - 1
	for _, x := range []*Bucket{a, b} {
		at, asks := x.lease.Due(s.now, x.Demand(s.now), x.Waiting() > 0)
		require.False(t, asks)
		require.Equal(t, due-lead, at)
	}
	s.now = due - lead
	respond(s.asks(a), 1)
	require.Equal(t, due+second/10, a.Ready(s.now, 1, 1))
	require.Equal(t, due+second/10, b.Ready(s.now, 1, 1))
}
