package throttletest

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"
)

// A Limit describes one rule that the server enforces. Make it with one of the constructors below, refine it by
// LimitOptions, and give it to [WithLimits]. It has no state, so one Limit may be given to several servers.
//
// A request is accepted only if every limit that it falls under has room for it at the same instant; then it is charged
// to all of them, and otherwise to none (but see [CountRefused]). All arithmetic is exact to the nanosecond.
type Limit struct {
	kind  kind
	n     int64
	per   time.Duration
	name  string
	burst int64 // tokens; noBurst until validated

	fromFirst  bool
	elastic    bool
	resolution time.Duration
	delayed    bool
	free       int64 // with delayed: requests ahead that do not delay
	key        func(*http.Request) string
	cost       func(*http.Request) int64
	counts     bool // refused requests are charged too
	ban        time.Duration
	untilQuiet bool
	status     int

	errs []error
}

type kind int

const (
	tokenBucket kind = iota + 1
	fixedWindow
	slidingWindow
	inFlight
	leakyBucket
)

const noBurst = math.MinInt64

// maxPeriod keeps an instant plus a period within 63 bits.
const maxPeriod = 100 * 366 * 24 * time.Hour

// word is what a limit of this kind is called by default.
func (k kind) word() string {
	return [...]string{"limit", "bucket", "window", "sliding", "inflight", "leaky"}[k]
}

// constructor is how a caller wrote a limit of this kind; for messages.
func (k kind) constructor() string {
	return [...]string{"Limit", "TokenBucket", "FixedWindow", "SlidingWindow", "InFlight", "LeakyBucket"}[k]
}

// TokenBucket refills n tokens per period evenly, and holds at most n of them, or as many as [Burst] says. It is full at the
// beginning. A refusal reports when there will be enough tokens (Turner 1986; RFC 2697 as a policer).
func TokenBucket(n int64, per time.Duration, opts ...LimitOption) Limit {
	return newLimit(tokenBucket, n, per, opts)
}

// FixedWindow accepts n per window. The windows are aligned to the Unix epoch (a minute's window begins on the minute).
// With [FromFirstRequest], the first request after the end of a window begins the next one.
func FixedWindow(n int64, per time.Duration, opts ...LimitOption) Limit {
	return newLimit(fixedWindow, n, per, opts)
}

// SlidingWindow accepts at most n in any stretch of length per. It keeps a log of all counted requests, so it is exact. A
// request that is exactly one window old no longer counts.
func SlidingWindow(n int64, per time.Duration, opts ...LimitOption) Limit {
	return newLimit(slidingWindow, n, per, opts)
}

// InFlight accepts n requests at a time. A request counts from its acceptance until its response has been written. The
// server cannot know when there will be room again, so a refusal by InFlight alone has no Retry-After.
func InFlight(n int64, opts ...LimitOption) Limit {
	return newLimit(inFlight, n, 0, opts)
}

// LeakyBucket is nginx's limit_req (ngx_http_limit_req_module.c): n per period, with up to [Burst] requests (default 0)
// beyond that pace. It refuses requests beyond the burst. It serves those within the burst immediately (nginx's "nodelay"),
// or delays them until the pace is kept ([Delay]). It counts in nanoseconds; nginx counts in milliseconds, which [Resolution]
// imitates.
//
// nginx responds with 503 and without Retry-After unless it is configured otherwise: add Status(503) here and
// WithRetryAfter(NoRetryAfter) to the server.
func LeakyBucket(n int64, per time.Duration, opts ...LimitOption) Limit {
	return newLimit(leakyBucket, n, per, opts)
}

func newLimit(k kind, n int64, per time.Duration, opts []LimitOption) Limit {
	l := Limit{kind: k, n: n, per: per, burst: noBurst}
	for i, o := range opts {
		if o == nil {
			l.problem("LimitOption %d is nil", i+1)
			continue
		}
		o.applyLimit(&l)
	}
	return l
}

// A LimitOption refines a [Limit].
type LimitOption interface{ applyLimit(*Limit) }

type limitOption func(*Limit)

func (f limitOption) applyLimit(l *Limit) { f(l) }

// Name names the limit: for the rate-limit fields, [Counts], [Handler.SetRate] and [Handler.SetLimit]. It consists of
// printable ASCII without quotation mark and backslash. By default a limit is called by its kind: bucket, window,
// sliding, inflight, leaky; the second of a kind bucket-2, and so on.
func Name(name string) LimitOption {
	return limitOption(func(l *Limit) {
		if name == "" || !printable(name) {
			l.problem("Name(%q) must be printable ASCII without quotation mark and backslash", name)
		}
		l.name = name
	})
}

// Burst is how many tokens a [TokenBucket] holds (default n, at least 1), or how many requests a [LeakyBucket] accepts
// beyond its pace (default 0). The other limits have none.
func Burst(n int64) LimitOption {
	return limitOption(func(l *Limit) {
		switch {
		case l.kind == tokenBucket && n < 1, l.kind == leakyBucket && n < 0:
			l.problem("Burst(%d) is too small", n)
		case l.kind != tokenBucket && l.kind != leakyBucket:
			l.problem("Burst(%d) does not apply to this kind of limit", n)
		}
		l.burst = n
	})
}

// FromFirstRequest makes a [FixedWindow] begin with the first accepted request after the end of the window before, instead
// of at a multiple of its length since the Unix epoch.
func FromFirstRequest() LimitOption {
	return limitOption(func(l *Limit) {
		if l.kind != fixedWindow {
			l.problem("FromFirstRequest() applies to FixedWindow only")
		}
		l.fromFirst = true
	})
}

// Elastic makes every counted request restart a [FixedWindow]: the window ends when no request was counted for its whole
// length. Servers that renew the expiry of a counter at each request do this. With [CountRefused], refused requests prolong
// the window too, so a client that keeps sending is never accepted again:
//
//	throttletest.FixedWindow(50, time.Second, throttletest.Elastic(), throttletest.CountRefused())
func Elastic() LimitOption {
	return limitOption(func(l *Limit) {
		if l.kind != fixedWindow {
			l.problem("Elastic() applies to FixedWindow only")
		}
		l.elastic = true
	})
}

// Resolution makes the clock of a limit advance in steps of d instead of nanoseconds. The default is 1 ns; d must be
// positive and no longer than the period. nginx counts in milliseconds, so that a limit of 30/s without burst accepts one
// request every 34 ms; Flask-Limiter's windows begin at the whole second before their first request:
//
//	throttletest.LeakyBucket(30, time.Second, throttletest.Resolution(time.Millisecond))
//	throttletest.FixedWindow(50, time.Minute, throttletest.FromFirstRequest(), throttletest.Resolution(time.Second))
func Resolution(d time.Duration) LimitOption {
	return limitOption(func(l *Limit) {
		switch {
		case l.kind == inFlight:
			l.problem("Resolution(%v) does not apply to InFlight", d)
		case d <= 0:
			l.problem("Resolution(%v) must be positive", d)
		}
		l.resolution = d
	})
}

// Delay makes a [LeakyBucket] delay the requests within its burst until the pace is kept, except the first free ones
// (nginx's "delay=free"; 0 is nginx's default).
func Delay(free int64) LimitOption {
	return limitOption(func(l *Limit) {
		if l.kind != leakyBucket || free < 0 {
			l.problem("Delay(%d) applies to LeakyBucket only and must not be negative", free)
		}
		l.delayed, l.free = true, max(free, 0)
	})
}

// Key sets the key by which a request is counted: requests of different keys have budgets of their own. The default is the
// server's [WithKey], else one budget for all requests. The function is called concurrently and must not change the
// request. The state of a key is kept as long as the server.
func Key(key func(*http.Request) string) LimitOption {
	return limitOption(func(l *Limit) {
		if key == nil {
			l.problem("Key(nil)")
		}
		l.key = key
	})
}

// Cost sets how many tokens a request costs in this limit, instead of the server's [WithCost]. The limit does not apply to a
// request that costs 0 or less. A request that costs more than the limit can ever pay is always refused, without Retry-After.
// The function is called concurrently and must not change the request.
func Cost(cost func(*http.Request) int64) LimitOption {
	return limitOption(func(l *Limit) {
		if cost == nil {
			l.problem("Cost(nil)")
		}
		l.cost = cost
	})
}

// CountRefused charges also the requests that any limit refused, as servers do that count requests before they judge them
// (HAProxy's stick tables). A client that keeps sending too fast is then never accepted by a sliding window. The debt of a
// bucket is at most one burst. It does not apply to [InFlight].
func CountRefused() LimitOption {
	return limitOption(func(l *Limit) {
		if l.kind == inFlight {
			l.problem("CountRefused() does not apply to InFlight")
		}
		l.counts = true
	})
}

// Ban refuses all requests of a key for d after the limit has refused one, whether or not the client continues to send.
// Retry-After is the time until the end of the ban.
func Ban(d time.Duration) LimitOption { return ban("Ban", d, false) }

// BanUntilQuiet refuses all requests of a key after the limit has refused one, until there was no request of that key for d:
// each refused request restarts the ban.
func BanUntilQuiet(d time.Duration) LimitOption { return ban("BanUntilQuiet", d, true) }

func ban(name string, d time.Duration, untilQuiet bool) LimitOption {
	return limitOption(func(l *Limit) {
		if d <= 0 {
			l.problem("%s(%v) must be positive", name, d)
		}
		if l.ban != 0 {
			l.problem("%s(%v) is its second ban", name, d)
		}
		l.ban, l.untilQuiet = d, untilQuiet
	})
}

// Status sets the status of this limit's refusals, from 200 to 599, instead of the server's [WithStatus]. If several limits
// refuse a request, the one with the longest wait decides.
func Status(code int) LimitOption {
	return limitOption(func(l *Limit) {
		if code < 200 || code > 599 {
			l.problem("Status(%d) must be from 200 to 599", code)
		}
		l.status = code
	})
}

func (l *Limit) problem(format string, args ...any) {
	l.errs = append(l.errs[:len(l.errs):len(l.errs)], fmt.Errorf(format, args...))
}

// validated is l with its defaults filled in, or what is wrong with it.
func (l Limit) validated() (Limit, error) {
	if l.kind == 0 {
		return l, errors.New("Limit{} is empty: use a constructor such as TokenBucket")
	}
	if l.n < 1 {
		l.problem("n = %d must be at least 1", l.n)
	}
	if l.kind != inFlight && l.per < 1 {
		l.problem("period = %v must be positive", l.per)
	}
	if l.per > maxPeriod {
		l.problem("period = %v is longer than %v", l.per, maxPeriod)
	}
	if l.burst == noBurst {
		l.burst = 0
		if l.kind == tokenBucket {
			l.burst = l.n
		}
	}
	if len(l.errs) == 0 && l.hasBucket() && !bucketFits(l) {
		l.problem("burst = %d is too large for exact arithmetic at this rate: take a shorter period or a rounder n", l.burst)
	}
	if l.resolution > l.per && l.kind != inFlight {
		l.problem("Resolution(%v) must be no longer than the period of %v", l.resolution, l.per)
	}
	if len(l.errs) == 0 {
		return l, nil
	}
	where := l.kind.constructor()
	if l.name != "" {
		where += " " + strconv.Quote(l.name)
	}
	errs := make([]error, len(l.errs))
	for i, err := range l.errs {
		errs[i] = fmt.Errorf("%s: %w", where, err)
	}
	return l, errors.Join(errs...)
}

// holds is the most that can be left.
func (l *Limit) holds() int64 {
	switch l.kind {
	case tokenBucket:
		return l.burst
	case leakyBucket:
		return l.burst + 1
	}
	return l.n
}

// step is the resolution in nanoseconds.
func (l *Limit) step() int64 { return max(int64(l.resolution), 1) }

func (l *Limit) hasBucket() bool { return l.kind == tokenBucket || l.kind == leakyBucket }

// printable reports whether s can stand in a String of RFC 9651 as it is.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e || s[i] == '"' || s[i] == '\\' {
			return false
		}
	}
	return true
}
