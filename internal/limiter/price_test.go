package limiter_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/quota"

	"github.com/stretchr/testify/require"
)

// Requests share the charges of their Price, but what each of them has paid is its own: a bucket gives nothing back for a request before it
// was full.
func TestWhatARequestHasPaidIsKnownAfterOthersHavePaidTheSamePrice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(1, time.Second, withBurst(2)))
		price := limiter.NewPrice(&limiter.User{Observer: l}, l.Limits)
		require.True(t, price.IsEnough())
		var early, first, last limiter.Paid
		require.True(t, l.Pay(price, &early))
		time.Sleep(10 * time.Second)
		require.True(t, l.Pay(price, &first))
		require.True(t, l.Pay(price, &last))
		require.EqualValues(t, 10*time.Second, last.At)
		require.EqualValues(t, 3, last.Nth)

		r := limiter.Request{Context: context.Background()}
		r.Bought(price, &early)
		l.Cancel(&r)
		require.False(t, l.Pay(price, new(limiter.Paid)))

		r = limiter.Request{Context: context.Background()}
		r.Bought(price, &last)
		require.Equal(t, last.Mark, r.Mark)
		l.Cancel(&r)
		require.True(t, l.Pay(price, new(limiter.Paid)))
		require.False(t, l.Pay(price, new(limiter.Paid)))

		w := price.Asked(limiter.Order{Cost: 1}).Waiter()
		require.NoError(t, l.Acquire(t.Context(), w))
		require.EqualValues(t, 11*time.Second, l.now())
		l.check()
	})
}

// A request needs more than its Price if a limit learns from its response or may reduce its cost, if there are more limits than a Paid has room
// for, or if a hook gets its grant.
func TestAPriceIsEnoughForRequestsOfWhichNothingElseIsRemembered(t *testing.T) {
	nine := drive(t, limits(slices.Repeat([]rule{tokenBucket(1, time.Second)}, 9)...))
	require.Len(t, nine.Limits, 9)
	for name, c := range map[string]struct {
		l    *driven
		user *limiter.User
		want bool
	}{
		"one limit":  {drive(t, tokenBucket(1, time.Second)), new(limiter.User), true},
		"no limit":   {drive(t), new(limiter.User), true},
		"nine":       {nine, new(limiter.User), false},
		"slots":      {drive(t, inFlight(1)), new(limiter.User), true},
		"learned":    {drive(t, adaptive(aimd.Config{})), new(limiter.User), false},
		"clamped":    {drive(t, tokenBucket(1, time.Second, clamped())), new(limiter.User), false},
		"with event": {drive(t, tokenBucket(1, time.Second)), &limiter.User{Granted: true}, false},
	} {
		require.Equal(t, c.want, limiter.NewPrice(c.user, c.l.Limits).IsEnough(), name)
	}
}

// A request that was granted at a Price ends as one with charges of its own does: it gives back its slot, which may have to rest, and is
// counted in a quota from its response on.
func TestARequestThatHasPaidAPriceLandsAsOthersDo(t *testing.T) {
	for want, slots := range map[int]rule{29: inFlight(2), 14: inFlight(2, withPause(90*time.Second))} {
		synctest.Test(t, func(t *testing.T) {
			a, b := drive(t, slots, evenQuota(3, time.Minute)), drive(t, slots, evenQuota(3, time.Minute))
			user := &limiter.User{Observer: b, Flies: true}
			price := limiter.NewPrice(user, b.Limits)
			sent := 0
			for range 600 {
				r := a.request(ask{})
				var paid limiter.Paid
				ok := a.Now(r, nil)
				require.Equal(t, ok, b.Pay(price, &paid))
				time.Sleep(time.Second)
				if ok {
					require.Equal(t, r.Mark, paid.Mark)
					a.Report(r, &limiter.Answer{})
					b.Land(price, &paid)
					sent++
				}
				for i := range a.Limits {
					require.InDelta(t, a.Limits[i].Single.Meter.Tokens(int64(a.now())), b.Limits[i].Single.Meter.Tokens(int64(a.now())), 0)
				}
			}
			require.Equal(t, want, sent)
			require.NoError(t, b.Shutdown(t.Context(), user)) // nothing is in flight
			b.check()
		})
	}
}

// So does one that has passed a gate, too, unless its response may end what a refusal has begun.
func TestARequestThatHasPaidAPriceAndPassedAGateLandsAsOthersDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := limits(tokenBucket(1, time.Second, withBurst(5)), inFlight(3))
		a, b := drive(t, rules), drive(t, rules)
		user := &limiter.User{Observer: b, Flies: true}
		price, gate := limiter.NewPrice(user, b.Limits), &quota.Key{Host: "h"}
		reports := func(left int64) *limiter.Answer {
			return &limiter.Answer{Outcome: aimd.OK, Ended: true, Hints: &quota.Hints{Quotas: []quota.QuotaHint{{Limit: 9, Left: left, Known: true, Reset: 20 * time.Second, Ends: true}}}}
		}
		report := func(paid *limiter.Paid, a *limiter.Answer) {
			r := &limiter.Request{Context: t.Context()}
			r.Bought(price, paid)
			b.Report(r, a)
		}
		require.False(t, b.PayOrder(price, limiter.Order{Cost: 1}, gate, new(limiter.Paid)), "no server has reported anything")
		a.ReportUngated(&limiter.Request{User: a.user}, gate, reports(9))
		b.ReportUngated(&limiter.Request{User: user}, gate, reports(9))
		sent := 0
		for i := range 600 {
			r := a.request(ask{})
			var paid limiter.Paid
			ok := a.Now(r, gate)
			require.Equal(t, ok, b.PayOrder(price, limiter.Order{Cost: 1}, gate, &paid))
			time.Sleep(time.Duration(i%7) * 100 * time.Millisecond)
			switch {
			case !ok:
				continue
			case i%11 == 3:
				a.Report(r, reports(int64(i%3)))
				report(&paid, reports(int64(i%3)))
			default:
				a.Report(r, &limiter.Answer{Outcome: aimd.OK})
				require.True(t, b.Land(price, &paid))
			}
			require.Equal(t, r.Mark, paid.Mark)
			sent++
		}
		require.Greater(t, sent, 100)
		require.Equal(t, a.Gate.Counts, b.Gate.Counts)
		for i := range a.Limits {
			require.Equal(t, a.Limits[i].Counts, b.Limits[i].Counts)
		}
		var paid limiter.Paid
		time.Sleep(time.Minute)
		require.True(t, b.PayOrder(price, limiter.Order{Cost: 1}, gate, &paid))
		report(&paid, &limiter.Answer{Outcome: aimd.Throttled, Ended: true, Hints: &quota.Hints{Limited: true, Status: 429, Wait: 5 * time.Second, Asked: true}})
		require.False(t, b.PayOrder(price, limiter.Order{Cost: 1}, gate, new(limiter.Paid)))
		time.Sleep(time.Minute)
		for _, lands := range []bool{false, true} {
			var paid limiter.Paid
			require.True(t, b.PayOrder(price, limiter.Order{Cost: 1}, gate, &paid))
			if require.Equal(t, lands, b.Land(price, &paid)); !lands {
				report(&paid, &limiter.Answer{Outcome: aimd.OK, Ended: true})
			}
			time.Sleep(time.Minute)
		}
		require.NoError(t, b.Shutdown(t.Context(), user)) // nothing is in flight
		b.check()
	})
}

// An Order is charged as a request with that key and that cost in each limit is, whether its buckets are yet to be made or not, and ends as one.
func TestAnOrderIsChargedAsARequestIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := limits(tokenBucket(2, time.Second, withBurst(6)), inFlight(4), evenQuota(30, time.Minute))
		a, b := drive(t, rules), drive(t, rules)
		user := &limiter.User{Observer: b, Flies: true}
		price, rnd := limiter.NewPrice(user, b.Limits), rand.New(rand.NewPCG(1, 2))
		granted, canceled := 0, 0
		for range 2000 {
			o := limiter.Order{Key: fmt.Sprint("key ", rnd.IntN(5)), Cost: rnd.Int64N(4)}
			r := &limiter.Request{User: a.user, Context: t.Context()}
			if o.Cost > 0 {
				for _, li := range a.Limits {
					r.Add(li, o.Key, o.Cost)
				}
			}
			var paid limiter.Paid
			ok := a.Now(r, nil)
			require.Equal(t, ok, b.PayOrder(price, o, nil, &paid))
			time.Sleep(time.Duration(rnd.IntN(500)) * time.Millisecond)
			switch {
			case !ok:
			case rnd.IntN(5) == 0:
				canceled++
				a.Cancel(r)
				q := &limiter.Request{Context: t.Context()}
				q.Bought(price, &paid)
				require.Equal(t, r.Mark, q.Mark)
				b.Cancel(q)
				b.Finish(user)
			default:
				granted++
				a.Report(r, &limiter.Answer{Outcome: aimd.OK})
				require.True(t, b.Land(price, &paid))
			}
			for i := range a.Limits {
				require.Equal(t, a.Limits[i].Counts, b.Limits[i].Counts)
			}
		}
		require.Greater(t, granted, 300)
		require.Greater(t, canceled, 100)
		require.False(t, b.PayOrder(price, limiter.Order{Key: "a", Cost: -1}, nil, new(limiter.Paid)))
		require.NoError(t, b.Shutdown(t.Context(), user)) // nothing is in flight
		b.check()
	})
}

// Goroutines with different keys pay the same Price at the same time.
func TestOrdersWithDifferentKeysAreApart(t *testing.T) {
	l := drive(t, tokenBucket(1, time.Hour, withBurst(50)))
	price := limiter.NewPrice(&limiter.User{Observer: l}, l.Limits)
	var all sync.WaitGroup
	var granted [4]int
	for i := range granted {
		all.Go(func() {
			o := limiter.Order{Key: fmt.Sprint("key ", i), Cost: 1}
			for range 200 {
				var paid limiter.Paid
				if !l.PayOrder(price, o, nil, &paid) {
					price.Asked(o).Waiter()
					continue
				}
				granted[i]++
				var r limiter.Request
				r.Bought(price, &paid)
				if r.Charges()[0].Key != o.Key {
					t.Error("a charge has another key")
				}
			}
		})
	}
	all.Wait()
	require.Equal(t, [4]int{50, 50, 50, 50}, granted)
	l.check()
}
