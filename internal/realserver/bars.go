package realserver

import (
	"slices"
	"time"
)

// The servers by what they tell.
var (
	tellsRemaining = []string{"express-rate-limit, draft-6", "express-rate-limit, draft-7", "express-rate-limit, draft-8",
		"express-rate-limit, draft-7, 100 per 10 s", "@fastify/rate-limit"}
	tellsRetryAfter = []string{"HAProxy, accepted counted, Retry-After 1", "nginx, burst 20 nodelay, Retry-After 1",
		"nginx, 10/s, burst 10 nodelay, Retry-After 2", "rack-attack, Retry-After"}
)

const (
	flaskFixed  = "Flask-Limiter, fixed window"
	flaskMoving = "Flask-Limiter, moving window"
	varnish     = "Varnish, vsthrottle, Retry-After 1" // accepts 86 to 90 % of its limit
	noBurst     = "nginx, no burst"
	nodelay     = "nginx, burst 20 nodelay"
	delay       = "nginx, burst 50 delay"
	lua         = "nginx with Lua, as GitHub, 100 per 5 s"
	banned      = "HAProxy, banned until quiet for 5 s"
)

// open are the bars that are not reached yet. They are measured, but not asserted. The report names those that could go.
var open = []string{
	"nginx, limit_conn 4: adaptive",
	"nginx, no burst: adaptive",
	"Flask-Limiter, fixed window: window",
	"express-rate-limit, draft-6: window",
	"express-rate-limit, draft-7: window",
	"@fastify/rate-limit: window",
	"express-rate-limit, draft-7: adaptive, 2 clients, 60 s",
	"express-rate-limit, draft-7: the whole limit, 2 clients, 60 s",
	"express-rate-limit, draft-8: window",
	"Flask-Limiter, moving window: known",
	"Flask-Limiter, moving window: window",
	"nginx with Lua, as GitHub, 100 per 5 s: hints",
	"Flask-Limiter, fixed window: hints",
	"Flask-Limiter, moving window: hints",
	"nginx, burst 20 nodelay, Retry-After 1: hints",
	"nginx, 10/s, burst 10 nodelay, Retry-After 2: hints",
	"express-rate-limit, draft-7: hints, 2 clients, 60 s",
	"@fastify/rate-limit: hints, 5 clients, 60 s",
	"HAProxy, accepted counted, Retry-After 1: hints, 2 clients, 60 s",
	"@fastify/rate-limit: the whole limit, 5 clients, 60 s",
	"HAProxy, accepted counted, Retry-After 1: the whole limit, 2 clients, 60 s",
	"nginx with Lua, as GitHub, 100 per 5 s: adaptive",
	"Flask-Limiter, fixed window: adaptive",
	"Flask-Limiter, moving window: adaptive",
	"HAProxy, all counted, tarpit 2 s: adaptive",
	"HAProxy, all counted, 1 s: adaptive, 60 s",
	"HAProxy, banned until quiet for 5 s: adaptive, 60 s",
	"rack-attack, Retry-After: adaptive from 10/s, 60 s",
	"Flask-Limiter, fixed window: adaptive from 10/s",
	"Flask-Limiter, moving window: adaptive from 10/s",
	"@fastify/rate-limit: adaptive, 5 clients, 60 s",
}

// Open reports whether the bar is not reached yet.
func (b Bar) Open() bool { return slices.Contains(open, b.String()) }

// Bars returns what must be reached.
func Bars() (all []Bar) {
	all = append(all, hintBars()...)
	all = append(all, adaptiveBars()...)
	all = append(all, startBars()...)
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

// neighbourBars are reached by clients that share one limit and know nothing of each other.
func neighbourBars() (all []Bar) {
	for _, client := range []string{"hints", "the whole limit", "adaptive"} {
		all = append(all,
			Bar{Spec: "express-rate-limit, draft-7", Client: client, Clients: 2, Length: time.Minute, Share: 92, Refused: 2, Jain: 0.98},
			Bar{Spec: "@fastify/rate-limit", Client: client, Clients: 5, Length: time.Minute, Share: 92, Refused: 5, Jain: 0.90},
			Bar{Spec: "HAProxy, accepted counted, Retry-After 1", Client: client, Clients: 2, Length: time.Minute, Share: 84, Jain: 0.92})
	}
	return all
}
