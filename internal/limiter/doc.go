// Package limiter decides when each request is sent. It has the lock, the lines and plans of waiting requests, grants, timers,
// and the buckets, which it makes and forgets.
//
// A [Core] charges a request in all its buckets at one instant, or lets it wait. What differs between kinds of limits is a method
// of their meters. The package knows neither HTTP nor the functions, hooks and loggers of users: it returns decisions and what
// has changed, and the caller reports it.
//
// Callers of a function hold Core.mu if its name ends in Locked.
package limiter
