// Package bucket is what limits, buckets, charges and waiting requests are, without the lock that guards them.
//
// A [Limit] has a [Bucket] for each key. A request has a [Charge] in one bucket of each limit; if it waits, its [Place] is what
// the order of waiters knows of it. What differs between kinds of limits is a method of their meters. The package has no lock,
// clock or timer: the time is a parameter. What a method changes in the state of a store is noted in [Leases].
package bucket
