package throttle

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"

	"github.com/httpthrottle/throttle/internal/jsonfinder"
)

// A Limit is a rule: an algorithm, whom it counts for, and what a request costs against it.
// It is a description without state, made by [TokenBucket], [Pace], [SlidingWindow] or [FixedWindow],
// and may be given to any number of Limiters.
type Limit struct {
	kind    limitKind
	name    string
	rate    rate
	burst   int64 // -1: as large as the rate's n
	initial int64 // -1: full
	share   float64
	start   time.Time // of one fixed window; zero: the epoch
	key     KeyFunc
	cost    CostFunc
	rateFor func(key string) (int64, time.Duration)
	aimd    AIMD
	judge   ClassifyFunc
	settles SettleFunc
	costAt  *jsonfinder.Paths

	clamps       bool
	untilHeaders bool // of an InFlight limit
	faults       []error
}

type limitKind string

const (
	kindBucket   limitKind = "bucket"
	kindPace     limitKind = "pace"
	kindSliding  limitKind = "sliding-window"
	kindFixed    limitKind = "fixed-window"
	kindAIMD     limitKind = "adaptive"
	kindInFlight limitKind = "in-flight"
	kindServer   limitKind = "server" // what servers say, beside all limits
	kindNone     limitKind = "none"   // grants everything but what is held
)

// TokenBucket allows n tokens per period on average, and a burst of n at once unless [Burst] says otherwise. It starts
// full unless [Initial] says otherwise. So up to 2n tokens pass in the first period; where an API says "n per period"
// and means it of any period, use a window. A cost above the burst can never be paid and is refused.
//
// While requests wait, the k-th of them is due at start + k·per/n, to the nanosecond, rounded up.
func TokenBucket(n int64, per time.Duration, opts ...LimitOption) Limit {
	return newLimit(kindBucket, n, per, opts)
}

// Pace allows n tokens per period, evenly, one request after the other: a request of any cost goes once the costs
// before it have drained at that rate. It is the leaky bucket as a meter (ITU-T I.371), with no tolerance but for the
// lateness of timers: a gap may be shorter by as much as the one before was longer, up to 20 ms. Where the gap itself is
// what matters, as with a crawl delay, SlidingWindow(1, d) keeps it always.
func Pace(n int64, per time.Duration, opts ...LimitOption) Limit {
	return newLimit(kindPace, n, per, opts)
}

// SlidingWindow allows at most n tokens in any half-open stretch of time of length per: a request exactly one period
// old no longer counts. A cost above n can never be paid and is refused.
//
// That is so where requests leave. A server counts where they arrive, and the way there may take one longer than the
// next: against one that is strict, make the period longer by as much as that may be.
//
// It is exact, to the nanosecond, as long as no more than 1,024 requests fall into one period. Beyond that, requests
// of the same 64th of the period are forgotten together, when the last of them is one period old: never too early, in
// bounded memory (at most 1,090 entries of 24 bytes), with at least 64/65 of n usable.
func SlidingWindow(n int64, per time.Duration, opts ...LimitOption) Limit {
	return newLimit(kindSliding, n, per, opts)
}

// FixedWindow allows n tokens per window, the windows following each other without a gap, as hourly and daily quotas
// do. A window begins at the Unix epoch (so that days are those of UTC) unless [Start] says otherwise, and follows the
// wall clock, also when that is set anew. A cost above n can never be paid and is refused.
func FixedWindow(n int64, per time.Duration, opts ...LimitOption) Limit {
	return newLimit(kindFixed, n, per, opts)
}

// Adaptive is a token bucket whose rate and burst are found by AIMD, for each key, from what becomes of the requests: a
// Transport tells it by itself, and others by [Grant.Report]. Costs are spent as in a [TokenBucket]; one above the burst,
// which is 50 ms worth, passes when the bucket is full, and leaves a debt. Of the options it takes [Name], [Key], [Cost]
// and [Classify].
//
// Nobody is refused because the rate is low for now: in advance only for holds, for Retry-After, and for what would take
// too long even at Max.
//
// What a key has learned is kept for an hour after its last request, if it is not evicted before (see [WithMaxKeys]), and
// over a restart by [Limiter.Snapshot].
func Adaptive(a AIMD, opts ...LimitOption) Limit {
	l := newLimit(kindAIMD, 0, 0, opts)
	l.aimd = a
	return l
}

// InFlight allows n requests at a time: a slot is taken when a request is sent, and given back when the body of the
// answer was read to its end, has failed or was closed, or the context of the request has ended; at once if there is no
// answer or no body. [UntilHeaders] gives it back earlier. A request takes 1 slot unless the limit has a [Cost] of its own,
// or the context names it ([ContextWithCost]); one that takes more than n can never be sent and is refused. Plans are lower
// bounds, since nobody knows when a slot becomes free. Without HTTP use [Limiter.Acquire] and [Grant.Done].
func InFlight(n int64, opts ...LimitOption) Limit { return newLimit(kindInFlight, n, 1, opts) }

func newLimit(kind limitKind, n int64, per time.Duration, opts []LimitOption) Limit {
	l := Limit{kind: kind, rate: rate{N: n, Per: per}, burst: -1, initial: -1, share: 1}
	for _, o := range opts {
		if o == nil {
			l.fault("a LimitOption is nil")
			continue
		}
		o.applyTo(&l)
	}
	return l
}

// A LimitOption changes one thing about a [Limit].
type LimitOption interface{ applyTo(*Limit) }

type limitOption func(*Limit)

func (f limitOption) applyTo(l *Limit) { f(l) }

// Name names the limit, for costs, keys, statistics and refusals. Without it a limit is called by its kind: bucket,
// pace, sliding-window, fixed-window, and the second of a kind bucket-2.
func Name(name string) LimitOption {
	return limitOption(func(l *Limit) {
		l.name = name
		if name == "" {
			l.fault(`Name("") is empty`)
		}
	})
}

// Burst sets how many tokens a [TokenBucket] holds when it is full. It must be positive. The default is the n of its rate.
func Burst(tokens int64) LimitOption {
	return limitOption(func(l *Limit) {
		l.burst = min(tokens, maxCount)
		l.onlyFor(kindBucket, "Burst", tokens)
		if tokens <= 0 {
			l.fault("Burst(%d) is not positive", tokens)
		}
	})
}

// Initial sets how many tokens a [TokenBucket] starts with: 0 up to its burst, which is the default. It holds for every
// key that is new or was forgotten (see [WithMaxKeys]).
func Initial(tokens int64) LimitOption {
	return limitOption(func(l *Limit) {
		l.initial = tokens
		l.onlyFor(kindBucket, "Initial", tokens)
		if tokens < 0 {
			l.fault("Initial(%d) is negative", tokens)
		}
	})
}

// Start sets an instant at which a window of a [FixedWindow] begins or began. The default is the Unix epoch.
func Start(t time.Time) LimitOption {
	return limitOption(func(l *Limit) {
		l.start = t
		l.onlyFor(kindFixed, "Start", t)
	})
}

// Key sets whom this limit counts for, in place of [WithKey].
func Key(f KeyFunc) LimitOption {
	return limitOption(func(l *Limit) {
		l.key = f
		if f == nil {
			l.fault("Key(nil): a function is needed")
		}
	})
}

// Cost sets what a request costs against this limit, in place of [WithCost] and [WithWeights]. A request of cost 0
// does not fall under the limit; a negative cost is refused.
func Cost(f CostFunc) LimitOption {
	return limitOption(func(l *Limit) {
		l.cost = f
		if f == nil {
			l.fault("Cost(nil): a function is needed")
		}
	})
}

// ClampCost charges a request whose cost is above the limit's size that size, where it would be refused without: for costs
// that are estimates, which [Settle] or [SettleJSON] correct. The size is the burst of a [TokenBucket], and else the n of
// the limit. It does not fit [Pace] and [Adaptive], in which any cost can be paid.
func ClampCost() LimitOption {
	return limitOption(func(l *Limit) {
		l.clamps = true
		if l.kind == kindPace || l.kind == kindAIMD {
			l.fault("ClampCost() does not fit a limit of kind %s", l.kind)
		}
	})
}

// Share uses only that fraction of the limit, above 0 and at most 1, and leaves the rest to others who draw on it.
// A token bucket's rate is that part exactly (to a nanosecond of its period) and its burst rounded down, but at least
// 1; a window's n is rounded down.
func Share(fraction float64) LimitOption {
	return limitOption(func(l *Limit) {
		l.share = fraction
		if !(fraction > 0 && fraction <= 1) {
			l.share = 1
			l.fault("Share(%v) is not above 0 and at most 1", fraction)
		}
	})
}

// RateFor sets a rate for each key: the tier of a tenant, the crawl delay of a host. It is asked when a key is new or
// was forgotten (see [WithMaxKeys]), outside every lock, perhaps several times at once; [Limiter.SetRate] does not
// change what it said. 0, 0 leaves the key at the limit's own rate; other values that are not positive are an error of
// the request. A token bucket's burst is the key's n unless [Burst] is set.
func RateFor(f func(key string) (n int64, per time.Duration)) LimitOption {
	return limitOption(func(l *Limit) {
		l.rateFor = f
		if f == nil {
			l.fault("RateFor(nil): a function is needed")
		}
	})
}

// A ClassifyFunc tells an [Adaptive] limit what became of a request: resp is nil if err is not. 0 leaves it to the rule
// that counts without it. It must not change the response or read its body, and is called by many goroutines at once.
type ClassifyFunc func(resp *http.Response, err error) Outcome

// Classify says what an [Adaptive] limit takes an answer or an error for. The default is told at each [Outcome].
func Classify(f ClassifyFunc) LimitOption {
	return limitOption(func(l *Limit) {
		l.judge = f
		if f == nil {
			l.fault("Classify(nil): a function is needed")
		} else if l.kind != kindAIMD {
			l.fault("Classify does not fit a limit of kind %s", l.kind)
		}
	})
}

func (l *Limit) fault(format string, args ...any) {
	// Limits are values: a fault of one must not be seen by another that shares the slice.
	l.faults = append(l.faults[:len(l.faults):len(l.faults)], fmt.Errorf(format, args...))
}

func (l *Limit) onlyFor(kind limitKind, option string, value any) {
	if l.kind != kind {
		l.fault("%s(%v) does not fit a limit of kind %s", option, value, l.kind)
	}
}

// validate returns everything that is wrong with the limit.
func (l *Limit) validate() error {
	if l.kind == "" {
		return errors.New("WithLimit: the zero Limit has no algorithm")
	}
	faults := l.faults[:len(l.faults):len(l.faults)]
	switch l.kind {
	case kindNone:
	case kindInFlight:
		if l.rate.N <= 0 {
			faults = append(faults, fmt.Errorf("InFlight(%d) is not positive", l.rate.N))
		}
		if l.rateFor != nil {
			faults = append(faults, fmt.Errorf("RateFor does not fit a limit of kind %s", l.kind))
		}
	case kindAIMD:
		faults = append(faults, l.aimd.validate())
		if l.share != 1 {
			faults = append(faults, fmt.Errorf("Share(%v) does not fit a limit of kind %s", l.share, l.kind))
		}
		if l.rateFor != nil {
			faults = append(faults, fmt.Errorf("RateFor does not fit a limit of kind %s", l.kind))
		}
	default:
		faults = append(faults, l.check(l.rate))
	}
	if burst := l.burstOf(l.rate); l.initial > burst {
		faults = append(faults, fmt.Errorf("Initial(%d) is more than the burst of %d", l.initial, burst))
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("limit %q: %w", l.name, err)
	}
	return nil
}

// check returns what is wrong with a rate for this limit.
func (l *Limit) check(r rate) error {
	var faults []error
	if r.N <= 0 {
		faults = append(faults, fmt.Errorf("n of %d is not positive", r.N))
	}
	if r.Per <= 0 {
		faults = append(faults, fmt.Errorf("a period of %v is not positive", r.Per))
	}
	if r.N > 0 && l.isWindow() && l.part(r.N) == 0 {
		faults = append(faults, fmt.Errorf("Share(%v) of %d leaves no token", l.share, r.N))
	}
	return errors.Join(faults...)
}

func (l *Limit) isWindow() bool { return l.kind == kindSliding || l.kind == kindFixed }

// part returns the share of n, rounded down, but forgiving float64 its last digits: 0.29 of 100 is 29.
func (l *Limit) part(n int64) int64 {
	if l.share == 1 {
		return n
	}
	return int64(math.Floor(float64(n)*l.share*(1+1e-15) + 1e-9))
}

// shared returns what Share leaves of a rate.
func (l *Limit) shared(r rate) rate {
	r.N, r.Per = min(r.N, maxCount), min(r.Per, time.Duration(maxPer))
	if l.isWindow() {
		return rate{N: l.part(r.N), Per: r.Per}
	}
	if l.share < 1 {
		r.Per = time.Duration(math.Ceil(min(float64(r.Per)/l.share, float64(maxPer))))
	}
	return r
}

// burstOf returns how much a token bucket of this limit holds at that rate.
func (l *Limit) burstOf(r rate) int64 {
	burst := l.burst
	if burst < 0 {
		burst = min(r.N, maxCount)
	}
	return max(1, l.part(burst))
}

// meter returns the arithmetic of a new bucket with that rate, Share applied, and that burst.
func (l *Limit) meter(now instant, r rate, burst int64, unix *int64) meter.Meter {
	switch l.kind {
	case kindBucket:
		initial := burst
		if l.initial >= 0 {
			initial = min(l.initial, burst)
		}
		return meter.NewTokenBucket(now, r, burst, initial)
	case kindPace:
		return meter.NewPace(now, r)
	case kindSliding:
		return meter.NewSlidingWindow(r)
	case kindFixed:
		return meter.NewFixedWindow(now, r, l.start, unix)
	case kindInFlight:
		return meter.NewSlots(burst)
	case kindAIMD:
		return newAdaptiveBucket(now, l.aimd, rand.Uint64())
	case kindNone:
		return meter.Unlimited{}
	}
	panic("throttle: bug: no arithmetic for a limit of kind " + string(l.kind))
}
