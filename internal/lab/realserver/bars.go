package realserver

import (
	"slices"
	"time"
)

// The servers by what they report.
var (
	tellsRemaining = []string{"express-rate-limit, draft-6", "express-rate-limit, draft-7", "express-rate-limit, draft-8",
		"express-rate-limit, draft-7, 100 per 10 s", "@fastify/rate-limit"}
	tellsRetryAfter = []string{"HAProxy, accepted counted, Retry-After 1", "nginx, burst 20 nodelay, Retry-After 1",
		"nginx, 10/s, burst 10 nodelay, Retry-After 2", "rack-attack, Retry-After"}
)

// ReportsRemaining reports whether a server reports what is left of its limit.
func ReportsRemaining(spec string) bool {
	return spec == lua || slices.Contains(tellsRemaining, spec)
}

const (
	flaskFixed    = "Flask-Limiter, fixed window"
	flaskMoving   = "Flask-Limiter, moving window"
	varnish       = "Varnish, vsthrottle, Retry-After 1" // accepts 86 to 90 % of its limit
	noBurst       = "nginx, no burst"
	nodelay       = "nginx, burst 20 nodelay"
	delay         = "nginx, burst 50 delay"
	lua           = "nginx with Lua, as GitHub, 100 per 5 s"
	inFlightKnown = "known in flight" // a client
	banned        = "HAProxy, banned until quiet for 5 s"
)

// A floor is what is asserted where a goal is missed, and why it is missed. Shares are like those of the bar.
type floor struct {
	share, refused, jain, slower float64
	why                          string
}

// Why goals are missed.
const (
	lateReset = "resets are reported up to a second late, and each costs that time until a window has shown it"
	lateLog   = "resets are reported up to a second late, and the first seconds are spent on learning the rate at which the log refills"
	lastOnes  = "a client that is refused at the end of a window is slowed down in the next one"
	unheard   = "only refusals show the limit: each costs a wait, and some are needed"
	inPhase   = "each client notices the other only by refusals, and the one that is refused loses a second"
	counted   = "the rate is found by exceeding the limit, and each refused request keeps it closed"
	slots     = "refusals by the number of requests in flight depend on the latency, and say little about a rate"
	busy      = "reached on a quiet machine; a busy one bunches requests and reads responses late"
	surplus   = "the number starts at 4 and falls by 3 % a visit where one request more only waits, so a single worker still has five or six after 20 s"
	fromBelow = "the first minute is spent on growing from 10/s, with a second's wait each time the limit is met"
)

// missed are the goals that are not reached.
var missed = map[string]floor{
	"Flask-Limiter, fixed window: window":                                        {share: 88, why: lateReset},
	"Flask-Limiter, fixed window: hints":                                         {share: 85, refused: 1, why: lateReset},
	"nginx, no burst: adaptive":                                                  {share: 62, refused: 3, why: busy},
	"Flask-Limiter, fixed window: adaptive":                                      {share: 88, refused: 1, why: lateReset},
	"nginx with Lua, as GitHub, 100 per 5 s: hints":                              {share: 90, refused: 1, why: lateReset},
	"nginx with Lua, as GitHub, 100 per 5 s: adaptive":                           {share: 92, refused: 1, why: busy},
	"Flask-Limiter, moving window: known":                                        {share: 90, why: busy},
	"Flask-Limiter, moving window: window":                                       {share: 80, why: lateLog},
	"Flask-Limiter, moving window: hints":                                        {share: 80, refused: 3, why: lateLog},
	"Flask-Limiter, moving window: adaptive":                                     {share: 80, refused: 3, why: lateLog},
	"Flask-Limiter, moving window: adaptive from 10/s":                           {share: 55, why: busy},
	"express-rate-limit, draft-6: window":                                        {share: 92, why: lastOnes},
	"express-rate-limit, draft-7: window":                                        {share: 92, why: lastOnes},
	"express-rate-limit, draft-8: window":                                        {share: 92, why: lastOnes},
	"@fastify/rate-limit: window":                                                {share: 92, why: lastOnes},
	"nginx, 10/s, burst 10 nodelay, Retry-After 2: hints":                        {share: 80, refused: 5, why: unheard},
	"nginx, limit_conn 4: adaptive":                                              {share: 50, refused: 3, why: slots},
	"nginx, limit_conn 4: adaptive from 10/s":                                    {share: 38, why: slots},
	"HAProxy, maxconn 4, queue: adaptive from 10/s":                              {share: 50, why: busy},
	"nginx, no burst: adaptive from 10/s":                                        {share: 38, why: busy},
	"node, a handler that computes for 10 ms: in flight":                         {share: 95, slower: 7, why: surplus},
	"HAProxy, all counted, tarpit 2 s: adaptive":                                 {share: 40, refused: 14, why: counted},
	"HAProxy, all counted, 1 s: adaptive, 60 s":                                  {share: 90, refused: 1, why: counted},
	"HAProxy, banned until quiet for 5 s: adaptive, 60 s":                        {share: 1, refused: 45, why: counted},
	"rack-attack, Retry-After: hints":                                            {share: 80, refused: 4, why: unheard},
	"rack-attack, Retry-After: adaptive":                                         {share: 80, refused: 1, why: busy},
	"rack-attack, Retry-After: adaptive from 10/s, 60 s":                         {share: 84, why: fromBelow},
	"HAProxy, accepted counted, Retry-After 1: hints, 2 clients, 60 s":           {share: 84, jain: 0.6, why: inPhase},
	"HAProxy, accepted counted, Retry-After 1: the whole limit, 2 clients, 60 s": {share: 84, jain: 0.6, why: inPhase},
}

// Least returns the bar that is asserted, and why it is lower than the goal; "": it is the goal.
func (b Bar) Least() (least Bar, why string) {
	if f, ok := missed[b.String()]; ok {
		b.Share, b.Refused, b.Jain, b.Slower, b.Trend = f.share, f.refused, f.jain, f.slower, 0
		return b, f.why
	}
	return b, ""
}

// Bars returns what must be reached.
func Bars() (all []Bar) {
	all = append(all, hintBars()...)
	all = append(all, adaptiveBars()...)
	all = append(all, startBars()...)
	all = append(all, inFlightBars()...)
	return append(all, neighbourBars()...)
}

// hintBars say that a hint costs no throughput.
func hintBars() (all []Bar) {
	like := func(spec string, share float64) {
		all = append(all,
			Bar{Spec: spec, Client: "known", Like: "known without hints", Share: share},
			Bar{Spec: spec, Client: "window", Like: "window without hints", Share: share})
	}
	for _, spec := range append([]string{"HAProxy, accepted counted, Retry-After 1", nodelay, flaskFixed}, tellsRemaining...) {
		like(spec, 97)
	}
	like(flaskMoving, 93)
	all = append(all, Bar{Spec: noBurst, Client: "known", Share: 85, Refused: 5})

	for _, spec := range append([]string{lua}, tellsRemaining...) {
		all = append(all, Bar{Spec: spec, Client: "hints", Share: 95, Refused: 1})
	}
	all = append(all,
		Bar{Spec: flaskFixed, Client: "hints", Share: 90, Refused: 1},
		Bar{Spec: flaskMoving, Client: "hints", Share: 80, Refused: 3},
		Bar{Spec: varnish, Client: "hints", Share: 74, Refused: 4})
	for _, spec := range tellsRetryAfter {
		all = append(all, Bar{Spec: spec, Client: "hints", Share: 85, Refused: 4})
	}
	return all
}

// adaptiveBars are reached from twice the limit.
func adaptiveBars() (all []Bar) {
	for _, spec := range append([]string{lua, flaskFixed}, tellsRemaining...) {
		all = append(all, Bar{Spec: spec, Client: "adaptive", Share: 95, Refused: 1})
	}
	for _, spec := range tellsRetryAfter {
		all = append(all, Bar{Spec: spec, Client: "adaptive", Share: 92, Refused: 1})
	}
	return append(all,
		Bar{Spec: flaskMoving, Client: "adaptive", Share: 80, Refused: 3},
		Bar{Spec: varnish, Client: "adaptive", Share: 74, Refused: 1},
		Bar{Spec: nodelay, Client: "adaptive", Share: 95, Refused: 1},
		Bar{Spec: delay, Client: "adaptive", Share: 95, Refused: 1},
		Bar{Spec: delay, Client: "adaptive", Callers: 50, Share: 85, Refused: 2, P50: 300 * time.Millisecond},
		Bar{Spec: noBurst, Client: "adaptive", Share: 75, Refused: 3},
		Bar{Spec: "nginx, limit_conn 4", Client: "adaptive", Share: 70, Refused: 3},
		Bar{Spec: "HAProxy, maxconn 4, queue", Client: "adaptive", Share: 90, Refused: 1},
		Bar{Spec: "HAProxy, all counted, tarpit 2 s", Client: "adaptive", Share: 50, Refused: 10},
		Bar{Spec: "HAProxy, all counted, 1 s", Client: "adaptive", Length: time.Minute, Share: 90, Refused: 0.3},
		Bar{Spec: "HAProxy, all counted, 10 s", Client: "adaptive behind a window", Length: time.Minute, Share: 65},
		Bar{Spec: banned, Client: "adaptive", Length: time.Minute, Share: 60},
	)
}

// startBars are reached from the default start, 10/s.
func startBars() (all []Bar) {
	const client = "adaptive from 10/s"
	for _, spec := range tellsRetryAfter {
		all = append(all, Bar{Spec: spec, Client: client, Share: 70},
			Bar{Spec: spec, Client: client, Length: time.Minute, Share: 90})
	}
	for _, spec := range append([]string{lua, flaskFixed, nodelay, delay}, tellsRemaining...) {
		all = append(all, Bar{Spec: spec, Client: client, Share: 80})
	}
	return append(all,
		Bar{Spec: flaskMoving, Client: client, Share: 65},
		Bar{Spec: noBurst, Client: client, Share: 60},
		Bar{Spec: "nginx, limit_conn 4", Client: client, Share: 55},
		Bar{Spec: "HAProxy, maxconn 4, queue", Client: client, Share: 75},
	)
}

// inFlightBars are reached from the default start, where the server limits what it works on at a time. What a server can do then
// depends on the machine, so a client that knows the number, at a server of its own at the same time, is what they are compared with.
func inFlightBars() (all []Bar) {
	all = append(all, Bar{Spec: "nginx, limit_conn 4", Client: "in flight", Like: inFlightKnown, Share: 95, Refused: 1})
	for _, spec := range []string{"HAProxy, maxconn 4, queue", "gunicorn, 4 threads, queue", "Go, 8 workers, queue",
		"PostgreSQL, 10 connections, queue", "node, a handler that computes for 10 ms"} {
		all = append(all, Bar{Spec: spec, Client: "in flight", Like: inFlightKnown, Share: 95, Slower: 2.5})
	}
	return all
}

// neighbourBars are reached by clients that share one limit and know nothing of each other.
func neighbourBars() (all []Bar) {
	for _, client := range []string{"hints", "the whole limit", "adaptive"} {
		all = append(all,
			Bar{Spec: "express-rate-limit, draft-7", Client: client, Clients: 2, Length: time.Minute, Share: 92, Refused: 2, Jain: 0.98, Trend: 1.2},
			Bar{Spec: "@fastify/rate-limit", Client: client, Clients: 5, Length: time.Minute, Share: 92, Refused: 5, Jain: 0.90, Trend: 1.2},
			Bar{Spec: "HAProxy, accepted counted, Retry-After 1", Client: client, Clients: 2, Length: time.Minute, Share: 84, Jain: 0.92, Trend: 1.2})
	}
	return all
}
