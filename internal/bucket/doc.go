// Package bucket is what limits are, and the state that they have for each key.
//
// A [Rule] is what is configured, a [Limit] is a Rule at work, and a [Bucket] is the state of a Limit for one key. What differs
// between kinds of limits is a method of their meters. The package knows no requests except those that wait at a bucket, as the
// order of waiters has them. It has no lock, clock or timer: the time is a parameter. What a method changes in the state of a store
// is noted in [Leases].
package bucket
