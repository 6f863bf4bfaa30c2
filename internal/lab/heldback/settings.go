package main

import (
	"time"

	"github.com/gofiber/fiber/v3/middleware/limiter"

	"github.com/httpthrottle/throttle/internal/lab/realserver"
)

// A setting is a server with a limit.
type setting struct {
	realserver.Spec
	burst int64 // how many requests it accepts at the same time
	start starter
}

// settings returns all servers. Each middleware is configured as its own documentation shows, at rates from 3 to 200 a second and in windows
// of 1 to 30 s.
func settings() (all []setting) {
	add := func(name string, n int64, per time.Duration, burst int64, refuses int, start starter) {
		all = append(all, setting{realserver.Spec{Name: name, N: n, Per: per, Refuses: refuses}, burst, start})
	}
	inNode := func(name, limit string, n int64, per time.Duration, burst int64, refuses int) {
		if limit != "" {
			limit = ", " + limit
		}
		add(name+limit, n, per, burst, refuses, node(name))
	}
	add("gofiber limiter, fixed window, 600 per 30 s", 600, 30*time.Second, 600, 429, fiberLimiter(limiter.FixedWindow{}, 600))
	add("gofiber limiter, fixed window, 10 per 2 s", 10, 2*time.Second, 10, 429, fiberLimiter(limiter.FixedWindow{}, 10))
	// What was counted in the last window is weighted by what is left of this one, in whole seconds rounded up. So 150 in 5 s means that
	// 125 are accepted, at whatever pace.
	add("gofiber limiter, sliding window, 150 per 5 s (accepts 125)", 125, 5*time.Second, 150, 429, fiberLimiter(limiter.SlidingWindow{}, 150))
	add("Echo RateLimiter, 20 per 1 s", 20, time.Second, 20, 429, echoLimiter(0, nil))
	add("Echo RateLimiter, burst 30, 403, 10 per 1 s", 10, time.Second, 30, 403, echoLimiter(30, forbidden))
	add("Echo RateLimiter, 200 per 1 s", 200, time.Second, 200, 429, echoLimiter(0, nil))
	inNode("koa2-ratelimit", "50 per 5 s", 50, 5*time.Second, 50, 429)
	inNode("koa2-ratelimit", "3 per 1 s", 3, time.Second, 3, 429)
	inNode("rate-limiter-flexible, no headers", "10 per 1 s", 10, time.Second, 10, 429)
	inNode("rate-limiter-flexible", "120 per 3 s", 120, 3*time.Second, 120, 429)
	inNode("rate-limiter-flexible, blocked for 3 s", "40 per 1 s", 40, time.Second, 40, 429)
	inNode("rate-limiter-flexible, 10 per 1 s and bursts of 20 per 10 s", "", 12, time.Second, 30, 429)
	inNode("express-throttle, no headers", "100 per 1 s", 100, time.Second, 100, 429)
	inNode("express-throttle, burst 40, remaining tokens", "20 per 1 s", 20, time.Second, 40, 429)
	inNode("express-throttle, fixed window, 503", "50 per 5 s", 50, 5*time.Second, 50, 503)
	inNode("hono-rate-limiter, draft-6", "75 per 15 s", 75, 15*time.Second, 75, 429)
	inNode("hono-rate-limiter, draft-7", "30 per 1 s", 30, time.Second, 30, 429)
	return all
}
