// Package allowance forecasts what a server lets an account spend in a unit such as tokens: when the next request can be paid, by what its
// responses report, and by what it refuses. It has no lock and no clock.
//
// # What there is
//
//   - A [Meter] is the limit of one account in one unit. It knows the requests that were sent, each with an estimate of its cost and, once it
//     has ended, with its true cost.
//   - A part is a quota that responses report under one name, such as input-tokens. A Meter has one for each, and the least of them counts.
//   - A fit is what a request costs in a part, for each token of its estimate: a share when it is sent, and a share when it ends.
//     So it does not matter whether a server keeps estimates (1, 0), gives back what was not used (1, less than 0), or counts what is
//     produced (0, more than 0).
//   - A hidden limit is what refusals show, while no part explains them: one of what requests cost, and one of their number.
//   - A Learned is all of it but the requests, for the next process.
//
// # What is left
//
// A response reports what was left when its request came. Requests that were sent after it are not counted yet, and those that ended since
// have changed it. So what is left now is what was reported, and what has come back since, less the shares of these requests.
package allowance

import "time"

const second = int64(time.Second)
