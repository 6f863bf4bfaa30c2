package throttle

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/jsonfinder"
	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// A Limit is a rule: an algorithm, a key by which requests are counted, and a cost for each request. It is a description
// without state, made by [TokenBucket], [Pace], [Quota], [SlidingWindow], [FixedWindow], [CalendarWindow], [InFlight],
// [Adaptive], [AdaptiveInFlight] or [ServerQuota], and may be given to any number of Limiters. A period, also that of [Limiter.SetRate] and
// [RateFor], must be at least a millisecond: a shorter one, such as 60, is a number without its unit.
type Limit struct {
	rule      bucket.Rule
	kind      *kind    // nil: it was not made by one of these functions
	unit      Calendar // of a calendar window
	zone      *time.Location
	aimd      AIMD
	flight    Concurrency
	beside    bool    // a learned rate and a learned number in flight share the signs of overload
	known     float64 // the rate to start at if that is not set; 0: the default
	key       KeyFunc
	cost      CostFunc
	rateFor   func(key string) (int64, time.Duration)
	judge     ClassifyFunc
	settles   SettleFunc
	costAt    *jsonfinder.Paths
	costPaths []string                                    // as they were given
	costBy    func(*http.Response, []int64) (int64, bool) // of the numbers at costAt; nil: their sum

	fairBy       KeyFunc // nil: callers take no turns
	fairWeights  func(caller string) int
	untilHeaders bool     // of an InFlight limit
	paused       bool     // its period is the pause of a slot
	unshared     []string // options that it has and no store knows
	faults       []error
}

// TokenBucket allows n tokens per period on average, and bursts of n tokens unless [Burst] is set. It starts full
// unless [Initial] is set, so up to 2n tokens may be used in the first period: for an API that documents n per period,
// use [Quota]. A request that costs more than the burst can never be paid and is rejected.
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

// Quota allows n tokens per period, for APIs that document "n requests per minute" and not how they count them. An unused Quota
// allows a burst of n. A token that is spent comes back a period later, and no sooner than a gap after the token before it, so
// requests that wait are sent evenly. n gaps are one (n-1)th longer than a period, or a nineteenth if n is below 20.
//
// A server may count in any stretch of a period, in windows of the clock, or in windows of the clock of which the last one counts in
// part (a sliding counter, or approximated sliding window), or it may fill a bucket of n tokens, as GCRA does. In tests with all of
// these, with n from 20 on, periods from a second to an hour and round trips of up to a twentieth of the period, they refused
// nothing, and from the second period on a Quota in use used 94 to 99 % of the limit.
//
// It does not fit a server that allows a burst of less than n: use [TokenBucket] with that [Burst], or Pace(95*n, 100*per). With n
// from 2 to 19, a sliding counter refuses some requests: use Pace(n-1, per).
//
// A request that costs more than n can never be paid and is rejected. As in a [SlidingWindow], requests of a [Transport] count
// from their responses, unless [FromGrant] is set, and above 1,024 requests in a period those of the same 64th of it are counted
// together. A Quota that is [Shared] is a Pace of 95 % of n, with a burst of a 40th of that: an idle fleet starts slowly, and a cost may be of any size.
func Quota(n int64, per time.Duration, opts ...LimitOption) Limit {
	return newLimit(kindQuota, n, per, opts)
}

// SlidingWindow allows at most n tokens in any half-open stretch of length per: a request exactly one period old no longer
// counts. A request that costs more than n can never be paid and is rejected.
//
// A server counts a request some time after it was sent, and this time differs between requests. So that a server with such a
// window refuses no request, a request of a [Transport] counts until one period after the headers of its response have arrived.
// That is longer than one period from its grant, by at most a twentieth of the period and at most a second. The first requests, which
// may wait for connections, count longer by at most half a period, and by at most 10 s or a fifth of the period, whichever is more:
// those that are sent before the first response, at first and after two periods without a request. With [FromGrant], in
// a [Shared] window, and for [Limiter.Wait] and [Limiter.Try], each request counts for exactly one period from its grant.
//
// The window is exact to the nanosecond for up to 1,024 requests in a period. With more, requests of the same 64th of the period
// expire together, when the last of them is one period old. So the window never grants too much, at least 64/65 of n can be used,
// and the window takes at most 1,090 entries of 32 bytes, and in debt up to five times as many.
func SlidingWindow(n int64, per time.Duration, opts ...LimitOption) Limit {
	return newLimit(kindSliding, n, per, opts)
}

// FixedWindow allows n tokens per window. Windows follow each other without a gap, as hourly and daily quotas do. They begin
// at the Unix epoch, so that days begin at midnight UTC, unless [Start] is set. They follow the wall clock, even when it is
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
// The limit learns a rate from a Retry-After. The requests that it concerns wait as they do without the limit; see [WithServerHints]. If a
// server counts some requests of a key separately, one rate says nothing of all of them: then its refusals hold and pace only the
// requests that it counts together, and the rate stays.
//
// No request is rejected because the present rate is low. Early rejection considers only holds, and waits that would be too long even
// at AIMD.Max.
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
// Limiter has both, Adaptive reacts only to 429, Retry-After and hints, and AdaptiveInFlight to everything but Retry-After and
// hints. The rate of a new key is then bounded only by AIMD.Max until the first 429.
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

// ServerQuota is a limit that the server sets, in a unit in which requests differ, such as tokens, points or bytes: its size, its
// balance and its refill are those that responses report, and it is charged what a request costs. [Cost] estimates that before the
// request is sent, and [SettleJSON], [SettleJSONFunc] or [Settle] find its true cost. Without an estimate, each request counts as one
// of the unit, which the log and [LimitStats] warn of. It needs server hints. Each unit needs a limit of its own; quotas of requests need none.
//
// The unit is the word by which the server's headers name the quota: "tokens" for x-ratelimit-remaining-tokens, and "graphql" for the
// points of GitHub's and Shopify's GraphQL. A quota counts in the limit with the longest unit that its name contains, so beside
// "tokens" there may be "input_tokens" and "output_tokens". Case, - and _ are the same. [WithServerHints] says which headers and
// bodies are read. The default name of the limit is its unit.
//
// Whether the server keeps estimates, corrects them when a response ends, or counts what it produces is learned from what it
// reports, so an estimate may be in proportion to the cost. A quota that refills is used except for a sixteenth, once; what is left
// of a window is spread until its end, once it ran dry. A window whose end is not reported is taken for a minute of the clock. If
// nothing is reported, requests are sent until one is refused. Then the rate is what was accepted, and a little more is tried from
// time to time. A refusal counts for the unit that its body names, if it names one.
//
// Requests without a key are counted by host, as in [Adaptive], and at a host whose dialect has [headers.Dialect.Parts] by these,
// too, such as the model at vendors of language models. If another server counts models separately, name the model by
// [Key]. The options that apply are [Name], [Key], [Cost], [Settle], [SettleJSON], [SettleJSONFunc], [LearnCost], [FairBy] and
// [FairWeights]. It cannot be [Shared]. What was learned is kept for an hour after the last request, and over a restart by
// [Limiter.Snapshot].
func ServerQuota(unit string, opts ...LimitOption) Limit {
	l := newLimit(kindReported, 0, 0, opts)
	l.rule.Unit = strings.ReplaceAll(strings.ToLower(unit), "_", "-")
	l.rule.Name = cmp.Or(l.rule.Name, unit)
	return l
}

func newLimit(k *kind, n int64, per time.Duration, opts []LimitOption) Limit {
	l := Limit{kind: k, rule: k.can}
	l.rule.Rate, l.rule.Burst, l.rule.Initial, l.rule.Share = meter.Rate{N: n, Per: per}, -1, -1, 1
	for _, o := range opts {
		if o == nil {
			l.fault("a LimitOption is nil")
			continue
		}
		o.applyTo(&l)
	}
	if k == kindQuota && l.rule.Store != nil { // which is a Pace there
		l.rule.Windowed, l.rule.Counted, l.rule.Share = false, true, l.rule.Share*sharedQuota
	}
	return l
}

// sharedQuota is the part of a Quota that is used where it is Shared.
const sharedQuota = 0.95

// A LimitOption configures a [Limit].
type LimitOption interface{ applyTo(*Limit) }

// A limitOption implements LimitOption.
type limitOption struct {
	text   string           // as an error shows it
	fits   func(*kind) bool // nil: all kinds
	shared bool             // it works in a limit that is Shared, because the process applies it, or because stores know it
	apply  func(*Limit)
}

func (o limitOption) applyTo(l *Limit) {
	if o.fits != nil && !o.fits(l.kind) {
		l.fault("%s does not fit a limit of kind %s", o.text, l.kind.name)
		return
	}
	if !o.shared {
		l.unshared = append(l.unshared, o.text)
	}
	o.apply(l)
}

// Name names the limit, for costs, keys, statistics and rejections. The default is the limit's kind: bucket, pace, quota,
// sliding-window, fixed-window, calendar-window, in-flight, adaptive or adaptive-in-flight; the second limit of a kind is
// bucket-2, and so on. A [ServerQuota] is called by its unit. An empty name is an error, and so is "server", which stands for the
// limits of servers in statistics and rejections.
func Name(name string) LimitOption {
	return limitOption{text: fmt.Sprintf("Name(%q)", name), shared: true, apply: func(l *Limit) {
		l.rule.Name = name
		switch name {
		case "":
			l.fault(`Name("") is empty`)
		case KindServer:
			l.fault(`Name("server") is reserved for the limits of servers`)
		}
	}}
}

// Burst sets how many tokens a full [TokenBucket] holds. It must be positive. The default is the n of its rate.
func Burst(tokens int64) LimitOption {
	return limitOption{text: fmt.Sprintf("Burst(%d)", tokens), fits: func(k *kind) bool { return k.bursts }, shared: true, apply: func(l *Limit) {
		l.rule.Burst = min(tokens, meter.MaxCount)
		if tokens <= 0 {
			l.fault("Burst(%d) is not positive", tokens)
		}
	}}
}

// Initial sets how many tokens a [TokenBucket] holds when its Limiter is made, from 0 to its burst, which is the default. From then
// on the bucket of every key fills, used or not: a key whose first request comes an hour later has the tokens of that hour, up to
// its burst, and a key that rests is full again and stays so. A [Shared] bucket holds as many whenever the store has no state of it.
func Initial(tokens int64) LimitOption {
	return limitOption{text: fmt.Sprintf("Initial(%d)", tokens), fits: func(k *kind) bool { return k.bursts }, shared: true, apply: func(l *Limit) {
		l.rule.Initial = tokens
		if tokens < 0 {
			l.fault("Initial(%d) is negative", tokens)
		}
	}}
}

// Start sets an instant at which a window of a [FixedWindow] begins. The default is the Unix epoch.
func Start(t time.Time) LimitOption {
	return limitOption{text: fmt.Sprintf("Start(%v)", t), fits: func(k *kind) bool { return k == kindFixed }, shared: true, apply: func(l *Limit) {
		l.rule.Start = t
	}}
}

// FromGrant makes a [SlidingWindow] or a [Quota] count each request for exactly one period from the instant at which it is granted, instead
// of until one period after its response. It is for servers that are near, and count a request as soon as it comes although its response takes long.
func FromGrant() LimitOption {
	return limitOption{text: "FromGrant()", fits: func(k *kind) bool { return k.can.Answered }, shared: true, apply: func(l *Limit) {
		l.rule.Answered = false
	}}
}

// Key sets the key of requests in this limit, instead of [WithKey].
func Key(f KeyFunc) LimitOption {
	return limitOption{text: "Key", shared: true, apply: func(l *Limit) {
		l.key = f
		if f == nil {
			l.fault("Key(nil): a function is needed")
		}
	}}
}

// Cost sets the cost of requests in this limit, instead of [WithCost] and [WithWeights]. The limit does not apply to a
// request of cost 0. A request of negative cost is rejected.
func Cost(f CostFunc) LimitOption {
	return limitOption{text: "Cost", shared: true, apply: func(l *Limit) {
		l.cost = f
		if f == nil {
			l.fault("Cost(nil): a function is needed")
		}
	}}
}

// ClampCost reduces a cost that exceeds the size of the limit to that size, instead of rejecting the request. Use it for costs
// that are estimates, which [Settle] or [SettleJSON] correct. The size is the burst of a [TokenBucket], and the n of other
// limits. It does not apply to [Pace], [Adaptive] and [AdaptiveInFlight], which can pay any cost.
func ClampCost() LimitOption {
	return limitOption{text: "ClampCost()", fits: func(k *kind) bool { return k.clamps }, shared: true, apply: func(l *Limit) {
		l.rule.Clamps = true
	}}
}

// LearnCost lowers the estimate of a request to what earlier requests of its key did cost. It is for estimates that are bounds, such as
// a max_tokens of 8,192 where answers have 400, and for servers that charge what is used: a server that keeps estimates, or
// reserves them until the response ends, refuses what is sent beyond them.
//
// From the 20th settlement on, a request is charged that part of its estimate which was enough for 95 % of the last 100 requests of its
// key, at least 1 token and at most the estimate. A settlement is one by [Settle], [SettleJSON], [SettleJSONFunc], [Grant.Settle] or
// [Receipt.Settle]. Requests that cost nothing do not count. What was learned is kept for an hour after the last settlement, and
// over a restart by [Limiter.Snapshot] unless the limit is [Shared]. It does not fit an [InFlight] limit, and is an error of [New]
// without one of the first three. A [ServerQuota] needs it only where nothing is reported.
func LearnCost() LimitOption {
	return limitOption{text: "LearnCost()", fits: (*kind).spends, shared: true, apply: func(l *Limit) {
		l.rule.Lowers = true
	}}
}

// Settle corrects the charge of each request in this limit when the headers of its response arrive, as [Grant.Settle] does. It is
// for APIs that report the cost of a request in the headers. It does not fit an [InFlight] limit.
func Settle(f SettleFunc) LimitOption {
	return limitOption{text: "Settle", fits: (*kind).spends, shared: true, apply: func(l *Limit) {
		l.settles = f
		if f == nil {
			l.fault("Settle(nil): a function is needed")
		}
	}}
}

// SettleJSON corrects the charge of each request in this limit when the body of its response was read or closed, as
// [Grant.Settle] does. The cost is the number at a path of names in the JSON body, such as "usage.total_tokens". It is found
// while the caller reads the body: nothing is delayed, and less than 1 KiB is kept. Over TLS on a loopback socket, reading
// becomes slower by a twentieth. It becomes slower by a fifth for JSON with many quotes, such as JSON within a string, and by two
// fifths for small objects within objects.
//
// The numbers at several paths are added up; [SettleJSONFunc] does other arithmetic. A path may have alternatives, separated by bars: for
// "usage.input_tokens|message.usage.input_tokens", the last number in the body counts. There may be 16 alternatives in all, of at
// most 16 names each, without the $, the / and the brackets of other notations. If the body has several values, the last one with a number counts: values may be lines, elements of an array,
// server-sent events, or frames of an Amazon event stream, where they may be in base64, as Bedrock's are. A number
// is rounded up; a negative number or one above the range of int64 is ignored, and -0 is 0. Numbers in arrays within a value are not found.
//
// The charge stays if no number is found, or if the body is closed before each path had a number. So if a figure grows during a
// stream, do not name the place where it appears first. It also stays if the Content-Type is neither JSON nor one of these streams
// nor missing, or if the body is compressed, which [LimitStats] counts as Unread: net/http decompresses unless the request has an
// Accept-Encoding. If the limit also has [Settle], that is applied first.
func SettleJSON(paths ...string) LimitOption {
	return limitOption{text: "SettleJSON", fits: (*kind).spends, shared: true, apply: func(l *Limit) {
		l.settleJSON("SettleJSON", nil, paths)
	}}
}

// SettleJSONFunc is [SettleJSON] with a cost that f computes of the numbers at the paths, in their order.
//
// f is called when a body was read to its end, and when a body is closed earlier if there was a number for each path, by the goroutine
// that reads or closes it. If a response has no body, or none in which numbers are found, f is called when its headers arrive.
//
//	throttle.SettleJSONFunc(func(resp *http.Response, n []int64) (int64, bool) {
//		if resp.StatusCode != http.StatusOK {
//			return 0, true // errors are free
//		}
//		total, cached := n[0], max(n[1], 0)
//		return total - cached, total >= 0
//	}, "usage.total_tokens", "usage.prompt_tokens_details.cached_tokens")
func SettleJSONFunc(f JSONCostFunc, paths ...string) LimitOption {
	return limitOption{text: "SettleJSONFunc", fits: (*kind).spends, shared: true, apply: func(l *Limit) {
		if f == nil {
			l.fault("SettleJSONFunc(nil): a function is needed")
		}
		l.settleJSON("SettleJSONFunc", f, paths)
	}}
}

func (l *Limit) settleJSON(option string, f JSONCostFunc, paths []string) {
	if l.costAt != nil {
		l.fault("%s: the limit already finds its costs in bodies, by an earlier SettleJSON or SettleJSONFunc", option)
	}
	compiled, err := jsonfinder.Compile(paths)
	l.costPaths = slices.Clone(paths)
	if l.costAt, l.costBy = compiled, f; err != nil {
		for _, fault := range split(err) {
			l.fault("%s: %w", option, fault)
		}
	}
}

// Fraction uses only that fraction of the limit, above 0 and at most 1, and leaves the rest to other clients of the same limit.
// It slows the rate of a token bucket to that fraction, by a longer period rounded up to a nanosecond. It rounds down the burst,
// to 1 at least, and the n of a window.
func Fraction(fraction float64) LimitOption {
	return limitOption{text: fmt.Sprintf("Fraction(%v)", fraction), fits: (*kind).isSet, shared: true, apply: func(l *Limit) {
		l.rule.Share = fraction
		if !(fraction > 0 && fraction <= 1) {
			l.rule.Share = 1
			l.fault("Fraction(%v) is not above 0 and at most 1", fraction)
		}
	}}
}

// RateFor sets a rate for each key, such as the tier of a tenant or, with [Pause], the crawl delay of a host. f is called without a lock,
// possibly several times at once, when a key is new or was forgotten (see [WithMaxKeys]), and by [Limiter.Refresh]. Requests without a
// key have the limit's own rate. [Limiter.SetRate] does not change its rates. If f returns 0, 0, the key has the limit's own rate. Other values that are not
// positive are an error of the request. The burst of a token bucket is the key's n unless [Burst] is set.
func RateFor(f func(key string) (n int64, per time.Duration)) LimitOption {
	return limitOption{text: "RateFor", fits: (*kind).isSet, shared: true, apply: func(l *Limit) {
		l.rateFor = f
		if f == nil {
			l.fault("RateFor(nil): a function is needed")
		}
	}}
}

// A ClassifyFunc returns the [Outcome] of a request for an [Adaptive] or [AdaptiveInFlight] limit. Either resp or err is nil. If it
// returns 0, the usual rule applies. It must not change the response or read its body, and must be safe for concurrent use.
type ClassifyFunc func(resp *http.Response, err error) Outcome

// Classify sets the function that decides what a response or an error means to an [Adaptive] or [AdaptiveInFlight] limit. Each
// [Outcome] documents the usual rule.
func Classify(f ClassifyFunc) LimitOption {
	return limitOption{text: "Classify", fits: (*kind).learns, shared: true, apply: func(l *Limit) {
		l.judge = f
		if f == nil {
			l.fault("Classify(nil): a function is needed")
		}
	}}
}

func (l *Limit) fault(format string, args ...any) {
	// Limits are values: a fault of one must not be seen by another that shares the slice.
	l.faults = append(l.faults[:len(l.faults):len(l.faults)], fmt.Errorf(format, args...))
}

// validate returns every problem of the limit.
func (l *Limit) validate() error {
	if l.kind == nil {
		return errors.New("WithLimit: the zero Limit has no algorithm")
	}
	faults := l.faults[:len(l.faults):len(l.faults)]
	if l.rule.Store != nil {
		for _, option := range l.unshared {
			faults = append(faults, fmt.Errorf("%s does not fit a limit that is Shared", option))
		}
	}
	if l.kind.check != nil {
		faults = append(faults, l.kind.check(l))
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
	case l.rule.Stored == store.Calendar:
		if r.Per != l.unit.Period() {
			faults = append(faults, fmt.Errorf("a period of %v is not the %v of a %v", r.Per, l.unit.Period(), l.unit))
		}
	case r.Per <= 0:
		faults = append(faults, fmt.Errorf("a period of %v is not positive", r.Per))
	case r.Per < shortest:
		faults = append(faults, unitForgotten("a period", r.Per))
	}
	if r.N > 0 && l.rule.Windowed && l.rule.Part(r.N) == 0 {
		faults = append(faults, fmt.Errorf("Fraction(%v) of %d leaves no token", l.rule.Share, r.N))
	}
	if l.rule.Store != nil && len(faults) == 0 {
		b := l.rule.Budget("", l.rule.Shared(r), l.rule.BurstOf(r))
		faults = append(faults, b.Check())
	}
	return errors.Join(faults...)
}

// shortest is the shortest time that options take. A shorter one, such as 60, is a number without its unit.
const shortest = time.Millisecond

func unitForgotten(what string, d time.Duration) error {
	return fmt.Errorf("%s of %v is below a millisecond: write %d*time.Second if seconds are meant", what, d, d)
}

// atWork returns the rule by which the limit works.
func (l Limit) atWork() bucket.Rule {
	r := l.rule
	r.Make = func(now meter.Instant, r meter.Rate, burst int64, wall *meter.Wall) meter.Meter {
		return l.kind.meter(&l, terms{now, r, burst, wall})
	}
	r.Asks, r.Fair = l.rateFor != nil, l.fairBy != nil
	r.Answered = r.Answered && r.Store == nil
	r.Settles = l.settled()
	r.Tracked = r.Reported || r.Answered || r.Settles
	return r
}

// UntilHeaders frees the slots of an [InFlight] or [AdaptiveInFlight] limit when the headers of the response arrive, instead of
// when the body was read or closed. It is for servers that count a request until it responds, and for proxies of long streams.
func UntilHeaders() LimitOption {
	return limitOption{text: "UntilHeaders()", fits: func(k *kind) bool { return k.can.Frees }, shared: true, apply: func(l *Limit) {
		l.untilHeaders = true
	}}
}

// Pause makes each slot of an [InFlight] limit rest for d after its request, before another request may take it. The pause begins
// when the slot would be free otherwise: when the body of the response was read to its end or closed, when the context of the request
// ends, when there is no response, or, with [UntilHeaders], when the headers arrive. InFlight(1, Pause(d)) is the delay of a crawler: d
// between the end of a response and the next request. The slot of a request that was never sent does not rest.
//
// d must be at least a millisecond. With [RateFor], f returns the number of slots of a key and its pause. Slots that rest are missing from
// [BucketStats.Tokens], and are not in flight. Early rejection counts the pauses, but not the time that requests take. A pause is not
// part of a [Snapshot]. It does not fit a limit that is [Shared].
func Pause(d time.Duration) LimitOption {
	return limitOption{text: fmt.Sprintf("Pause(%v)", d), fits: (*kind).slots, apply: func(l *Limit) {
		l.rule.Rate.Per, l.paused = d, true
		switch {
		case d <= 0:
			l.fault("Pause(%v) is not positive", d)
		case d < shortest:
			l.fault("%w", unitForgotten("a Pause", d))
		}
	}}
}

// CalendarWindow allows n tokens per day, week or month of a time zone, like quotas that a provider resets at midnight. A window
// ends at the first instant of the next day, week (on Monday) or month in that zone, whatever its length: where clocks change, a
// day has 23 to 25 hours. The window follows the wall clock, even when that is set. A cost above n can never be paid and is
// rejected. [RateFor] and [Limiter.SetRate] change n only; their period must be [Calendar.Period]. Each window begins with n tokens,
// whatever requests of the one before did cost.
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

// knownRate returns the lowest rate per second of the limits in which a request costs one token; 0: there is none. The server is known
// to allow as much, so a rate that is learned beside them need not start below.
func knownRate(limits []Limit) (least float64) {
	for i := range limits {
		if l := &limits[i]; l.rule.Rated && !l.costs() {
			if r := l.rule.Share * float64(l.rule.Rate.N) / l.rule.Rate.Per.Seconds(); least == 0 || r < least {
				least = r
			}
		}
	}
	return least
}

// costs reports whether requests may cost something else than one token.
func (l *Limit) costs() bool { return l.cost != nil || l.costAt != nil }

// settled reports whether responses contain the true cost of requests in this limit.
func (li *Limit) settled() bool { return li.settles != nil || li.costAt != nil }
