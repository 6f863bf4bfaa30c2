package throttle

import (
	"math"
	"math/bits"
	"slices"
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
	// ready returns the earliest instant, not before from, at which cost can be paid once ahead has been; never if never.
	ready(from instant, ahead, cost int64) instant
	// take spends cost, which is payable, for a request that was due then and goes now.
	// waited says that it stood in line, so that nothing that came in until it was due is lost.
	// It returns as of when it was charged.
	take(due, now instant, cost int64, waited bool) (charged instant)
	// giveBack undoes a take, as far as it would make a difference had it never been: what came in since, and was lost
	// because the bucket was full, would have been lost all the same.
	giveBack(charged, now instant, cost int64)
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
	filled instant // when it was last full, of the instants at which something was taken
	peaks  []peak  // since then
}

// A peak is a level before something was taken that was not reached again since: in order of time, they fall.
type peak struct {
	at    instant
	level int128
}

// maxPeaks is how many peaks are remembered. What they are for is never more than what they would say if all were.
const maxPeaks = 8

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
	b.advance(now, false, int128{})
	return !b.level.less(b.need(0, cost))
}

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

func (b *tokenBucket) take(due, _ instant, cost int64, waited bool) instant {
	b.advance(due, waited, b.need(0, cost))
	b.remember()
	b.level = b.level.sub(b.units(cost))
	b.clip() // at more than burst per nanosecond, what advance leaves may be more than burst
	return b.last
}

// clip loses what is more than burst.
func (b *tokenBucket) clip() {
	if full := b.units(b.burst); full.less(b.level) {
		b.level = full
	}
}

// remember notes the level before something is taken.
func (b *tokenBucket) remember() {
	if !b.level.less(b.units(b.burst)) {
		b.filled, b.peaks = b.last, b.peaks[:0]
		return
	}
	n := len(b.peaks)
	for n > 0 && !b.level.less(b.peaks[n-1].level) {
		n--
	}
	b.peaks = append(b.peaks[:n], peak{b.last, b.level})
	if n == maxPeaks {
		b.peaks[1].level = b.peaks[0].level
		b.peaks = slices.Delete(b.peaks, 0, 1)
	}
}

// advance moves the bucket on to t. What is more than burst is lost, except the part of a nanosecond by which a
// request that waited until t has been waiting too long: losing it would make the schedule drift.
func (b *tokenBucket) advance(t instant, waited bool, need int128) {
	if t <= b.last {
		return
	}
	b.level, b.last = b.levelAt(t), t
	if !waited || !b.level.less(need.add(int128{lo: b.n})) {
		b.clip()
	}
}

func (b *tokenBucket) giveBack(charged, _ instant, cost int64) {
	if b.filled > charged {
		return
	}
	// Had it never been taken, all levels since would have been higher by it, up to the burst.
	i := slices.IndexFunc(b.peaks, func(p peak) bool { return p.at > charged })
	top := b.level
	if i >= 0 && top.less(b.peaks[i].level) {
		top = b.peaks[i].level
	}
	back, room := b.units(cost), b.units(b.burst).sub(top)
	if room.less(back) {
		back = room
	}
	if back.hi < 0 {
		return
	}
	b.level = b.level.add(back)
	if i < 0 {
		return
	}
	higher := slices.Clone(b.peaks[i:])
	b.peaks = b.peaks[:i]
	for _, p := range higher {
		p.level = p.level.add(back)
		for len(b.peaks) > 0 && !p.level.less(b.peaks[len(b.peaks)-1].level) {
			b.peaks = b.peaks[:len(b.peaks)-1]
		}
		b.peaks = append(b.peaks, p)
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
	b.advance(now, false, int128{})
	b.level = rescale(b.level, b.per, uint64(r.per))
	for i := range b.peaks {
		b.peaks[i].level = rescale(b.peaks[i].level, b.per, uint64(r.per))
	}
	b.n, b.per = uint64(r.n), uint64(r.per)
}

// rescale returns a level counted in 1/from of a token in 1/to of a token, rounded down.
func rescale(level int128, from, to uint64) int128 {
	whole, part := level.floorDiv(from)
	hi, lo := bits.Mul64(part, to)
	part, _ = bits.Div64(hi, lo, from)
	if whole < 0 {
		return int128{lo: part}.sub(mul128(uint64(-whole), to))
	}
	return mul128(uint64(whole), to).add(int128{lo: part})
}

func (b *tokenBucket) resize(now instant, burst int64) {
	b.advance(now, false, int128{})
	b.burst = burst
	b.clip()
}

// addCount returns a+b for counts of tokens, neither negative, at most twice maxCount.
func addCount(a, b int64) int64 { return min(min(a, 2*maxCount)+min(b, 2*maxCount), 2*maxCount) }

// addInstant returns t+d, at most never, for d ≥ 0.
func addInstant(t instant, d int64) instant {
	if d > never-max(t, 0) {
		return never
	}
	return t + d
}
