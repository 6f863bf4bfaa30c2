package store

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

// This file compares each kind of budget with a model that shares no arithmetic with it: a plain list or table, or rational numbers.

// grants returns what a Book grants of what is free: Need or nothing, up to Want, and a quarter of the rest ahead of that.
func grants(p *Part, free int64) int64 {
	switch {
	case p.Need > max(0, free):
		return 0
	case max(p.Need, p.Want) <= free:
		want := max(p.Need, p.Want)
		return want + min(p.Ahead, (free-want)/4)
	}
	return max(p.Need, free, 0)
}

// someUse is what a process may ask for a window, and when.
func someUse(r *rand.Rand, l *lessor, b Budget, leases []Return) Part {
	l.now += r.Int64N(b.Per.Microseconds()/3) * int64(r.IntN(2))
	p := Part{Budget: b, Need: r.Int64N(b.N/2 + 1), Want: r.Int64N(b.N + 3), Ahead: r.Int64N(b.N + 1)}
	if r.IntN(3) == 0 {
		p.Owe = r.Int64N(b.N)
	}
	if len(leases) > 0 && r.IntN(2) == 0 {
		of := leases[r.IntN(len(leases))]
		p.Back = []Return{{1 + r.Int64N(max(1, of.Tokens)), of.Lease}}
	}
	return p
}

func TestASlidingWindowOfABookIsAListOfWhatCounts(t *testing.T) {
	for seed := range uint64(60) {
		r, l := metertest.Seeded(t, seed), newLessor(t)
		b := Budget{Kind: Sliding, N: 1 + r.Int64N(40), Per: time.Duration(3+r.Int64N(1000)) * time.Millisecond}
		list := metertest.SlidingWindow{N: b.N, Per: b.Per.Microseconds()}
		var leases []Return
		for range 80 { // fewer than are joined
			p := someUse(r, l, b, leases)
			list.Advance(l.now)
			for _, back := range p.Back {
				for i := range list.Events {
					if e := &list.Events[i]; e.At == back.Lease && e.At+list.Per > l.now {
						n := min(e.Cost, back.Tokens)
						e.Cost, back.Tokens = e.Cost-n, back.Tokens-n
					}
				}
			}
			list.Owe(l.now, p.Owe)
			want := grants(&p, list.Left(l.now))
			need := max(1, p.Need)
			if want > 0 {
				list.Take(l.now, want)
				leases, need = append(leases, Return{want, l.now}), 1 // a window reports when its next token comes in
			}
			got := l.ask(p)
			require.Equal(t, want, got.Tokens)
			require.EqualValues(t, list.Left(l.now), got.Left)
			require.Equal(t, time.Duration(list.Ready(l.now, need)-l.now)*time.Microsecond, got.Wait)
		}
	}
}

func TestAFixedWindowOfABookIsATableOfWhatWasUsed(t *testing.T) {
	for seed := range uint64(60) {
		r, l := metertest.Seeded(t, seed), newLessor(t)
		b := Budget{Kind: Fixed, N: 1 + r.Int64N(40), Per: time.Duration(3+r.Int64N(1000)) * time.Millisecond, Start: time.UnixMicro(r.Int64N(1e9))}
		table := metertest.FixedWindow{N: b.N, Per: b.Per.Microseconds(), Origin: b.Start.UnixMicro(), Used: make(map[int64]int64)}
		var leases []Return
		for range 200 {
			switch r.IntN(6) {
			case 0: // the last instant of the window
				l.now = (table.Index(l.now)+1)*table.Per + table.Origin - 1
			case 1:
				l.now++
			}
			p := someUse(r, l, b, leases)
			window := table.Index(l.now)
			for _, back := range p.Back {
				if table.Index(back.Lease) == window {
					table.GiveBack(l.now, back.Tokens)
				}
			}
			table.Owe(l.now, p.Owe)
			want := grants(&p, table.Left(l.now))
			wait := time.Duration(0)
			if p.Need > 0 {
				wait = time.Duration(table.Ready(l.now, p.Need)-l.now) * time.Microsecond
			}
			if table.Used[window] += want; want > 0 {
				leases = append(leases, Return{want, l.now})
			}
			ends := time.Duration((window+1)*table.Per+table.Origin-l.now) * time.Microsecond
			got := l.ask(p)
			require.Equal(t, want, got.Tokens)
			require.Equal(t, want, got.AtOnce)
			require.EqualValues(t, table.Left(l.now), got.Left)
			require.Equal(t, wait, got.Wait)
			require.Equal(t, want > 0, got.Until == ends)
		}
	}
}

// A promise is a token that may be used from an instant on, in ns.
type promise struct{ from, tokens int64 }

// promised returns when the tokens of a lease may be used, in ns since someTime.
func promised(now int64, b Budget, got LeasedPart) []promise {
	all := []promise{{(now - someTime) * 1000, got.AtOnce}}
	for k := range got.Tokens - got.AtOnce {
		later := new(big.Int).Mul(big.NewInt(k), big.NewInt(int64(b.Per)))
		later.Add(later, big.NewInt(b.N-1)).Div(later, big.NewInt(b.N))
		all = append(all, promise{(now-someTime)*1000 + int64(got.Next) + later.Int64(), 1})
	}
	return all
}

// A process that uses every token at the first instant at which it may uses no more than a bucket in rational numbers has, and none is promised
// for later than was asked for. The bucket holds what comes in within a tick more, because by so much instants are rounded up.
func TestABookPromisesNoTokenBeforeItComesIn(t *testing.T) {
	promises := 0
	for seed := range uint64(100) {
		r, l := metertest.Seeded(t, seed), newLessor(t)
		b := bucket(1+r.Int64N(50), time.Duration(1+r.Int64N(int64(time.Second))), 1+r.Int64N(20))
		b.Initial = r.Int64N(b.Burst + 1)
		u, err := b.units()
		require.NoError(t, err)
		var all []promise
		for range 60 {
			l.now += r.Int64N(1+2*b.Per.Microseconds()) * int64(r.IntN(2))
			p := Part{Budget: b, Need: r.Int64N(min(3, b.Burst) + 1), Want: r.Int64N(12), Ahead: r.Int64N(5)}
			p.Horizon, p.Within = time.Duration(r.Int64N(int64(b.Per))), time.Duration(r.Int64N(int64(b.Per)))
			got := l.ask(p)
			if got.Tokens == 0 {
				continue
			}
			uses := promised(l.now, b, got)
			last, latest := uses[len(uses)-1].from, (l.now-someTime)*1000+int64(max(p.Horizon, p.Within))
			require.LessOrEqual(t, last, latest+u.Tick*1000, "a promise is rounded up to a tick")
			all, promises = append(all, uses...), promises+len(uses)-1
		}
		slices.SortStableFunc(all, func(x, y promise) int { return int(x.from - y.from) })
		m := metertest.NewBucket(0, metertest.Rate{N: b.N, Per: b.Per}, b.Burst, b.Initial)
		m.Burst = new(big.Rat).Add(m.Burst, big.NewRat(b.N*u.Tick*1000, int64(b.Per)))
		for _, use := range all {
			m.Take(use.from, use.tokens, false)
			require.GreaterOrEqual(t, m.Level.Sign(), 0, "%d tokens at %d ns", use.tokens, use.from)
		}
	}
	require.Greater(t, promises, 1000)
}

// A bucket that owes agrees with rational numbers, whatever it owes.
func TestWhatABookOwesIsAsInRationalNumbers(t *testing.T) {
	for seed := range uint64(100) {
		r, l := metertest.Seeded(t, seed), newLessor(t)
		b := bucket(1+r.Int64N(50), time.Duration(1+r.Int64N(1000))*time.Millisecond, 1+r.Int64N(20))
		if seed%2 == 0 {
			b.Kind = Pace
			b.Burst, b.Initial = 1, 1
		}
		m := metertest.NewBucket(0, metertest.Rate{N: b.N, Per: b.Per}, b.Burst, b.Initial)
		debt := metertest.NewBucket(0, metertest.Rate{N: b.N, Per: b.Per}, 0, 0) // what is owed, whatever a pace was charged besides
		least := metertest.Rat(-b.Burst)
		if b.Kind == Pace {
			least = metertest.Rat(-b.N)
		}
		least = metertest.MinRat(least, big.NewRat(-b.N*int64(time.Minute), int64(b.Per))) // what comes in within a minute
		for range 60 {
			l.now += r.Int64N(1+2*b.Per.Microseconds()) * int64(r.IntN(2))
			p := Part{Budget: b, Need: 1 + r.Int64N(b.Burst), Owe: r.Int64N(40) * int64(r.IntN(2))}
			if b.Kind == Pace {
				p.Need = 1 + r.Int64N(10) // any cost is due with its first token
			}
			debt.Settle((l.now - someTime) * 1000)
			m.Settle((l.now - someTime) * 1000)
			there := metertest.MinRat(metertest.Rat(p.Owe), new(big.Rat).Neg(metertest.MinRat(new(big.Rat).Neg(m.Level), metertest.Rat(0))))
			more := metertest.MinRat(new(big.Rat).Sub(metertest.Rat(p.Owe), there), new(big.Rat).Sub(debt.Level, least))
			debt.Level = new(big.Rat).Sub(debt.Level, more)
			m.Level = new(big.Rat).Sub(new(big.Rat).Sub(m.Level, there), more)
			due := p.Need
			if b.Kind == Pace {
				due = 1
			}
			want := int64(0)
			if m.Level.Cmp(metertest.Rat(due)) >= 0 {
				want = p.Need
				m.Level = new(big.Rat).Sub(m.Level, metertest.Rat(want))
			}
			wait := (m.Ready((l.now-someTime)*1000, due) - (l.now-someTime)*1000 + 999) / 1000
			left, _ := m.Level.Float64()
			got := l.ask(p)
			require.Equal(t, want, got.Tokens, "%s", b.Kind)
			require.InDelta(t, left, got.Left, 1e-9*(1+math.Abs(left)), "%s: a float64 of it", b.Kind)
			if want == 0 {
				require.Equal(t, time.Duration(wait)*time.Microsecond, got.Wait, "%s", b.Kind)
			}
		}
	}
}

// A member is a process that uses slots as a Limiter does: it asks with what it has, and dies or loses a response now and then.
type member struct {
	name        string
	has, thinks int64 // slots in use, and that the Book may think it has
	last        int64 // its last ask
	dead        bool
}

func TestSlotsInUseAreNeverMoreThanThereAre(t *testing.T) {
	for seed := range uint64(20) {
		r, l := metertest.Seeded(t, seed), newLessor(t)
		b := Budget{Kind: Slots, N: 1 + r.Int64N(20)}
		var all []*member
		asks := 0
		for range 300 {
			l.now += r.Int64N(SlotLease.Microseconds()/5) * int64(r.IntN(2))
			alive := slices.DeleteFunc(slices.Clone(all), func(m *member) bool { return m.dead || l.now-m.last >= SlotLease.Microseconds() })
			for _, m := range all {
				if m.dead = m.dead || l.now-m.last >= SlotLease.Microseconds(); m.dead && l.now-m.last >= SlotLease.Microseconds() {
					m.has, m.thinks = 0, 0 // its requests are over: a process that cannot reach the store stops them
				}
			}
			if len(alive) < 4 {
				all = append(all, &member{name: strconv.Itoa(len(all)), last: l.now})
				alive = append(alive, all[len(all)-1])
			}
			m := alive[r.IntN(len(alive))]
			m.has -= r.Int64N(m.has + 1)
			others := int64(0)
			for _, other := range all {
				if other != m {
					others += other.thinks
				}
			}
			gaveBack := m.has < m.thinks
			p := Part{Budget: b, Need: r.Int64N(min(3, b.N) + 1), Want: r.Int64N(b.N + 1), Ahead: r.Int64N(2), Holder: m.name, Held: m.has}
			got := l.ask(p)
			asks++
			m.last, m.thinks = l.now, m.has+got.Tokens
			require.LessOrEqual(t, others+m.thinks, b.N)
			if free := b.N - others - m.has; !gaveBack { // else it may have to let others go first
				require.Equal(t, grants(&p, free), got.Tokens)
			} else {
				require.Contains(t, []int64{0, grants(&p, free)}, got.Tokens)
			}
			switch r.IntN(10) {
			case 0: // the response is lost
			case 1:
				m.has, m.dead = m.thinks, true
			default:
				m.has = m.thinks
			}
		}
		require.Equal(t, 300, asks)
	}
}

// slotsOf asks for slots as a process that was counted since ago.
func (l *lessor) slotsOf(holder string, held, want int64, since time.Duration) LeasedPart {
	l.Helper()
	return l.ask(Part{Budget: Budget{Kind: Slots, N: 5}, Holder: holder, Held: held, Need: min(1, want), Want: want, Since: since})
}

func TestSlotsThatTheBookDoesNotKnowStopGrants(t *testing.T) {
	for name, first := range map[string]func(*lessor) LeasedPart{
		"slots that were not counted":      func(l *lessor) LeasedPart { return l.slotsOf("a", 1, 2, MaxSince) },
		"of an earlier release":            func(l *lessor) LeasedPart { return l.slotsOf("a", 1, 2, 0) },
		"a process that should be counted": func(l *lessor) LeasedPart { return l.slotsOf("a", 0, 2, 9*time.Second-time.Microsecond) },
	} {
		l := newLessor(t)
		got := first(l)
		require.Zero(t, got.Tokens, name)
		require.Equal(t, 4*time.Second, got.Wait, name)
		l.later(3 * time.Second)
		got = l.slotsOf("b", 3, 1, 3*time.Second)
		require.Zero(t, got.Tokens, name)
		require.Zero(t, got.Over, name)
		require.Equal(t, time.Second, got.Wait, name)
		l.later(time.Second - time.Microsecond)
		require.Zero(t, l.slotsOf("c", 0, 1, MaxSince).Tokens, name)
		l.later(time.Microsecond)
		require.EqualValues(t, 1, l.slotsOf("c", 0, 1, 4*time.Second).Tokens, name)
	}
}

func TestSlotsAreGrantedToProcessesThatTheBookNeedNotKnow(t *testing.T) {
	for _, since := range []time.Duration{0, 9 * time.Second, MaxSince} {
		l := newLessor(t)
		require.EqualValues(t, 5, l.slotsOf("a", 0, 9, since).Tokens, since)
	}
	l := newLessor(t)
	l.slotsOf("a", 0, 3, MaxSince)
	l.later(time.Second)
	require.EqualValues(t, 2, l.slotsOf("a", 3, 9, time.Second).Tokens)
}

func TestSlotsThatOthersHaveAreOver(t *testing.T) {
	l := newLessor(t)
	l.slotsOf("a", 0, 4, MaxSince) // after the state was lost, before any process has shown that
	require.EqualValues(t, 2, l.slotsOf("b", 3, 0, 3*time.Second).Over)
	require.Zero(t, l.slotsOf("b", 3, 0, time.Second).Over, "they are counted")
	require.EqualValues(t, -2, l.slotsOf("a", 4, 0, time.Second).Left)
}

// While nothing is granted, no process waits for what another gives back: each goes on with the slots that it has.
func TestNoProcessYieldsSlotsThatAreNotGranted(t *testing.T) {
	l := newLessor(t)
	l.slotsOf("a", 0, 3, time.Second)
	require.EqualValues(t, 3, l.slotsOf("b", 2, 4, time.Second).Left)
	l.later(4 * time.Second)
	require.Zero(t, l.slotsOf("b", 2, 0, 4*time.Second).Left, "a waits for three")
}

func TestClosedSlotsAreKept(t *testing.T) {
	l := newLessor(t)
	b := Budget{Kind: Slots, N: 5}
	l.slotsOf("a", 2, 0, MaxSince)
	l.slotsOf("a", 0, 0, MaxSince)
	require.Equal(t, time.UnixMicro(l.now).Add(5*time.Second), l.book.Until(&b))
	state := l.book.State(&b)
	l.book = NewBook()
	require.NoError(t, l.book.SetState(&b, state))
	require.Zero(t, l.slotsOf("b", 0, 1, MaxSince).Tokens)
}

func TestSlotsAreClosedForFourSecondsByAClockThatWentBack(t *testing.T) {
	l := newLessor(t)
	l.slotsOf("a", 1, 0, MaxSince)
	l.later(-time.Hour)
	require.Equal(t, 4*time.Second, l.slotsOf("b", 0, 1, MaxSince).Wait)
	l.later(4 * time.Second)
	require.EqualValues(t, 1, l.slotsOf("b", 0, 1, MaxSince).Tokens)
}

// A rulebook is which rule counts, by the text of Budget: the stricter one, until no process has asked by it for MaxSince, or another
// replaces it.
type rulebook struct {
	now  Budget
	last int64
}

func (b *rulebook) asks(by Budget, replace bool, at int64) (differs bool) {
	size := func(b Budget) int64 { return map[Kind]int64{Bucket: b.Burst, Pace: 1}[b.Kind] }
	order := rate(by).Cmp(rate(b.now))
	if order == 0 && by.Kind != Slots {
		if order = int(size(by) - size(b.now)); order == 0 && by.Kind != Bucket && by.Kind != Pace {
			order = int(by.N - b.now.N)
		}
	}
	if order <= 0 || replace || at-b.last > MaxSince.Microseconds() {
		b.now, b.last = by, at
		return false
	}
	return true
}

func rate(b Budget) *big.Rat { return big.NewRat(b.N, max(1, int64(b.Per))) }

// Tokens are promised as far ahead to a process whose rule does not count as to others, by the rule that counts: each is granted and due
// as if all had sent that rule.
func TestPromisesAreMadeByTheRuleThatCounts(t *testing.T) {
	for _, strict := range []Budget{bucket(100, time.Second, 5), bucket(99, time.Second, 50), bucket(999_983, 24*time.Hour, 999_983), {Kind: Pace, N: 7, Per: time.Second}} {
		for seed := range uint64(20) {
			r, two, one := metertest.Seeded(t, seed), newLessor(t), newLessor(t)
			loose := strict
			loose.N = strict.N*(1+r.Int64N(3)) + 1
			if strict.Kind == Bucket {
				loose.Burst += r.Int64N(9)
			}
			two.ask(Part{Budget: strict})
			one.ask(Part{Budget: strict})
			promised := int64(0)
			for i := range 100 {
				wait := time.Duration(r.Int64N(int64(50 * time.Millisecond)))
				two.later(wait)
				one.later(wait)
				p := Part{Budget: strict, Need: r.Int64N(2), Want: r.Int64N(20), Horizon: time.Duration(r.Int64N(int64(time.Second))), Within: time.Duration(r.Int64N(int64(time.Minute)))}
				want := one.ask(p)
				if i%2 == 0 {
					p.Budget = loose
				}
				got := two.ask(p)
				promised += got.Tokens - got.AtOnce
				if i%2 == 0 {
					require.True(t, got.Differs)
					require.Zero(t, rate(strict).Cmp(big.NewRat(got.N, int64(got.Per))), "%d per %v", got.N, got.Per)
					got.Differs, got.N, got.Per = false, 0, 0
				}
				require.Equal(t, want, got, "%+v", p)
			}
			if strict.Per == time.Second {
				require.Positive(t, promised)
			}
		}
	}
}

// A request that costs more than the burst of the rule that counts is not granted: its tokens would be used together.
func TestNothingAboveTheBurstOfTheRuleThatCountsIsGranted(t *testing.T) {
	l := newLessor(t)
	l.ask(Part{Budget: bucket(100, time.Second, 5)})
	loose := bucket(200, time.Second, 10)
	require.Zero(t, l.ask(Part{Budget: loose, Need: 6, Want: 6, Within: time.Minute}).Tokens)
	require.EqualValues(t, 5, l.ask(Part{Budget: loose, Need: 5, Want: 5}).Tokens)
	require.EqualValues(t, 5, l.ask(Part{Budget: loose, Need: 5, Want: 5, Within: 50 * time.Millisecond}).Tokens)
}

func TestTheStricterRuleCountsInEveryKind(t *testing.T) {
	for _, kind := range []Kind{Bucket, Pace, Sliding, Fixed, Slots} {
		for seed := range uint64(20) {
			r, l := metertest.Seeded(t, seed), newLessor(t)
			var rules []Budget
			for _, n := range []int64{5, 10, 20} {
				for _, seconds := range []int64{1, 2} {
					b := Budget{Kind: kind, N: n, Per: time.Duration(seconds) * time.Second}
					switch kind {
					case Bucket:
						b.Burst = 1 + r.Int64N(9)
					case Slots:
						b.Per = 0
					}
					rules = append(rules, b)
				}
			}
			book, counted := rulebook{}, 0
			for i := range 200 {
				l.now += r.Int64N(3_000_000) * int64(r.IntN(2))
				if r.IntN(20) == 0 {
					l.later(MaxSince)
				}
				by, replace := rules[r.IntN(len(rules))], r.IntN(15) == 0
				if b := l.book.Until(&by); i == 0 || l.now >= b.UnixMicro() { // it was forgotten
					book = rulebook{by, l.now}
				}
				differs := book.asks(by, replace, l.now)
				got := l.ask(Part{Budget: by, Replace: replace, Want: 1, Horizon: time.Hour, Holder: "h"})
				require.Equal(t, differs, got.Differs, "%s: ask %d", kind, i)
				if differs {
					counted++
					if kind == Slots {
						require.Equal(t, book.now.N, got.N)
					} else {
						require.Zero(t, rate(book.now).Cmp(big.NewRat(got.N, int64(got.Per))), "%s: %d per %v is not the rule that counts", kind, got.N, got.Per)
					}
				} else {
					require.Zero(t, got.N, kind)
				}
			}
			require.Positive(t, counted, kind)
		}
	}
}

// A hold blocks every kind until the latest end, for every process, and ends when one of them ends it.
func TestAHoldBlocksEveryKind(t *testing.T) {
	for _, b := range someBudgets() {
		for seed := range uint64(10) {
			r, l := metertest.Seeded(t, seed), newLessor(t)
			until := int64(0)
			for range 100 {
				l.now += r.Int64N(400_000)
				p := Part{Budget: b, Want: 1, Holder: "h"}
				switch r.IntN(6) {
				case 0:
					p.Hold = time.Duration(r.Int64N(2_000_000)) * time.Microsecond
					until = max(until, l.now+p.Hold.Microseconds())
				case 1:
					p.Hold, until = -time.Nanosecond, 0
				}
				got := l.ask(p)
				left := time.Duration(max(0, until-l.now)) * time.Microsecond
				require.Equal(t, left, got.Hold, b.Kind)
				if left > 0 {
					require.Zero(t, got.Tokens, b.Kind)
					require.GreaterOrEqual(t, got.Wait, left, b.Kind)
				}
			}
		}
	}
}

// A blocked bucket has no more afterwards than it had, or one token, whether processes ask meanwhile or not: then all processes together send
// requests one by one to a server that has refused one. Tokens that were promised still come in.
func TestAHoldLeavesNoBurst(t *testing.T) {
	for _, c := range []struct{ had, want float64 }{{10, 10}, {3, 3}, {1, 1}, {0, 1}, {-2, 1}, {-50, -30}} {
		for _, asks := range []int{0, 1, 7} {
			l := newLessor(t)
			p := Part{Budget: bucket(10, time.Second, 10)}
			take := p
			take.Owe = int64(10 - c.had)
			take.Hold = 2 * time.Second
			require.EqualValues(t, c.had, l.ask(take).Left)
			for range asks {
				l.later(2 * time.Second / 8)
				require.LessOrEqual(t, l.ask(p).Left, c.want)
			}
			l.later(2*time.Second - time.Duration(asks)*2*time.Second/8)
			require.EqualValues(t, c.want, l.ask(p).Left, "%v before, %d asks", c.had, asks)
			l.later(100 * time.Millisecond)
			require.EqualValues(t, min(10, c.want+1), l.ask(p).Left, "later: %v before, %d asks", c.had, asks)
			l.later(time.Minute)
			require.EqualValues(t, 10, l.ask(p).Left, "in the end")
		}
	}
}

// What comes back during a hold makes no burst either: promised tokens come in meanwhile, and processes give them back.
func TestWhatComesBackDuringAHoldMakesNoBurst(t *testing.T) {
	l := newLessor(t)
	b := bucket(10, time.Second, 10)
	l.ask(Part{Budget: b, Need: 10, Want: 10})
	promised := l.ask(Part{Budget: b, Need: 4, Want: 4, Within: time.Second})
	require.EqualValues(t, 4, promised.Tokens)
	require.EqualValues(t, -4, l.ask(Part{Budget: b, Hold: time.Second}).Left)
	l.later(900 * time.Millisecond)
	require.EqualValues(t, 1, l.ask(Part{Budget: b, Back: []Return{{4, promised.ID}}}).Left)
	l.later(100 * time.Millisecond)
	require.EqualValues(t, 1, l.ask(Part{Budget: b}).Left)
}

// A bucket that was blocked is kept until it is full: a new one would have its burst.
func TestABucketThatWasBlockedIsKeptUntilItIsFull(t *testing.T) {
	l := newLessor(t)
	b := bucket(10, time.Second, 10)
	l.ask(Part{Budget: b, Want: 10})
	l.ask(Part{Budget: b, Hold: 2 * time.Second})
	require.Equal(t, time.UnixMicro(l.now).Add(4*time.Second), l.book.Until(&b), "2 s, at most one to fill, and one more")
	l.later(2*time.Second + 899*time.Millisecond)
	require.EqualValues(t, 9.99, l.ask(Part{Budget: b}).Left)
}

// Processes that ask at irregular times are counted, to one: what each has not reported yet is less than half a process.
func TestProcessesThatAskIrregularlyAreCounted(t *testing.T) {
	for _, n := range []int{1, 2, 5} {
		r, l := metertest.Seeded(t, uint64(n)), newLessor(t)
		last, first := make([]int64, n), l.now
		for range 3000 {
			l.now += r.Int64N(60_000) / int64(n)
			i := r.IntN(n)
			since := MaxSince
			if last[i] > 0 {
				since = time.Duration(l.now-last[i]) * time.Microsecond
			}
			last[i] = l.now
			got := l.ask(Part{Budget: bucket(10, time.Second, 10), Since: since})
			if l.now-first > 2*epoch {
				require.InDelta(t, n, got.Processes, 1)
			}
		}
	}
}

// No number of parts of an ask makes one budget grant more than it has: an ask that names one twice is rejected, and changes nothing.
func TestAnAskThatNamesABudgetTwiceIsAnError(t *testing.T) {
	for _, b := range someBudgets() {
		l := newLessor(t)
		l.ask(Part{Budget: b, Want: 1, Holder: "h"})
		before := l.book.State(&b)
		other := someBudgets()[0]
		other.Key = "other"
		part := Part{Budget: b, Need: 1, Want: 1, Holder: "h"}
		again := part
		again.Budget.N++ // by whatever rule
		leases := l.book.Lease(time.UnixMicro(l.now), []Ask{{[]Part{part, {Budget: other, Want: 1}, again}}, {[]Part{{Budget: other, Want: 1}}}})
		require.ErrorIs(t, leases[0].Err, ErrSetup)
		require.ErrorContains(t, leases[0].Err, "parts 0 and 2 of one ask are for the same "+string(b.Kind))
		require.Empty(t, leases[0].Parts)
		require.NoError(t, leases[1].Err, "other asks are decided")
		require.Equal(t, before, l.book.State(&b))
		part.Budget.Key += "x"
		require.NoError(t, (&Ask{[]Part{part, again, {Budget: other}}}).Check())
	}
	require.NoError(t, (&Ask{}).Check())
}
