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
	// spend takes cost if it is payable, at once.
	spend(now instant, cost int64) (charged int64, ok bool)
	// ready returns the earliest instant, not before from, at which cost can be paid once ahead has been; never if never.
	ready(from instant, ahead, cost int64) instant
	// take spends cost, which is payable, for a request that was due then and goes now.
	// waited says that it stood in line, so that nothing that came in until it was due is lost.
	// It returns what giveBack wants to know of it.
	take(due, now instant, cost int64, waited bool) (charged int64)
	// giveBack undoes a take, as far as it would make a difference had it never been: what came in since, and was lost
	// because the bucket was full, would have been lost all the same.
	giveBack(charged int64, now instant, cost int64)
	// settle corrects a take of charged to what it really cost: as giveBack does for what was too much; what was too little
	// is owed, up to a bound.
	settle(charged int64, now instant, paid, cost int64)
	// most returns the largest cost that can ever be paid.
	most() int64
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
	full   int128 // the level of a full bucket
	paced  bool
	last   instant // level is as of this instant
	level  int128
	seq    int64 // of the last take
	filled int64 // the last take that found the bucket full
	peaks  []peak
}

// A peak is how little room there was below full before a take, less than ever since: in order of time, the room grows.
type peak struct {
	seq  int64
	room int128
}

// maxPeaks is how many peaks are remembered: as many requests may be on the way since a bucket was full, each of which can
// still be given back to the token. With more, up to 1/16 of the burst less may be given back in all, but never too much.
const maxPeaks = 64

func newTokenBucket(now instant, r rate, burst, initial int64) *tokenBucket {
	b := &tokenBucket{n: uint64(r.n), per: uint64(r.per), burst: burst, last: now}
	b.full, b.level = b.units(burst), b.units(initial)
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
	b.advance(now)
	return !b.level.less(b.need(0, cost))
}

// spend is what most requests cost: it does what payable and take do, but in one go, and stores nothing in vain.
func (b *tokenBucket) spend(now instant, cost int64) (charged int64, ok bool) {
	if now > b.last {
		b.level, b.last = b.levelAt(now), now
		b.clip()
	}
	if b.level.less(b.need(0, cost)) {
		return 0, false
	}
	b.seq++
	if b.level == b.full {
		if b.filled = b.seq; len(b.peaks) > 0 {
			b.peaks = b.peaks[:0]
		}
	} else {
		b.remember()
	}
	b.level = b.level.sub(b.units(cost))
	return b.seq, true
}

// spendIf is spend by way of payable and take.
func spendIf(m meter, now instant, cost int64) (charged int64, ok bool) {
	if !m.payable(now, cost) {
		return 0, false
	}
	return m.take(now, now, cost, false), true
}

func (b *tokenBucket) ready(from instant, ahead, cost int64) instant {
	if cost > b.burst && !b.paced {
		return never
	}
	from = max(from, b.last)
	level := b.levelAt(from)
	if from > b.last && b.full.less(level) {
		level = b.full
	}
	need := b.need(ahead, cost)
	if !level.less(need) {
		return from
	}
	return addInstant(from, need.sub(level).ceilDiv(b.n))
}

func (b *tokenBucket) take(due, _ instant, cost int64, waited bool) int64 {
	if due > b.last {
		b.level, b.last = b.levelAt(due), due
		// The part of a nanosecond by which a request that waited until then has been waiting too long is not lost: losing it
		// would make the schedule drift.
		if !waited || !b.level.less(b.need(0, cost).add(int128{lo: b.n})) {
			b.clip()
		}
	}
	b.seq++
	b.remember()
	b.level = b.level.sub(b.units(cost))
	if waited {
		b.clip() // at more than burst per nanosecond, what is left may be more than burst
	}
	return b.seq
}

// clip loses what is more than burst.
func (b *tokenBucket) clip() {
	if b.full.less(b.level) {
		b.level = b.full
	}
}

// remember notes the room there is, before something is taken or the burst is changed.
func (b *tokenBucket) remember() {
	if !b.level.less(b.full) {
		b.filled, b.peaks = b.seq, b.peaks[:0]
		return
	}
	b.peaks = pushPeak(b.peaks, peak{b.seq, b.full.sub(b.level)})
}

func pushPeak(peaks []peak, p peak) []peak {
	n := len(peaks)
	for n > 0 && !peaks[n-1].room.less(p.room) {
		n--
	}
	peaks = append(peaks[:n], p)
	if n == maxPeaks {
		peaks = thinned(peaks)
	}
	return peaks
}

// thinned lets peaks stand for those shortly before them, with the least room of all of these, so that no two are left that
// are closer than 1/32 of what lies between the first and the last: about half.
func thinned(peaks []peak) []peak {
	last := len(peaks) - 1
	apart := peaks[last].room.sub(peaks[0].room).half(5) // 2 at least, since rooms differ
	kept := 0
	for _, p := range peaks[1:] {
		if p.room.sub(peaks[kept].room).less(apart) {
			peaks[kept].seq = p.seq
		} else {
			kept++
			peaks[kept] = p
		}
	}
	return peaks[:kept+1]
}

// advance moves the bucket on to t. What is more than burst is lost.
func (b *tokenBucket) advance(t instant) {
	if t > b.last {
		b.level, b.last = b.levelAt(t), t
		b.clip()
	}
}

func (b *tokenBucket) giveBack(charged int64, _ instant, cost int64) {
	if b.filled > charged {
		return
	}
	// Had it never been taken, there would have been less room by it ever since.
	back, room := b.units(cost), b.full.sub(b.level)
	i := slices.IndexFunc(b.peaks, func(p peak) bool { return p.seq > charged })
	if i >= 0 && b.peaks[i].room.less(room) {
		room = b.peaks[i].room
	}
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
	for k := i; k < len(b.peaks); k++ {
		b.peaks[k].room = b.peaks[k].room.sub(back)
	}
	first := i // of those that the ones before are no peaks beside any more
	for first > 0 && !b.peaks[first-1].room.less(b.peaks[i].room) {
		first--
	}
	b.peaks = slices.Delete(b.peaks, first, i)
}

func (b *tokenBucket) settle(charged int64, now instant, paid, cost int64) {
	owed := b.burst
	if b.paced { // what comes in within a minute, and n at least
		owed = int64(b.n)
		if hi, lo := bits.Mul64(b.n, uint64(settleOver*second)); hi < b.per {
			minute, _ := bits.Div64(hi, lo, b.per)
			owed = max(owed, int64(min(minute, uint64(maxCount))))
		} else {
			owed = maxCount
		}
	}
	b.correct(charged, now, paid, cost, owed)
}

// settleOver is for how many seconds a rate without a burst may go on with what is owed.
const settleOver = 60

func (b *tokenBucket) most() int64 {
	if b.paced {
		return maxCount
	}
	return b.burst
}

// correct is settle with a bound to what may be owed. A debt counts from now on, as with servers that charge at the end.
func (b *tokenBucket) correct(charged int64, now instant, paid, cost, owed int64) {
	if cost <= paid {
		b.giveBack(charged, now, paid-cost)
		return
	}
	b.advance(now)
	b.seq++
	b.remember()
	least := b.level
	if floor := (int128{}).sub(b.units(owed)); floor.less(least) {
		least = floor
	}
	if b.level = b.level.sub(b.units(cost - paid)); b.level.less(least) {
		b.level = least
	}
}

func (b *tokenBucket) fullAt() instant {
	if missing := b.full.sub(b.level); missing.hi >= 0 {
		return addInstant(b.last, missing.ceilDiv(b.n))
	}
	return b.last
}

func (b *tokenBucket) tokens(now instant) float64 {
	level := b.levelAt(now)
	if b.full.less(level) {
		level = b.full
	}
	return level.float() / float64(b.per)
}

func (b *tokenBucket) indebted(now instant) bool { return b.levelAt(now).hi < 0 }

func (b *tokenBucket) retune(now instant, r rate) {
	b.advance(now)
	b.level = rescale(b.level, b.per, uint64(r.per))
	for i := range b.peaks {
		b.peaks[i].room = rescale(b.peaks[i].room, b.per, uint64(r.per))
	}
	b.n, b.per = uint64(r.n), uint64(r.per)
	b.full = b.units(b.burst)
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
	b.advance(now)
	b.seq++
	b.remember()
	b.burst, b.full = burst, b.units(burst)
	b.clip()
	b.remember()
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
