// Package quota forecasts when a server accepts requests, from what its responses report: how long to stay away, and how much of a
// quota is left.
//
// It has no lock and no clock. A server is one host. An account is one host and one set of request keys. A gate is what the
// requests of one family pass. They fall under the quotas that the responses to requests of this family name. A [Registry] has all
// of them, and bounds how much is kept.
package quota

import (
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	second = int64(time.Second)

	rounding   = second      // by which times that servers report are wrong, or differ
	shortest   = 2 * second  // windows that are no longer than that may end at any time, as far as rounded times show
	firstRetry = second / 32 // after a request was refused although the window should have ended
	sparsest   = 2 * second  // the longest time between requests to a server that accepts some of them
)

// A Claim is what a response reports about one quota.
type Claim struct {
	Name    string
	Limit   int64 // -1: unknown
	Left    int64
	Reset   meter.Instant // Never: unknown
	Counted bool          // its unit is requests
	Reserve int64         // tokens left to other clients
	Refused bool          // the request was refused because nothing was left
	Unit    string        // as the server names it; "": requests
}

// A quota is what a server counts under one name. What is known of it comes from a few principles:
//
//   - The response to the latest request says what is left. Responses to earlier requests can only lower it.
//   - A window ends at the earliest time that was reported for it, corrected by how much earlier or later the last three ended. While
//     nothing is left, requests wait for that.
//   - A window has ended when at least half of what was used comes back at once. What comes back bit by bit is a flow.
//   - If less is left than the client has used, others use the quota. The last requests are left to them.
//   - Once a window ran dry, what is left of the next ones is spread over the time until they end, at first over a second less, because what
//     is left at the end is lost, and the last request shows whether it was the end.
//   - A client with limits of its own, none of which learns, is trusted: quotas stop its requests only after a refusal.
//   - That a request was accepted is worth more than what its response reports; see doubt.
//
// If the unit is not requests, the cost of a request is unknown. Such a quota stops requests only while it is empty.
type quota struct {
	account  *Account
	name     string
	unit     string // as the server names it
	counted  bool   // its unit is requests
	served   bool   // responses to accepted requests report it
	doubt    doubt  // of reports that nothing is left
	limit    int64  // -1: unknown
	most     int64  // the limit or, if that is unknown, the most that was left
	reserve  int64  // of what is left, for other clients
	inFlight int64
	sent     int64         // requests that have left
	recent   uint64        // which of the account's last requests fall under it; lowest bit: the last
	last     meter.Instant // when the last request left

	left   int64         // MaxCount: unknown
	leftAt meter.Instant // when a response reported it
	newest struct {      // the latest request that has a response
		n    int64 // its number
		sent meter.Instant
	}
	low    int64 // the least that was left in this window
	scarce bool  // this window or the one before ran dry
	flow   flow

	reset meter.Instant // the earliest end that was reported for this window; Never: unknown
	late  int64         // the latest of lates
	more  int64         // how much later than that this window ends, as refusals past the end show
	lates [3]int64      // how much later the last windows ended than reported; negative: earlier, by a second until they have shown it
	seen  int8          // windows that have shown it, up to three

	try     meter.Instant // when the next request leaves after the last of a window
	backoff int64         // between such requests after the end
	held    meter.Instant // none leaves before, because a refusal that names the quota says so
}

// newQuota returns a quota of which nothing is known. It stops no request.
func newQuota(a *Account, name string) quota {
	q := quota{account: a, name: name, limit: -1, left: meter.MaxCount, low: meter.MaxCount, reset: meter.Never, lates: [3]int64{-rounding, -rounding, -rounding}}
	q.newest.n, q.try = math.MinInt64, math.MinInt64
	return q
}

// end returns when this window ends; Never: unknown.
func (q *quota) end() meter.Instant { return q.corrected(q.reset) }

// corrected returns the end of a window that is reported to end then.
func (q *quota) corrected(reset meter.Instant) meter.Instant {
	if reset == meter.Never {
		return reset
	}
	return meter.AddInstant(reset, min(q.late+q.more, rounding))
}

// hold blocks all requests for as long as a refusal says, whatever other responses report: they may be of another quota that the server
// does not tell apart. A short wait may be rounded up by most of it, so there the model of the window counts for the last second.
func (q *quota) hold(now meter.Instant, wait int64, reset meter.Instant) {
	until := min(reset, meter.AddInstant(now, min(wait, longestHold)))
	if wait <= shortest {
		until -= rounding
	}
	q.held = max(q.held, until)
}

// refills returns how many requests come back per ns; 0: none, as far as is known.
func (q *quota) refills() float64 {
	if !q.scarce {
		return 0
	}
	return q.flow.rate()
}

// others returns how many requests of other clients are counted for each of the client's, as far as responses show.
func (q *quota) others() int64 { return q.flow.others() }

// free returns what is left for requests that have not left yet. Less than 0: more than that are in flight.
func (q *quota) free() int64 { return q.left - q.withheld() - q.inFlight }

// empty reports whether nothing is left.
func (q *quota) empty() bool { return q.left <= q.withheld() }

// withheld returns how much of what is left is for others. The last requests are: clients that each see one left send several.
func (q *quota) withheld() int64 { return q.reserve + min(q.others(), q.most/8) }

// number returns how many requests had left with the account's n-th. If more than 64 have left since, it is about that many.
func (q *quota) number(n int64) int64 {
	since := max(0, q.account.sent-n)
	shown := min(since, 64)
	under := int64(bits.OnesCount64(q.recent << (64 - shown)))
	return q.sent - under - (since-shown)*int64(bits.OnesCount64(q.recent))/64
}

// report takes what the response to the account's n-th request reports, which left at sent.
func (q *quota) report(now, sent meter.Instant, n int64, refused bool, c *Claim) {
	left := q.describe(c)
	n = q.number(n)
	q.served = q.served || !refused
	switch {
	case c.Refused:
		q.doubt.refuted()
	case !refused && q.left == 0 && sent > q.leftAt && (q.reset == meter.Never || sent < q.reset) && q.refills() == 0:
		q.doubt.accepted(left)
	}
	if n >= q.newest.n {
		q.take(now, sent, n, left, refused, c)
	} else if c.Reset >= q.reset-rounding && left < q.left { // it was counted after the newest, in the same window
		q.flow.back += float64(left - q.left)
		q.left, q.leftAt = left, now
	} else {
		return
	}
	switch {
	case c.Refused:
		q.refused(now, sent)
	case !refused:
		q.backoff /= 4
		q.dry(now)
	}
}

// take takes the newest response.
func (q *quota) take(now, sent meter.Instant, n, left int64, refused bool, c *Claim) {
	first := q.left == meter.MaxCount
	if !first && sent <= q.leftAt { // another request may have been counted after it, whose response was faster
		left = min(left, q.left)
	}
	if !first && n > q.newest.n {
		q.learn(sent, n, left, refused)
	}
	if sent > q.leftAt || left < q.left {
		q.left, q.leftAt = left, now
	}
	q.newest.n, q.newest.sent, q.low = n, sent, min(q.low, left)
	switch {
	case c.Reset == meter.Never, left == q.limit && !first: // if nothing is used, it was counted in the window before
	case q.reset == meter.Never, q.end() <= sent && !refused && left > 0: // while nothing is left, no new window is believed
		q.reset, q.more = c.Reset, 0
		// Others began a short window some time ago: a quarter of what one alone would take for it.
		if used := max(0, q.most-1-left); c.Reset-now <= shortest && q.others() > 0 {
			q.reset -= int64(float64(used) / float64(q.most) * float64(c.Reset-now) / 4)
		}
	case q.end() > sent:
		q.reset = min(q.reset, c.Reset)
		q.try = min(q.try, q.end())
	}
}

// describe takes what does not change from request to request, and returns what is left.
func (q *quota) describe(c *Claim) (left int64) {
	q.counted, q.reserve = c.Counted, min(max(c.Reserve, 0), meter.MaxCount)
	if q.unit != c.Unit {
		q.unit = strings.Clone(c.Unit)
	}
	left = min(max(c.Left, 0), meter.MaxCount)
	if limit := min(c.Limit, meter.MaxCount); limit >= 0 {
		if q.limit >= 0 && q.limit != limit { // another quota, of the same name
			q.flow = flow{}
		}
		q.limit, q.most = limit, limit
	}
	if q.limit >= 0 {
		left = min(left, q.limit)
	}
	q.most = max(q.most, left)
	return left
}

// learn takes what has come back since the newest response.
func (q *quota) learn(sent meter.Instant, n, left int64, refused bool) {
	counted := n - q.newest.n
	if refused {
		counted--
	}
	back := left - (q.left - counted)
	if !refused && sent > q.leftAt && left > q.left && back >= max(2, (q.most-q.left)/2) {
		q.turned(sent)
	} else if !refused || q.flow.back > 0 { // that nothing is left shows nothing of others
		q.flow.add(back, sent-q.newest.sent)
	}
}

// turned takes the first response of a window. The one before ended between the newest request and this one. That says something of how
// late ends are reported if these two are close, or if the newest was refused within a second after the reported end.
func (q *quota) turned(sent meter.Instant) {
	if q.low-q.reserve > max(1, q.most/8) && q.end() <= sent { // else it may only have been spread over too long a time
		q.scarce = false
	}
	after := q.newest.sent - q.reset
	if shared := q.others() > 0; q.reset < meter.Never && (shared || sent-q.newest.sent < rounding || q.more > 0 && after <= rounding) {
		if shared { // others may have used up the window before it was seen
			q.late, q.more = 0, 0
		}
		q.seen = min(q.seen+1, int8(len(q.lates)))
		copy(q.lates[1:], q.lates[:])
		q.lates[0] = min(max(q.late+q.more, after), sent-q.reset, rounding)
		q.late = slices.Max(q.lates[:])
	}
	q.low, q.reset = q.most, meter.Never
}

// start returns when the next request leaves after the last one of a window. If others use the quota, that is a random time after the end,
// so that no client is always the first.
func (q *quota) start(now meter.Instant) meter.Instant {
	end := q.end()
	switch wait := end - now; {
	case wait <= 0, end == meter.Never:
		return now + max(q.backoff, firstRetry)
	case wait > longestHold:
		return meter.AddInstant(now, longestHold)
	case q.others() > 0:
		return meter.AddInstant(end, q.account.dice.Jitter(wait))
	}
	return end
}

// dry takes a response to an accepted request, after which nothing may be left.
func (q *quota) dry(now meter.Instant) {
	if q.empty() {
		q.scarce, q.try = q.scarce || !q.account.trusted(), q.start(now)
	}
}

// refused takes a refusal that reports that nothing is left.
func (q *quota) refused(now, sent meter.Instant) {
	q.scarce, q.left = true, 0
	switch end := q.end(); {
	case q.refills() > 0: // not so fast
		q.flow.back /= 2
		q.wait(now)
	case sent < q.try: // it left before that was known
	case end > now && end < meter.Never:
		q.try = q.start(now)
	default:
		q.wait(now)
		q.more = min(q.more+rounding/2, rounding)
	}
}

// wait sets when a request tries again after one was refused for a reason that is not known.
func (q *quota) wait(now meter.Instant) {
	q.backoff = min(max(2*q.backoff, firstRetry), second<<longestBack)
	q.try = q.retry(now)
}

// retry returns a time a backoff after from, less a random part: at regular times, others might always have used up the window.
func (q *quota) retry(from meter.Instant) meter.Instant {
	return meter.AddInstant(from, q.backoff-int64(q.account.dice.Chance()*float64(min(q.backoff/2, second))))
}

// missed takes a response that does not name the quota.
func (q *quota) missed(now, sent meter.Instant, n int64, refused bool) {
	switch {
	case !q.counted || q.left == meter.MaxCount || refused && !q.empty():
	case refused:
		q.refused(now, sent)
	case sent >= q.end(), q.empty() && sent >= q.try: // something is left
		q.left, q.reset, q.backoff = q.most, meter.Never, 0
		q.newest.n, q.newest.sent = q.number(n), sent
	default:
		q.left, q.newest.n = max(0, q.left-1), q.newest.n+1
		q.dry(now)
	}
}
