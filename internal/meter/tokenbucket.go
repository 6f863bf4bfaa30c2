package meter

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"
)

// A TokenBucket is the classic token bucket. A paced one is the leaky bucket of ITU-T I.371 used as a meter: costs drain
// at the rate, and a request is sent when all costs before it have drained.
//
// Balances are counted in token·ns, that is in 1/per of a token, so that the k-th grant is due at start + ⌈k·per/n⌉.
type TokenBucket struct {
	*terms
	last   Instant // level is as of this instant
	level  int128
	seq    int64 // of the last take
	filled int64 // the last take that found the bucket full
	past   *past // nil: no take found it less than full
}

// Terms are what buckets of one limit have in common: there may be a million of them.
type terms struct {
	n, per uint64
	burst  int64
	full   int128 // the level of a full bucket
	paced  bool
	alone  bool   // one bucket has them, which changes them in place
	like   *terms // made last for a bucket that had these; nil: none
}

// A past is what a bucket remembers of takes that found it less than full.
type past struct {
	peaks []peak
	room  [1]peak
}

// A peak is how little room there was below full before a take, less than ever since: in order of time, the room grows.
type peak struct {
	seq  int64
	room int128
}

// MaxPeaks is how many peaks a bucket remembers. If no more requests were granted since the bucket was full, each of them
// can be given back exactly. With more, up to 1/16 of the burst less may be given back in all, but never too much.
const MaxPeaks = 64

// NewTokenBucket returns a bucket that holds initial tokens now.
func NewTokenBucket(now Instant, r Rate, burst, initial int64) *TokenBucket {
	return (&terms{}).bucket(now, r, burst, initial)
}

// Another implements [Sharer].
func (b *TokenBucket) Another(now Instant, r Rate, burst, initial int64) Meter {
	return b.terms.bucket(now, r, burst, initial)
}

func (t *terms) bucket(now Instant, r Rate, burst, initial int64) *TokenBucket {
	if t.paced {
		burst, initial = 0, 0
	}
	t = t.with(uint64(r.N), uint64(r.Per), burst)
	return &TokenBucket{terms: t, last: now, level: t.units(initial)}
}

// NewPace returns a paced bucket: it has no burst.
func NewPace(now Instant, r Rate) *TokenBucket {
	return (&terms{paced: true}).bucket(now, r, 0, 0)
}

// Alone returns the bucket with terms of its own, so that to change them makes no garbage.
func (b TokenBucket) Alone() TokenBucket {
	t := *b.terms
	t.alone = true
	b.terms = &t
	return b
}

// Copy implements [Copier]. The copy does not know what the bucket remembers for GiveBack.
func (b *TokenBucket) Copy() Meter {
	other := b.Alone()
	other.past = nil
	return &other
}

// with returns the terms with another rate and burst, the same for all buckets that ask for the same in turn.
func (t *terms) with(n, per uint64, burst int64) *terms {
	switch other := t.like; {
	case t.alone:
		t.set(n, per, burst)
		return t
	case t.is(n, per, burst):
		return t
	case other == nil || !other.is(n, per, burst):
		t.like = &terms{paced: t.paced}
		t.like.set(n, per, burst)
	}
	return t.like
}

func (t *terms) set(n, per uint64, burst int64) {
	t.n, t.per, t.burst = n, per, burst
	t.full = t.units(burst)
}

func (t *terms) is(n, per uint64, burst int64) bool {
	return t.n == n && t.per == per && t.burst == burst
}

// peaks returns what the bucket remembers of takes that found it less than full.
func (b *TokenBucket) peaks() []peak {
	if b.past == nil {
		return nil
	}
	return b.past.peaks
}

// Fill makes the bucket full.
func (b *TokenBucket) Fill() { b.level = b.full }

// Begin fills the bucket until that instant, and bounds what it holds then. The caller takes nothing before.
func (b *TokenBucket) Begin(at Instant, most int64) {
	b.advance(at)
	if t := b.units(most); t.less(b.level) {
		b.level = t
	}
	b.last = at
}

// Burst returns how many tokens a full bucket holds.
func (b *TokenBucket) Burst() int64 { return b.burst }

// Rate returns the rate.
func (b *TokenBucket) Rate() Rate { return Rate{int64(b.n), time.Duration(b.per)} }

// Interval implements [Steady].
func (b *TokenBucket) Interval() int64 { return int64((b.per + b.n/2) / b.n) }

// LastTake returns the number of the last take or change: takes are numbered in order.
func (b *TokenBucket) LastTake() int64 { return b.seq }

// AsOf returns the instant up to which the bucket has been filled.
func (b *TokenBucket) AsOf() Instant { return b.last }

// Level returns the balance at AsOf in units of 1/Per of a token, as hi·2⁶⁴ + lo.
func (b *TokenBucket) Level() (hi int64, lo uint64) { return b.level.hi, b.level.lo }

// ReadyAtRate returns what Ready would if the rate were n per period and the burst unlimited.
func (b *TokenBucket) ReadyAtRate(n int64, from Instant, ahead, cost int64) Instant {
	other, t := *b, *b.terms
	t.set(uint64(n), t.per, MaxCount)
	other.terms = &t
	return other.Ready(from, ahead, cost)
}

func (t *terms) units(tokens int64) int128 { return mul128(uint64(tokens), t.per) }

// need returns the level at which a request of this cost may go once ahead has been paid.
func (t *terms) need(ahead, cost int64) int128 {
	if !t.paced {
		ahead = AddCount(ahead, cost)
	}
	return t.units(ahead)
}

// price returns what a request of this cost takes, and the level at which it may go.
func (t *terms) price(cost int64) (price, need int128) {
	if price = t.units(cost); !t.paced {
		need = price
	}
	return price, need
}

// levelAt returns the level at t, were the bucket bottomless upwards.
func (b *TokenBucket) levelAt(t Instant) int128 {
	if t <= b.last {
		return b.level
	}
	return b.level.add(mul128(uint64(t-b.last), b.n))
}

func (b *TokenBucket) Payable(now Instant, cost int64) bool {
	b.advance(now)
	_, need := b.price(cost)
	return !b.level.less(need)
}

// Spend is what most requests cost: it does what Payable and Take do in one step, without unnecessary writes.
func (b *TokenBucket) Spend(now Instant, cost int64) (charged int64, ok bool) {
	t, level := b.terms, b.level
	if now > b.last {
		level, b.last = t.clipped(b.levelAt(now)), now
	}
	price, need := t.price(cost)
	if level.less(need) {
		b.level = level
		return 0, false
	}
	b.seq++
	if level != t.full {
		b.level = level
		b.remember()
	} else {
		b.wasFull()
	}
	b.level = level.sub(price)
	return b.seq, true
}

func (b *TokenBucket) Ready(from Instant, ahead, cost int64) Instant {
	if cost > b.burst && !b.paced {
		return Never
	}
	from = max(from, b.last)
	level, need := b.clipped(b.levelAt(from)), b.need(ahead, cost)
	if !level.less(need) {
		return from
	}
	return AddInstant(from, need.sub(level).ceilDiv(b.n))
}

func (b *TokenBucket) Take(due, _ Instant, cost int64, waited bool) int64 {
	if due > b.last {
		b.level, b.last = b.levelAt(due), due
		// The part of a nanosecond by which a request that waited until then has been waiting too long is not lost: losing it
		// would make the schedule drift.
		if !waited || !b.level.less(b.full.add(int128{lo: b.n})) {
			b.clip()
		}
	}
	b.seq++
	if b.level != b.full {
		b.remember()
	} else {
		b.wasFull()
	}
	b.level = b.level.sub(b.units(cost))
	if waited {
		b.clip() // at more than burst per nanosecond, what is left may be more than burst
	}
	return b.seq
}

// clip loses what is more than burst.
func (b *TokenBucket) clip() { b.level = b.clipped(b.level) }

// clipped returns a level without what is more than burst.
func (t *terms) clipped(level int128) int128 {
	if t.full.less(level) {
		return t.full
	}
	return level
}

// remember notes the room there is, before something is taken or the burst is changed.
func (b *TokenBucket) remember() {
	if !b.level.less(b.full) {
		b.wasFull()
		return
	}
	if b.past == nil {
		b.past = new(past)
		b.past.peaks = b.past.room[:0]
	}
	b.past.peaks = pushPeak(b.past.peaks, peak{b.seq, b.full.sub(b.level)})
}

// wasFull is remember for a bucket that is full.
func (b *TokenBucket) wasFull() {
	if b.filled = b.seq; b.past != nil {
		b.past.peaks = b.past.peaks[:0]
	}
}

func pushPeak(peaks []peak, p peak) []peak {
	n := len(peaks)
	for n > 0 && !peaks[n-1].room.less(p.room) {
		n--
	}
	peaks = append(peaks[:n], p)
	if n == MaxPeaks {
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
func (b *TokenBucket) advance(t Instant) {
	if t > b.last {
		b.level, b.last = b.clipped(b.levelAt(t)), t
	}
}

func (b *TokenBucket) GiveBack(charged int64, _ Instant, cost int64) {
	if b.filled > charged {
		return
	}
	// Had it never been taken, there would have been less room by it ever since.
	back, room := b.units(cost), b.full.sub(b.level)
	peaks := b.peaks()
	i := slices.IndexFunc(peaks, func(p peak) bool { return p.seq > charged })
	if i >= 0 && peaks[i].room.less(room) {
		room = peaks[i].room
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
	for k := i; k < len(peaks); k++ {
		peaks[k].room = peaks[k].room.sub(back)
	}
	first := i // of those that the ones before are no peaks beside any more
	for first > 0 && !peaks[first-1].room.less(peaks[i].room) {
		first--
	}
	b.past.peaks = slices.Delete(peaks, first, i)
}

func (b *TokenBucket) Settle(charged int64, now Instant, paid, cost int64) {
	owed := b.burst
	if b.paced { // what comes in within a minute, and n at least
		owed = int64(b.n)
		if hi, lo := bits.Mul64(b.n, uint64(SettleOver*second)); hi < b.per {
			minute, _ := bits.Div64(hi, lo, b.per)
			owed = max(owed, int64(min(minute, uint64(MaxCount))))
		} else {
			owed = MaxCount
		}
	}
	b.Correct(charged, now, paid, cost, owed)
}

// SettleOver is for how many seconds a bucket without a burst may be in debt.
const SettleOver = 60

func (b *TokenBucket) Most() int64 {
	if b.paced {
		return MaxCount
	}
	return b.burst
}

// Correct is Settle with a debt of at most owed tokens. A debt counts from now on, as it does with servers that charge at
// the end of a request.
func (b *TokenBucket) Correct(charged int64, now Instant, paid, cost, owed int64) {
	if cost <= paid {
		b.GiveBack(charged, now, paid-cost)
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

func (b *TokenBucket) Matters(Instant) (must, full Instant) {
	return b.reaches(int128{}), b.reaches(b.full)
}

// reaches returns the instant from which there is that much, which may lie before last.
func (b *TokenBucket) reaches(level int128) Instant {
	if missing := level.sub(b.level); missing.hi >= 0 {
		return AddInstant(b.last, missing.ceilDiv(b.n))
	}
	return b.last
}

func (b *TokenBucket) Tokens(now Instant) float64 {
	return b.clipped(b.levelAt(now)).float() / float64(b.per)
}

func (b *TokenBucket) Retune(now Instant, r Rate) {
	b.advance(now)
	was, peaks := b.per, b.peaks()
	b.terms = b.with(uint64(r.N), uint64(r.Per), b.burst)
	if b.per == was {
		return
	}
	b.level = rescale(b.level, was, b.per)
	for i := range peaks {
		peaks[i].room = rescale(peaks[i].room, was, b.per)
	}
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

func (b *TokenBucket) Resize(now Instant, burst int64) {
	if b.paced || burst == b.burst {
		return
	}
	b.advance(now)
	b.seq++
	b.remember()
	b.terms = b.with(b.n, b.per, burst)
	b.clip()
	b.remember()
}

func (b *TokenBucket) Save(now Instant) State { return State{Tokens: b.Tokens(now)} }

func (b *TokenBucket) Restore(now Instant, since int64, s State) error {
	tokens, fault := s.Tokens, error(nil)
	switch drains := -tokens * float64(b.per) / float64(b.n); {
	case len(s.Grants) > 0 || s.Debt != 0:
		return errOtherKind
	case math.IsNaN(tokens) || math.Abs(tokens) > float64(MaxCount), b.paced && drains > float64(MaxPer):
		return fmt.Errorf("%v tokens cannot be a balance", tokens)
	case !b.paced && tokens < -float64(b.burst):
		fault = fmt.Errorf("a debt of %v tokens is more than the burst of %d, which is restored instead", -tokens, b.burst)
		tokens = -float64(b.burst)
	}
	whole, part := math.Modf(math.Abs(tokens))
	level := b.units(int64(whole)).add(int128{lo: uint64(part * float64(b.per))})
	if tokens < 0 {
		level = int128{}.sub(level)
	}
	b.level, b.last = level, now-min(since, MaxPer)
	b.seq++
	b.filled, b.past = b.seq, nil // no Cancel of before counts
	b.clip()
	return fault
}
