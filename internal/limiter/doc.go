// Package limiter is a Limiter without HTTP. It decides when each request is sent.
//
// A [Core] is made from rules. It charges a [Request] in all its buckets at one instant, or lets it wait as a [Waiter]. It asks for
// the rates of keys, sets timers and calls stores by itself, and reports events to an [Observer]. Kinds of limits differ only in their
// meters. Package order decides which request is next, and package quota what the responses of a server mean.
//
// A request takes these calls:
//
//	user := &User{Observer: observer}      // which makes the errors of rejections, too
//	r := Request{User: user, Context: ctx}
//	r.Add(core.Limits[0], key, cost)       // for each limit that applies to it
//	if !core.Now(&r, nil) {                // NowOrNever and Try are for requests that must not wait
//		w := r.Waiter()                    // whose owner sets a priority, a bound of its wait, and so on
//		waits, err := core.Enqueue(ctx, w) // EnqueueClaimed, where it waits in several Cores
//		if waits {
//			err = core.Await(ctx, nil, w)  // or Leave
//		}
//		w.Take(&r)                         // if there is no error
//	}
//	core.Report(&r, &answer)               // what became of it; or Cancel, if it was never sent
//	core.Settle(&r, 0, cost)               // its true cost, at any time
//
// The other methods of a Core
//
//   - change limits: SetRate, SetBurst, SetSlots, Refresh;
//   - stop requests: Hold, HoldAll, Release, ReleaseAll, Shutdown;
//   - read: Counters, LookAt…, StoreStates, and WaitsFor, RejectionOf and Forecast for requests that wait;
//   - put back, or forget, what was known: Restore, RestoreAccount, ForgetReports.
//
// # Files
//
// To follow a request, read request.go and waiter.go, then enter.go (it is granted, rejected, or waits), pay.go and price.go (its charges), serve.go
// (a change lets waiters go) and report.go (its response). Each of the other files is about one more thing that may happen.
//
// # Changes
//
// Callers of a function hold Core.mu if its name ends in Locked. Functions that others pass to this package, and Observers, are called
// without it, except the functions that look at buckets or change them.
//
// An operation takes the lock by begin, and frees it by end. In between it changes what it likes, and marks the buckets that it has
// changed: markLocked, if requests there may be granted earlier or later, and replanLocked, if some may be too late now. What must hold
// whenever the lock is free stands above Core.mu.
//
// # Tests
//
// drive makes a Core from rules, such as tokenBucket, and observes it; see kit_test.go and kit_rules_test.go. In a bubble of testing/synctest,
// send makes a request that may wait; see kit_requests_test.go. check checks what must hold whenever the lock is free.
package limiter
