package main

import "strings"

// label is what an implementation is called in tables.
func label(impl string) string {
	if l, ok := labels[impl]; ok {
		return l
	}
	return impl
}

var labels = map[string]string{
	"bare":                   "none (bare)",
	"xtime":                  "x/time/rate",
	"xtime-map":              "map of x/time/rate",
	"uber":                   "uber/ratelimit",
	"failsafe":               "failsafe-go, rate limiter",
	"failsafe-adaptive":      "failsafe-go, adaptive limiter",
	"resty":                  "resty v3, token bucket",
	"resty-client":           "resty v3, whole client",
	"gofri":                  "gofri/go-github-ratelimit",
	"juju":                   "juju/ratelimit",
	"sethvargo":              "sethvargo/go-limiter",
	"throttled":              "throttled/throttled",
	"client-go":              "client-go flowcontrol",
	"semaphore":              "x/sync/semaphore",
	"aws":                    "AWS SDK, adaptive mode",
	"gradient2":              "Netflix, Gradient2",
	"vegas":                  "Netflix, Vegas",
	"rule":                   "1.2×/0.7× rule",
	"fixed-half":             "fixed: half",
	"fixed-exact":            "fixed: known",
	"fixed-double":           "fixed: double",
	"channel":                "bare goroutine on a channel",
	"sleep":                  "bare time.Sleep",
	"redis_rate":             "redis_rate v10",
	"gcra":                   "script: one instant (GCRA), rueidis",
	"counter":                "script: one counter, rueidis",
	"memory":                 "**throttle**, in memory",
	"throttle":               "**throttle**",
	"throttle-nothing-ahead": "**throttle**, nothing leased ahead",
	"throttle-deaf":          "**throttle**, without server hints",
	"throttle-host":          "**throttle**, by host",
	"throttle-weights":       "**throttle**, weights",
	"throttle-three":         "**throttle**, three limits",
	"throttle-adaptive":      "**throttle**, adaptive",
	"throttle-told":          "**throttle**, after the server reported limits",
	"throttle-everything":    "**throttle**, everything on",
	"throttle-key":           "**throttle**, with a key",
	"throttle-flight":        "**throttle**, AdaptiveInFlight",
	"throttle-both":          "**throttle**, both",
	"throttle-rate":          "**throttle**, Adaptive",
	"throttle-thresholds":    "**throttle**, Adaptive with thresholds",
	"throttle-unavailable":   "**throttle**, Adaptive, 5xx as Unavailable, ErrorThreshold .05",
	"throttle-429":           "**throttle**, request refused with a whole 429",
}

// plainLabel is the same for plots.
func plainLabel(impl string) string { return strings.ReplaceAll(label(impl), "*", "") }

func isOurs(impl string) bool { return strings.HasPrefix(impl, "throttle") && impl != "throttled" }

// isPeer reports whether impl is another limiter than ours, and no measure of comparison.
func isPeer(impl string) bool {
	switch impl {
	case "bare", "channel", "memory", "sleep", "time.Since", "lock", "atomic", "time.Since+lock":
		return false
	}
	return !isOurs(impl)
}
