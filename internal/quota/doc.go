// Package quota forecasts when a server accepts requests, from what its responses report: how long to stay away, and how much of a
// quota is left. It has no lock and no clock.
//
// # What there is
//
//   - A [Server] is one host. It has a barrier, which stops all of its accounts for a time.
//   - An [Account] is one host and one set of request keys: those whom the server refuses as one. It has a barrier; a row of refusals; a
//     pace, at which requests resume; a record of what was accepted; and at most one final refusal.
//   - A [Gate] is what the requests of one family pass. It knows the quotas that responses to these requests have named.
//   - A quota is what a server counts together: departures (which requests were sent to it), a window (what is left, until when) with its
//     lateness and its length, a flow (what comes back before the end), a retry (when to ask whether something is left again) and a doubt (of
//     reports that accepted requests contradict).
//   - A [Registry] finds these, and bounds how much is kept.
//
// Whose waits a refusal begins (an account) and what is counted together (a quota) are separate ideas: an account has several quotas, and a
// gate falls under some of them.
//
// # What a response does
//
// [Hints] are what the response reports, and a [Reading] is what that comes to now. [Gate.Judge] decides the [Kind] of the response, once:
// everything after that, here and in the limits that learn, reads the Kind. Then the quotas take what is reported of them, and a refusal
// changes its account.
//
// # Who reads what
//
// The record counts always, and is read when a refusal comes: by the pace, for the rate of before, and by the backoff. What is not known
// is no rate. Departures order the responses for the window and the flow. The window's end moves by its lateness, and the retry waits for
// it. Nothing else has a memory of what was accepted or refused.
package quota

import "time"

const second = int64(time.Second)
