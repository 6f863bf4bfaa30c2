package queue

import "github.com/httpthrottle/throttle/internal/aimd"

// A Charge is what an ask costs against one limit.
type Charge struct {
	Limit  *Limit
	Key    string
	cost   int64
	bucket *Bucket
	paid   int64 // what refunds and reports need, once it was granted

	Outcome aimd.Outcome // by the limit's Classify; 0: by the response
	Kept    bool         // a slot that Grant.Done gives back
	Told    bool         // the body of the response may tell the cost
	booked  bool         // in Core.books: paid is not known yet
	Settled bool         // guarded by Core.Mu, as cost is from then on
}

// Add adds a charge, for which there must be room.
func (p *Paid) Add(li *Limit, key string, cost int64) {
	p.Charges = p.Charges[:len(p.Charges)+1] // field by field into zeroed memory, because every request comes here
	c := &p.Charges[len(p.Charges)-1]
	c.Limit, c.Key, c.cost = li, key, min(cost, MaxCount)
	if key == "" {
		c.bucket = li.Single
	}
}

// AddAll adds charges that were made before, where there are none yet. There must be room for them.
func (p *Paid) AddAll(charges []Charge) {
	p.Charges = p.Charges[:len(charges)]
	for i := range p.Charges { // faster than copy
		p.Charges[i] = charges[i]
	}
}

// A Grant is what the core knows of a request that was granted.
type Grant struct {
	Mark   Mark
	Caller *Caller // where it was granted in its turn
	Spent  uint8   // guarded by Core.Mu: which of the calls below were made
	n      uint8   // of the charges in room
	room   [5]Charge
	More   []Charge // all of them, if room is too small or they were allocated elsewhere
}

// The calls that count once for a grant.
const (
	grantReported = 1 << iota
	grantDone
	GrantSettled
	grantReturned
	grantCanceled = grantReported | grantDone | GrantSettled | grantReturned
)

// firstLocked reports whether none of these calls was made before, and stores that they are made now.
func (g *Grant) firstLocked(what uint8) bool {
	first := g.Spent&what == 0
	g.Spent |= what
	return first
}

// Charges returns the charges. They are no field, because a field could point into the grant itself, and then a grant could
// not be on the stack.
func (g *Grant) Charges() []Charge {
	if g.More != nil {
		return g.More
	}
	return g.room[:g.n]
}

// Space returns an empty slice with room for n charges.
func (g *Grant) Space(n int) []Charge {
	if n <= len(g.room) {
		return g.room[:0]
	}
	g.More = make([]Charge, 0, n)
	return g.More
}

// Hold stores that n charges were appended to the space.
func (g *Grant) Hold(n int) {
	if g.More != nil {
		g.More = g.More[:n]
	} else {
		g.n = uint8(n)
	}
}

// Keep stores a copy of the charges.
func (g *Grant) Keep(charges []Charge) {
	own := g.Space(len(charges))[:len(charges)]
	for i := range own { // faster than copy
		own[i] = charges[i]
	}
	g.Hold(len(own))
}

// Cancel gives back the charges of a request that was never sent, unless something else was done with the grant.
func (l *Core) Cancel(g *Grant, by *Counts) {
	now := l.begin()
	defer l.end()
	if g.Spent == 0 {
		g.Spent = grantCanceled
		l.undoLocked(g.Charges(), by, g.Caller, now)
	}
}

// Free gives back the slots of a request that is over.
func (l *Core) Free(g *Grant) {
	now := l.begin()
	defer l.end()
	if !g.firstLocked(grantDone) {
		return
	}
	charges := g.Charges()
	for i := range charges {
		if c := &charges[i]; c.Kept {
			l.giveBackLocked(c.bucket, c.paid, now, c.cost)
		}
	}
}

// Charged returns what the i-th charge came to, and whether it was not given back.
func (l *Core) Charged(g *Grant, i int) (cost int64, ok bool) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return g.Charges()[i].cost, g.Spent&grantReturned == 0
}

// Longest returns for how long, in seconds, the rate of a bucket is used up by what it was charged: the longest of all; 0: none
// has a rate.
func (l *Core) Longest(charges []Charge) (seconds float64) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	now := l.NowLocked()
	for i := range charges {
		c := &charges[i]
		if rate := c.bucket.PerSecond(now); rate > 0 {
			seconds = max(seconds, float64(c.cost)/rate)
		}
	}
	return seconds
}

// Undo gives back all charges of a request that is not sent after all.
func (l *Core) Undo(charges []Charge, by *Counts) {
	now := l.begin()
	defer l.end()
	l.undoLocked(charges, by, nil, now)
}

// undoLocked gives back all charges except settled ones, for which it is unknown how much to undo.
func (l *Core) undoLocked(charges []Charge, by *Counts, of *Caller, now Instant) {
	l.Counts.Undone++
	by.Undone++
	for i := range charges {
		c := &charges[i]
		c.Limit.Counts.Undone++
		if !c.Settled {
			l.refundLocked(c, now)
			l.turnLocked(of, c.bucket, -c.cost)
		}
	}
}

// refundLocked gives back a charge, or drops it if a dry run has not made it yet.
func (l *Core) refundLocked(c *Charge, now Instant) {
	if c.booked {
		l.books.drop(c)
		return
	}
	l.giveBackLocked(c.bucket, c.paid, now, c.cost)
}
