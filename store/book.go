package store

import (
	"math"
	"time"
)

// A Book decides asks. It is the reference for the rules of all stores. It keeps the state of each budget in memory until one
// second after the state is the same as a new one.
//
// A store that keeps states elsewhere, under a lock or in a transaction, passes the states of the budgets in the asks to a Book
// ([Book.SetState]), lets it decide, and saves the new states ([Book.State]). A Book is not safe for concurrent use.
type Book struct{ accounts map[account]state }

// NewBook returns a Book in which every budget is new.
func NewBook() *Book { return &Book{make(map[account]state)} }

// An account identifies a state.
type account struct {
	kind       Kind
	limit, key string
}

func (b *Budget) account() account { return account{b.Kind, b.Limit, b.Key} }

// A state is the store's memory of one budget.
type state interface {
	// advance moves the state on to now, under the rule of c, and applies the returns, the debt and the hold of c.
	advance(c *Call, now int64)
	// held returns how long the budget is still blocked, in µs.
	held(now int64) int64
	// short returns how long to wait until Need of c can be granted, in µs; 0 if it can be now.
	short(c *Call, now int64) int64
	// most returns how many tokens of Want of c can be granted.
	most(c *Call) int64
	// plenty returns how many tokens may be leased ahead after taken tokens were.
	plenty(c *Call, taken int64) int64
	// take grants tokens.
	take(c *Call, tokens, now int64) LeasedPart
	// left sets Left and Processes of p.
	left(c *Call, p *LeasedPart)
	// save copies the state.
	save(v *saved)
	// expires returns the instant from which the state may be forgotten.
	expires() int64
}

const (
	epoch  = int64(MaxSince / time.Microsecond)
	linger = int64(time.Second / time.Microsecond) // a state that is the same as a new one is kept for so long
)

// Lease decides the asks in order, and returns a Lease for each. Now is the time by the store's clock, in µs. If the clock was set
// back, no time has passed. Lease also forgets some of the states that have expired.
func (b *Book) Lease(now time.Time, asks []Ask) []Lease {
	at, most := now.UnixMicro(), 0
	leases := b.decide(at, int64(now.Sub(time.UnixMicro(at))), asks)
	for i := range asks {
		most += 2 * len(asks[i].Parts) // more than the asks can add
	}
	b.forget(at, most)
	return leases
}

func (b *Book) decide(now, ns int64, asks []Ask) []Lease {
	leases := make([]Lease, len(asks))
	for i := range asks {
		if err := asks[i].Check(); err != nil {
			leases[i].Err = err
			continue
		}
		leases[i] = b.lease(now, ns, asks[i].Parts)
	}
	return leases
}

func (b *Book) lease(now, ns int64, parts []Part) Lease {
	calls, states := make([]Call, len(parts)), make([]state, len(parts))
	for i := range parts {
		c, err := NewCall(&parts[i])
		if err != nil {
			return Lease{Err: err}
		}
		c.ns = ns
		calls[i] = c
	}
	leased, refused, held := make([]LeasedPart, len(parts)), false, false
	for i := range calls {
		c := &calls[i]
		s := b.state(&parts[i].Budget, c, now)
		states[i] = s
		s.advance(c, now)
		hold := s.held(now)
		wait := max(hold, s.short(c, now))
		leased[i].Hold, leased[i].Wait = micros(hold), micros(wait)
		refused, held = refused || wait > 0, held || hold > 0
	}
	if !refused && len(parts) > 0 {
		grant(calls, states, leased, now)
	}
	if refused && !held {
		enter(calls, states, leased, now)
	}
	for i := range calls {
		states[i].left(&calls[i], &leased[i])
		if calls[i].differs {
			leased[i].Differs = true
			leased[i].N, leased[i].Per = calls[i].Rate()
		}
	}
	return Lease{Parts: leased}
}

// grant leases all parts of an ask. It reduces the wants in proportion, so that no part gets tokens that the requests
// cannot use because another part lacks them.
func grant(calls []Call, states []state, leased []LeasedPart, now int64) {
	can := make([]int64, len(calls))
	least := 0 // the part of which the smallest fraction can be granted, of those that want tokens
	for i := range calls {
		can[i] = calls[i].whole(states[i].most(&calls[i]))
		if calls[least].Want == 0 || float64(can[i])*float64(calls[least].Want) < float64(can[least])*float64(calls[i].Want) {
			least = i
		}
	}
	some, want := can[least], calls[least].Want
	for i := range calls {
		c := &calls[i]
		tokens := can[i]
		switch {
		case some == want:
			tokens = c.Want + min(c.Ahead, states[i].plenty(c, c.Want))
		case i != least:
			part := int64(math.Floor(float64(c.Want) * float64(some) / float64(want)))
			tokens = c.whole(min(can[i], max(c.Need, part)))
		}
		if tokens > 0 {
			hold := leased[i].Hold
			leased[i] = states[i].take(c, tokens, now)
			leased[i].Hold = hold
		}
	}
}

// whole returns how many tokens are granted if that many can be.
func (c *Call) whole(tokens int64) int64 {
	if c.Whole && tokens < c.Want {
		return c.Need
	}
	return tokens
}

// state returns the state of a budget: a new one if there is none, or if the old one has expired.
func (b *Book) state(of *Budget, c *Call, now int64) state {
	at := of.account()
	s := b.accounts[at]
	if s == nil || now >= s.expires() {
		s = newState(c, now)
		b.accounts[at] = s
	}
	return s
}

func newState(c *Call, now int64) state {
	switch c.Kind {
	case Sliding:
		return &slidingState{header: newHeader(c, now)}
	case Fixed, Calendar:
		return &fixedState{header: newHeader(c, now), at: now}
	case Slots:
		return &slotsState{ruling: ruling{c.rule(), now}, holders: make(map[string]holding), earliest: now + slotsFor}
	}
	return newBucketState(c, now)
}

// forget looks at up to of states, others each time, and drops those that have expired.
func (b *Book) forget(now int64, of int) {
	for at, s := range b.accounts {
		if of--; of < 0 {
			return
		}
		if now >= s.expires() {
			delete(b.accounts, at)
		}
	}
}

// A header is the part that the states of buckets and windows have in common.
type header struct {
	seen         int64 // the instant of the last ask
	busy, before int64 // the sums of Since in this epoch and in the one before
	hold         int64 // the budget is blocked until then
	ruling
}

func newHeader(c *Call, now int64) header {
	return header{seen: now, ruling: ruling{c.rule(), now}}
}

// visit records an ask and its hold. A process that did not ask for an epoch counts as if it had been there all the time.
func (h *header) visit(c *Call, now int64) {
	if past := now/epoch - h.seen/epoch; past > 0 {
		h.before = 0
		if past == 1 {
			h.before = h.busy
		}
		h.busy = 0
	}
	inEpoch := now % epoch
	h.busy += min(c.Since, inEpoch)
	switch {
	case c.Since >= epoch:
		h.before += epoch
	case c.Since > inEpoch:
		h.before += c.Since - inEpoch
	}
	h.seen = now
	switch {
	case c.Hold > 0:
		h.hold = max(h.hold, now+c.Hold)
	case c.Hold < 0:
		h.hold = 0
	}
}

func (h *header) held(now int64) int64 { return max(0, h.hold-now) }

// processes estimates how many processes use the budget: the Sinces of each add up to the time that has passed.
func (h *header) processes() int64 {
	rest := epoch - h.seen%epoch
	sum := int64(math.Floor(float64(h.before)*float64(rest)/float64(epoch))) + h.busy
	return max(1, (sum+epoch/2)/epoch)
}

// Micros returns n µs.
func micros(n int64) time.Duration {
	if n > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Microsecond
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b } // for a ≥ 0

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}
