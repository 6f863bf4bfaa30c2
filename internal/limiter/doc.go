// Package limiter is a Limiter without HTTP. It decides when each request is sent.
//
// A [Core] is made from rules. It charges a [Request] in all its buckets at one instant, or lets it wait as a [Waiter]. It asks for
// the rates of keys, sets timers and calls stores by itself, and reports events to an [Observer]. Kinds of limits differ only in their
// meters. Package order decides which request is next, and package quota what the responses of a server mean.
//
// To follow a request, read request.go and waiter.go, then enter.go (it is granted, rejected, or waits), pay.go (its charges), serve.go
// (a change lets waiters go) and report.go (its response). Each of the other files is about one more thing that may happen.
//
// Callers of a function hold Core.mu if its name ends in Locked. Functions that others pass to this package, and Observers, are called
// without it, except the functions that look at buckets or change them.
package limiter
