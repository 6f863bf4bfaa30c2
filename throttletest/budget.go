package throttletest

import (
	"math"
	"math/bits"
	"time"
)

// A budget is what one limit counts for one key: arithmetic only, without lock, clock or HTTP. Instants are nanoseconds
// since the Unix epoch and never run backwards; costs are at least 1.
type budget interface {
	// check reports whether cost has room now. If not, wait is how long until it could have: never for a cost that is too
	// large, 0 if that is unknown.
	check(now, cost int64) (wait time.Duration, ok bool)
	// charge counts cost, whether there is room or not, and says how long the request is to be held back.
	charge(now, cost int64) (delay time.Duration)
	// credit gives cost back that a request was charged at an instant before, unless that does not count any more.
	credit(now, charged, cost int64)
	// left is what could be charged now, and how long until something returns, and until everything has; 0 if nothing
	// is out.
	left(now int64) (tokens int64, more, full time.Duration)
	// retune takes over the figures of another limit of the same kind, and keeps what was counted.
	retune(now int64, l Limit)
}

const never time.Duration = math.MaxInt64

func newBudget(now int64, l Limit) budget {
	c := coarse{step: l.step()}
	switch l.kind {
	case tokenBucket, leakyBucket:
		c.budget = newBucket(c.tick(now), l)
	case fixedWindow:
		c.budget = &fixed{n: l.n, per: int64(l.per), fromFirst: l.fromFirst, elastic: l.elastic}
	case slidingWindow:
		c.budget = &sliding{n: l.n, per: int64(l.per)}
	case inFlight:
		return &slots{n: l.n} // counts without a clock
	default:
		panic("throttletest: bug: a limit of no kind was not caught by validated")
	}
	return &c
}

// coarse is a budget whose clock advances in steps. Waits end at a step.
type coarse struct {
	budget
	step int64
}

// tick returns the last step of the clock.
func (c *coarse) tick(now int64) int64 { return now - floorMod(now, c.step) }

// until returns how long it is from now to the first step at or after the instant that is d after the last step.
func (c *coarse) until(now int64, d time.Duration) time.Duration {
	if d == 0 || d == never {
		return d
	}
	return time.Duration(ceilDiv(int64(d), c.step)*c.step - (now - c.tick(now)))
}

func (c *coarse) check(now, cost int64) (time.Duration, bool) {
	wait, ok := c.budget.check(c.tick(now), cost)
	return c.until(now, wait), ok
}

func (c *coarse) charge(now, cost int64) time.Duration { return c.budget.charge(c.tick(now), cost) }

func (c *coarse) credit(now, charged, cost int64) {
	c.budget.credit(c.tick(now), c.tick(charged), cost)
}

func (c *coarse) left(now int64) (tokens int64, more, full time.Duration) {
	tokens, more, full = c.budget.left(c.tick(now))
	return tokens, c.until(now, more), c.until(now, full)
}

func (c *coarse) retune(now int64, l Limit) {
	c.budget.retune(c.tick(now), l)
	c.step = l.step()
}

// A bucket is a token bucket, and nginx's leaky bucket as well: that one accepts while the excess beyond the pace is at
// most its burst, which is a token bucket that holds burst+1.
type bucket struct {
	leaky   bool
	delayed bool
	free    int64 // with delayed: tokens in use that do not delay

	// The period in ns and n, divided by their greatest common divisor: rate units return every nanosecond, and a
	// token is unit of them. So every balance is an integer.
	rate, unit int64
	size       int64 // units, at most maxUnits
	level      int64 // units, from -size (refused requests were charged) to size
	last       int64 // the instant of level
}

// maxUnits is so low that the sum of two balances does not overflow.
const maxUnits = math.MaxInt64 / 4

func newBucket(now int64, l Limit) *bucket {
	b := &bucket{leaky: l.kind == leakyBucket, delayed: l.delayed, free: l.free, last: now}
	b.rate, b.unit = lowestTerms(l.n, int64(l.per))
	b.size = l.holds() * b.unit
	b.level = b.size
	return b
}

func bucketFits(l Limit) bool {
	rate, unit := lowestTerms(l.n, int64(l.per))
	return l.burst < maxUnits/unit-1 && rate <= maxUnits
}

func lowestTerms(n, d int64) (int64, int64) {
	a, b := n, d
	for b != 0 {
		a, b = b, a%b
	}
	return n / a, d / a
}

func (b *bucket) advance(now int64) {
	elapsed := max(now-b.last, 0) // a clock whose resolution has just become coarser is behind
	b.last += elapsed
	// A full bucket forgets the rest, and a long time must not overflow.
	if elapsed >= ceilDiv(b.size-b.level, b.rate) {
		b.level = b.size
		return
	}
	b.level += elapsed * b.rate
}

func (b *bucket) check(now, cost int64) (time.Duration, bool) {
	b.advance(now)
	if cost > b.size/b.unit {
		return never, false
	}
	lack := cost*b.unit - b.level
	return time.Duration(ceilDiv(max(lack, 0), b.rate)), lack <= 0
}

func (b *bucket) charge(now, cost int64) time.Duration {
	b.advance(now)
	inUse := b.size - b.level
	units := b.size * 2
	if cost <= b.size/b.unit {
		units = cost * b.unit
	}
	b.level = max(b.level-units, -b.size)
	if !b.delayed {
		return 0
	}
	// What stands in the bucket before this request is nginx's excess; the request is served when that has leaked.
	free := min(b.free, b.size/b.unit) * b.unit
	return time.Duration(ceilDiv(max(inUse-free, 0), b.rate))
}

func (b *bucket) credit(now, _, cost int64) {
	b.advance(now)
	b.level += min(cost, b.size/b.unit) * b.unit
	b.level = min(b.level, b.size)
}

func (b *bucket) left(now int64) (tokens int64, more, full time.Duration) {
	b.advance(now)
	tokens = max(b.level, 0) / b.unit
	more = time.Duration(ceilDiv(min((tokens+1)*b.unit, b.size)-b.level, b.rate))
	return tokens, more, time.Duration(ceilDiv(b.size-b.level, b.rate))
}

func (b *bucket) retune(now int64, l Limit) {
	b.advance(now)
	old := *b
	*b = *newBucket(now, l)
	if b.leaky { // what counts there is the excess
		b.level = b.size - rescale(old.size-old.level, b.unit, old.unit)
	} else {
		b.level = rescale(old.level, b.unit, old.unit)
	}
	b.level = min(max(b.level, -b.size), b.size)
}

// rescale is v*num/den, rounded towards 0, within ±maxUnits.
func rescale(v, num, den int64) int64 {
	if v < 0 {
		return -rescale(-v, num, den)
	}
	hi, lo := bits.Mul64(uint64(v), uint64(num))
	if hi >= uint64(den) {
		return maxUnits
	}
	q, _ := bits.Div64(hi, lo, uint64(den))
	return int64(min(q, maxUnits))
}

// ceilDiv is v/d rounded up, for v >= 0 and d > 0.
func ceilDiv(v, d int64) int64 {
	q := v / d
	if v%d != 0 {
		q++
	}
	return q
}

// slots counts what is there at the same time.
type slots struct{ n, used int64 }

func (s *slots) check(_, cost int64) (time.Duration, bool) {
	if cost > s.n {
		return never, false
	}
	return 0, s.used <= s.n-cost
}

func (s *slots) charge(_, cost int64) time.Duration {
	s.used += cost
	return 0
}

func (s *slots) release(cost int64) { s.used -= cost }

func (s *slots) credit(_, _, cost int64) { s.release(cost) }

func (s *slots) left(int64) (tokens int64, more, full time.Duration) { return max(s.n-s.used, 0), 0, 0 }

func (s *slots) retune(_ int64, l Limit) { s.n = l.n }
