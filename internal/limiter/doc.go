// Package limiter is a Limiter without HTTP. It decides when each request is sent.
//
// A [Core] is made from rules. It charges a [Request] in all its buckets at one instant, or lets it wait as a [Waiter]. It asks for
// the rates of keys, sets timers and calls stores by itself, and reports to an [Observer] what happens. What differs between kinds of
// limits is a method of their meters; which request is next is decided by package order, and what a server's responses mean by
// package quota.
//
// Callers of a function hold Core.mu if its name ends in Locked. Functions that others pass to this package, and Observers, are called
// without it, except the functions that look at buckets or change them.
package limiter
