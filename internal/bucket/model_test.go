package bucket

import (
	"maps"
	"math/big"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/httpthrottle/throttle/internal/order"
)

// This file compares buckets with the plainest account of the same requests: a list of what each has cost, gone through again
// from the start for each question.

// A kind is a meter and its reference, which knows nothing of how the meter counts.
type kind struct {
	name string
	make func(r meter.Rate, n int64) meter.Meter
	ref  func(r meter.Rate, n int64, all []spent) metertest.Meter
	rule Rule
}

// A spent is one cost in a ledger. A debt is from a correction upwards, and is charged at its own instant.
type spent struct {
	at, cost int64
	debt     bool
}

func plain(m metertest.Meter, all []spent) metertest.Meter {
	for _, s := range all {
		if b, ok := m.(*metertest.Bucket); ok && s.debt {
			b.Owe(s.at, s.cost)
		} else if s.cost > 0 {
			m.Pay(s.at, s.at, s.cost, false)
		}
	}
	return m
}

var wall meter.Wall

var kinds = []kind{
	{
		"token bucket", func(r meter.Rate, n int64) meter.Meter { return meter.NewTokenBucket(0, r, n, n) },
		func(r meter.Rate, n int64, all []spent) metertest.Meter {
			return plain(metertest.NewBucket(0, r, n, n), all)
		}, Rule{},
	},
	{
		"pace", func(r meter.Rate, _ int64) meter.Meter { return meter.NewPace(0, r) },
		func(r meter.Rate, _ int64, all []spent) metertest.Meter { return plain(metertest.NewPace(0, r), all) }, Rule{},
	},
	{
		"sliding window", func(r meter.Rate, _ int64) meter.Meter { return meter.NewSlidingWindow(r) },
		func(r meter.Rate, _ int64, all []spent) metertest.Meter {
			return plain(&metertest.SlidingWindow{N: r.N, Per: int64(r.Per)}, all)
		}, Rule{Windowed: true},
	},
	{
		"quota", func(r meter.Rate, _ int64) meter.Meter { return meter.NewQuota(r) },
		func(r meter.Rate, _ int64, all []spent) metertest.Meter {
			return plain(&metertest.Quota{N: r.N, Per: int64(r.Per)}, all)
		}, Rule{Windowed: true},
	},
	{
		"fixed window", func(r meter.Rate, _ int64) meter.Meter { return meter.NewFixedWindow(0, r, time.Time{}, &wall) },
		func(r meter.Rate, _ int64, all []spent) metertest.Meter {
			return plain(&metertest.FixedWindow{N: r.N, Per: int64(r.Per), Used: make(map[int64]int64)}, all)
		}, Rule{Windowed: true},
	},
	{
		"slots", func(_ meter.Rate, n int64) meter.Meter { return meter.NewSlots(n) },
		func(_ meter.Rate, n int64, all []spent) metertest.Meter { return plain(&metertest.Slots{N: n}, all) }, Rule{Frees: true, Reported: true},
	},
}

// A ledger is a bucket and the account of it.
type ledger struct {
	kind
	*Bucket
	rate   meter.Rate
	n      int64
	all    []spent
	held   meter.Instant
	takes  int
	undone bool
}

// open returns when a cost can be paid by the account, not before now.
func (l *ledger) open(now meter.Instant, cost int64) meter.Instant {
	return l.ref(l.rate, l.n, l.all).Ready(max(now, l.held), cost)
}

// agrees compares the bucket with the account. A token bucket remembers a few grants, and gives back less where more are younger.
func (l *ledger) agrees(t *testing.T, now meter.Instant, cost int64) {
	t.Helper()
	got, want := l.Ready(now, 0, cost), l.open(now, cost)
	if _, ok := l.Meter.(*meter.TokenBucket); ok && l.undone && l.takes > 4 {
		require.GreaterOrEqual(t, got, want, "%s at %d: a cost of %d", l.name, now, cost)
		return
	}
	require.Equal(t, want, got, "%s at %d: a cost of %d", l.name, now, cost)
	require.Equal(t, want == now, l.IsOpen(now) && l.Meter.Payable(now, cost), "%s at %d: a cost of %d", l.name, now, cost)
}

// A sent is a request that was granted, and what it has in each ledger.
type sent struct {
	charges []charge
	in      []*ledger
	row     []int
}

// A charge is what a request costs in one bucket.
type charge struct {
	*Bucket
	cost, paid int64
}

// Requests in several buckets at once are all or nothing; what is refunded, corrected and held leaves what the account has; and
// the counters are the sums of what was done.
func TestBucketsAgreeWithThePlainAccountOfTheirRequests(t *testing.T) {
	granted, refused := 0, 0
	for seed := range uint64(150) {
		r := metertest.Seeded(t, seed)
		var all []*ledger
		for _, i := range r.Perm(len(kinds))[:1+r.IntN(len(kinds))] {
			l := &ledger{kind: kinds[i], rate: meter.Rate{N: 2 + r.Int64N(20), Per: time.Duration(50 + r.Int64N(1000))}}
			l.n = l.rate.N
			li := newLimit(l.rate.N, func(li *Limit) {
				li.Frees, li.Reported, li.Windowed, li.Index = l.rule.Frees, l.rule.Reported, l.rule.Windowed, i
			})
			l.Bucket = li.bucketWith(strconv.Itoa(r.IntN(2)), l.make(l.rate, l.n))
			all = append(all, l)
		}
		now, open := meter.Instant(0), []*sent(nil)
		charged, returned, grants := make(map[*ledger]uint64), make(map[*ledger]uint64), make(map[*ledger]uint64)
		for range 60 {
			now += r.Int64N(60) * int64(r.IntN(2))
			some := all[r.IntN(len(all))]
			switch r.IntN(8) {
			case 0:
				until := now + r.Int64N(100)
				some.Hold(now, until)
				some.held = max(some.held, until)
			case 1:
				require.Equal(t, some.held > now, some.Lift(now))
				some.held = min(some.held, now)
			case 2, 3: // a request is over: its cost is another one, or it was never sent
				if len(open) == 0 {
					continue
				}
				i := r.IntN(len(open))
				g := open[i]
				open = slices.Delete(open, i, i+1)
				for k, c := range g.charges {
					l := g.in[k]
					paid := &l.all[g.row[k]].cost
					switch more := r.Int64N(2); {
					case l.rule.Frees:
						c.Meter.GiveBack(c.paid, now, c.cost)
						c.Limit.Counts.Gave(c.cost)
						returned[l], *paid = returned[l]+uint64(c.cost), 0
					case r.IntN(2) == 0:
						less := r.Int64N(c.cost + 1)
						c.Meter.Settle(c.paid, now, c.cost, less)
						*paid, l.undone = less, true
					case l.name == "token bucket" || l.name == "pace":
						c.Meter.Settle(c.paid, now, c.cost, c.cost+more)
						l.takes++
						if more > 0 {
							l.all = append(l.all, spent{now, more, true})
						}
					}
				}
			default:
				g, want, ok := new(sent), true, true
				for _, k := range r.Perm(len(all))[:1+r.IntN(len(all))] {
					l := all[k]
					c := charge{Bucket: l.Bucket, cost: 1 + r.Int64N(max(1, l.n/2))}
					g.charges, g.in = append(g.charges, c), append(g.in, l)
					l.agrees(t, now, c.cost)
					want = want && l.open(now, c.cost) == now
				}
				before := balances(all, now)
				for _, c := range g.charges {
					ok = ok && c.IsOpen(now) && c.Meter.Payable(now, c.cost)
				}
				if !slices.ContainsFunc(g.in, func(l *ledger) bool { return l.undone && l.takes > 4 }) {
					require.Equal(t, want, ok)
				}
				require.Equal(t, before, balances(all, now), "to ask costs nothing")
				if !ok {
					refused++
					continue
				}
				granted++
				for k := range g.charges {
					c, l := &g.charges[k], g.in[k]
					paid, ok := c.Meter.Spend(now, c.cost)
					require.True(t, ok, "what is payable is paid: all of it")
					c.paid = paid
					c.Limit.Counts.Took(c.cost)
					g.row = append(g.row, len(l.all))
					l.all = append(l.all, spent{now, c.cost, false})
					l.takes++
					charged[l], grants[l] = charged[l]+uint64(c.cost), grants[l]+1
				}
				open = append(open, g)
			}
			for _, l := range all {
				l.agrees(t, now, 1+r.Int64N(l.n))
				require.Equal(t, []uint64{grants[l], charged[l], returned[l]}, []uint64{l.Limit.Counts.Granted, l.Limit.Counts.Charged, l.Limit.Counts.Returned})
				if f, ok := l.Meter.(meter.Flier); ok {
					require.EqualValues(t, f.InFlight(), l.Limit.InFlight(), "slots in use are what was charged and not returned")
				}
			}
		}
	}
	require.Greater(t, granted, 500)
	require.Greater(t, refused, 500)
}

// balances returns what each bucket has.
func balances(all []*ledger, now meter.Instant) (tokens []float64) {
	for _, l := range all {
		tokens = append(tokens, l.Meter.Tokens(now))
	}
	return tokens
}

// A bucket that is as good as new by Matters is one that may be made again: nobody can tell. Before, it has less than a new one.
// As long as it must be kept, it stops a request that a new one would grant.
func TestForgettingABucketKeepsWhatMatters(t *testing.T) {
	same, kept := 0, 0
	for _, k := range kinds {
		for seed := range uint64(40) {
			r := metertest.Seeded(t, seed)
			rate := meter.Rate{N: 1 + r.Int64N(9), Per: time.Duration(20 + r.Int64N(500))}
			li := newLimit(rate.N)
			b := li.bucketWith("a", k.make(rate, rate.N))
			now := meter.Instant(0)
			for range 80 {
				now += r.Int64N(int64(rate.Per)) * int64(r.IntN(2))
				if cost := 1 + r.Int64N(rate.N); b.Meter.Payable(now, cost) && r.IntN(3) == 0 {
					paid := b.Meter.Take(now, now, cost, false)
					if !k.rule.Frees && r.IntN(3) == 0 {
						b.Meter.Settle(paid, now, cost, cost+r.Int64N(rate.N))
					} else if r.IntN(3) == 0 {
						b.Meter.GiveBack(paid, now, cost)
					}
				}
				if k.rule.Frees && r.IntN(4) == 0 {
					if used := b.Meter.(meter.Flier).InFlight(); used > 0 {
						b.Meter.GiveBack(0, now, used)
					}
				}
				if r.IntN(20) == 0 {
					b.Hold(now, now+r.Int64N(50))
				}
				must, full := b.Matters(now)
				require.LessOrEqual(t, must, full, k.name)
				fresh := &Bucket{Limit: li, Key: "b", Meter: k.make(rate, rate.N)}
				if full <= now {
					same++
					for cost := int64(1); cost <= rate.N+1; cost++ {
						for _, later := range []meter.Instant{0, 1, int64(rate.Per) / 2, int64(rate.Per)} {
							require.Equal(t, fresh.Ready(now+later, 0, cost), b.Ready(now+later, 0, cost), k.name)
						}
					}
					require.InDelta(t, fresh.Meter.Tokens(now), b.Meter.Tokens(now), 0, k.name)
				}
				if must > now {
					kept++
					require.Greater(t, b.Ready(now, 0, rate.N), now, "%s: not even all that it has", k.name)
				}
			}
		}
	}
	require.Greater(t, same, 1000)
	require.Greater(t, kept, 100)
}

// Whatever waits at a bucket is granted no earlier than was planned when it came, whenever slots are given back; and where
// nothing is given back, at that instant. Costs of more than one token may not fit into what is left of a window: there it is a
// bound alone.
func TestPlansAreLowerBoundsOfGrants(t *testing.T) {
	many := append(slices.Clone(kinds), kind{
		name: "slots that rest", rule: Rule{Frees: true}, make: func(r meter.Rate, n int64) meter.Meter { return meter.NewPausedSlots(n, r) },
	})
	for _, k := range many {
		grants := 0
		for seed := range uint64(10) {
			r := metertest.Seeded(t, seed)
			rate := meter.Rate{N: 1 + r.Int64N(5), Per: time.Duration(20 + r.Int64N(200))}
			b := newLimit(rate.N).bucketWith("a", k.make(rate, rate.N))
			b.needs()
			var o order.Order
			plans, ahead, ones := make(map[*order.Waiter]meter.Instant), int64(0), seed%2 == 0
			var out []int64
			serve := func(now meter.Instant) {
				for w, due := o.Next(now); w != nil; w, due = o.Next(now) {
					require.LessOrEqual(t, plans[w], now, k.name)
					require.Equal(t, now, due, k.name)
					if b.held == 0 && !k.rule.Frees && (ones || !k.rule.Windowed) {
						require.Equal(t, plans[w], now, k.name)
					}
					ahead -= w.Costs[0]
					b.Meter.Take(due, now, w.Costs[0], true)
					if k.rule.Frees {
						out = append(out, w.Costs[0])
					}
					grants++
				}
			}
			for now := range meter.Instant(2000) {
				serve(now)
				if r.IntN(30) == 0 {
					cost := int64(1) // the plan for slots lets requests of one slot go one after the other
					if !k.rule.Frees && !ones {
						cost += r.Int64N(rate.N)
					}
					w := &order.Waiter{At: []*order.Point{&b.point}, Costs: []int64{cost}, Last: meter.Never}
					plans[w] = b.PlanFor(now, ahead, cost)
					require.GreaterOrEqual(t, plans[w], now)
					ahead += cost
					o.Join(w, now)
				}
				if r.IntN(400) == 0 {
					b.Hold(now, now+r.Int64N(100)) // later than what was planned
					o.Touch(&b.point)
				}
				if len(out) > 0 && r.IntN(20) == 0 {
					if m, ok := b.Meter.(meter.Rester); ok {
						m.Rest(now, out[0])
					}
					b.Meter.GiveBack(0, now, out[0])
					out = out[1:]
					o.Touch(&b.point)
				}
				serve(now)
			}
		}
		require.Greater(t, grants, 100, k.name)
	}
}

// The shares of all processes add up to no more than the whole, of the limit's rate as of a key's own, and a share loses less
// than a token of a window, and a nanosecond of a period.
func TestSharesAddUpToNoMoreThanTheWhole(t *testing.T) {
	for seed := range uint64(500) {
		r := metertest.Seeded(t, seed)
		processes := 1 + r.Int64N(100)
		whole := meter.Rate{N: 1 + r.Int64N(1<<(1+r.IntN(39))), Per: time.Duration(1 + r.Int64N(1<<(1+r.IntN(42))))}
		own := meter.Rate{N: 1 + r.Int64N(1000), Per: time.Duration(1 + r.Int64N(1e12))}
		li := newLimit(1, func(li *Limit) { li.Rate, li.Share = whole, 1/float64(processes) })
		for _, rate := range []meter.Rate{whole, own} {
			of := meter.Rate{}
			if rate == own {
				of = own
			}
			li.Windowed = false
			got, burst := li.Terms(of)
			sum := big.NewRat(processes, 1)
			sum.Mul(sum, big.NewRat(got.N, int64(got.Per)))
			require.LessOrEqual(t, sum.Cmp(big.NewRat(rate.N, int64(rate.Per))), 0, "%d times %v of %v", processes, got, rate)
			require.Less(t, int64(got.Per), processes*int64(rate.Per)+2)
			require.LessOrEqual(t, burst*processes, max(processes, rate.N), "but each has one token at least")
			require.Greater(t, (burst+1)*processes, rate.N)

			li.Windowed = true
			got, _ = li.Terms(of)
			require.Equal(t, rate.Per, got.Per)
			require.Equal(t, rate.N/processes, got.N, "%d processes share %d", processes, rate.N)

			b := &Bucket{Limit: li, Key: "k"}
			b.needs().own = of
			require.Equal(t, got, b.Rate())
		}
	}
}

// No hold of a key is forgotten before it is over, however many there are: one that there is no room for holds more than its key.
func TestAHoldOfAKeyWithoutRoomIsNeverLost(t *testing.T) {
	for seed := range uint64(5) {
		r, li, now := metertest.Seeded(t, seed), newLimit(1), meter.Instant(0)
		model, wide := make(map[string]meter.Instant), false
		for range 3 * maxHolds {
			now += r.Int64N(10)
			key := strconv.Itoa(r.IntN(2 * maxHolds))
			if r.IntN(8) == 0 {
				want := model[key]
				got := li.takeHold(key)
				if want > now {
					require.GreaterOrEqual(t, got, want)
				}
				if !wide {
					require.Contains(t, []meter.Instant{want, 0}, got, "no more than its own")
				}
				delete(model, key)
				continue
			}
			until := now + r.Int64N(20_000)
			wide = !li.KeepHold(key, until, now) || wide
			model[key] = max(model[key], until)
			require.LessOrEqual(t, len(li.holds), maxHolds)
			require.GreaterOrEqual(t, li.heldMost, until)
		}
		for _, key := range slices.Sorted(maps.Keys(model)) {
			if model[key] > now {
				require.GreaterOrEqual(t, li.takeHold(key), model[key])
			}
		}
	}
}
