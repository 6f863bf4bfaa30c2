package server

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	leastRefused = 4               // refusals in a stretch of time
	shortest     = second          // stretch
	slower       = 3.0 / 4         // of the rate of the fastest stretch: of a server that limits a rate, fewer requests would be refused at that
	mostSlower   = 100             // slower stretches, however often it was wrong that they are enough
	stays        = 1.0 / 2         // of the share that was refused is the same share, as far as so few refusals show
	mostByChance = 1.0 / 3         // of the requests are refused by chance
	fullRefuses  = 1.0 / 5         // more of the requests are refused because the server is full
	trialEnds    = 3               // logarithm of the odds at which a trial finds that refusals are by chance,
	foundWrong   = 2*trialEnds + 2 // and later of those that they depend on the rate after all
	shareOver    = 256             // requests: the share is a mean over them
	provenBy     = 64              // refusals that have shown nothing else: it was right, even if that changes
)

// Together is how many requests are sent at once in a trial.
const Together = 6

// A Learner is what learns from the refusals of a server that says no more. How often it must have become slower depends on how it is tested
// then.
type Learner uint8

const (
	Asked Learner = iota // is asked to wait, so there can be no trial: with fewer stretches, many neighbours take each other for chance
	Guess                // may be far too low from the first refusal on, so nothing shows what was refused at a higher rate: it is tested by sending more
	Rate                 // is tested by a trial
	Slots                // how many are in flight, which soon are more
)

// enough returns how many slower stretches are enough.
func (l Learner) enough() int16 { return [...]int16{Asked: 8, Guess: 1, Rate: 3, Slots: 3}[l] }

// A Chance tests the belief that a server refuses requests because too many are sent. If it refuses the same share although the client has
// become slower, in several stretches of time, then refusals seem not to depend on the rate. That is what many neighbours see, too: each of
// them is too few to matter. So there is a trial where several requests can be sent at once, right after a refusal: a server that has just
// refused one because too many were sent refuses most of these. After that, it is believed until a larger share is refused.
type Chance struct {
	from    meter.Instant // when this stretch began
	event   meter.Instant // when the last refusal came that counts: those of requests that were sent before are of the same event
	last    int64         // the number of the last request before it
	refused int32         // requests of this stretch
	rate    float32       // of the fastest stretch, per second
	share   float32       // that was refused in it, and from a trial on, in all
	sum     float32       // of the shares that were refused in slower stretches; from a trial on, the logarithm of the odds that refusals depend on the rate
	row     int16         // slower stretches; from a trial on, refusals
	times   int16         // as many slower stretches are needed as at first; 0: once
	left    int8          // requests of the trial whose responses are not known
	state   state
}

// A state is what is thought of the belief.
type state uint8

const (
	believed state = iota
	tried
	wrong
)

// A Finding is what a response shows of a Chance.
type Finding uint8

const (
	NoFinding Finding = iota
	IsTried           // as many as Together are to be sent at once
	IsChance          // refusals do not depend on the rate: what they have taught is wrong
	IsNone            // refusals depend on the rate
)

// On reports whether refusals do not depend on the rate, as far as is known.
func (c *Chance) On() bool { return c.state == wrong }

// Rested takes a time in which the client had nothing to send.
func (c *Chance) Rested(d int64) {
	if c.state == believed {
		c.from += d
	}
}

// Refused takes a refused request, which was the account's of that number, and the number of the last one that was sent. Accepted ones are
// seen by the numbers, because their responses may come later.
func (c *Chance) Refused(now, sent meter.Instant, number, last int64, l Learner) Finding {
	if c.last == 0 && c.refused == 0 {
		c.from, c.last = sent, number-1
	}
	n := number - c.last
	switch {
	case c.state == believed && (n <= 0 || sent <= c.event), sent < c.from && c.state != believed:
		return NoFinding
	case n <= 0: // a later one was refused before, and this one was taken for accepted
		c.weigh(-1, 1)
		n = 0
	}
	f := NoFinding
	c.event = now
	switch c.state {
	case tried:
		f = c.onTrial(n)
	case wrong:
		f = c.watch(n)
	default:
		c.refused++
		if c.refused < leastRefused || now-c.from < shortest {
			return NoFinding
		}
		f = c.judge(n, float32(n)*1e9/float32(max(shortest, now-c.from)), l)
		c.from, c.refused = now, 0
	}
	if c.last = max(c.last, number); f != NoFinding { // what was sent before shows nothing
		c.from, c.last = now, last
	}
	return f
}

// judge takes a stretch of n requests.
func (c *Chance) judge(n int64, rate float32, l Learner) Finding {
	share := float32(c.refused) / float32(n)
	switch {
	case share > mostByChance:
		c.row, c.sum = 0, 0
	case l == Guess, rate <= slower*c.rate:
		c.row, c.sum = c.row+1, c.sum+share
	case rate > c.rate:
		c.rate, c.share, c.row, c.sum = rate, share, 0, 0
	}
	if c.row == 0 || c.row < min(max(1, c.times)*l.enough(), mostSlower) {
		return NoFinding
	}
	mean := c.sum / float32(c.row)
	same := l == Guess || mean >= stays*c.share
	c.rate, c.share, c.row, c.sum = rate, mean, 0, 0 // of many requests, unlike that of the fastest stretch
	switch {
	case !same:
		return NoFinding
	case l == Rate:
		c.state, c.left = tried, Together
		return IsTried
	}
	c.state = wrong
	return IsChance
}

// onTrial takes the n-th request since the last of a trial.
func (c *Chance) onTrial(n int64) Finding {
	within := n <= int64(c.left)
	switch {
	case n == 0:
	case within:
		c.weigh(n-1, 1)
		c.left -= int8(n)
	default:
		c.weigh(int64(c.left), 0)
		c.left = 0
	}
	switch {
	case c.sum > 2*trialEnds: // more, because what finds that wrongly is not tested again for long
		c.begin()
		return IsNone
	case c.sum < -trialEnds:
		c.state, c.sum = wrong, 0
		return IsChance
	case !within:
		c.left = Together
		return IsTried
	}
	return NoFinding
}

// watch takes the n-th request since the last refusal, once refusals do not depend on the rate.
func (c *Chance) watch(n int64) Finding {
	if n > 0 {
		c.weigh(n-1, 1)
	}
	if c.sum = max(0, c.sum); c.sum > foundWrong {
		c.begin()
		return IsNone
	}
	c.row = min(c.row+1, provenBy)
	c.share = min(c.share+(1-float32(n)*c.share)/max(shareOver, float32(n)), mostByChance)
	return NoFinding
}

// weigh adds requests to the odds.
func (c *Chance) weigh(accepted, refused int64) {
	p := float64(c.share)
	c.sum += float32(float64(accepted)*math.Log1p(-fullRefuses/(1-p)) + float64(refused)*math.Log1p(fullRefuses/p))
}

// begin has the belief tested from the beginning, by eight times as many stretches, unless it was wrong for a long time.
func (c *Chance) begin() {
	times := min(8*max(1, c.times), mostSlower)
	if c.row >= provenBy {
		times = 0
	}
	*c = Chance{from: c.event, event: c.event, times: times}
}
