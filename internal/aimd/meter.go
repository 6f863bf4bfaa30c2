package aimd

import (
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

// A Meter is a token bucket whose rate and burst a controller sets.
type Meter struct {
	bucket    meter.TokenBucket
	control   controller
	rate      float64 // of bucket
	freed     instant // refusals before that are those of the first one
	bare      Suspicion
	numbered  bool    // an account numbers the requests, which costs one each: the bucket numbers changes of its burst, too
	begins    bool    // no request has been sent since a pause or a silence
	explained bool    // the server has reported what is left, which explains the refusals before
	trial     bool    // the bucket has the burst of a trial, until the next response
	ready     instant // when the bucket can pay for a request like the latest one; never: it could when that was sent, or that did not wait
	doubts    meter.Doubts[belief]
}

// per is the period of the rates of the bucket, so that they are precise to a millionth of a token per second and change
// without a conversion of the balance.
const per = 1e6 * second

// keepLearned is how long an idle key is remembered if it has learned something.
const keepLearned = 3600 * second

// New returns the meter of a new key. The configuration must be valid.
func New(now instant, cfg Config, seed uint64) *Meter {
	m := &Meter{control: *newController(cfg, now, seed)}
	m.bucket = meter.NewTokenBucket(now, meter.Rate{N: 1, Per: time.Duration(per)}, 1, 1).Alone()
	m.follow(now)
	m.bucket.Fill()
	return m
}

// follow sets the rate of the bucket to that of the controller.
func (m *Meter) follow(now instant) {
	r := m.control.rate(now)
	if r == m.rate {
		return
	}
	m.rate = r
	m.bucket.Retune(now, meter.Rate{N: perMega(r), Per: time.Duration(per)})
	if burst := int64(min(m.control.burst(), maxRate)); burst != m.bucket.Burst() {
		m.bucket.Resize(now, burst)
		m.alike()
	}
}

// alike has the bucket and the controller number requests alike, unless an account numbers them.
func (m *Meter) alike() {
	if !m.numbered {
		m.control.seq = uint64(m.bucket.LastTake())
	}
}

// perMega converts a rate per second to one per million seconds.
func perMega(r float64) int64 { return int64(max(1, min(r*1e6, 1<<62))) }

// within returns cost, but no more than a full bucket has: a larger cost passes then and leaves a debt.
func (m *Meter) within(cost int64) int64 { return min(cost, m.bucket.Burst()) }

func (m *Meter) Payable(now instant, cost int64) bool {
	m.follow(now)
	return m.control.gate(now) <= now && m.bucket.Payable(now, m.within(cost))
}

// Spend is meter.SpendIf without the interface, which costs time.
func (m *Meter) Spend(now instant, cost int64) (charged int64, ok bool) {
	if !m.Payable(now, cost) {
		return 0, false
	}
	return m.Take(now, now, cost, false), true
}

func (m *Meter) Ready(from instant, _, cost int64) instant {
	gate := m.control.gate(from)
	if gate == never {
		return never
	}
	return max(gate, m.bucket.Ready(from, 0, m.within(cost)))
}

// Plan considers only Max, because the rate may grow until then.
func (m *Meter) Plan(from instant, ahead, cost int64) instant {
	return m.bucket.ReadyAtRate(perMega(m.control.cfg.Max), from, ahead, m.within(cost))
}

// Interval implements [meter.Steady], for Plan.
func (m *Meter) Interval() int64 { return per / perMega(m.control.cfg.Max) }

// Take returns the number of the request. The first one after a pause or a silence takes what was saved up
// until then: it would be refused together by a server that has not saved anything up.
func (m *Meter) Take(due, now instant, cost int64, waited bool) int64 {
	if m.begins && due >= m.control.pausedUntil {
		m.begins = false
		m.bucket.Begin(max(due, m.bucket.AsOf()), m.within(cost))
		m.control.start(due)
	}
	m.bucket.Take(due, now, cost, waited)
	if m.ready = never; waited {
		if at := m.bucket.Ready(now, 0, m.within(cost)); at > now {
			m.ready = at
		}
	}
	m.control.rest(now, waited)
	number := m.control.send(now, cost).seq
	m.follow(now)
	return int64(number)
}

// Halted implements [meter.Halter]. A client with the rate of its share of a window, which others empty at a higher rate, would otherwise
// seem not to use it, and have less than its share for good. A bucket that still had tokens when the others had taken theirs is fast
// enough.
func (m *Meter) Halted(since, now instant) {
	c := &m.control
	if d := now - max(since, m.ready, c.pausedUntil); d > 0 && !c.silence.on {
		c.grow(now)
		c.used.At = min(now, c.used.At+d)
	}
	m.ready = never // of several requests that are granted together, the first one counts
}

// Beside makes a new meter one beside a learned limit in flight, which bounds what is sent at the start. So the rate has no bound but Max
// until the first sign of overload. Then it starts with what was used; refusals without Retry-After in the next second are of the
// same event. It bounds the requests in flight only with a LatencyThreshold: otherwise, the learned limit in flight finds queues.
func (m *Meter) Beside(now instant) *Meter {
	c := &m.control
	c.free = true
	c.off.inFlight = c.cfg.LatencyThreshold == 0
	c.current, c.shown = c.cfg.Max, c.cfg.Max
	m.follow(now)
	m.bucket.Fill()
	return m
}

// CountsAll reports whether it takes each 5xx, however many requests were in flight: the user has set how many are too many, or a trial has
// shown that load does not cause all of them.
func (m *Meter) CountsAll() bool {
	c := &m.control
	_, found := c.failures.Usual()
	return c.cfg.ErrorThreshold > 0 || found || c.failures.Trying()
}

// Failures returns what is known of the cause of failures.
func (m *Meter) Failures() *server.Failures { return &m.control.failures }

// Agree takes that failures are by chance, because a learned number in flight has found that. Cuts for them are undone.
func (m *Meter) Agree(now instant, with *server.Failures) {
	c := &m.control
	c.grow(now)
	c.failures.Agree(with)
	if c.place.rate > 0 {
		c.follow(now, server.NotByLoad)
	}
}

// Gave notes that the server has accepted requests, maybe before there was a Meter.
func (m *Meter) Gave() { m.bare.Given = true }

// Answered takes the outcome of a request that left at sent, and the Retry-After of its response, or 0. It returns charged.
func (m *Meter) Answered(now instant, charged int64, sent instant, cost int64, o Outcome, retryAfter time.Duration) int64 {
	o = m.bare.Judge(o, now)
	if c := &m.control; c.free && o == Throttled {
		c.rowFrom = c.seq
		c.bound(now, CauseThrottled)
		steady := c.accepted.Of(now, latelyOver) > c.current/2
		switch {
		case steady && retryAfter > 0: // the rate was used for a while, and has not just been doubled
			c.ceiling = c.current
		case !steady: // what was accepted before says nothing of it
			c.worked = 0
		}
		m.freed = now + int64(c.tau())
	}
	if now < m.freed && retryAfter <= 0 { // what was sent before has spent the server's tokens: one cut is enough
		m.control.cutSeq = m.control.seq
	}
	t := ticket{seq: uint64(charged), at: sent, cost: max(1, float64(cost))}
	paused, silent := m.control.pausedUntil, m.control.silence.on
	m.control.result(now, t, o, time.Duration(now-sent), retryAfter)
	if m.trial {
		m.trial, m.rate = false, 0
	}
	m.follow(now)
	m.begins = m.begins || m.control.pausedUntil != paused || silent && !m.control.silence.on
	return charged
}

// Belied takes that a request was refused after all which was answered as one that the server accepted.
func (m *Meter) Belied(now instant, charged int64, sent instant, cost int64, retryAfter time.Duration) int64 {
	m.control.inFlight++ // it is not in flight any more, and is taken out once more
	return m.Answered(now, charged, sent, cost, Throttled, retryAfter)
}

// Room lets the rate grow quickly while the server reports that it allows a higher one per second, but not to what was refused. The
// first report explains the refusals before: they were of windows that other clients had used up, and show no ceiling.
func (m *Meter) Room(now instant, perSecond float64) {
	c := &m.control
	c.grow(now)
	if perSecond > 0 && !m.explained {
		m.explained, c.ceiling = true, 0
	}
	c.roomy = !c.free && !c.silence.on && perSecond > 1.25*c.current && (c.ceiling == 0 || c.current < 0.8*c.ceiling)
	if c.roomy && now >= c.pausedUntil {
		c.heldUntil, c.toll = min(c.heldUntil, now), 0
	}
}

// Trial sends some of the requests that wait at once. A server that has just refused one because too many were sent refuses most of them, which
// says nothing of a silence.
func (m *Meter) Trial(now instant) {
	m.follow(now)
	c := &m.control
	n := int64(math.Ceil(server.Together * c.cost))
	if m.bucket.Burst() >= n || m.bucket.Tokens(now) < 0 {
		return
	}
	m.bucket.Resize(now, n)
	m.bucket.Fill()
	m.trial = true
	m.alike()
	c.rowFrom = c.seq + server.Together
}

// Unlearn forgets what refusals have taught, because they do not depend on the rate. The next one that counts is not the first.
func (m *Meter) Unlearn(now instant) {
	c := &m.control
	c.grow(now)
	c.ceiling, c.toll, c.crowded, c.heldUntil, c.spared = 0, 0, 0, now, true
	c.set(CauseNotLoad, c.current)
}

// Apart forgets what refusals and failures have taught, because they were of requests that the server counts separately.
func (m *Meter) Apart(now instant) {
	c := &m.control
	m.Resume(now)
	m.Unlearn(now)
	c.forgetResponses()
	c.failures.Forget(now)
	c.place, c.row = place{}, 0
}

// Relearn undoes Unlearn: the rate falls to what was accepted lately, by a fifth at most. The next refusals lower it further.
func (m *Meter) Relearn(now instant) {
	c := &m.control
	c.grow(now)
	if c.ceiling == 0 {
		c.set(CauseThrottled, c.lately(now))
	}
}

// GiveBack undoes the Take of a request that was never sent.
func (m *Meter) GiveBack(charged int64, now instant, cost int64) {
	m.bucket.GiveBack(charged+m.bucket.LastTake()-int64(m.control.seq), now, cost)
	m.Answered(now, charged, now, cost, Ignore, 0)
}

// Refund gives the tokens of a request back that never reached the server, after Answered.
func (m *Meter) Refund(charged int64, now instant, cost int64) {
	m.bucket.GiveBack(charged, now, cost)
}

func (m *Meter) Settle(charged int64, now instant, paid, cost int64) {
	m.bucket.Correct(charged, now, paid, cost, int64(min(meter.SettleOver*m.rate, maxRate)))
	m.alike()
	m.control.settled(now, float64(cost-paid))
}

// settled corrects the cost of a request.
func (c *controller) settled(now instant, more float64) {
	c.cost = max(1, c.cost+more/float64(min(c.seq, 64)))
	c.used.Add(now, more, c.tau())
	c.used.Value = max(0, c.used.Value)
}

// Matters counts a request in flight, a pause, a silence, a limit that is dear to touch and a bare response as what must be kept. What the rate
// has learned is worth keeping for keepLearned after the last request. The next probe of a silent server comes within the longest
// wait that the server has not asked for.
func (m *Meter) Matters(now instant) (must, full instant) {
	c := &m.control
	if c.inFlight > 0 {
		return never, never
	}
	must, full = m.bucket.Matters(now)
	must = max(must, c.dearUntil, m.bare.Matters())
	if c.silence.on {
		must = max(must, c.silence.probeAt+c.backoff.Most())
	}
	if c.current != c.cfg.Initial || c.ceiling > 0 {
		full = max(full, meter.AddInstant(m.bucket.AsOf(), keepLearned))
	}
	return must, max(must, full)
}

// Yields returns until when a server has asked to stay away, or seems not to accept requests, and reports whether nothing else must be
// kept. A server decides for how many keys it asks that, and must not keep others out by it.
func (m *Meter) Yields(now instant) (until instant, ok bool) {
	until, _ = m.Matters(now)
	return until, m.control.inFlight == 0 && m.bucket.Tokens(now) >= 0
}

func (m *Meter) Most() int64                   { return meter.MaxCount }
func (m *Meter) Tokens(now instant) float64    { return m.bucket.Tokens(now) }
func (m *Meter) Retune(instant, meter.Rate)    {} // only the controller sets the rate
func (m *Meter) Resize(instant, int64)         {}
func (m *Meter) PerSecond(now instant) float64 { return m.control.rate(now) }
func (m *Meter) InFlight() int64               { return int64(m.control.inFlight) }
func (m *Meter) Retuned() (Retune, bool)       { return m.control.retuned() }
func (m *Meter) Snapshot(now instant) Learned  { return m.control.snapshot(now) }

// Resume ends a pause.
func (m *Meter) Resume(now instant) {
	m.control.resume(now)
	m.begins = true
}

// Bounds returns the rate of the last sign of overload (0: there was none), the most requests that may be in flight, and how
// the rate moves now.
func (m *Meter) Bounds(now instant) (ceiling float64, inFlight int, mode string) {
	c := &m.control
	c.grow(now)
	return c.ceiling, c.inFlightBound(now), c.mode(now)
}

// Learn makes a new meter resume with what another has learned. It reports whether l is valid.
func (m *Meter) Learn(now instant, l Learned) bool {
	ok := m.control.restore(now, l)
	m.explained = m.explained || ok // no report explains what was learned before
	m.follow(now)
	return ok
}

// Play implements [meter.Player]: the rate stays as it is. Until it has been found, it is only known that it is no more than Max.
func (m *Meter) Play(now instant) (meter.Meter, bool) {
	c := &m.control
	c.grow(now)
	rate, known := c.rate(now), c.ceiling > 0 && !c.silence.on
	if !known {
		rate = c.cfg.Max
	}
	if rate >= maxRate {
		return meter.Unlimited{}, false
	}
	p := meter.NewPace(now, meter.Rate{N: perMega(rate), Per: time.Duration(per)})
	if owed := int64(-m.bucket.Tokens(now)); owed > 0 {
		p.Take(now, now, owed, false)
	}
	return p, known || rate <= c.rate(now)
}
