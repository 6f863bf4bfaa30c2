package throttle

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// An adaptiveBucket is the meter of an [Adaptive] limit: a token bucket whose rate and burst a controller sets.
type adaptiveBucket struct {
	bucket  meter.TokenBucket
	control controller
	rate    float64 // as the bucket has it
}

// adaptivePer is the period for which an adaptive rate is counted, so that it is precise to a millionth of a token per
// second, and may change without the balance being rescaled.
const adaptivePer = 1e6 * second

const (
	// keepLearned is for how long an idle key is remembered of which something was learned.
	keepLearned = 3600 * second
	// keepBusy is for how long one is at least that has requests in flight.
	keepBusy = 10 * second
)

func newAdaptiveBucket(now instant, cfg AIMD, seed uint64) *adaptiveBucket {
	b := &adaptiveBucket{control: *newController(cfg, now, seed)}
	b.bucket = *meter.NewTokenBucket(now, rate{N: 1, Per: time.Duration(adaptivePer)}, 1, 1)
	b.follow(now)
	b.bucket.Fill()
	return b
}

// follow gives the bucket the rate that the controller has now.
func (b *adaptiveBucket) follow(now instant) {
	r := b.control.rate(now)
	if r == b.rate {
		return
	}
	b.rate = r
	b.bucket.Retune(now, rate{N: perMega(r), Per: time.Duration(adaptivePer)})
	if burst := int64(min(b.control.burst(), float64(maxCount))); burst != b.bucket.Burst() {
		b.bucket.Resize(now, burst)
		b.control.seq = uint64(b.bucket.LastTake()) // the two number requests alike
	}
}

// perMega returns a rate per second as one per adaptivePer.
func perMega(r float64) int64 { return int64(max(1, min(r*1e6, 1<<62))) }

// within returns cost, or all that a full bucket has: one that is more passes then, and leaves a debt.
func (b *adaptiveBucket) within(cost int64) int64 { return min(cost, b.bucket.Burst()) }

func (b *adaptiveBucket) Payable(now instant, cost int64) bool {
	b.follow(now)
	return b.control.gate(now) <= now && b.bucket.Payable(now, b.within(cost))
}

// Spend is meter.SpendIf without its detours, which would show in what a request costs.
func (b *adaptiveBucket) Spend(now instant, cost int64) (charged int64, ok bool) {
	if !b.Payable(now, cost) {
		return 0, false
	}
	return b.Take(now, now, cost, false), true
}

func (b *adaptiveBucket) Ready(from instant, _, cost int64) instant {
	gate := b.control.gate(max(from, b.control.pausedUntil))
	if gate == never {
		return never
	}
	return max(gate, b.bucket.Ready(from, 0, b.within(cost)))
}

// Plan goes by pauses and Max alone, since the rate may have grown until then.
func (b *adaptiveBucket) Plan(from instant, ahead, cost int64) instant {
	fastest := b.bucket.ReadyAtRate(perMega(b.control.cfg.Max), from, ahead, b.within(cost))
	return max(b.control.pausedUntil, fastest)
}

// Take numbers the request, as charged: twice the number, and one more for a probe.
func (b *adaptiveBucket) Take(due, now instant, cost int64, waited bool) int64 {
	charged := 2 * b.bucket.Take(due, now, cost, waited)
	if b.control.send(now, cost).probe {
		charged++
	}
	b.follow(now)
	return charged
}

// answered notes what became of a request that was let go at sent.
func (b *adaptiveBucket) answered(now instant, charged int64, sent instant, cost int64, o Outcome, retryAfter time.Duration) {
	t := ticket{seq: uint64(charged / 2), at: sent, cost: max(1, float64(cost)), probe: charged%2 == 1}
	b.control.result(now, t, o, time.Duration(now-sent), retryAfter)
	b.follow(now)
}

// GiveBack is for what was never sent.
func (b *adaptiveBucket) GiveBack(charged int64, now instant, cost int64) {
	b.bucket.GiveBack(charged/2, now, cost)
	b.answered(now, charged, now, cost, OutcomeIgnore, 0)
}

// refund gives the tokens back of what never reached the server, which answered has been told.
func (b *adaptiveBucket) refund(charged int64, now instant, cost int64) {
	b.bucket.GiveBack(charged/2, now, cost)
}

func (b *adaptiveBucket) Settle(charged int64, now instant, paid, cost int64) {
	b.bucket.Correct(charged/2, now, paid, cost, int64(min(meter.SettleOver*b.rate, float64(maxCount))))
	b.control.seq = uint64(b.bucket.LastTake()) // the two number requests alike
	b.control.settled(now, float64(cost-paid))
}

// settled notes that a request has cost more than it seemed when it was sent, or less.
func (c *controller) settled(now instant, more float64) {
	c.cost = max(1, c.cost+more/float64(min(c.seq, 64)))
	c.used.Add(now, more, c.tau())
	c.used.Value = max(0, c.used.Value)
}

func (b *adaptiveBucket) FullAt() instant {
	c, keep := &b.control, int64(0)
	if c.current != c.cfg.Initial || c.ceiling > 0 {
		keep = keepLearned
	}
	if c.inFlight > 0 {
		keep = max(keep, keepBusy)
	}
	return max(b.bucket.FullAt(), c.pausedUntil, c.dearUntil, meter.AddInstant(b.bucket.AsOf(), keep))
}

func (b *adaptiveBucket) Most() int64 { return maxCount }

func (b *adaptiveBucket) Tokens(now instant) float64 { return b.bucket.Tokens(now) }

// Indebted reports as well that the server is not to be asked now, or that answers are still to come.
func (b *adaptiveBucket) Indebted(now instant) bool {
	c := &b.control
	return b.bucket.Indebted(now) || c.inFlight > 0 || c.mode == modeQuiet || max(c.pausedUntil, c.dearUntil) > now
}

func (b *adaptiveBucket) Retune(instant, rate)  {} // only the controller sets its rate
func (b *adaptiveBucket) Resize(instant, int64) {}
