// Package retry wraps [retryablehttp] around a [throttle.Transport], so that every attempt waits for its turn and is charged.
//
//	client := retry.NewClient(transport)            // a *retryablehttp.Client with its Policy
//	resp, err := client.Get("https://example.com/") // or client.StandardClient(), for an SDK
//
// For a retryablehttp client of your own, see [New].
//
// There is one exception: if a connection that was used before breaks, net/http's own Transport repeats an idempotent request,
// and the repetition is not charged.
//
// # What is retried
//
//   - A rejection by the Transport: a synthetic 429, or a [throttle.Rejection] as an error. The exceptions are a cost that can
//     never be paid, a deadline that cannot be met, and a server that refuses for a reason that no waiting ends.
//   - A response that says that the request was limited ([headers.Signal.Limited]: 429, 503 with Retry-After, 403 with
//     Retry-After, …).
//   - Any other 5xx except 501, a status of 0, a connection error, an attempt that exceeded the Timeout of the inner
//     http.Client, and an error of a response handler, if the request may be sent twice.
//
// GET, HEAD, OPTIONS, TRACE, PUT and DELETE may be sent twice (RFC 9110, 9.2.2). So may every request with an Idempotency-Key or
// X-Idempotency-Key header, even if it is nil, as in net/http. Other requests, such as POST and PATCH, are retried only if
// the failure shows that they were not processed: a rejection, a limited response, an error before there was a connection, or
// a refused HTTP/2 stream (RFC 9113, 8.7). They are not retried after a redirect other than 307 and 308. [WithNonIdempotent]
// lifts these restrictions.
//
// These are never retried: refusals that no waiting ends ([headers.Signal.Final]); refusals and 5xx with X-Should-Retry: false;
// requests whose context has ended, and any error of a context; certificates that do not verify; unknown
// schemes and other requests that cannot be sent; failed redirects and too many redirects.
//
// # Several members
//
// [NewClient] takes a pool of Transports, too, such as one of package pool. A request that failed and is retried is then sent by another
// member, immediately; see [Policy.RoundTripper]. The client waits only after all of them have failed, until the first may be tried again.
//
// # How long it waits
//
// The wait is the longest of
//
//   - what the server reported: Retry-After in every form that package headers reads, or the reset of an empty quota;
//   - what the Transport reported: [throttle.Rejection.Wait];
//   - exponential backoff with equal jitter (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog 2015): before
//     retry n (from 0) between half and all of RetryWaitMin·2ⁿ⁺¹, but at least RetryWaitMin and at most RetryWaitMax.
//
// A wait that the server or the Transport reported is never shortened. If it exceeds [WithMaxWait], one minute by default, the
// request is not retried. Only backoff is reduced to that maximum.
//
// If a Rejection is an error (throttle.WithRejectionError), retryablehttp's Backoff does not see it. Then CheckRetry itself waits
// for the part that exceeds the shortest backoff, and the jitter is added.
//
// # How it ends
//
// A request is not retried if a retry cannot help, if the attempts are used up, if the wait would be too long or beyond the
// deadline, or if the budget is empty. Then the last response is returned immediately, with its body unread, or the last error if
// there was no response. There is no error "giving up after 5 attempt(s)".
//
// The deadline comes from the request's context. It is checked in advance, against the longest possible backoff, or against a
// tenth more (at most a second more) than the wait that a server reported, because a Transport holds requests that much longer.
// If the context ends during a wait, retryablehttp returns its error.
//
// There are two http.Clients. The Timeout of the inner one, Client.HTTPClient, applies to each attempt. It includes the time in
// the Transport's queue, but not the waits between attempts. An attempt that exceeds it is retried like one with a broken
// connection, except a POST with a key, because net/http then hides everything else. An attempt that would be sent after the
// Timeout is rejected with ReasonDeadline and not retried. The Timeout of the outer one, which Client.StandardClient returns,
// applies to all attempts together, as the deadline of the context.
//
// # The budget
//
// When a server is overloaded, retries keep it overloaded. So all goroutines that use a client share a budget. It starts with a
// reserve of 100 retries. Each retry takes one, and each success returns a tenth, up to the reserve. So there are never more
// retries than 100 + 0.1 · successes: while a server is down, 1000 requests cause at most 100 retries. See [WithBudget].
//
// The form is taken from gRPC's retry throttling (gRFC A6, "Throttling Retry Attempts and Hedged RPCs": a count of tokens, and
// 0.1 tokens back for a success in its example). The size is taken from the AWS SDKs' retry quota (500 tokens of which a retry
// costs 5). Retries that put no unexpected load on the server are not counted: those of requests that the Transport rejected,
// and those after a 4xx that reported when to try again.
//
// # Observability
//
// [Policy.Stats] counts attempts, retries by cause, and failures that were not retried by reason. [WithOnRetry] sets a function
// that is called for each retry. [Retries] returns, in a hook of a Transport, how many attempts came before the request.
//
// # Bodies
//
// retryablehttp drains the body of a response that is retried, up to 4 KiB, and closes it. ErrorHandler closes the body of a
// response that comes with an error. retryablehttp rewinds the bodies of requests, and reads those into memory that it cannot
// rewind. It reads the body of a request given to StandardClient, but does not close it.
//
// retryablehttp closes the idle connections of the Transport whenever a request ends in an error or after its last attempt.
// With a nil base those are the connections of http.DefaultTransport. Give throttle.New an http.Transport of its own where
// that matters.
package retry
