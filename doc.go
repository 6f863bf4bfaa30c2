// Package throttle keeps a program that calls other people's APIs within their limits.
//
// A [Transport] is an [net/http.RoundTripper]: set it as http.Client.Transport, or hand it to an SDK, and each request
// spends tokens before it is sent, waits in line under its context until there are enough, or is refused by a
// synthetic 429:
//
//	t, err := throttle.New(nil, throttle.WithLimit(throttle.TokenBucket(10, time.Second)))
//	if err != nil {
//		return err
//	}
//	client := &http.Client{Transport: t}
//
// What the server says of its limits is heeded by default; see [WithServerHints]. A limit that nobody knows is found by
// [Adaptive].
//
// A [Limiter] is the same without HTTP, and what several Transports share.
//
// # Words
//
// A limit is a rule: an algorithm ([TokenBucket], [Pace], [SlidingWindow], [FixedWindow], [InFlight], [Adaptive]), whom it counts for (a
// [KeyFunc]) and what a request costs against it (a [CostFunc], [WithWeights], [ContextWithCost]). A bucket is the state
// of one limit for one key. A hold is a stretch of time in which a bucket grants nothing. To settle is to correct a charge
// once the true cost is known ([Settle], [SettleJSON], [Receipt]).
//
// # What always holds
//
//   - All or nothing. A request is charged in all its limits at one instant, that in which it is sent, or in none. Who is
//     refused or cancelled leaves every balance as it was.
//   - In line. Among requests for the same buckets the order is that of arrival, where a priority p counts as having come
//     10·p seconds earlier. A costly request is not starved by cheap ones: who can't be paid at a bucket bars it for those
//     who come after. A request that is stopped by another bucket only does not bar a bucket that it shares, so that keys
//     never delay each other, unless it was passed over for ten seconds: each time one bucket had saved up for it, others
//     had emptied the next. Then it bars all its buckets until it goes.
//   - Nobody holds a reservation. Everyone who waits is planned anew on every change: another rate, a hold, tokens given
//     back, a debt, a neighbour who left.
//   - The answer comes as soon as it is known. What can never be paid, can't be in time for the context's deadline or the
//     longest wait allowed, or finds the line full, is refused at once, on arrival and again after a hold, another rate or a
//     debt.
//     The plan is exact where a line has one limit (for a window: with costs of 1), and else a lower bound; for
//     [Adaptive] it goes by holds and Max alone.
//   - Never more than burst + rate·t, counted from any instant at which the line was empty, under any interleaving; by what
//     was charged, corrected once and then for good. Nothing is minted by what is given back.
//   - To the nanosecond. Balances are integers; the k-th grant of n per period is due at start + ⌈k·period/n⌉. While a line
//     exists, a late timer costs no throughput: who was due within the last 20 ms is charged as of when it was due. Older
//     lateness is forfeited, and windows always go by the actual instant.
//   - Bounded. Lines ([WithMaxQueue]), keys ([WithMaxKeys]) and what windows remember have a finite size, and buckets that
//     are full again are forgotten.
//   - No goroutine in the background, so nothing to close.
//
// # Time
//
// Time is monotonic, from the making of the Limiter; only a [FixedWindow] follows the wall clock. Inside
// [testing/synctest] all of it is exact; a Limiter belongs to the bubble it was made in.
package throttle
