package concurrency

import (
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

// A Meter is a counting semaphore whose number of slots a controller sets.
type Meter struct {
	slots   meter.Count
	control controller
	bare    aimd.Suspicion
	usedAt  instant // of the last request
	doubts  meter.Doubts[belief]
}

// keepLearned is how long an idle key is remembered if it has learned something.
const keepLearned = 3600 * second

// New returns the meter of a new key. The configuration must be valid. wall is the wall clock, which need not be exact.
func New(now instant, cfg Config, wall *meter.Wall) *Meter {
	m := &Meter{control: *newController(now, cfg, wall), usedAt: now}
	m.follow(now)
	return m
}

// follow sets the number of slots to that of the controller.
func (m *Meter) follow(now instant) { m.slots.Resize(now, m.control.limit()) }

// within returns cost, but no more than there can be: a request of several slots passes alone where there are fewer.
func (m *Meter) within(cost int64) int64 { return min(cost, m.control.limit()) }

func (m *Meter) Payable(now instant, cost int64) bool {
	return now >= m.control.refusals.until && m.slots.Payable(now, m.within(cost))
}

func (m *Meter) Spend(now instant, cost int64) (int64, bool) { return meter.SpendIf(m, now, cost) }

func (m *Meter) Ready(from instant, ahead, cost int64) instant {
	return m.slots.Ready(max(from, m.control.refusals.until), ahead, m.within(cost))
}

// Plan considers only pauses and Max, because the number of slots may grow until then.
func (m *Meter) Plan(from instant, _, cost int64) instant {
	if cost > m.Most() {
		return meter.Never
	}
	return max(from, m.control.refusals.until)
}

// The result of Take is the number of the request, and how many were in flight with it.
const (
	flyingBits = 20
	flyingMost = 1<<flyingBits - 1
)

// A stay is what Answered returns in its place after a success, as a negative number: the last bits of the number of the request, and of
// the instant at which it was sent. The rest of both follows from the number of the last request and from the instant at which the
// request ends, unless 262,000 requests or nine hours lie in between.
type stay int64

const (
	seqBits  = 18
	sentBits = 63 - seqBits
	unknown  = stay(-1) // of a request whose latency says nothing
)

func newStay(seq uint64, sent instant) stay {
	return -stay(seq&(1<<seqBits-1)<<sentBits|uint64(sent)&(1<<sentBits-1)) - 2
}

// of returns the number of the request, of which last is the last one, and for how long it held its slot until now, in seconds.
func (s stay) of(last uint64, now instant) (seq uint64, seconds float64) {
	x := -int64(s) - 2
	seq = last - (last-uint64(x>>sentBits))&(1<<seqBits-1)
	return seq, float64((now-x)&(1<<sentBits-1)) / 1e9
}

func (m *Meter) Take(due, now instant, cost int64, waited bool) int64 {
	m.usedAt = now
	m.slots.Take(due, now, cost, waited)
	m.control.refusals.backoff.Sent(due, waited)
	t := m.control.send(now, cost)
	m.follow(now)
	return int64(t.seq)<<flyingBits | min(t.inFlight, flyingMost)
}

func ticketOf(charged int64) ticket {
	return ticket{uint64(charged >> flyingBits), charged & flyingMost}
}

// Tries reports whether a request was one of those by which a higher number is tried, or had more in flight with it than usual. A
// refusal of it says nothing of a rate, by which a server refuses whatever the number. One that was alone says nothing of a number.
func (m *Meter) Tries(charged int64) bool {
	c, t := &m.control, ticketOf(charged)
	used := c.mode == starting || float64(t.inFlight) >= usedEnough*c.cruise()
	return t.inFlight > 1 && (c.refusals.tries(t) || used && float64(t.inFlight) > c.flying+0.5)
}

// Tests reports whether there is a trial, which needs all failures that the number may cause.
func (m *Meter) Tests() bool { return m.control.refusals.failures.Trying() }

// Failures returns what is known of the cause of failures.
func (m *Meter) Failures() *server.Failures { return &m.control.refusals.failures }

// Agree takes that failures are by chance, because a learned rate has found that. What refusals have taught is wrong.
func (m *Meter) Agree(now instant, with *server.Failures) {
	r := &m.control.refusals
	r.failures.Agree(with)
	if !isUnknown(r.ceiling) {
		m.Unlearn(now)
	}
}

// Gave notes that the server has accepted requests, maybe before there was a Meter.
func (m *Meter) Gave() { m.bare.Given = true }

// Answered takes the outcome of a request that was sent at sent, and the Retry-After of its response, or 0. It returns what
// takes the place of charged. Its latency is known when it ends.
func (m *Meter) Answered(now instant, charged int64, sent instant, cost int64, o aimd.Outcome, retryAfter time.Duration) int64 {
	c, t := &m.control, ticketOf(charged)
	o = m.bare.Judge(o, now)
	if o == aimd.OK || o == aimd.ClientError {
		c.refusals.backoff.Accepted(sent)
	}
	switch {
	case o == aimd.OK:
		c.succeeded(now, t)
		c.advance(now)
		m.follow(now)
		return int64(newStay(t.seq, sent))
	case o == aimd.ClientError:
		c.succeeded(now, t)
		c.ignore(now, t)
	case o == aimd.Unavailable, o == aimd.Throttled && retryAfter <= 0:
		c.refuse(now, t, o == aimd.Unavailable)
	default: // Retry-After speaks of a rate, and another 5xx is more often a fault than load
		c.ignore(now, t)
	}
	m.follow(now)
	return int64(unknown)
}

// Belied takes that a request was refused after all which was answered as one that the server accepted: too many were in flight when its body
// said so. It returns what takes the place of charged.
func (m *Meter) Belied(now instant, charged int64, _ instant, _ int64, retryAfter time.Duration) int64 {
	s, c := stay(charged), &m.control
	if s >= 0 || s == unknown { // it was not taken for accepted
		return charged
	}
	seq, _ := s.of(c.seq, now)
	if l := c.levelOf(seq); l != nil {
		l.remove(int64(math.Round(l.number())))
	}
	if retryAfter <= 0 {
		c.refused(now, ticket{seq, c.inFlight}, false)
	}
	m.follow(now)
	return int64(unknown)
}

// GiveBack frees the slots of a request that is over, or that was never sent.
func (m *Meter) GiveBack(charged int64, now instant, cost int64) {
	m.slots.GiveBack(0, now, cost)
	switch s := stay(charged); {
	case s >= 0:
		m.control.ignore(now, ticketOf(charged))
	case s != unknown:
		seq, seconds := s.of(m.control.seq, now)
		m.control.measure(now, seq, seconds)
	}
	m.control.free(cost)
	m.follow(now)
}

// Refund frees the slots of a request that never reached the server, after Answered.
func (m *Meter) Refund(charged int64, now instant, cost int64) { m.GiveBack(charged, now, cost) }

func (m *Meter) Settle(int64, instant, int64, int64) { panic("throttle: bug: a slot has no cost") }

// Matters counts a request in flight, a pause and a bare response as what must be kept. What was learned is worth keeping for keepLearned after
// the last request.
func (m *Meter) Matters(now instant) (must, full instant) {
	if m.slots.InFlight() > 0 {
		return meter.Never, meter.Never
	}
	c := &m.control
	if c.n != float64(c.cfg.Initial) || !isUnknown(c.best) || !isUnknown(c.refusals.ceiling) {
		full = meter.AddInstant(m.usedAt, keepLearned)
	}
	must = max(c.refusals.until, m.bare.Matters())
	return must, max(full, must)
}

// Most implements [meter.Meter]. Without a Max, there is no bound.
func (m *Meter) Most() int64 {
	if m.control.cfg.Max == exact {
		return meter.MaxCount
	}
	return m.control.cfg.Max
}

func (m *Meter) InFlight() int64              { return m.slots.InFlight() }
func (m *Meter) PerSecond(instant) float64    { return 0 }
func (m *Meter) Tokens(now instant) float64   { return m.slots.Tokens(now) }
func (m *Meter) Retune(instant, meter.Rate)   {}
func (m *Meter) Resize(instant, int64)        {} // only the controller sets the number
func (m *Meter) HeldUntil() instant           { return m.control.refusals.until }
func (m *Meter) Retuned() (aimd.Retune, bool) { return m.control.retuned() }
func (m *Meter) Snapshot() Learned            { return m.control.snapshot() }

// Unlearn forgets what refusals have taught, because they do not depend on how many are in flight.
func (m *Meter) Unlearn(now instant) {
	m.control.forgive()
	m.follow(now)
}

// Relearn takes that that was wrong. The refusals that follow show how many may be in flight.
func (m *Meter) Relearn(instant) {}

// Resume ends a pause.
func (m *Meter) Resume(now instant) { m.control.refusals.until = min(m.control.refusals.until, now) }

// Bounds returns the number of requests that may be in flight while it does not visit a lower one, the ceiling (0: none is
// known), the last elasticity, and what the controller does now.
func (m *Meter) Bounds(now instant) (n int64, ceiling, elasticity float64, mode string) {
	c := &m.control
	if ceiling = c.refusals.ceiling; isUnknown(ceiling) {
		ceiling = 0
	}
	return int64(c.cruise()), ceiling, c.e, c.modeName(now)
}

// Play implements [meter.Player]: the number of slots stays as it is, once it has been found.
func (m *Meter) Play(now instant) (meter.Meter, bool) {
	c := &m.control
	if c.mode == starting && c.cfg.Max > c.limit() || c.count == 0 {
		return meter.Unlimited{}, false
	}
	return meter.PlaySlots(now, int64(c.cruise()), m.slots.InFlight(), c.mean*1e9, 0), true
}

// Learn makes a new meter resume with what another has learned. It reports whether l is valid.
func (m *Meter) Learn(now instant, l Learned) bool {
	ok := m.control.restore(l)
	m.follow(now)
	return ok
}
