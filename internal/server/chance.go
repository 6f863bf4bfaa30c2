package server

import "github.com/httpthrottle/throttle/internal/meter"

const (
	leastRefused = 4       // refusals in a stretch of time
	shortest     = second  // stretch
	slower       = 3.0 / 4 // of the rate of the fastest stretch: of a server that limits a rate, fewer requests would be refused at that
	leastSlower  = 8       // slower stretches show that refusals do not depend on the rate; with fewer, many neighbours take each other for chance
	mostSlower   = 100     // and at most, if that was wrong before
	stays        = 1.0 / 2 // of the share that was refused is the same share, as far as so few refusals show
	rises        = 4       // times that share is another one
	mostByChance = 1.0 / 3 // of the requests are refused by chance
	atOnce       = 4       // refusals of the first few requests after the client has become faster again show that the rate is the reason
	atOnceOf     = 6
)

// A Chance tests the belief that a server refuses requests because too many are sent. If it refuses the same share although the client has
// become slower, in several stretches of time, then refusals do not depend on the rate, until a larger share is refused. A guess of the
// rate may be far too low from the first refusal on, so nothing shows what was refused at a higher one: it is tested by sending more.
type Chance struct {
	from    meter.Instant // when this stretch began
	event   meter.Instant // when the last refusal came that counts: those of requests that were sent before are of the same event
	last    int64         // the number of the last request before it
	refused int32         // requests of this stretch
	rate    float32       // of the fastest stretch, per second
	share   float32       // that was refused in it, and once refusals do not depend on the rate, in all
	row     int16         // slower stretches since; all that are needed at first after a guess
	sum     float32       // of the shares that were refused in them
	need    int16         // of them
	on      bool
	stays   bool // for a stretch
}

// A Finding is what a response shows of a Chance.
type Finding uint8

const (
	NoFinding Finding = iota
	IsChance          // refusals do not depend on the rate: what they have taught is wrong
	IsNone            // that was wrong
)

// On reports whether refusals do not depend on the rate, as far as is known.
func (c *Chance) On() bool { return c.on }

// Rested takes a time in which the client had nothing to send.
func (c *Chance) Rested(d int64) { c.from += d }

// Refused takes a refused request, which was the account's of that number. Accepted ones are seen by the numbers, because their responses
// may come later. The rate is guessed if no more is known of it than that requests were refused.
func (c *Chance) Refused(now, sent meter.Instant, number int64, guessed bool) Finding {
	if c.last == 0 && c.refused == 0 {
		c.from, c.last = sent, number-1
	}
	n := number - c.last
	if n <= 0 || !c.on && sent <= c.event {
		return NoFinding
	}
	c.event = now
	c.refused++
	switch {
	case c.on && !c.stays && c.refused == atOnce && n <= atOnceOf:
	case c.on && c.refused < 2*leastRefused, !c.on && (c.refused < leastRefused || now-c.from < shortest):
		return NoFinding
	}
	share, rate := float32(c.refused)/float32(n), float32(n)*1e9/float32(max(shortest, now-c.from))
	c.from, c.last, c.refused = now, number, 0
	return c.judge(share, rate, guessed)
}

// judge takes a stretch.
func (c *Chance) judge(share, rate float32, guessed bool) Finding {
	switch {
	case c.on && share > min(rises*c.share, atOnce/(atOnceOf+1.0)):
		*c = Chance{from: c.from, event: c.event, last: c.last, need: min(4*max(c.need, leastSlower), mostSlower)}
		return IsNone
	case c.on:
		c.stays = true
	case share > mostByChance:
		c.row, c.sum = 0, 0
	case guessed:
		c.row, c.sum = c.row+leastSlower, c.sum+leastSlower*share
	case rate > c.rate:
		c.rate, c.share, c.row, c.sum = rate, share, 0, 0
	case rate <= slower*c.rate:
		c.row, c.sum = c.row+1, c.sum+share
	}
	if c.on || c.row < max(c.need, leastSlower) {
		return NoFinding
	}
	mean := c.sum / float32(c.row)
	c.on, c.row, c.sum = mean >= stays*c.share, 0, 0
	if !c.on {
		return NoFinding
	}
	c.share = max(c.share, mean)
	return IsChance
}
