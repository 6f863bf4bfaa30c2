// Package throttle implements client-side rate limiting: it keeps a program within the limits of the APIs that it calls.
//
// A [Transport] is a [net/http.RoundTripper]. Set it as http.Client.Transport, or pass it to an SDK. Each request then
// spends tokens before it is sent. If there are not enough, it waits in a queue under its context, or is rejected with a
// synthetic 429 response:
//
//	t, err := throttle.New(nil, throttle.WithLimit(throttle.Quota(100, time.Minute)))
//	if err != nil {
//		return err
//	}
//	client := &http.Client{Transport: t}
//
// By default a Transport also obeys Retry-After and rate-limit headers; see [WithServerHints]. An [Adaptive] limit finds a rate
// that is not documented.
//
// A [Limiter] has the limits without HTTP. Several Transports can share one.
//
// # Terms
//
// A limit is a rule. It has an algorithm ([TokenBucket], [Pace], [Quota], [SlidingWindow], [FixedWindow], [CalendarWindow],
// [InFlight], [Adaptive], [AdaptiveInFlight], [ServerQuota]), a key by which requests are counted (a [KeyFunc]), and a cost for
// each request (a [CostFunc], [WithWeights], [ContextWithCost]).
//
// A bucket is the state of one limit for one key. A hold is a time during which a bucket grants nothing. Settling corrects
// a charge once the true cost is known ([Settle], [SettleJSON], [Receipt]).
//
// # Guarantees
//
//   - All or nothing. A request is charged in all of its limits at the instant at which it is sent, or in none of them. A rejected or
//     cancelled request leaves every balance unchanged.
//   - Order. Requests for the same buckets are sent in the order of arrival, where a priority of p counts as having arrived 10·p
//     seconds earlier. Cheap requests do not starve an expensive one, because a request that a bucket cannot pay blocks later
//     requests there.
//   - Keys do not delay each other. A request that is stopped only by another bucket does not block a bucket that it shares. There is
//     one exception: if a request has been overtaken for ten seconds because its buckets never had enough tokens at the same time, it
//     blocks all of them until it is sent.
//   - No reservations. A new rate, a hold, a refund, a debt or a cancelled request takes effect immediately for every waiter.
//   - Early rejection. A request is rejected as soon as its cost can never be paid, its wait would exceed the context's deadline or
//     the longest wait allowed, the queue is full, or the server refuses for a reason that no waiting ends. This is checked on
//     arrival, and again after a hold, a new rate or a debt. The expected wait is exact for a queue with one limit (for a window,
//     with costs of 1), and a lower bound otherwise. For [Adaptive] and [AdaptiveInFlight] it includes only holds, and what
//     AIMD.Max and Concurrency.Max imply.
//   - Never more than burst + rate·t in one process, counted from any instant at which the queue was empty, under any interleaving.
//     Refunds and corrections create no tokens.
//   - Exact to the nanosecond. Balances are integers; the k-th grant of n per period is due at start + ⌈k·period/n⌉. A late timer
//     costs no throughput: a request that became due within the last 20 ms is charged at the instant at which it was due. If a timer
//     is later than that, the time beyond 20 ms is lost. Windows always use the actual instant.
//   - Bounded memory. Queues ([WithMaxQueue]), keys ([WithMaxKeys]) and windows have finite sizes, and full buckets are
//     forgotten.
//   - No background goroutine, so there is nothing to close.
//
// # Time
//
// Time is monotonic and starts when the Limiter is made; only a [FixedWindow] and a [CalendarWindow] follow the wall
// clock. Inside [testing/synctest] all of it is exact, except that a server's Retry-After is extended by a random time, up to a tenth of
// it and at most a second. A Limiter belongs to the bubble in which it was made.
//
// # Compatibility
//
// The packages follow semantic versioning. These may grow in any version, so set fields by name, and have a default in a switch:
//
//   - statistics and events gain fields ([Stats], [LimitStats], [BucketStats], [ServerStats], [StoreStats], [Forecast], and the
//     parameters of [Hooks]), and so do [AIMD], [Concurrency], [Ask] and [Hooks];
//   - [Reason], [Cause], [Verdict], [Source], kinds and modes gain constants, so the length of [Counts] grows;
//   - a Dialect and a Signal of package headers gain fields, and presets follow their APIs;
//   - texts of errors, logs and String methods may change. What Label returns, names in JSON and names of metrics do not.
//
// A [Snapshot] of an earlier version can be restored. Interfaces of package store that other packages implement do not gain methods.
package throttle
