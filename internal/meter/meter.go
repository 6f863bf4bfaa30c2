// Package meter is the arithmetic of rate limits: token buckets, windows, and slots for requests in flight.
//
// It has no lock and no clock. The time is a parameter, and the caller makes sure that only one goroutine uses a meter.
package meter

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// An Instant is a moment on a monotonic clock, in nanoseconds since the Limiter was made.
type Instant = int64

const (
	Never    = Instant(math.MaxInt64)
	MaxCount = int64(1) << 60 // larger numbers of tokens are reduced to this one
	MaxPer   = int64(1) << 62 // longer periods, in ns, are reduced to this one: 146 years

	second = int64(time.Second)

	// MostUsed is how many times n a window can count as used. So the debts of requests that cost up to that many times their estimates are
	// not forgotten, even if they were granted together.
	MostUsed = 5
)

// A Meter is the state and the arithmetic of one bucket.
//
// A request that has waited is granted at the instant at which it was due, although a late timer may have missed it. Token
// buckets charge at that instant, so that lateness costs no throughput. Windows charge at the actual instant, because
// servers count then.
type Meter interface {
	// Payable reports whether cost can be paid now if no request waits.
	Payable(now Instant, cost int64) bool
	// Spend takes cost if it is payable now. It returns what Take returns.
	Spend(now Instant, cost int64) (charged int64, ok bool)
	// Ready returns the earliest instant, not before from, at which cost can be paid after ahead has been paid; Never if
	// it cannot.
	Ready(from Instant, ahead, cost int64) Instant
	// Take spends cost, which must be payable, for a request that was due at an earlier instant and is sent now. waited
	// reports that the request waited in line: no token that came in before due is lost then.
	// The result identifies the charge for GiveBack and Settle.
	Take(due, now Instant, cost int64, waited bool) (charged int64)
	// GiveBack undoes a Take. Tokens that a full bucket would have lost without that Take are not given back.
	GiveBack(charged int64, now Instant, cost int64)
	// Settle corrects the cost of a Take from paid to cost. Overcharged tokens are given back as by GiveBack. An
	// undercharge becomes debt, up to a bound.
	Settle(charged int64, now Instant, paid, cost int64)
	// Most returns the largest cost that can ever be paid.
	Most() int64
	// Matters returns until when what the bucket knows makes a difference. From full on, it is in the same state as a new one.
	// Before must, it may not be forgotten even to make room for another, because it owes tokens or knows something that a new
	// bucket would have to learn again: a request in flight, a hold, a silence, a refusal that still counts. Never stands for an
	// event without a known instant, such as a response. full is not before must.
	Matters(now Instant) (must, full Instant)
	// Tokens returns the balance, which is negative for debt.
	Tokens(now Instant) float64
	// Retune sets the rate and keeps the balance.
	Retune(now Instant, r Rate)
	// Resize sets the burst and keeps the balance, up to the new burst; or the number of slots. Other meters have neither, and
	// ignore it.
	Resize(now Instant, burst int64)
}

// A Rate is N tokens per period.
type Rate struct {
	N   int64
	Per time.Duration
}

// PerSecond returns the rate in tokens per second.
func (r Rate) PerSecond() float64 { return float64(r.N) / r.Per.Seconds() }

// A Planner is a meter whose next grant may depend on a response that has not arrived. Its Ready, which is about the next
// request only, returns Never until then.
type Planner interface {
	// Plan returns a lower bound of what Ready will return, whatever responses arrive.
	Plan(from Instant, ahead, cost int64) Instant
}

// A Saver is a meter whose state can be saved and restored in another process.
type Saver interface {
	// Save returns the state of now.
	Save(now Instant) State
	// Restore replaces the state by one that was saved since nanoseconds ago. The error says what of it cannot be right; the
	// rest is restored.
	Restore(now Instant, since int64, s State) error
}

// A State is what a meter saves.
type State struct {
	Tokens float64   // what is left in a token bucket or a pace
	Grants []Granted // what a window has granted
	Debt   int64     // what it owes beyond
}

// debt returns the debt, and what is wrong with it.
func (s State) debt() (int64, error) {
	if s.Debt < 0 || s.Debt > MaxCount {
		return 0, fmt.Errorf("a debt of %d cannot be", s.Debt)
	}
	return s.Debt, nil
}

// A Granted is a cost that a window granted some time before its state was saved.
type Granted struct {
	Ago  time.Duration
	Cost int64
}

// check returns what is wrong with g.
func (g Granted) check() error {
	if g.Cost <= 0 || g.Cost > MaxCount || g.Ago < 0 {
		return fmt.Errorf("a cost of %d spent %v ago cannot be", g.Cost, g.Ago)
	}
	return nil
}

var errOtherKind = errors.New("the saved state does not fit this kind of limit")

// SpendIf implements Spend by Payable and Take.
func SpendIf(m Meter, now Instant, cost int64) (charged int64, ok bool) {
	if !m.Payable(now, cost) {
		return 0, false
	}
	return m.Take(now, now, cost, false), true
}

// Unlimited is the meter of a Limiter without limits. It grants every cost immediately.
type Unlimited struct{}

func (Unlimited) Payable(Instant, int64) bool                { return true }
func (Unlimited) Spend(now Instant, _ int64) (int64, bool)   { return now, true }
func (Unlimited) Ready(from Instant, _, _ int64) Instant     { return from }
func (Unlimited) Take(_, now Instant, _ int64, _ bool) int64 { return now }
func (Unlimited) GiveBack(int64, Instant, int64)             {}
func (Unlimited) Settle(int64, Instant, int64, int64)        {}
func (Unlimited) Most() int64                                { return MaxCount }
func (Unlimited) Matters(Instant) (must, full Instant)       { return 0, 0 }
func (Unlimited) Tokens(Instant) float64                     { return math.Inf(1) }
func (Unlimited) PerSecond(Instant) float64                  { return 0 }
func (Unlimited) Retune(Instant, Rate)                       {}
func (Unlimited) Resize(Instant, int64)                      {}

// AddCount returns a+b for counts of tokens, neither negative, at most 2·MaxCount.
func AddCount(a, b int64) int64 { return min(min(a, 2*MaxCount)+min(b, 2*MaxCount), 2*MaxCount) }

// AddInstant returns t+d, at most Never, for d ≥ 0.
func AddInstant(t Instant, d int64) Instant {
	if d > Never-max(t, 0) {
		return Never
	}
	return t + d
}

// MulCount returns a·b for a, b ≥ 0, at most Never.
func MulCount(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi > 0 || lo > uint64(Never) {
		return Never
	}
	return int64(lo)
}
