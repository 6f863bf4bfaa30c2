package throttletest

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A model is a budget by brute force: whether there is room is asked for any instant from the last charge on.
type model interface {
	room(at, cost int64) bool
	charge(at, cost int64)
}

// ratBucket is a token bucket by its definition, in rational numbers.
type ratBucket struct {
	n, per, burst int64
	level         *big.Rat
	last          int64
}

func (m *ratBucket) at(at int64) *big.Rat {
	refill := new(big.Rat).Mul(big.NewRat(m.n, m.per), big.NewRat(at-m.last, 1))
	level := refill.Add(refill, m.level)
	if most := big.NewRat(m.burst, 1); level.Cmp(most) > 0 {
		return most
	}
	return level
}

func (m *ratBucket) room(at, cost int64) bool { return m.at(at).Cmp(big.NewRat(cost, 1)) >= 0 }

func (m *ratBucket) charge(at, cost int64) {
	m.level = m.at(at)
	m.level.Sub(m.level, big.NewRat(cost, 1))
	m.last = at
}

// nginx is ngx_http_limit_req_lookup with excess as a rational number; costs are 1.
type nginx struct {
	n, per, burst int64
	excess        *big.Rat
	last          int64
}

func (m *nginx) at(at int64) *big.Rat {
	if m.excess == nil {
		return new(big.Rat)
	}
	leaked := new(big.Rat).Mul(big.NewRat(m.n, m.per), big.NewRat(at-m.last, 1))
	excess := leaked.Sub(m.excess, leaked)
	excess.Add(excess, big.NewRat(1, 1))
	if excess.Sign() < 0 {
		return new(big.Rat)
	}
	return excess
}

func (m *nginx) room(at, _ int64) bool { return m.at(at).Cmp(big.NewRat(m.burst, 1)) <= 0 }

func (m *nginx) charge(at, _ int64) { m.excess, m.last = m.at(at), at }

// delay is when nginx forwards a request that it has just accepted.
func (m *nginx) delay(free int64) int64 {
	d := new(big.Rat).Sub(m.excess, big.NewRat(free, 1))
	d.Mul(d, big.NewRat(m.per, m.n))
	if d.Sign() <= 0 {
		return 0
	}
	q, r := new(big.Int).QuoRem(d.Num(), d.Denom(), new(big.Int))
	return q.Int64() + int64(r.Sign())
}

// counted is a window of which counts says whether an event is in the window of an instant.
type counted struct {
	n      int64
	events []event
	counts func(event, at int64) bool
}

func (m *counted) room(at, cost int64) bool {
	for _, e := range m.events {
		if m.counts(e.at, at) {
			cost += e.cost
		}
	}
	return cost <= m.n
}

func (m *counted) charge(at, cost int64) { m.events = append(m.events, event{at, cost}) }

// fromFirst is a fixed window that begins with the first charge after the last one.
type fromFirst struct {
	n, per, begin, used int64
	elastic             bool
}

func (m *fromFirst) room(at, cost int64) bool {
	return at-m.begin >= m.per && cost <= m.n || m.used+cost <= m.n
}

func (m *fromFirst) charge(at, cost int64) {
	if at-m.begin >= m.per {
		m.begin, m.used = at, 0
	}
	if m.elastic {
		m.begin = at
	}
	m.used += cost
}

// ticking is a model whose clock advances in steps.
type ticking struct {
	model
	step int64
}

func (m ticking) room(at, cost int64) bool { return m.model.room(at-at%m.step, cost) }

func (m ticking) charge(at, cost int64) { m.model.charge(at-at%m.step, cost) }

func TestBudgetsAgreeWithBruteForce(t *testing.T) {
	const epoch = 1_700_000_000_123_456_789
	for _, kind := range []string{"bucket", "leaky", "fixed", "fromFirst", "elastic", "sliding"} {
		t.Run(kind, func(t *testing.T) {
			for seed := range uint64(30) {
				r := rand.New(rand.NewPCG(seed, 7))
				n, per, burst := 1+r.Int64N(9), 1+r.Int64N(40), 1+r.Int64N(12)
				if r.IntN(2) == 0 {
					per *= 1_000_003
				}
				step := int64(1)
				if seed%3 == 2 {
					step += r.Int64N(per)
				}
				start := int64(epoch) / step * step
				l, m, most := modelled(kind, n, per, burst, start)
				l.resolution = time.Duration(step)
				name := fmt.Sprintf("seed %d: %d per %d, burst %d, in steps of %d", seed, n, per, burst, step)
				checkAgainst(t, name, r, l, ticking{m, step}, most, start)
			}
		})
	}
}

// modelled is a limit, its model, and the largest cost that either may be asked for.
func modelled(kind string, n, per, burst, now int64) (Limit, model, int64) {
	d := time.Duration(per)
	switch kind {
	case "bucket":
		return TokenBucket(n, d, Burst(burst)), &ratBucket{n, per, burst, big.NewRat(burst, 1), now}, burst
	case "leaky":
		return LeakyBucket(n, d, Burst(burst-1), Delay(burst/2)), &nginx{n: n, per: per, burst: burst - 1}, 1
	case "fixed":
		return FixedWindow(n, d), &counted{n: n, counts: func(e, at int64) bool { return e/per == at/per }}, n
	case "fromFirst":
		return FixedWindow(n, d, FromFirstRequest()), &fromFirst{n: n, per: per, begin: now - per}, n
	case "elastic":
		return FixedWindow(n, d, Elastic()), &fromFirst{n: n, per: per, begin: now - per, elastic: true}, n
	default:
		return SlidingWindow(n, d), &counted{n: n, counts: func(e, at int64) bool { return at-e < per }}, n
	}
}

func checkAgainst(t *testing.T, name string, r *rand.Rand, l Limit, m ticking, most, now int64) {
	l, err := l.validated()
	require.NoError(t, err, name)
	b := newBudget(now, l)
	var wait time.Duration
	for step := range 300 {
		switch r.IntN(4) {
		case 0:
			now += r.Int64N(2*int64(l.per) + 1)
		case 1:
			now += r.Int64N(int64(l.per)/l.n + 2)
		case 2:
			now += int64(wait) // to the nanosecond when a cost that was refused has room
		}
		cost := 1 + r.Int64N(most)
		var ok bool
		wait, ok = b.check(now, cost)
		require.Equal(t, m.room(now, cost), ok, "%s, step %d", name, step)
		if !ok {
			require.True(t, m.room(now+int64(wait), cost), "%s, step %d: a wait of %v is too short", name, step, wait)
			require.False(t, m.room(now+int64(wait)-1, cost), "%s, step %d: a wait of %v is too long", name, step, wait)
			continue
		}
		delay := b.charge(now, cost)
		m.charge(now, cost)
		if m, ok := m.model.(*nginx); ok {
			require.EqualValues(t, m.delay(l.free), delay, "%s, step %d", name, step)
		}
		checkLeft(t, b, m, now, most)
	}
}

// checkLeft compares the reported rest with what is accepted.
func checkLeft(t *testing.T, b budget, m model, now, most int64) {
	left, more, _ := b.left(now)
	if left > 0 {
		require.True(t, m.room(now, min(left, most)))
	}
	if left < most {
		require.False(t, m.room(now, left+1))
		require.Positive(t, more)
	}
}

func TestSlotsCountWhatIsThere(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	s := newBudget(0, Limit{kind: inFlight, n: 7}).(*slots)
	var held []int64
	for range 2000 {
		if len(held) > 0 && r.IntN(2) == 0 {
			i := r.IntN(len(held))
			s.release(held[i])
			held = append(held[:i], held[i+1:]...)
			continue
		}
		var used int64
		for _, c := range held {
			used += c
		}
		cost := 1 + r.Int64N(7)
		_, ok := s.check(0, cost)
		require.Equal(t, used+cost <= 7, ok)
		left, _, _ := s.left(0)
		require.Equal(t, 7-used, left)
		if ok {
			s.charge(0, cost)
			held = append(held, cost)
		}
	}
	wait, ok := s.check(0, 8)
	assert.False(t, ok)
	assert.Equal(t, never, wait)
}

func TestBucketNeverDriftsAndNeverOverflows(t *testing.T) {
	l, err := TokenBucket(7, 24*time.Hour, Burst(1)).validated()
	require.NoError(t, err)
	b := newBudget(0, l)
	b.charge(0, 1)
	now := int64(0)
	for range int64(5000) { // each as soon as it is let in: never early, and at most 1 ns late in all
		wait, ok := b.check(now, 1)
		require.False(t, ok)
		now += int64(wait)
		_, ok = b.check(now, 1)
		require.True(t, ok)
		b.charge(now, 1)
	}
	assert.InDelta(t, 5000*86_400e9/7.0, float64(now), 5000)

	_, ok := b.check(math.MaxInt64-1, 1)
	assert.True(t, ok, "centuries of rest")
	_, ok = b.check(math.MaxInt64-1, math.MaxInt64)
	assert.False(t, ok)
	b.charge(math.MaxInt64-1, math.MaxInt64) // as a refused request may be
	left, more, _ := b.left(math.MaxInt64 - 1)
	assert.Zero(t, left)
	assert.Equal(t, time.Duration(ceilDiv(2*86_400e9, 7)), more, "one burst below empty, and one token")
}

func TestRetuneKeepsWhatWasCounted(t *testing.T) {
	tuned := func(from, to Limit, used int64) int64 {
		from, err := from.validated()
		require.NoError(t, err)
		to, err = to.validated()
		require.NoError(t, err)
		b := newBudget(0, from)
		b.charge(0, used)
		b.retune(0, to)
		left, _, _ := b.left(0)
		return left
	}
	assert.EqualValues(t, 12, tuned(TokenBucket(100, time.Second, Burst(20)), TokenBucket(7, time.Minute, Burst(50)), 8))
	assert.EqualValues(t, 5, tuned(TokenBucket(100, time.Second), TokenBucket(5, time.Second), 8))
	assert.EqualValues(t, 51-8, tuned(LeakyBucket(100, time.Second, Burst(20)), LeakyBucket(3, time.Second, Burst(50)), 8))
	assert.EqualValues(t, 2, tuned(FixedWindow(100, time.Second), FixedWindow(10, time.Second), 8))
	assert.EqualValues(t, 10, tuned(FixedWindow(100, time.Second), FixedWindow(10, time.Minute), 8))
	assert.EqualValues(t, 0, tuned(SlidingWindow(100, time.Second), SlidingWindow(5, time.Second), 8))
	assert.EqualValues(t, 1, tuned(InFlight(100), InFlight(9), 8))
}

func TestSlidingLogStaysSmallUnderPressure(t *testing.T) {
	s := &sliding{n: 10, per: int64(time.Hour)}
	for now := range int64(100_000) {
		s.charge(now, 1) // refused requests that count
	}
	assert.Less(t, cap(s.log), 1000)
	wait, ok := s.check(100_000, 1)
	assert.False(t, ok)
	assert.EqualValues(t, 99_990+int64(time.Hour)-100_000, wait, "until fewer than ten of the last are in the window")
}
