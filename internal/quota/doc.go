// Package quota forecasts when a server accepts requests, from what its responses report: how long to stay away, and how much of a
// quota is left. It has no lock and no clock.
//
// # What there is
//
//   - A [Server] is one host. It has a barrier, which stops all of its accounts for a time.
//   - A group is one host and one set of request keys. Its requests are one account, or several.
//   - An [Account] is requests that the server counts and refuses together. It has a barrier; a rate that is
//     learned from the first refusal on that nothing explains; a record of what was accepted; and at most one final refusal.
//   - A [Gate] is what requests of one account pass that have the same family, method and credential, and the same finer traits, if these
//     matter. It knows the quotas that responses to these requests have named.
//   - A quota is what a server counts together: departures (which requests were sent to it), a window (what is left, until when) with its
//     lateness and its length, a flow (what comes back before the end), ages (how old the requests are that are counted), a retry
//     (when to ask whether something is left again) and a doubt (of reports that accepted requests contradict).
//   - Units are the quotas of an account that do not count requests. One [allowance.Meter] learns what a request costs in each of them, and
//     stops requests; the quota only shows what was reported, and doubts it.
//   - A [Registry] finds these, and bounds how much is kept.
//
// # What is counted together
//
// All requests of a group begin in one account. A gate leaves it when responses show that the server counts its requests separately:
//
//   - A response reports another limit of a quota than responses to requests of other gates.
//   - Three more of its counts than not follow from the requests of the gate alone, and not from all requests of the account.
//   - A request of the gate is accepted while the account is held.
//   - Its requests are refused, and those of other gates that are sent in between are accepted, more often than by chance.
//
// It joins the account whose limits, end and count fit the response, or else a new one. If three of its counts in a row follow from the
// requests of another account, and not from those of its own, it joins that one. If responses to requests of one gate report two sets
// of quotas, the trait that differs between their requests distinguishes requests of that family from then on. It replaces traits that
// were found before, because these may have differed with it by chance; if one of them is found again, both count. What a mixture of
// quotas has shown of rates and times is forgotten. Requests that wait then belong to the gates of their parts, and a part of which the
// last response reported nothing left does not ask whether the end concerns it. If no trait is found, the next search begins once twice as
// many requests were sent.
//
// A new gate begins in the account of the gate that is most alike. If that account must wait, one request asks whether the gate belongs
// there: until a response has shown that it does, by a count or a refusal, or two other gates have asked and were refused. So a request
// that the server counts separately waits for no other, and it costs at most one refusal to find that it does not. Gates are forgotten
// with what they have shown, and a gate that was alone in its account asks again once there is another one. Their number, that of the
// accounts of a group, and that of the families with finer traits are bounded.
//
// # What a response does
//
// [Hints] are what the response reports, and a [Reading] is what that comes to now. [Gate.Judge] decides the [server.Verdict] on the response, once:
// everything after that, here and in the limits that learn, reads it. Where only a learner can know more, it says so before the refusal is kept. Then the quotas take what is reported of them, and a refusal
// changes its account. Some hold the whole host: then one request to another account asks whether that is so.
//
// # Who reads what
//
// The record counts always, and is read when a refusal comes: for the rate of before. What is not known is no rate. Departures order the
// responses for the window and the flow. The window's end moves by its lateness, and the retry waits for it. What refusals have shown says
// whether as many are refused at any rate: then [Gate.Judge] says so, and no refusal lowers a rate, here or in any limit. Where a limit of
// the client learns a rate, the account learns none: the limit learns from the wait, and the account keeps it. But of parts that are counted
// separately there is no common rate, so their accounts decide. Nothing else has a memory of what was accepted or refused.
package quota

import "time"

const second = int64(time.Second)
