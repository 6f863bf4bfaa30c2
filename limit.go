package throttle

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/concurrency"
	"github.com/httpthrottle/throttle/internal/jsonfinder"
	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
)

// A Limit is a rule: an algorithm, a key by which requests are counted, and a cost for each request. It is a description
// without state, made by [TokenBucket], [Pace], [SlidingWindow], [FixedWindow], [CalendarWindow], [InFlight],
// [Adaptive] or [AdaptiveInFlight], and may be given to any number of Limiters.
type Limit struct {
	rule    bucket.Rule
	kind    limitKind
	unit    Calendar // of a calendar window
	zone    *time.Location
	aimd    AIMD
	flight  Concurrency
	beside  bool    // a learned rate and a learned number in flight share the signs of overload
	known   float64 // the rate to start at if that is not set; 0: the default
	key     KeyFunc
	cost    CostFunc
	rateFor func(key string) (int64, time.Duration)
	judge   ClassifyFunc
	settles SettleFunc
	costAt  *jsonfinder.Paths

	fairBy       KeyFunc // nil: callers take no turns
	fairWeights  func(caller string) int
	untilHeaders bool // of an InFlight limit
	paused       bool // its period is the pause of a slot
	faults       []error
}

type limitKind string

const (
	kindBucket   limitKind = "bucket"
	kindPace     limitKind = "pace"
	kindSliding  limitKind = "sliding-window"
	kindFixed    limitKind = "fixed-window"
	kindCalendar limitKind = "calendar-window"
	kindAIMD     limitKind = "adaptive"
	kindInFlight limitKind = "in-flight"
	kindLearned  limitKind = "adaptive-in-flight"
	kindServer   limitKind = "server" // what servers report, beside all limits
	kindNone     limitKind = "none"   // grants everything but what is held
)

// TokenBucket allows n tokens per period on average, and bursts of n tokens unless [Burst] is set. It starts full
// unless [Initial] is set, so up to 2n tokens may be used in the first period. If an API means "n in any period", use a
// window. A request that costs more than the burst can never be paid and is rejected.
//
// While requests wait, the k-th of them is due at start + k·per/n, rounded up to the nanosecond.
func TokenBucket(n int64, per time.Duration, opts ...LimitOption) Limit {
	return newLimit(kindBucket, n, per, opts)
}

// Pace allows n tokens per period, evenly: a request is sent when the costs of the requests before it have drained at that rate,
// whatever its own cost. It is the leaky bucket as a meter (ITU-T I.371). The only tolerance is the lateness of timers: a gap may
// be up to 20 ms shorter if the one before it was longer by as much. If the gap itself must be kept, use SlidingWindow(1, d), or,
// between the end of a response and the next request, InFlight(1, Pause(d)).
func Pace(n int64, per time.Duration, opts ...LimitOption) Limit {
	return newLimit(kindPace, n, per, opts)
}

// SlidingWindow allows at most n tokens in any half-open stretch of length per: a request exactly one period old no longer
// counts. A request that costs more than n can never be paid and is rejected.
//
// A server counts a request some time after it was sent, and this time differs between requests. So that a server with such a
// window refuses no request, a request of a [Transport] counts until one period after the headers of its response have arrived.
// That is longer than one period from its grant, by at most a twentieth of the period and at most a second. With [FromGrant], in
// a [Shared] window, and for [Limiter.Wait] and [Limiter.Try], each request counts for exactly one period from its grant.
//
// The window is exact to the nanosecond for up to 1,024 requests in a period. With more, requests of the same 64th of the period
// expire together, when the last of them is one period old. So the window never grants too much, at least 64/65 of n can be used,
// and the window takes at most 1,090 entries of 32 bytes.
func SlidingWindow(n int64, per time.Duration, opts ...LimitOption) Limit {
	return newLimit(kindSliding, n, per, opts)
}

// FixedWindow allows n tokens per window. Windows follow each other without a gap, as hourly and daily quotas do. They begin
// at the Unix epoch, so that days are those of UTC, unless [Start] is set. They follow the wall clock, even when it is
// set. A request that costs more than n can never be paid and is rejected.
func FixedWindow(n int64, per time.Duration, opts ...LimitOption) Limit {
	return newLimit(kindFixed, n, per, opts)
}

// Adaptive is a token bucket whose rate and burst are found by AIMD, for each key, from the outcomes of requests. A Transport
// reports outcomes by itself; other work reports them with [Grant.Report]. Costs are charged as in a [TokenBucket]. The burst is
// worth 50 ms; a request that costs more is sent when the bucket is full, and leaves debt. The options that apply are [Name],
// [Key], [Cost] and [Classify].
//
// A request that has no key, by [Key], [WithKey] or [ContextWithKey], is counted by its host, as [ByHost] returns it: what one host
// shows says nothing about another. Other kinds of limits count such requests together. Without HTTP there is no host: an [Ask]
// without a key has the key "".
//
// A Retry-After pauses its key, and no other one. If it is longer than a day, requests are sent one at a time after a day, until one
// is accepted or the server asks for another pause.
//
// No request is rejected because the present rate is low. Early rejection considers only holds, Retry-After, and waits that would
// be too long even at AIMD.Max.
//
// What was learned about a key is kept for an hour after its last request, unless it is evicted earlier (see [WithMaxKeys]),
// and over a restart by [Limiter.Snapshot].
func Adaptive(a AIMD, opts ...LimitOption) Limit {
	l := newLimit(kindAIMD, 0, 0, opts)
	l.aimd = a
	return l
}

// InFlight allows n requests at a time. A request takes a slot when it is sent. It gives the slot back when the body of the
// response was read to its end, failed or was closed, when the context of the request ends, or immediately if there is no
// response or no body. [UntilHeaders] gives it back earlier. A request takes 1 slot unless the limit has a [Cost] of its own or
// the context sets one by the limit's name ([ContextWithCost]). A request that takes more than n can never be sent and is
// rejected. Waits are lower bounds, because it is not known when a slot becomes free. [Pause] lets a slot rest between two requests.
// [Limiter.SetInFlight] changes n. [Shared] makes n the number of requests of all processes. Without HTTP, use [Limiter.Acquire] and
// [Grant.Done].
func InFlight(n int64, opts ...LimitOption) Limit { return newLimit(kindInFlight, n, 1, opts) }

// AdaptiveInFlight is [InFlight] with an n that is found, for each key, from the outcomes and the latencies of requests. Requests
// without a key are counted by host, as in [Adaptive].
//
// It is for servers that work on a number of requests at a time, and queue or refuse the others: an application server with workers, a
// proxy with a limit of connections, a database behind HTTP. A server that counts requests in a period needs [Adaptive]. If a
// Limiter has both, they divide the signs of overload: Adaptive reacts only to 429, Retry-After and hints, and AdaptiveInFlight
// to everything else. The rate of a new key is then bounded only by AIMD.Max until the first 429.
//
// No request is rejected because the present n is low. A Transport reports outcomes by itself; other work reports them with
// [Grant.Report], before [Grant.Done]. A request that takes more slots than n is sent when no other request is in flight. Long
// polls occupy slots and show nothing about load, so give them a [Key] of their own, or a [Cost] of 0. The options that apply are
// [Name], [Key], [Cost], [Classify], [UntilHeaders], [FairBy] and [FairWeights]. It cannot be [Shared].
//
// What was learned about a key is kept for an hour after its last request, unless it is evicted earlier (see [WithMaxKeys]),
// and over a restart by [Limiter.Snapshot].
func AdaptiveInFlight(c Concurrency, opts ...LimitOption) Limit {
	l := newLimit(kindLearned, 1, 1, opts)
	l.flight = c
	return l
}

func newLimit(kind limitKind, n int64, per time.Duration, opts []LimitOption) Limit {
	l := Limit{kind: kind, rule: bucket.Rule{Rate: meter.Rate{N: n, Per: per}, Burst: -1, Initial: -1, Share: 1}}
	l.rule.Windowed = kind == kindSliding || kind == kindFixed || kind == kindCalendar
	l.rule.Wall = kind == kindFixed || kind == kindCalendar
	l.rule.Learns, l.rule.Frees = kind == kindAIMD || kind == kindLearned, kind == kindInFlight || kind == kindLearned
	l.rule.Reported = l.rule.Learns || l.rule.Frees
	l.rule.Answered = kind == kindSliding
	l.rule.Rated = !l.rule.Reported && kind != kindNone
	l.rule.Stored, _ = kind.inStore()
	for _, o := range opts {
		if o == nil {
			l.fault("a LimitOption is nil")
			continue
		}
		o.applyTo(&l)
	}
	return l
}

// A LimitOption configures a [Limit].
type LimitOption interface{ applyTo(*Limit) }

type limitOption func(*Limit)

func (f limitOption) applyTo(l *Limit) { f(l) }

// Name names the limit, for costs, keys, statistics and rejections. The default is the limit's kind: bucket, pace,
// sliding-window, fixed-window, calendar-window, in-flight, adaptive or adaptive-in-flight; the second limit of a kind is bucket-2, and so on.
// An empty name is an error, and so is "server", which stands for the limits of servers in statistics and rejections.
func Name(name string) LimitOption {
	return limitOption(func(l *Limit) {
		l.rule.Name = name
		switch name {
		case "":
			l.fault(`Name("") is empty`)
		case string(kindServer):
			l.fault(`Name("server") is reserved for the limits of servers`)
		}
	})
}

// Burst sets how many tokens a full [TokenBucket] holds. It must be positive. The default is the n of its rate.
func Burst(tokens int64) LimitOption {
	return limitOption(func(l *Limit) {
		l.rule.Burst = min(tokens, meter.MaxCount)
		l.onlyFor(kindBucket, "Burst", tokens)
		if tokens <= 0 {
			l.fault("Burst(%d) is not positive", tokens)
		}
	})
}

// Initial sets how many tokens a [TokenBucket] starts with, from 0 to its burst, which is the default. It applies to every
// key that is new or was forgotten (see [WithMaxKeys]).
func Initial(tokens int64) LimitOption {
	return limitOption(func(l *Limit) {
		l.rule.Initial = tokens
		l.onlyFor(kindBucket, "Initial", tokens)
		if tokens < 0 {
			l.fault("Initial(%d) is negative", tokens)
		}
	})
}

// Start sets an instant at which a window of a [FixedWindow] begins. The default is the Unix epoch.
func Start(t time.Time) LimitOption {
	return limitOption(func(l *Limit) {
		l.rule.Start = t
		l.onlyFor(kindFixed, "Start", t)
	})
}

// FromGrant makes a [SlidingWindow] count each request for exactly one period from the instant at which it is granted, instead
// of until one period after its response.
func FromGrant() LimitOption {
	return limitOption(func(l *Limit) {
		l.rule.Answered = false
		if l.kind != kindSliding {
			l.fault("FromGrant() does not fit a limit of kind %s", l.kind)
		}
	})
}

// Key sets the key of requests in this limit, instead of [WithKey].
func Key(f KeyFunc) LimitOption {
	return limitOption(func(l *Limit) {
		l.key = f
		if f == nil {
			l.fault("Key(nil): a function is needed")
		}
	})
}

// Cost sets the cost of requests in this limit, instead of [WithCost] and [WithWeights]. The limit does not apply to a
// request of cost 0. A request of negative cost is rejected.
func Cost(f CostFunc) LimitOption {
	return limitOption(func(l *Limit) {
		l.cost = f
		if f == nil {
			l.fault("Cost(nil): a function is needed")
		}
	})
}

// ClampCost reduces a cost that exceeds the size of the limit to that size, instead of rejecting the request. Use it for costs
// that are estimates, which [Settle] or [SettleJSON] correct. The size is the burst of a [TokenBucket], and the n of other
// limits. It does not apply to [Pace], [Adaptive] and [AdaptiveInFlight], which can pay any cost.
func ClampCost() LimitOption {
	return limitOption(func(l *Limit) {
		l.rule.Clamps = true
		if l.kind == kindPace || l.rule.Learns {
			l.fault("ClampCost() does not fit a limit of kind %s", l.kind)
		}
	})
}

// Fraction uses only that fraction of the limit, above 0 and at most 1, and leaves the rest to other clients of the same limit.
// It slows the rate of a token bucket to that fraction, by a longer period rounded up to a nanosecond. It rounds down the burst,
// to 1 at least, and the n of a window.
func Fraction(fraction float64) LimitOption {
	return limitOption(func(l *Limit) {
		l.rule.Share = fraction
		if !(fraction > 0 && fraction <= 1) {
			l.rule.Share = 1
			l.fault("Fraction(%v) is not above 0 and at most 1", fraction)
		}
	})
}

// RateFor sets a rate for each key, such as the tier of a tenant or, with [Pause], the crawl delay of a host. f is called without a lock,
// possibly several times at once, when a key is new or was forgotten (see [WithMaxKeys]), and by [Limiter.Refresh].
// [Limiter.SetRate] does not change its rates. If f returns 0, 0, the key has the limit's own rate. Other values that are not positive are an error of the
// request. The burst of a token bucket is the key's n unless [Burst] is set.
func RateFor(f func(key string) (n int64, per time.Duration)) LimitOption {
	return limitOption(func(l *Limit) {
		l.rateFor = f
		if f == nil {
			l.fault("RateFor(nil): a function is needed")
		}
	})
}

// A ClassifyFunc returns the [Outcome] of a request for an [Adaptive] or [AdaptiveInFlight] limit. Either resp or err is nil. If it returns 0, the
// usual rule applies. It must not change the response or read its body, and must be safe for concurrent use.
type ClassifyFunc func(resp *http.Response, err error) Outcome

// Classify sets the function that decides what a response or an error means to an [Adaptive] or [AdaptiveInFlight] limit. Each
// [Outcome] documents the usual rule.
func Classify(f ClassifyFunc) LimitOption {
	return limitOption(func(l *Limit) {
		l.judge = f
		if f == nil {
			l.fault("Classify(nil): a function is needed")
		} else if !l.rule.Learns {
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

// validate returns every problem of the limit.
func (l *Limit) validate() error {
	if l.kind == "" {
		return errors.New("WithLimit: the zero Limit has no algorithm")
	}
	faults := l.faults[:len(l.faults):len(l.faults)]
	switch l.kind {
	case kindNone:
	case kindInFlight:
		if l.rule.Rate.N <= 0 {
			faults = append(faults, fmt.Errorf("InFlight(%d) is not positive", l.rule.Rate.N))
		}
		if l.rateFor != nil && !l.paused {
			faults = append(faults, fmt.Errorf("RateFor does not fit a limit of kind %s without a Pause", l.kind))
		}
		if l.paused && l.rule.Store != nil {
			faults = append(faults, fmt.Errorf("Pause(%v) does not fit a limit that is Shared", l.rule.Rate.Per))
		}
	case kindAIMD, kindLearned:
		faults = append(faults, l.aimd.validate(), l.flight.validate())
		if l.rule.Share != 1 {
			faults = append(faults, fmt.Errorf("Fraction(%v) does not fit a limit of kind %s", l.rule.Share, l.kind))
		}
		if l.rateFor != nil {
			faults = append(faults, fmt.Errorf("RateFor does not fit a limit of kind %s", l.kind))
		}
	default:
		faults = append(faults, l.check(l.rule.Rate))
	}
	if burst := l.rule.BurstOf(l.rule.Rate); l.kind == kindBucket && l.rule.Initial > burst {
		faults = append(faults, fmt.Errorf("Initial(%d) is more than the burst of %d", l.rule.Initial, burst))
	}
	return join(fmt.Sprintf("limit %q", l.rule.Name), faults...)
}

// check returns every problem of a rate for this limit.
func (l *Limit) check(r meter.Rate) error {
	var faults []error
	if r.N <= 0 {
		faults = append(faults, fmt.Errorf("n of %d is not positive", r.N))
	}
	switch {
	case l.kind == kindCalendar:
		if r.Per != l.unit.Period() {
			faults = append(faults, fmt.Errorf("a period of %v is not the %v of a %v", r.Per, l.unit.Period(), l.unit))
		}
	case r.Per <= 0:
		faults = append(faults, fmt.Errorf("a period of %v is not positive", r.Per))
	}
	if r.N > 0 && l.rule.Windowed && l.rule.Part(r.N) == 0 {
		faults = append(faults, fmt.Errorf("Fraction(%v) of %d leaves no token", l.rule.Share, r.N))
	}
	if l.rule.Stored != "" && l.rule.Store != nil && len(faults) == 0 {
		b := l.rule.Budget("", l.rule.Shared(r), l.rule.BurstOf(r))
		faults = append(faults, b.Check())
	}
	return errors.Join(faults...)
}

// atWork returns the rule by which the limit works.
func (l Limit) atWork() bucket.Rule {
	r := l.rule
	r.Make, r.Asks, r.Fair = l.meter, l.rateFor != nil, l.fairBy != nil
	r.Answered = r.Answered && r.Store == nil
	r.Tracked, r.Open = r.Reported || r.Answered || l.settled(), l.kind == kindNone
	return r
}

// meter returns the meter of a new bucket. Share is already applied to r and burst.
func (l *Limit) meter(now meter.Instant, r meter.Rate, burst int64, wall *meter.Wall) meter.Meter {
	switch l.kind {
	case kindBucket:
		return meter.NewTokenBucket(now, r, burst, l.rule.InitialOf(burst))
	case kindPace:
		return meter.NewPace(now, r)
	case kindSliding:
		return meter.NewSlidingWindow(r)
	case kindFixed:
		return meter.NewFixedWindow(now, r, l.rule.Start, wall)
	case kindCalendar:
		return meter.NewCalendarWindow(now, r, meter.Calendar(l.unit), l.zone, wall)
	case kindInFlight:
		if l.paused {
			return meter.NewPausedSlots(burst, r)
		}
		return meter.NewSlots(burst)
	case kindLearned:
		return concurrency.New(now, concurrency.Config(l.flight), l.beside, wall)
	case kindAIMD:
		m := aimd.New(now, aimd.Config(l.aimd).From(l.known), rand.Uint64())
		if l.beside {
			m.OnlyRefusals(now)
		}
		return m
	case kindNone:
		return meter.Unlimited{}
	}
	panic("throttle: bug: no arithmetic for a limit of kind " + string(l.kind))
}

// UntilHeaders frees the slots of an [InFlight] or [AdaptiveInFlight] limit when the headers of the response arrive, instead of
// when the body was read or closed.
func UntilHeaders() LimitOption {
	return limitOption(func(l *Limit) {
		l.untilHeaders = true
		if !l.rule.Frees {
			l.fault("UntilHeaders() does not fit a limit of kind %s", l.kind)
		}
	})
}

// Pause makes each slot of an [InFlight] limit rest for d after its request, before another request may take it. The pause begins
// when the slot would be free otherwise: when the body of the response was read to its end or closed, when the context of the request
// ends, when there is no response, or, with [UntilHeaders], when the headers arrive. InFlight(1, Pause(d)) is the delay of a crawler: d
// between the end of a response and the next request. The slot of a request that was never sent does not rest.
//
// d must be positive. With [RateFor], f returns the number of slots of a key and its pause. Slots that rest are missing from
// [BucketStats.Tokens], and are not in flight. Early rejection counts the pauses, but not the time that requests take. A pause is not
// part of a [Snapshot]. It does not fit a limit that is [Shared].
func Pause(d time.Duration) LimitOption {
	return limitOption(func(l *Limit) {
		l.rule.Rate.Per, l.paused = d, true
		l.onlyFor(kindInFlight, "Pause", d)
		if d <= 0 {
			l.fault("Pause(%v) is not positive", d)
		}
	})
}

// A Calendar is the unit of time of a [CalendarWindow].
type Calendar uint8

const (
	CalendarDay   = Calendar(meter.Day)
	CalendarWeek  = Calendar(meter.Week) // from Monday
	CalendarMonth = Calendar(meter.Month)
)

// String returns the name of the unit.
func (c Calendar) String() string {
	switch c {
	case CalendarDay:
		return "day"
	case CalendarWeek:
		return "week"
	case CalendarMonth:
		return "month"
	}
	return "Calendar(" + strconv.Itoa(int(c)) + ")"
}

// Period returns the mean length of the unit, for [RateFor] and [Limiter.SetRate]: 24 hours, 7 days, and a twelfth of
// 365.2425 days. It is 0 for an unknown unit.
func (c Calendar) Period() time.Duration {
	switch c {
	case CalendarDay:
		return 24 * time.Hour
	case CalendarWeek:
		return 7 * 24 * time.Hour
	case CalendarMonth:
		return 2_629_746 * time.Second
	}
	return 0
}

// CalendarWindow allows n tokens per day, week or month of a time zone, like quotas that a provider resets at midnight. A window
// ends at the first instant of the next day, week (on Monday) or month in that zone, whatever its length: where clocks change, a
// day has 23 to 25 hours. The window follows the wall clock, even when that is set. A cost above n can never be paid and is
// rejected. [RateFor] and [Limiter.SetRate] change n only; their period must be [Calendar.Period].
func CalendarWindow(n int64, unit Calendar, zone *time.Location, opts ...LimitOption) Limit {
	l := newLimit(kindCalendar, n, unit.Period(), opts)
	l.unit, l.zone = unit, zone
	l.rule.Windows = func(wall *meter.Wall) lease.Windows { return meter.NewCalendars(meter.Calendar(unit), zone, wall) }
	if unit.Period() == 0 {
		l.fault("%v is not Day, Week or Month", unit)
	}
	if zone == nil {
		l.fault("a CalendarWindow needs a time zone: time.UTC, time.Local, or one from time.LoadLocation")
	}
	return l
}

// FairBy makes the callers of a bucket take turns by cost, whatever each of them has in the queue. A caller that had no request
// in the queue waits for at most one request of each other caller and, where those are smaller, for as many more as cost less
// than its own request or no more than its last one. A caller that was idle gains no advantage. f returns the caller of a
// request, such as a tenant; [Ask.Caller] and [ContextWithCaller] take precedence. Requests without a caller are one caller.
// [Limiter.Try] has no caller.
//
// The requests of one caller are sent in the order of arrival. A priority ([ContextWithPriority]) applies between the first
// requests of callers whose turns are the same; each step is then worth ten seconds of arrival. To let urgent work of one tenant
// overtake its other work, make the urgent work a caller of its own.
//
// Turns are by cost, including corrections by [Settle], [SettleJSON], [Grant.Settle] and [Receipt.Settle], and by the weights of
// [FairWeights]. Over any stretch of time in which two callers have requests in the queue, what they get, divided by their
// weights, differs by at most the largest cost of each, and by what was corrected.
//
// If a request is cancelled, the next request of its caller takes its turn. The expected wait of a request, which decides about
// early rejection, includes the turns of at most 1,024 callers. With more callers in the queue it is a lower bound, and the
// request is rejected when its maximum wait ends. It does not include callers that arrive later, whose requests may be sent
// first. A debt has some of the callers checked again, and the next debt others.
//
// When the queue of the bucket is empty, all callers are forgotten. A caller without a request in the queue is forgotten after
// about one turn.
//
// Only one limit of a Limiter can have FairBy. It sets the order in the queue, so choose the limit that requests wait for. Other
// limits and server quotas keep the order of arrival between requests that do not fall under the same buckets. A request that
// another limit stops keeps its turn, and its caller's later requests come after it. Over a limit that is [Shared], callers take
// turns within each process. The algorithm is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), with later starts
// for new callers while others keep coming.
func FairBy(f KeyFunc) LimitOption {
	return limitOption(func(l *Limit) {
		l.fairBy = f
		if f == nil {
			l.fault("FairBy(nil): a function is needed")
		}
	})
}

// FairWeights sets how much of the limit each caller of [FairBy] gets while several wait, relative to the others: from 1 to
// 1,000; the default is 1. Weights outside of this range count as its bounds. f is called without a lock, possibly several times
// at once, for each request that waits.
func FairWeights(f func(caller string) int) LimitOption {
	return limitOption(func(l *Limit) {
		l.fairWeights = f
		if f == nil {
			l.fault("FairWeights(nil): a function is needed")
		}
	})
}

// weightOf returns the weight of a caller.
func (l *Limit) weightOf(caller string) int64 {
	if l.fairWeights == nil {
		return 1
	}
	return int64(max(1, min(l.fairWeights(caller), order.MaxWeight)))
}

// callerOf returns the caller of a request.
func (l *Limiter) callerOf(o *overrides, req *http.Request) string {
	if o.called {
		return o.caller
	}
	return l.policyOf(l.core.Fair).fairBy(req)
}

// setCaller sets the caller of a request, before the lock is taken.
func (l *Limiter) setCaller(a *bucket.Ask, caller string) {
	if l.core.Fair != nil {
		a.Caller, a.Weight = caller, l.policyOf(l.core.Fair).weightOf(caller)
	}
}

// checkFairness returns what is wrong with the turns of several limits.
func checkFairness(limits []Limit) (faults []error) {
	var first *Limit
	for i := range limits {
		switch l := &limits[i]; {
		case l.fairBy == nil && l.fairWeights != nil:
			faults = append(faults, fmt.Errorf("limit %q: FairWeights has no effect without FairBy", l.rule.Name))
		case l.fairBy == nil:
		case first == nil:
			first = l
		default:
			faults = append(faults, fmt.Errorf("WithLimit: FairBy in limits %q and %q: a request has one place in the queue; set it on the limit "+
				"whose cost counts", first.rule.Name, l.rule.Name))
		}
	}
	return faults
}
