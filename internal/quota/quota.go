// Package quota forecasts when a server accepts requests, from what its responses report: how long to stay away, and how much of a
// quota is left.
//
// It has no lock and no clock. A server is one host. An account is one host and one set of request keys. A gate is what the
// requests of one family pass. They fall under the quotas that the responses to requests of this family name. A [Registry] has all
// of them, and bounds how much is kept.
package quota

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	second = int64(time.Second)

	askAfter   = 2 * second  // at most, before a request tries whether nothing is left
	firstRetry = second / 32 // after a request was refused although the window should have ended
	latest     = second      // after the end that a server reports, windows end
	about      = 2 * second  // a window that ends so close to the end that was reported proves that right
	closely    = second      // requests that are so close to each other show when a window ends between them
	sameWindow = second      // ends that are reported for one window differ by less
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
//   - A window ends at the earliest time that was reported for it, corrected by how much earlier or later the last three ended.
//   - A window has ended when at least half of what was used comes back at once. If less comes back, the quota refills all the time,
//     and the rate at which it does says more than any end; see flow.
//   - That nothing is left until some end is not taken on trust, unless it is less than a second away: halfway to it, but after two seconds at
//     most, one request tries. If it is refused, or if the last window ended when it was reported to, the next one leaves at the end.
//   - Once a window ran dry, what is left of the next ones is spread over the time until they end. Until three have shown how late ends
//     are reported, it is spread over a second less, because what is left at the end is lost.
//   - A client with limits of its own, none of which learns, is trusted: quotas stop its requests only after a refusal.
//
// If the unit is not requests, the cost of a request is unknown. Such a quota stops requests only while it is empty.
type quota struct {
	account  *Account
	name     string
	unit     string // as the server names it
	counted  bool   // its unit is requests
	served   bool   // responses to accepted requests report it
	limit    int64  // -1: unknown
	most     int64  // the limit or, if that is unknown, the most that was left
	reserve  int64  // of what is left, for other clients
	inFlight int64
	sent     int64         // requests that have left
	base     int64         // requests of the account that left before the quota was known
	last     meter.Instant // when the last request left

	left   int64         // MaxCount: unknown
	leftAt meter.Instant // when a response reported it
	newest struct {      // the response to the latest request
		n    int64 // the number of the request
		sent meter.Instant
		left int64
	}
	low    int64 // the least that was left in this window
	scarce bool  // this window or the one before ran dry
	flow   flow

	reset  meter.Instant // the earliest end that was reported for this window; Never: unknown
	late   int64         // the latest of lates
	lates  [3]int64      // how much later the last windows ended than reported; negative: earlier
	seen   int8          // windows that have shown it, up to three
	proven bool          // the last window that ran dry ended about when it was reported to

	try     meter.Instant // when a request tries whether nothing is left
	backoff int64         // between such requests after the end
	held    meter.Instant // none leaves before, because a refusal that names the quota says so
}

// newQuota returns a quota of which nothing is known. It stops no request.
func newQuota(a *Account, name string) quota {
	q := quota{account: a, name: name, limit: -1, base: a.sent, left: meter.MaxCount, low: meter.MaxCount, reset: meter.Never}
	q.newest.n, q.try = math.MinInt64, math.MinInt64
	return q
}

// end returns when this window ends; Never: unknown.
func (q *quota) end() meter.Instant {
	if q.reset == meter.Never || q.account.Off.Late {
		return q.reset
	}
	return meter.AddInstant(q.reset, q.late)
}

// refills returns how many requests come back per ns; 0: none, as far as is known.
func (q *quota) refills() float64 {
	if q.account.Off.Flow || !q.scarce {
		return 0
	}
	return q.flow.rate()
}

// ended reports whether the window of which responses report has ended.
func (q *quota) ended(now meter.Instant) bool { return q.end() <= now && q.refills() == 0 }

// free returns what is left for requests that have not left yet. Less than 0: more than that are in flight.
func (q *quota) free() int64 { return q.left - q.reserve - q.inFlight }

// empty reports whether nothing is left.
func (q *quota) empty() bool { return q.left <= q.reserve }

// kept reports whether all that is left is for other clients. That is no claim of the server, so no request tries whether it is true.
func (q *quota) kept() bool { return q.left > 0 && q.empty() }

// number returns how many requests had left with the account's n-th. If others of the account's fall under other quotas, it is about
// that many: errors do not add up.
func (q *quota) number(n int64) int64 {
	share := 1.0
	if all := q.account.sent - q.base; all > q.sent {
		share = float64(q.sent) / float64(all)
	}
	return q.sent - int64(math.Round(share*float64(q.account.sent-n)))
}

// report takes what the response to the account's n-th request reports, which left at sent.
func (q *quota) report(now, sent meter.Instant, n int64, refused bool, c *Claim) {
	left := q.describe(c)
	n = q.number(n)
	q.served = q.served || !refused
	if n >= q.newest.n {
		q.take(now, sent, n, left, refused, c)
	} else if c.Reset >= q.reset-sameWindow && left < q.newest.left { // it was counted after the newest, in the same window
		q.flow.back += float64(left - q.newest.left)
		q.newest.left = left
		if left < q.left {
			q.left, q.leftAt = left, now
		}
	} else {
		return
	}
	switch {
	case c.Refused:
		q.refused(now, sent, c.Reset)
	case !refused:
		q.backoff /= 4
		q.dry(now, sent)
	}
}

// take takes the newest response.
func (q *quota) take(now, sent meter.Instant, n, left int64, refused bool, c *Claim) {
	first := q.left == meter.MaxCount
	turned := !first && n > q.newest.n && q.learn(sent, n, left, refused)
	if turned || sent > q.leftAt || left <= q.left { // else another request may have been counted later, whose response was faster
		q.left, q.leftAt = left, now
	}
	if !first && q.newest.left == 0 && left == 0 && !refused && sent < q.end() && q.account.trusted() { // that nothing was left was wrong
		q.scarce = false
	}
	q.newest.n, q.newest.sent, q.newest.left = n, sent, left
	q.low = min(q.low, left)
	switch {
	case c.Reset == meter.Never:
	case q.end() > sent:
		q.reset = min(q.reset, c.Reset)
		if end := q.end(); end > now {
			q.try = min(q.try, end)
		}
	case !refused && left > 0: // while nothing is left, no new window is believed
		q.reset = c.Reset
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
			q.flow, q.proven = flow{}, false
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
func (q *quota) learn(sent meter.Instant, n, left int64, refused bool) (turned bool) {
	counted := n - q.newest.n
	if refused {
		counted--
	}
	back := left - (q.newest.left - counted)
	if !refused && sent > q.leftAt && back >= max(2, (q.most-q.newest.left)/2) {
		q.turned(sent)
		return true
	}
	q.flow.add(back, sent-q.newest.sent)
	return false
}

// turned takes the first response of a window. The one before ended between the newest request, if that left after the reported end, and
// this one.
func (q *quota) turned(sent meter.Instant) {
	if q.low-q.reserve > max(1, q.most/8) && q.end() <= sent { // else it may only have been spread over too long a time
		q.scarce = false
	}
	if q.reset < meter.Never {
		span := sent - q.newest.sent
		if span < closely {
			late := min(max(q.late, q.newest.sent-q.reset), sent-q.reset)
			q.seen = min(q.seen+1, int8(len(q.lates)))
			copy(q.lates[1:], q.lates[:])
			q.lates[0] = min(late, latest)
			q.late = slices.Max(q.lates[:])
		}
		if q.newest.left <= q.reserve {
			switch { // it may have ended long before a request that leaves long after the reported end
			case sent < q.reset-about || q.newest.sent > q.reset+about || q.refills() > 0:
				q.proven = false
			case sent <= q.reset+about:
				q.proven = true
			}
		}
	}
	q.low, q.reset = q.most, meter.Never
}

// dry takes a response to an accepted request, after which nothing may be left.
func (q *quota) dry(now, sent meter.Instant) {
	if !q.empty() {
		return
	}
	q.scarce = q.scarce || !q.account.trusted()
	switch end := q.end(); {
	case end == meter.Never || end <= now:
		q.try = now + max(q.backoff, firstRetry)
	case q.proven || q.kept() || end-sent <= second || q.account.Off.Ask:
		q.try = end
	default:
		q.try = min(end, sent+min(askAfter, (end-sent)/2))
	}
}

// refused takes a refusal that reports that nothing is left until reset.
func (q *quota) refused(now, sent, reset meter.Instant) {
	q.scarce = true
	q.left, q.newest.left = 0, 0
	end := q.end()
	switch {
	case q.refills() > 0: // not so fast
		q.flow.back /= 2
		q.wait(now)
	case sent < q.try: // it left before that was known
	case end > now && end < meter.Never:
		q.try, q.proven = end, true
	case q.backoff > 0 && reset > now && reset < meter.Never: // each refusal begins a window
		q.reset = reset
		q.try = min(reset, meter.AddInstant(now, askAfter))
	default:
		q.wait(now)
		if q.reset < meter.Never {
			q.late = min(q.late+second/2, latest)
		}
	}
}

// wait sets when a request tries again after one was refused for a reason that is not known.
func (q *quota) wait(now meter.Instant) {
	q.backoff = min(max(2*q.backoff, firstRetry), second<<longestBack)
	q.try = meter.AddInstant(now, q.backoff)
}

// missed takes a response that does not name the quota.
func (q *quota) missed(now, sent meter.Instant, n int64, refused bool) {
	switch {
	case !q.counted || q.left == meter.MaxCount:
	case refused:
		if q.empty() {
			q.refused(now, sent, meter.Never)
		}
	case sent >= q.end(), q.empty() && sent >= q.try: // something is left
		q.left, q.reset, q.backoff = q.most, meter.Never, 0
		q.newest.n, q.newest.sent, q.newest.left = q.number(n), sent, q.most
	default:
		q.left = max(0, q.left-1)
		q.dry(now, sent)
	}
}
