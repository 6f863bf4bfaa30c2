package throttle

import (
	"math"
	"math/bits"
	"time"
)

// An instant is a moment on a Limiter's monotonic clock: nanoseconds since the Limiter was made.
type instant = int64

const (
	never    = instant(math.MaxInt64)
	maxCount = int64(1) << 60 // larger counts of tokens are taken for this one
	maxPer   = int64(1) << 62 // longer periods (146 years) are taken for this one
)

// A meter is the arithmetic of one bucket. It has no lock and no clock: the Limiter that owns it tells it the time.
//
// A request that has waited is granted at the instant at which it was due, which a late timer may have missed: token
// buckets go by that instant, so that no throughput is lost, and windows by the actual one, since the server does.
type meter interface {
	// payable reports whether cost can be paid now, nobody waiting.
	payable(now instant, cost int64) bool
	// begin is called when somebody begins to wait, and nobody did: no request is charged as of before.
	begin(now instant)
	// ready returns the earliest instant, not before from, at which cost can be paid once ahead has been; never if never.
	ready(from instant, ahead, cost int64) instant
	// take spends cost, which is payable, for a request that was due then and goes now.
	// waited says that it stood in line, so that nothing that came in until it was due is lost.
	take(due, now instant, cost int64, waited bool)
	// giveBack undoes a take at that actual instant.
	giveBack(at instant, cost int64)
	// fullAt returns the instant from which on the bucket is as good as new.
	fullAt() instant
	// tokens returns what is left now, negative for debt.
	tokens(now instant) float64
	// indebted reports whether more than all has been spent, so that forgetting the bucket would mint tokens.
	indebted(now instant) bool
	retune(now instant, r rate)
	resize(now instant, burst int64)
}

// A rate is n tokens per stretch of time.
type rate struct {
	n   int64
	per time.Duration
}

func (r rate) perSecond() float64 { return float64(r.n) / r.per.Seconds() }

// tokenBucket is the classic token bucket, and, where it is paced, the leaky bucket as a meter of ITU-T I.371 turned
// round: costs drain at the rate, and the next goes when all before it have drained.
//
// Balances are counted in token·ns, that is in 1/per of a token, so that the k-th grant is due at start + ⌈k·per/n⌉.
type tokenBucket struct {
	n, per uint64
	burst  int64
	paced  bool
	last   instant // level is as of this instant
	level  int128
}

func newTokenBucket(now instant, r rate, burst, initial int64) *tokenBucket {
	b := &tokenBucket{n: uint64(r.n), per: uint64(r.per), burst: burst, last: now}
	b.level = b.units(initial)
	return b
}

func newPace(now instant, r rate) *tokenBucket {
	return &tokenBucket{n: uint64(r.n), per: uint64(r.per), paced: true, last: now}
}

func (b *tokenBucket) units(tokens int64) int128 { return mul128(uint64(tokens), b.per) }

// need returns the level at which a request of this cost may go once ahead has been paid.
func (b *tokenBucket) need(ahead, cost int64) int128 {
	if b.paced {
		return b.units(ahead)
	}
	return b.units(addCount(ahead, cost))
}

// levelAt returns the level at t, were the bucket bottomless upwards.
func (b *tokenBucket) levelAt(t instant) int128 {
	if t <= b.last {
		return b.level
	}
	return b.level.add(mul128(uint64(t-b.last), b.n))
}

func (b *tokenBucket) payable(now instant, cost int64) bool {
	b.begin(now)
	return !b.level.less(b.need(0, cost))
}

func (b *tokenBucket) begin(now instant) { b.advance(now, false, int128{}) }

func (b *tokenBucket) ready(from instant, ahead, cost int64) instant {
	if cost > b.burst && !b.paced {
		return never
	}
	from = max(from, b.last)
	level := b.levelAt(from)
	if full := b.units(b.burst); from > b.last && full.less(level) {
		level = full
	}
	need := b.need(ahead, cost)
	if !level.less(need) {
		return from
	}
	return addInstant(from, need.sub(level).ceilDiv(b.n))
}

func (b *tokenBucket) take(due, _ instant, cost int64, waited bool) {
	b.advance(due, waited, b.need(0, cost))
	b.level = b.level.sub(b.units(cost))
}

// advance moves the bucket on to t. What is more than burst is lost, except the part of a nanosecond by which a
// request that waited until t has been waiting too long: losing it would make the schedule drift.
func (b *tokenBucket) advance(t instant, waited bool, need int128) {
	if t <= b.last {
		return
	}
	b.level, b.last = b.levelAt(t), t
	full := b.units(b.burst)
	if !full.less(b.level) || waited && b.level.less(need.add(int128{lo: b.n})) {
		return
	}
	b.level = full
}

func (b *tokenBucket) giveBack(_ instant, cost int64) {
	b.level = b.level.add(b.units(cost))
	if full := b.units(b.burst); full.less(b.level) {
		b.level = full
	}
}

func (b *tokenBucket) fullAt() instant {
	if missing := b.units(b.burst).sub(b.level); missing.hi >= 0 {
		return addInstant(b.last, missing.ceilDiv(b.n))
	}
	return b.last
}

func (b *tokenBucket) tokens(now instant) float64 {
	level := b.levelAt(now)
	if full := b.units(b.burst); full.less(level) {
		level = full
	}
	return level.float() / float64(b.per)
}

func (b *tokenBucket) indebted(now instant) bool { return b.levelAt(now).hi < 0 }

func (b *tokenBucket) retune(now instant, r rate) {
	b.begin(now)
	whole, part := b.level.floorDiv(b.per)
	hi, lo := bits.Mul64(part, uint64(r.per))
	part, _ = bits.Div64(hi, lo, b.per)
	b.n, b.per = uint64(r.n), uint64(r.per)
	b.level = int128{lo: part}
	if whole < 0 {
		b.level = b.level.sub(b.units(-whole))
	} else {
		b.level = b.level.add(b.units(whole))
	}
}

func (b *tokenBucket) resize(now instant, burst int64) {
	b.begin(now)
	b.burst = burst
	if full := b.units(burst); full.less(b.level) {
		b.level = full
	}
}

// addCount returns a+b for counts of tokens, neither negative, at most twice maxCount.
func addCount(a, b int64) int64 { return min(a+min(b, maxCount), 2*maxCount) }

// addInstant returns t+d, at most never, for d ≥ 0.
func addInstant(t instant, d int64) instant {
	if d > never-max(t, 0) {
		return never
	}
	return t + d
}
