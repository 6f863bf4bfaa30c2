// Package supply decides when a store of shared budgets is called, for what, and what happens while it is unreachable.
//
// A [Supply] is a store as one Limiter uses it. A [Lease] is the part of a bucket whose budget is in the store. A [Call] asks for
// several of them. Like package meter it has no lock and no clock, and does no I/O: the time is a parameter, and the owner makes
// the calls.
package supply

import (
	"errors"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// Terms are how a Limiter uses a store.
type Terms struct {
	Timeout   time.Duration // after which a call is given up
	Grace     time.Duration // for which requests go on waiting in an outage
	Without   Without       // what happens then
	Processes int           // the expected number of processes; 0: the number that the store reports
}

// A Without says what happens to requests when a store is unreachable for longer than the grace.
type Without uint8

const (
	Nothing    Without = iota // they are rejected
	ButLocally                // each process uses its even share
	Limit                     // all pass
)

// A Supply is a store as one Limiter uses it, for buckets of type B.
type Supply[B any] struct {
	Terms
	Limits []string // the names of the limits that use it
	Apart  bool     // budgets with different keys cannot be granted together
	Counts Counts
	Away   lease.Distance // of the store, for all of its budgets
	Dice   meter.Dice     // of what is random; another seed in each process

	asking []*Lease[B]   // those for which the store is to be asked, in this order
	calls  int           // under way
	sent   int           // of those, which were sent and not booked
	late   int           // given up, but not returned yet
	worked bool          // a call has succeeded
	trip   time.Duration // usual time from a call to its response; 0: unknown
	latest count
	outage Outage // of the whole store

	differing       meter.Instant // when a rule began to differ; 0: none did
	differed        meter.Instant // when one did last
	noted, reported bool          // that a rule differs, and that it stays so
}

// Counts count calls of a store and tokens.
type Counts struct{ Ok, Failed, Setup, Leased, Returned, Alone, Outages, Faulty, Differs uint64 }

// A count is a number of processes as the store reported it.
type count struct {
	n  int // 0: it did not
	at meter.Instant
}

const (
	// MostCalls is how many calls are under way at the same time, and how many given up without having returned.
	MostCalls = 2

	mostAsks  = 128 // of one call
	splitFrom = 16  // fewer asks are not worth another call

	tripsAllowed    = 2 // a call is given up after this many round trips at the earliest, because a busy machine delays responses
	timeoutsAllowed = 4 // but after this many Timeouts at the latest
)

// Latest returns the number of processes in the latest response about a budget, and how long ago that was; 0: there was none.
func (s *Supply[B]) Latest(now meter.Instant) (processes int, age time.Duration) {
	if s.latest.n == 0 {
		return 0, 0
	}
	return s.latest.n, time.Duration(now - s.latest.at)
}

// Err returns the error of the latest call; nil: it succeeded, or there was none.
func (s *Supply[B]) Err() error { return s.outage.err }

// IsIdle reports whether no call is under way, and none is to be made.
func (s *Supply[B]) IsIdle() bool { return len(s.asking)+s.calls == 0 }

// Asking returns the buckets for which the store is to be asked.
func (s *Supply[B]) Asking() []B {
	all := make([]B, len(s.asking))
	for i, n := range s.asking {
		all[i] = n.of
	}
	return all
}

// Begin reports whether a call begins now: there is something to ask for, and the store may be called. If it may be called later,
// at is when; else it is meter.Never.
func (s *Supply[B]) Begin(now meter.Instant) (begins bool, at meter.Instant) {
	down := s.outage.err != nil
	switch {
	case len(s.asking) == 0, s.late >= MostCalls, s.calls >= MostCalls, down && s.calls > 0:
		return false, meter.Never
	case down && now < s.outage.again:
		return false, s.outage.again
	}
	s.calls++
	return true, meter.Never
}

// A Call asks a store for several budgets.
type Call[B any] struct {
	Asks  []store.Ask
	Apart bool // the store has some of the parts in different places

	supply *Supply[B]
	at     meter.Instant
	after  time.Duration // when it is given up
	most   int
	parts  []store.Part // of all asks, in order
	leases []*Lease[B]  // of all parts
	over   bool         // its response was booked, or it was given up
}

// Collect returns a call that has begun, without asks: the owner adds one for each lease that Next returns.
func (s *Supply[B]) Collect(now meter.Instant) *Call[B] {
	most := mostAsks
	if s.outage.err != nil {
		most = 1
		if now < s.outage.again {
			most = 0
		}
	}
	if many := len(s.asking); s.sent == 0 && many >= splitFrom {
		most = min(most, (many+1)/2) // another call takes the rest: the store decides those while the first response is booked
	}
	n := min(len(s.asking), most)
	return &Call[B]{
		supply: s, at: now, after: s.timeout(), most: most,
		Asks: make([]store.Ask, 0, n), parts: make([]store.Part, 0, n), leases: make([]*Lease[B], 0, n),
	}
}

// Next returns the next lease for which the store is to be asked; nil: there is none, or the call is full.
func (c *Call[B]) Next() *Lease[B] {
	s := c.supply
	if len(s.asking) == 0 || len(c.Asks) >= c.most {
		return nil
	}
	n := s.asking[0]
	s.asking[0], s.asking = nil, s.asking[1:]
	n.queued = false
	return n
}

// Add adds a part to the next ask, if there is still something to ask for.
func (c *Call[B]) Add(n *Lease[B], d lease.Demand) bool {
	if n.AskAt(c.at, d) > c.at {
		return false
	}
	c.parts = append(c.parts, n.Ask(c.at, d))
	c.leases = append(c.leases, n)
	return true
}

// End makes an ask of the parts that were added since the one before, and returns their number.
func (c *Call[B]) End() int {
	first := 0
	for i := range c.Asks {
		first += len(c.Asks[i].Parts)
	}
	parts := c.parts[first:len(c.parts):len(c.parts)]
	if len(parts) > 0 {
		c.Asks = append(c.Asks, store.Ask{Parts: parts})
	}
	return len(parts)
}

// Send reports whether the call has an ask. If it has none, it has ended.
func (c *Call[B]) Send() bool {
	if len(c.Asks) == 0 {
		c.supply.calls--
		return false
	}
	c.supply.sent++
	return true
}

// Sent returns when the call was sent.
func (c *Call[B]) Sent() meter.Instant { return c.at }

// Timeout returns after which time the call is to be given up.
func (c *Call[B]) Timeout() time.Duration { return c.after }

// timeout returns for how long a call may take now.
func (s *Supply[B]) timeout() time.Duration {
	return max(s.Timeout, min(tripsAllowed*s.trip, timeoutsAllowed*s.Timeout))
}

// Arrived measures the round trip of a call that has a response, even if the call was given up before, or carried out nothing because
// it was late: otherwise a store that is further away than the Timeout would never be reached. The usual round trip follows a shorter one
// quickly and a longer one slowly, so that a single slow response does not delay the notice of an outage. In an outage there is no notice
// to delay, and the store may have moved. A response that no call can wait for shows nothing.
func (c *Call[B]) Arrived(now meter.Instant) {
	s, trip := c.supply, time.Duration(now-c.at)
	if trip > timeoutsAllowed*s.Timeout {
		return
	}
	switch {
	case s.trip == 0, trip > s.trip && s.outage.err != nil:
		s.trip = trip
	case trip < s.trip:
		s.trip -= (s.trip - trip) / 2
	default:
		s.trip += (trip - s.trip) / 8
	}
}

// Parts returns the number of parts of all asks.
func (c *Call[B]) Parts() int { return len(c.parts) }

// Of returns the bucket of a part.
func (c *Call[B]) Of(part int) B { return c.leases[part].of }

// Return ends the call: it has returned, or is given up. It reports whether its response is to be booked, and that there is none
// if it was given up. A call that returns late shows that the store may be reachable again.
func (c *Call[B]) Return(givenUp bool, now meter.Instant) (book bool) {
	s := c.supply
	switch {
	case c.over && !givenUp:
		s.late--
		s.outage.again = min(s.outage.again, now)
		return false
	case c.over:
		return false
	case givenUp:
		s.late++
		s.calls--
	}
	c.over = true
	s.sent--
	return true
}

// Late takes what is known of a part after the call was given up: the response, or that the store has carried nothing out.
func (c *Call[B]) Late(part int, o *Outcome, now meter.Instant) {
	n, p := c.leases[part], &c.parts[part]
	switch {
	case o.Err == nil:
		c.supply.Counts.Leased += uint64(o.Tokens)
		n.Meter.Late(now, *p, &o.LeasedPart)
	case errors.Is(o.Err, store.ErrLate):
		n.Meter.Late(now, *p, nil)
	}
}

// An Outcome is the response to one part.
type Outcome struct {
	store.LeasedPart
	Err error
}

// Note records how a call ended, before its parts are booked. It returns an event if the store became unreachable, is reachable
// again or is set up wrongly.
func (c *Call[B]) Note(err error, now meter.Instant) *Event {
	s := c.supply
	was := s.outage
	switch {
	case err == nil:
		s.Counts.Ok++
		s.outage, s.worked = Outage{}, true
	case errors.Is(err, store.ErrSetup):
		s.Counts.Setup++
		s.outage.fail(err, now, &s.Dice)
	default:
		s.Counts.Failed++
		s.outage.fail(err, now, &s.Dice)
	}
	if was.err == nil && err != nil {
		s.Counts.Outages++
	}
	s.Apart = s.Apart || c.Apart
	return eventOf(s.Limits, "", &was, &s.outage, now)
}

// Book books the response to a part, or that there is none. Alone says that the store decided about others: then the outage is
// that of this budget. News says that requests may have to wait for longer than planned for another reason than that other
// processes took tokens.
func (c *Call[B]) Book(part int, o *Outcome, alone bool, now meter.Instant) (news bool, event *Event) {
	n, p, s := c.leases[part], &c.parts[part], c.supply
	for _, r := range p.Back {
		s.Counts.Returned += uint64(r.Tokens)
	}
	was := n.outage
	if o.Err == nil {
		s.Counts.Leased += uint64(o.Tokens)
		n.latest = count{max(1, o.Processes), now}
		s.latest = n.latest
		n.outage, n.Wanted = Outage{}, 0
		held, known := n.HeldUntil(), n.Processes() > 0
		n.Booked(c.at, now, *p, o.LeasedPart)
		if event = eventOf([]string{p.Budget.Limit}, p.Budget.Key, &was, &n.outage, now); event == nil && o.Differs {
			event = s.differs(&p.Budget, now)
		}
		return !known || n.HeldUntil() > held, event
	}
	n.Failed(now, now)
	c.Late(part, o, now)
	n.Wanted = 0
	if alone {
		s.Counts.Faulty++
		n.outage.fail(o.Err, now, &s.Dice)
		event = eventOf([]string{p.Budget.Limit}, p.Budget.Key, &was, &n.outage, now)
	}
	if n.IsAlone() && n.Out().isSetup() {
		n.Alone(now, nil, false, nil)
	}
	n.Update(now)
	return true, event
}

// RollOut is for how long processes may disagree about a rule while a new configuration is deployed: until then, it is no fault.
const RollOut = 10 * time.Second

// differs counts a response by the rule of another process. It returns an event for the first, and another one if that lasts.
func (s *Supply[B]) differs(b *store.Budget, now meter.Instant) *Event {
	s.Counts.Differs++
	if s.differing == 0 || now-s.differed > int64(RollOut) {
		s.differing = max(1, now)
		s.noted = false
	}
	s.differed = now
	e := &Event{Limits: []string{b.Limit}, Key: b.Key, Err: store.ErrRule, Down: time.Duration(now - s.differing)}
	switch {
	case s.reported:
		return nil
	case !s.noted:
		s.noted, e.Down = true, 0
	case e.Down >= RollOut:
		s.reported = true
	default:
		return nil
	}
	return e
}

// An Event says that a store, or one budget in it, became unreachable, is reachable again, or is set up wrongly, or that
// processes disagree about a rule.
type Event struct {
	Limits []string
	Key    string // of one budget; empty: of the whole store, or of the budget without a key
	Err    error
	Down   time.Duration // of a store that was unreachable, or for how long processes have disagreed
}

// eventOf returns what has changed; nil: nothing.
func eventOf(limits []string, key string, was, is *Outage, now meter.Instant) *Event {
	e := &Event{Limits: slices.Clip(limits), Key: key, Err: is.err}
	switch {
	case (was.err == nil) == (is.err == nil) && was.isSetup() == is.isSetup():
		return nil
	case was.err != nil:
		e.Down = time.Duration(now - was.since)
	}
	return e
}
