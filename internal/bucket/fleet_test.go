package bucket

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

// A site is one of several processes that use one store.
type site struct {
	*shop
	order   order.Order
	buckets []*Bucket
	granted []int64 // tokens, by bucket
	waiting map[*order.Waiter]meter.Instant
}

// serve grants what can go now.
func (s *site) serve(now meter.Instant) {
	for w, due := s.order.Next(now); w != nil; w, due = s.order.Next(now) {
		require.LessOrEqual(s, due, now)
		require.Contains(s, s.waiting, w, "it is granted once")
		delete(s.waiting, w)
		for i, cost := range w.Costs {
			b := Of(w.Point(i))
			b.Meter.Take(due, now, cost, true)
			for k, other := range s.buckets {
				if other == b {
					s.granted[k] += cost
				}
			}
		}
	}
}

// ask asks the store for what is due now. The responses are there at once.
func (s *site) ask(now meter.Instant) {
	for _, b := range s.buckets {
		b.lease.Advance(now, now)
		b.lease.Due(now, b.Demand(now), b.Waiting() > 0)
	}
	for begins, _ := s.supply.Begin(now); begins; { // a call follows the other until there is nothing to ask for
		c := &Call{Call: s.supply.Collect(now), Supply: s.supply}
		for n := c.Next(); n != nil; n = c.Next() {
			c.Ask(n.Of(), now)
		}
		if begins = c.Send(); !begins {
			return
		}
		for i := range c.Asks {
			require.NoError(s, c.Asks[i].Check(), "no budget is asked for twice")
		}
		leases := s.book.Lease(time.Unix(0, now), c.Asks)
		require.True(s, c.Return(false, now))
		c.Note(nil, now)
		part := 0
		for _, l := range leases {
			require.NoError(s, l.Err)
			for _, p := range l.Parts {
				c.Book(part, &supply.Outcome{LeasedPart: p}, len(l.Parts) == 1, now)
				s.order.Touch(&c.Of(part).point)
				part++
			}
		}
	}
}

// Several processes whose buckets are lent tokens by one store use no more, all together, than one bucket has; a request in two
// buckets takes from both or neither; and every request is granted in the end.
func TestBucketsOfSeveralProcessesUseNoMoreThanOneBucketHas(t *testing.T) {
	for seed := range uint64(6) {
		r := metertest.Seeded(t, seed)
		rates := []int64{60 + r.Int64N(40), 60 + r.Int64N(40)} // less than is asked for at first, and more than in all
		var sites []*site
		book := store.NewBook()
		for range 3 {
			s := &site{shop: newShop(t), granted: make([]int64, len(rates)), waiting: make(map[*order.Waiter]meter.Instant)}
			s.book = book
			for i, n := range rates {
				li := newLimit(n, s.shared, func(li *Limit) { li.Name = string(rune('a' + i)) })
				s.buckets = append(s.buckets, s.lease(li, ""))
			}
			sites = append(sites, s)
		}
		sent, began := 0, second
		step := int64(time.Millisecond)
		for now := began; now < 8*second; now += step {
			for _, s := range sites {
				s.now = now
				s.serve(now)
				if now < 4*second && r.IntN(50) == 0 {
					in, cost := s.buckets, 1+r.Int64N(3)
					if k := r.IntN(3); k < 2 {
						in = in[k : k+1]
					}
					w := &order.Waiter{Last: meter.Never}
					for _, b := range in {
						w.At, w.Costs = append(w.At, &b.point), append(w.Costs, cost)
					}
					s.waiting[w] = now
					s.order.Join(w, now)
					sent++
				}
				s.ask(now)
				s.serve(now)
			}
			for i, n := range rates {
				used := int64(0)
				for _, s := range sites {
					used += s.granted[i]
				}
				require.LessOrEqual(t, used, n+n*(now-began)/second, "of limit %d at %v", i, time.Duration(now))
			}
		}
		require.Greater(t, sent, 100)
		for _, s := range sites {
			require.Empty(t, s.waiting, "all are granted")
			for _, b := range s.buckets {
				require.Zero(t, b.Waiting())
			}
		}
	}
}
