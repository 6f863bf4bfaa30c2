// Package retry puts [retryablehttp] and a [throttle.Transport] together: retries outside, the Transport inside, so that
// every attempt stands in line and pays.
//
//	client := retry.NewClient(transport)            // a *retryablehttp.Client
//	resp, err := client.Get("https://example.com/") // or client.StandardClient(), for an SDK
//
// A client of one's own takes the parts: see [New].
//
// (One exception is not ours to make: where a connection breaks that was used before, net/http's Transport itself sends an
// idempotent request again, below ours and unpaid.)
//
// # What is retried
//
//   - A refusal by the Transport (a synthetic 429, or a [throttle.Rejection] as an error), except for a cost that can never
//     be paid and a deadline that can't be met.
//   - A response that says that the request was limited ([headers.Signal.Limited]: 429, 503 with Retry-After, 403 with
//     Retry-After, …).
//   - Another 5xx except 501, a status of 0, an error of the connection, an attempt that ran into the Timeout of the inner
//     http.Client, and an error of a response handler: if the request may be sent twice.
//
// GET, HEAD, OPTIONS, TRACE, PUT and DELETE may be sent twice (RFC 9110, 9.2.2), and so may every request that has an
// Idempotency-Key or X-Idempotency-Key header, be it nil, as in net/http. Others, POST and PATCH above all, are retried
// only where the failure itself says that they were not processed: a refusal, a response that was limited, an error before
// there was a connection, an HTTP/2 stream that was refused (RFC 9113, 8.7); and not where a redirect other than 307 and
// 308 has answered them before. [WithNonIdempotent] lifts that.
//
// Never retried: a request whose context is over, and any error that is a context's; certificates that don't verify;
// schemes that there are not, and other requests that can't be sent; redirects that went wrong or were too many.
//
// # How long it waits
//
// The longest of
//
//   - what the server said: Retry-After in every form that package headers reads, or the reset of a quota that is empty;
//   - what the Transport said: [throttle.Rejection.Wait];
//   - exponential backoff with equal jitter (Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog 2015): before
//     retry n (from 0) between half and all of RetryWaitMin·2ⁿ⁺¹, never less than RetryWaitMin, nor more than RetryWaitMax.
//
// What the server or the Transport said is never shortened. If it is longer than [WithMaxWait], one minute by default,
// there is no retry; backoff alone is cut to it.
//
// Where a Rejection comes as an error (throttle.WithRejectionError), retryablehttp's Backoff can't know of it, so CheckRetry
// itself waits for what the shortest backoff would lack, and the jitter comes on top.
//
// # How it ends
//
// When there is no retry, be it that none can help, that attempts are used up, that the wait would be too long or would not
// end before the deadline, or that the budget is empty, the last response comes back at once and whole, its body unread;
// or the last error, if there was no response. There is no "giving up after 5 attempt(s)".
//
// The deadline is that of the request's context, and judged in advance by the longest that the backoff may be, and a tenth
// (a second at most) more than a server's word, since a Transport holds that much longer. Where the context ends during a
// wait, retryablehttp returns its error.
//
// There are two http.Clients. The Timeout of the inner one, Client.HTTPClient, is for each attempt: its time in the
// Transport's line included, but not the waits between attempts. An attempt that runs into it is retried as after a broken
// connection (but a POST with a key is not, since net/http then hides everything else); one whose turn in line would come
// after it is refused with ReasonDeadline, and not retried. The Timeout of the outer one, which Client.StandardClient
// returns, is for all attempts together: it reaches them as the deadline of the context.
//
// # The budget
//
// When a server is down, retries are what keeps it there. So a client has a budget for all its goroutines: it starts with a
// reserve of 100 retries, each retry takes one, each success gives back a tenth, up to the reserve. At no time were there
// more retries than 100 + 0.1 · successes: of a server that is down, 1000 requests make at most 100 retries, and then each
// is sent once until some succeed. See [WithBudget].
//
// The form is that of gRPC's retry throttling (gRFC A6, "Throttling Retry Attempts and Hedged RPCs": a count of tokens, and
// 0.1 tokens back for a success in its example), the size that of the AWS SDKs' retry quota (500 tokens of which a retry
// costs 5). It does not count retries that put no load on the server that it did not invite: those of requests that the
// Transport refused, and those after a 4xx that named the time to come back.
//
// # Bodies
//
// The body of a response that is retried is drained (4 KiB at most) and closed by retryablehttp; that of a response which
// comes along with an error is closed by ErrorHandler. Bodies of requests are rewound by retryablehttp, which reads those
// into memory that it can't rewind; mind that it reads the body of a request given to StandardClient, but does not close it.
//
// retryablehttp closes the idle connections of the Transport whenever a request ends in an error or after its last attempt,
// and with a nil base those are the ones of http.DefaultTransport: give throttle.New an http.Transport of its own where
// that matters.
package retry
