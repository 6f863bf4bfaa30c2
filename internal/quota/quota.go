// Package quota is the arithmetic of what servers report about their limits: how long to stay away, and how much of a quota
// is left.
//
// It has no lock and no clock. A server is one host. An account is one host and one set of request keys. A gate is what the
// requests of one family pass. They fall under the quotas that the responses to requests of this family name. A [Registry] has all
// of them, and bounds how much is kept.
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
	plenty      = int64(1) << 40  // a quota with that much left bounds no request
	quotaStale  = 3600 * second   // a quota that ended so long ago makes room for the next
	longestBack = 6               // doublings of a backoff of 1 s
	mostRow     = longestBack + 4 // refusals in a row that are counted
	sameWindow  = second          // the precision with which servers tell the reset of one window
	othersMost  = 60 * second     // the longest hold of accounts because of a response to another one
	spreadOver  = 10 * second     // the longest time that the rest of a quota is spread over
)

// A Tell is what a response says of one quota.
type Tell struct {
	Name    string
	Limit   int64 // -1: unknown
	Left    int64
	Reset   meter.Instant // Never: unknown
	Counted bool          // its unit is requests
	Reserve int64         // tokens left to other clients
	Refused bool          // the response is a refusal that this quota explains: no request may leave before Reset
	Unit    string        // as the server names it; "": requests
}

// A quota is what a server counts under one name. If its unit is not requests, the cost of a request is unknown. Such a quota
// stops requests only while it is empty.
type quota struct {
	account  *Account
	name     string
	unit     string          // as the server names it
	limit    int64           // -1: unknown
	reserve  int64           // of told, for other clients
	told     int64           // what is left, as the server told; maxCount: unknown
	at       meter.Instant   // when told was learned
	low      int64           // the lowest value told since then, if told is lower; maxCount: none
	silent   []meter.Instant // when the last responses came that did not name it
	inFlight int64           // requests whose responses may tell that less is left
	reset    meter.Instant   // the end of this window: the earliest that was told; never: unknown
	turn     meter.Instant   // its beginning, as far as known
	before   int64           // what was left at the end of the previous window
	length   length
	log      log
	flow     flow
	last     meter.Instant // when the last request left
	counted  bool          // its unit is requests
	awaited  bool          // no response of this window has come
	scarce   bool          // a window ran dry: what is left is spread over the time until the reset
}

// newQuota returns a quota of which nothing is known. It stops no request.
func newQuota(a *Account, name string) quota {
	return quota{account: a, name: name, limit: -1, told: meter.MaxCount, low: meter.MaxCount, reset: meter.Never, turn: -1, length: newLength(), log: newLog(-1), flow: flow{left: -1}}
}

// ends returns when all that is known of the quota is over.
func (q *quota) ends() meter.Instant {
	if q.reset < meter.Never {
		return q.reset
	}
	return q.at
}

func (q *quota) stale(now meter.Instant) bool { return q.inFlight == 0 && q.ends() < now-quotaStale }

// pays reports whether need requests can leave. Requests that the client's own limits or
// Adaptive cover are stopped only when nothing else is left.
func (q *quota) pays(need int64) bool {
	spare := q.told - q.reserve
	switch {
	case q.blind():
		return true
	case !q.counted:
		return spare > 0 || q.reset == meter.Never
	case q.scarce && q.awaited: // one request asks
		return spare > 0 && (q.last < q.turn || q.inFlight == 0)
	case q.account.covered && !q.scarce && !q.account.Off.Covered:
		return spare > 0 || q.fits()
	}
	return spare-q.inFlight >= need
}

// fits reports whether the client's own limits allow no more requests in a window than the server reports to accept in one. Then a
// report of 0 left stops none of them: the next one is sent after the window, whose end many servers report up to a second late.
func (q *quota) fits() bool {
	window := float64(q.reset-q.turn-sameWindow) / 1e9
	return q.account.trusted() && q.reserve == 0 && q.reset < meter.Never && q.turn >= 0 && q.account.own*window <= float64(q.limit)
}

// blind reports whether responses have not shown yet that the quota decides when requests are accepted. Then it neither stops
// requests nor explains refusals. A client without limits of its own believes it until a refusal begins a pace, and one that learns
// how many requests may be in flight goes on to believe it. A client with a limit of its own, which is seldom refused, believes a quota
// that only refusals report.
func (q *quota) blind() bool {
	switch {
	case !q.counted || q.account.Off.Flow:
		return false
	case q.flow.left == onlyRefused:
		return q.account.adaptive || q.account.own == 0 && q.name == Unnamed
	}
	return (q.account.covered || q.account.pace.rate > 0 && !q.account.slots) && !q.flow.forecasts() && (q.flow.left >= 0 || q.account.adaptive)
}

// kept reports whether all that is left is for other clients. This is no claim of the server, so nothing can confirm it.
func (q *quota) kept() bool { return q.told > 0 && q.told <= q.reserve }

// due returns when the next request may be sent. After a window that was exhausted, requests are spread over half of the time until
// the reset, because many servers report it in whole seconds, up to one late, and what is left at the true end is lost. That time is at
// least a second, or all that is left until the reset, and at most spreadOver.
func (q *quota) due() meter.Instant {
	if !q.scarce || q.reset == meter.Never || q.last < q.turn || q.account.Off.Spread {
		return max(0, q.turn)
	}
	spare := max(0, q.told-q.reserve-q.inFlight)
	over := q.reset - q.last
	if !q.account.Off.Early {
		over = max(over/2, min(over, second))
	}
	return meter.AddInstant(q.last, min(over, spreadOver)/(spare+1))
}

// next returns when need requests can leave, not before from. sure is false if that
// depends on responses that have not come.
func (q *quota) next(from meter.Instant, need int64) (at meter.Instant, sure bool) {
	if q.blind() && (q.flow.left == onlyRefused || q.account.trusted()) {
		return from, true
	}
	if q.log.known() && q.counted && !q.account.Off.Log {
		room := q.limit - q.reserve - need
		return q.log.ready(from, room), room >= 0 || q.inFlight == 0
	}
	if q.reset < meter.Never && (q.reset <= from || !q.pays(need)) {
		from = max(from, q.reset)
		renewed := *q
		renewed.renew(from)
		q = &renewed
	}
	return max(from, q.due()), q.inFlight == 0 || q.pays(need)
}

// hear takes what the response to a request says that left at sentAt. If the request left after the last news, its response
// is news, although the server may have counted later requests whose responses came earlier. Among responses out of order
// the lowest value was told last.
func (q *quota) hear(now, sentAt meter.Instant, t *Tell) {
	news := sentAt > q.at
	if !news && q.reset < meter.Never && t.Reset < q.reset-sameWindow {
		return // it tells of the previous window
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
		return // it tells of the previous window
	}
	if t.Reset <= now { // the window ends within a second, because many servers round the time down
		if !q.scarce && !q.flow.forecasts() {
			return
		}
		if t.Reset = meter.Never; left == 0 && q.reset < meter.Never {
			t.Reset = now + second
		}
	}
	q.length.hear(now, sentAt, left, q.limit)
	q.log.hear(now, sentAt, left, q.limit)
	for _, at := range q.silent {
		if at > sentAt {
			left-- // the silent request may have been counted later
		}
	}
	first := q.awaited && sentAt >= q.turn || news && left > q.told // the first response of a window
	if first {
		q.begin(now, sentAt, left)
		if left == q.limit && left > 0 { // a window is over, and a later request begins the next one
			q.await(now)
			return
		}
	}
	learn := first || news || left <= q.told
	if !q.isWindow(now, sentAt, left, t, first) {
		q.flow.contradicted()
	}
	switch {
	case t.Reset == meter.Never:
		q.awaited = q.awaited && !first
	case first && !t.Refused:
		q.reset, q.awaited = t.Reset, false
		if !q.account.Off.Length {
			q.reset = min(q.reset, meter.AddInstant(now, q.length.most))
		}
	case first || t.Refused || q.reset == meter.Never || q.account.Off.Least && learn:
		q.reset, q.awaited = t.Reset, false
	case learn:
		q.reset = min(q.reset, t.Reset)
	}
	if q.turn < 0 && left >= q.limit-max(1, q.limit/8) {
		q.turn = sentAt // nearly all is left, so the window has only begun
	}
	q.low = min(q.low, left)
	if learn {
		q.learn(q.low, now)
		q.scarce = q.scarce || t.Refused
	}
}

// isWindow reports whether a response is what a window would report: it ends when it was reported to end, and the next one does not begin
// with little left. Servers round by a second, and may report before they work on a request.
func (q *quota) isWindow(now, sentAt meter.Instant, left int64, t *Tell, first bool) bool {
	switch {
	case t.Reset == meter.Never:
		return true
	case first:
		return sentAt > q.turn+sameWindow || left > q.limit/4 || t.Reset <= now+2*sameWindow
	}
	return t.Refused || t.Reset-max(0, now-sentAt) <= meter.AddInstant(q.reset, 2*sameWindow)
}

// begin takes the first response of a window, to a request that left at sentAt.
func (q *quota) begin(now, sentAt meter.Instant, left int64) {
	if q.awaited {
		if left <= q.before { // the old window goes on
			q.length = newLength()
		}
		return
	}
	rest := int64(0) // of the limit, for the rest of the window that was expected
	if jumped(q.told, left, q.limit) && q.reset < meter.Never && q.reset > now {
		rest = int64(float64(q.limit) * float64(q.reset-now) / float64(q.reset-max(0, q.turn)))
	}
	q.turned(rest)
	q.turn = sentAt
}

// turned ends a window. If an eighth of the limit is left besides rest, nothing is scarce.
func (q *quota) turned(rest int64) {
	q.before = q.told
	if q.told-q.reserve-q.inFlight > max(1, q.limit/8)+rest {
		q.scarce = false
	}
}

// missed takes a response that does not name the quota. Its request may have been counted.
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
	q.scarce = q.scarce || told <= q.reserve && !q.account.trusted()
}

// roll brings the quota up to date.
func (q *quota) roll(now meter.Instant) {
	if q.reset <= now {
		q.renew(now)
	}
}

// renew is the reset: the whole limit is left again, if it is known. After a window that ran dry, one request asks first.
func (q *quota) renew(now meter.Instant) {
	q.turned(0)
	q.scarce = q.scarce && now-q.last <= second+q.reset-q.turn
	q.await(q.reset)
}

// await begins a window of which no response has come.
func (q *quota) await(at meter.Instant) {
	told := q.limit
	if told < 0 {
		told = meter.MaxCount
	}
	q.turn, q.awaited, q.reset = at, true, meter.Never
	q.learn(told, at)
}

// probe lets one request ask when nothing is left and no request is on its way that could tell of more.
func (q *quota) probe(due meter.Instant) {
	if !q.pays(1) && q.inFlight == 0 && q.reset == meter.Never {
		q.learn(q.reserve+1, due-1) // its answer is news
	}
}
