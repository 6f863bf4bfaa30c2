// Package quota is the arithmetic of what servers say about their limits: how long to stay away, and what is left.
//
// It has no lock and no clock. A server is one host, an account is one host and whom a request counts for there, and a gate
// is what the requests of one family pass: they fall under the quotas that the answers to requests of their family name.
package quota

import (
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	second = int64(time.Second)

	maxSilent   = 128
	maxQuotas   = 32
	plenty      = int64(1) << 40 // a quota with that much left bounds nobody
	quotaStale  = 3600 * second  // a quota that was over that long ago makes room for the next
	longestBack = 6              // doublings of the backoff of 1 s
	sameWindow  = second         // resets of one window are told with that precision
	spreadOver  = 10 * second    // the longest time that what is left is spread over
)

// A Tell is what an answer says of one quota.
type Tell struct {
	Name    string
	Limit   int64 // -1: unknown
	Left    int64
	Reset   meter.Instant // Never: unknown
	Counted bool          // its unit is requests
	Reserve int64         // is left for others
	Refused bool          // the answer is a refusal that it explains: nothing is to be sent before Reset
	Unit    string        // as the server names it; "": requests
}

// A quota is what a server counts under one name. Where its unit is not requests, it is not known what one costs: it
// stops them only while nothing is left of it.
type quota struct {
	account  *Account
	name     string
	unit     string          // as the server names it
	counted  bool            // its unit is requests
	limit    int64           // -1: unknown
	reserve  int64           // of what is left is for others
	told     int64           // what is left, by the server's word; maxCount: unknown
	at       meter.Instant   // told is known since
	low      int64           // the lowest word since then, if told is lower; maxCount: none
	silent   []meter.Instant // the last answers that did not name it
	inFlight int64           // requests whose answers may tell that less is left
	reset    meter.Instant   // the end of this window: the earliest that was told; never: unknown
	turn     meter.Instant   // its beginning, as far as known
	awaited  bool            // no word of this window has come
	before   int64           // what was left at the end of the window before
	scarce   bool            // a window ran dry: what is left is spread over the time to its end
	last     meter.Instant   // departure
	dropped  bool            // by its account
}

// newQuota returns a quota of which nothing is known: it stops nobody.
func newQuota(a *Account, name string) quota {
	return quota{account: a, name: name, limit: -1, told: meter.MaxCount, at: -1, low: meter.MaxCount, reset: meter.Never, last: -1, turn: -1}
}

// ends returns when what is known of it is over.
func (q *quota) ends() meter.Instant {
	if q.reset < meter.Never {
		return q.reset
	}
	return q.at
}

func (q *quota) stale(now meter.Instant) bool { return q.inFlight == 0 && q.ends() < now-quotaStale }

// pays reports whether so many requests can go that leave that part of the quota. What own limits or Adaptive cover is
// stopped only when nothing is left.
func (q *quota) pays(need int64, part float64) bool {
	spare := q.told - q.reserve
	if part > 0 && q.limit > 0 {
		spare -= meter.Reserved(q.limit, part)
	}
	switch {
	case !q.counted:
		return spare > 0 || q.reset == meter.Never
	case q.scarce && q.awaited: // one asks
		return spare > 0 && (q.last < q.turn || q.inFlight == 0)
	case q.account.covered && !q.scarce && !q.account.Off.Covered:
		return spare > 0
	}
	return spare-q.inFlight >= need
}

// due returns when the next request may go of what is left: after a window that ran dry, evenly until its end.
func (q *quota) due() meter.Instant {
	if !q.scarce || q.reset == meter.Never || q.last < q.turn || q.account.Off.Spread {
		return max(0, q.turn)
	}
	spare := max(0, q.told-q.reserve-q.inFlight)
	return meter.AddInstant(q.last, min(q.reset-q.last, spreadOver)/(spare+1))
}

// next returns when so many requests can go that leave that part of the quota, not before from. It is not sure if answers that are on their way decide it.
func (q *quota) next(from meter.Instant, need int64, part float64) (at meter.Instant, sure bool) {
	if q.reset < meter.Never && (q.reset <= from || !q.pays(need, part)) {
		from = max(from, q.reset)
		renewed := *q
		renewed.renew(from)
		q = &renewed
	}
	return max(from, q.due()), q.inFlight == 0 || q.pays(need, part)
}

// hear notes what an answer says, to a request that was sent then. One that was sent after what is known was learned
// tells the news, but others may have been counted after it that were answered before it. Of words that are out of order
// the lowest was the last.
func (q *quota) hear(now, sentAt meter.Instant, t *Tell) {
	news := sentAt > q.at
	if !news && q.reset < meter.Never && t.Reset < q.reset-sameWindow {
		return // of the window before
	}
	q.counted, q.reserve = t.Counted, min(max(t.Reserve, 0), meter.MaxCount)
	if q.unit != t.Unit {
		q.unit = strings.Clone(t.Unit)
	}
	left := min(max(t.Left, 0), meter.MaxCount)
	if t.Limit >= 0 {
		q.limit = min(t.Limit, meter.MaxCount)
	}
	if q.limit >= 0 {
		left = min(left, q.limit)
	}
	if sentAt < q.turn && left <= q.before && t.Reset <= q.turn+sameWindow+now-sentAt && !t.Refused {
		return // of the window before
	}
	for _, at := range q.silent {
		if at > sentAt {
			left-- // it may have been counted after
		}
	}
	first := q.awaited && sentAt >= q.turn || news && left > q.told // word of a window
	if first && !q.awaited {
		q.turned()
		q.turn = sentAt
	}
	learn := first || news || left <= q.told
	switch {
	case t.Reset == meter.Never:
	case first || t.Refused || q.reset == meter.Never || q.account.Off.Least && learn:
		q.reset, q.awaited = t.Reset, false
	case learn:
		q.reset = min(q.reset, t.Reset)
	}
	q.low = min(q.low, left)
	if learn {
		q.learn(q.low, now)
	}
}

// turned notes that a window is over.
func (q *quota) turned() {
	q.before = q.told
	if q.told-q.reserve-q.inFlight > max(1, q.limit/8) {
		q.scarce = false
	}
}

// missed notes an answer that does not name the quota: its request may have been counted.
func (q *quota) missed(now meter.Instant) {
	if q.counted {
		q.learn(q.told-1, now)
		if len(q.silent) == maxSilent {
			q.silent = slices.Delete(q.silent, 0, maxSilent/2)
		}
		q.silent = append(q.silent, now)
	}
}

func (q *quota) learn(told int64, at meter.Instant) {
	q.told, q.at, q.low = told, at, meter.MaxCount
	q.scarce = q.scarce || told <= q.reserve
}

// roll brings the quota up to date.
func (q *quota) roll(now meter.Instant) {
	if q.reset <= now {
		q.renew(now)
	}
}

// renew is the reset: all is left again, if it is known how much that is. After a window that ran dry one request asks first.
func (q *quota) renew(now meter.Instant) {
	q.turned()
	q.scarce = q.scarce && now-q.last <= second+q.reset-q.turn
	told := q.limit
	if told < 0 {
		told = meter.MaxCount
	}
	at := q.reset
	q.turn, q.awaited, q.reset = at, true, meter.Never
	q.learn(told, at)
}

// probe lets a request ask when nothing is left and none is on its way that could tell that there is more.
func (q *quota) probe(due meter.Instant) {
	if !q.pays(1, 0) && q.inFlight == 0 && q.reset == meter.Never {
		q.learn(q.reserve+1, due-1) // its answer is news
	}
}
