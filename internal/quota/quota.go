package quota

import (
	"math"
	"strings"
	"unsafe"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	sparsest   = 2 * second  // the longest time between requests to a server that accepts some of them
	spreadOver = 10 * second // the longest time that what is left of a quota is spread over
)

// A quota is what a server counts under one name. Its parts are the requests that were sent to it, the window and the flow that their
// responses show, and when to try again once nothing is left. What is known of it comes from a few principles:
//
//   - While nothing is left, requests wait for the end of the window.
//   - A window has ended when at least half of what was used comes back at once. What comes back bit by bit is a flow.
//   - If less is left than the client has used, others use the quota. The last requests are left to them, and the client sends slower.
//   - Once a window ran dry, what is left of the next ones is spread over the time until they end, at first over a second less, because what
//     is left at the end is lost, and the last request shows whether it was the end.
//   - A client with limits of its own, none of which learns, is trusted: quotas stop its requests only after a refusal.
//   - That a request was accepted is worth more than what its response reports; see doubt.
//
// If the unit is not requests, the cost of a request is unknown. Such a quota stops no request itself; see [units].
type quota struct {
	departures
	window
	retry
	flow     flow
	ages     *ages // nil: it never ran dry, or its limit is not known
	doubt    doubt // of reports that nothing is left
	counted  bool  // its unit is requests
	covered  bool  // a limit of the client, in its unit, stops requests, and this one none
	served   bool  // responses to accepted requests report it
	scarce   bool  // this window or the one before ran dry
	early    bool  // something came back before the end that was reported: that is when all is back
	account  *Account
	name     string
	unit     *string // as the server names it; nil: it does not
	reserve  int64   // of what is left, for other clients
	inFlight int64
	held     meter.Instant // no request is sent before, because a refusal that names the quota says so
}

// newQuota returns a quota of which nothing is known. It stops no request.
func newQuota(a *Account, name string) quota {
	q := quota{account: a, name: name}
	q.window = window{lateness: newLateness(), limit: -1, left: meter.MaxCount, low: meter.MaxCount, reset: meter.Never}
	q.newest.n, q.try = math.MinInt64, math.MinInt64
	return q
}

// forget makes it a quota of which nothing is known, except what is in flight.
func (q *quota) forget() {
	inFlight := q.inFlight
	*q = newQuota(q.account, q.name)
	q.inFlight = inFlight
}

// unlearn forgets what responses have shown of the server's rate and times.
func (q *quota) unlearn() { q.flow, q.early, q.length, q.ages = flow{}, false, nil, nil }

// hold blocks all requests for as long as a refusal says, whatever other responses report: they may be of another quota that the server
// does not tell apart. A short wait may be rounded up by most of it, so there the model of the window counts for the last second.
func (q *quota) hold(now meter.Instant, wait int64, reset meter.Instant) {
	until := min(reset, meter.AddInstant(now, min(wait, longestHold)))
	if wait <= shortest {
		until -= rounding
	}
	q.held = max(q.held, until)
}

// holdUntil does so after a refusal that names the quota, and has a request try again at a random time after that.
func (q *quota) holdUntil(until meter.Instant) {
	q.held, q.try = max(q.held, until), max(q.try, q.after(until, q.account.dice.Chance()))
}

// refills returns how many requests come back per ns; 0: none, as far as is known.
func (q *quota) refills() float64 {
	if !q.scarce {
		return 0
	}
	rate := q.flow.rate()
	if q.ages.known() {
		if full := float64(q.most) / float64(q.ages.age()); rate == 0 || full < rate { // a bucket that is not empty shows ages that are too short
			rate = full
		}
	}
	return rate
}

// opens returns until when nothing is left of what was reported last; Never: it is not known.
func (q *quota) opens() meter.Instant {
	if q.reset == meter.Never && !q.counted && q.account.units != nil {
		return q.account.units.MinuteEnd(q.leftAt)
	}
	return q.end()
}

// flows reports whether something comes back before the end, as far as is known.
func (q *quota) flows() bool {
	if q.counted {
		return q.refills() > 0
	}
	return q.account.units != nil && q.account.units.Refills(q.name)
}

// free returns what is left for requests that have not left yet. Less than 0: more than that are in flight.
func (q *quota) free() int64 { return q.left - q.withheld() - q.inFlight }

// empty reports whether nothing is left.
func (q *quota) empty() bool { return q.left <= q.withheld() }

// report takes what the response to a request reports.
func (q *quota) report(now meter.Instant, rep *Report, c *Figures) {
	sent, n, refused := rep.Sent, q.before(rep.Number), rep.Verdict.Refused()
	left := q.describe(c)
	q.served = q.served || !refused
	switch {
	case c.Refused:
		q.doubt.refuted()
	case !refused && q.left == 0 && sent > q.leftAt && sent < q.opens() && !q.flows():
		q.doubt.accepted(left)
	}
	if !refused && q.left == 0 && sent > q.leftAt && q.reset < meter.Never {
		q.early = q.early || now+(now-sent) < q.reset-rounding // which may have been reported as late as this response came
	}
	q.aged(sent, n >= q.newest.n, left, refused, c.Refused)
	if n >= q.newest.n {
		q.take(now, sent, n, left, refused, c.Reset)
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
		q.accepted()
		q.dry(now)
	}
}

// take takes what the newest response reports.
func (q *quota) take(now, sent meter.Instant, n, left int64, refused bool, reset meter.Instant) {
	first := q.left == meter.MaxCount
	if q.length == nil && reset == meter.Never {
		q.length = new(length)
	}
	if !first && sent <= q.leftAt { // another request may have been counted after it, whose response was faster
		left = min(left, q.left)
	}
	switch {
	case first && !refused && q.length != nil:
		q.length.began(sent, false)
	case !first && n > q.newest.n:
		q.learn(sent, n, left, refused)
	}
	if sent > q.leftAt || left < q.left {
		q.left, q.leftAt = left, now
	}
	q.newest.n, q.newest.sent, q.low = n, sent, min(q.low, left)
	if reset != meter.Never && (left != q.limit || first) { // if nothing is used, it was counted in the window before
		old := q.end()
		q.ends(now, sent, reset, !refused && (left > 0 || q.full(left)), q.shared())
		if old > sent && old < meter.Never {
			q.try = min(q.try, q.end())
		}
	}
}

// aged takes what a response shows of how old the requests are that are counted. If only some of the limit is used, that may be how
// fast they were sent.
func (q *quota) aged(sent meter.Instant, newest bool, left int64, refused, empty bool) {
	if q.ages == nil {
		if q.limit <= 0 || !q.counted || !q.scarce {
			return
		}
		q.ages = newAges(q.limit)
	}
	if !refused {
		q.ages.add(sent)
	}
	if newest && (empty || !refused) && left <= q.limit/8 {
		q.ages.shows(sent, q.limit-left, q.inFlight, empty)
	}
}

// unitName returns the unit as the server names it; "": it does not.
func (q *quota) unitName() string {
	if q.unit == nil {
		return ""
	}
	return *q.unit
}

// describe takes what does not change from request to request, and returns what is left.
func (q *quota) describe(c *Figures) (left int64) {
	q.covered, q.counted, q.reserve = c.Covered, c.Counted, min(max(c.Reserve, 0), meter.MaxCount)
	if q.unitName() != c.Unit {
		unit := strings.Clone(c.Unit)
		q.unit = &unit
	}
	left, other := q.resize(c)
	if other {
		q.unlearn()
	}
	return left
}

// learn takes what has come back since the newest response.
func (q *quota) learn(sent meter.Instant, n, left int64, refused bool) {
	counted := n - q.newest.n
	if refused {
		counted--
	}
	back := left - (q.left - counted)
	shared := q.shared()
	switch {
	case !refused && sent > q.leftAt && left > q.left && back >= q.whole(sent):
		q.turned(sent)
		if shared { // they may have been faster
			q.flow.add(min(0, left-(q.most-counted)), 0)
		}
		q.ages.returned(q.most-left <= 1+q.inFlight)
	case refused && shared: // they have used what was left; the request itself is not counted
		q.flow.back += float64(min(0, back))
	case !refused && q.full(left): // that shows no upper bound, and of one request none at all
		if q.most > 1 {
			q.flow.add(2*back, sent-q.newest.sent)
		}
	case !refused, q.flow.back > 0: // else, that nothing is left shows nothing of others
		if q.flow.add(back, sent-q.newest.sent); back > q.inFlight {
			q.ages.returned(false)
		}
	}
}

// full reports whether all of the quota was left before a request whose response reports what is left now.
func (q *quota) full(left int64) bool { return left >= q.most-1 }

// turned takes the first response of a window. The one before ended between the newest request and this one. That says something of how
// late ends are reported if these two are close, or if the newest was refused within a second after the reported end.
func (q *quota) turned(sent meter.Instant) {
	shared := q.shared()
	// Others may have used the rest after the last response, unless little time was left. And if much is left, it may only have been spread
	// over too long a time.
	if seen := !shared || q.end()-q.newest.sent < q.lasts()/8; seen && q.low-q.reserve > max(1, q.most/8) && q.end() <= sent {
		q.scarce = false
	}
	after := q.newest.sent - q.reset
	if q.reset < meter.Never && (shared || sent-q.newest.sent < rounding || q.more > 0 && after <= rounding) {
		q.closed(after, sent-q.reset, shared)
	}
	if l := q.length; l != nil {
		l.began(sent, q.left <= q.reserve && sent-q.try <= (sent-l.begun)/lengthSure)
	}
	q.low, q.reset, q.followed = q.most, meter.Never, true
}

// start returns when the next request leaves after the last one of a window. If others use the quota, that is within a turn after the
// end, at a random time, so that no client is always the first.
func (q *quota) start(now meter.Instant) meter.Instant {
	end := q.end()
	switch wait := end - now; {
	case wait <= 0, end == meter.Never:
		return now + max(q.backoff, firstRetry)
	case wait > longestHold:
		return meter.AddInstant(now, longestHold)
	case q.shared():
		return meter.AddInstant(end, int64(q.account.dice.Chance()*float64(q.turn())))
	}
	return end
}

// dry takes a response to an accepted request, after which nothing may be left.
func (q *quota) dry(now meter.Instant) {
	if q.empty() {
		q.scarce, q.try = q.scarce || !q.account.own.trusted(), q.start(now)
	}
}

// refused takes a refusal that reports that nothing is left.
func (q *quota) refused(now, sent meter.Instant) {
	q.scarce, q.left = true, 0
	flows := q.flow.refused() || q.refills() > 0
	switch {
	case flows: // not so fast
		q.again(now, q.account.dice.Chance())
	case sent < q.try: // it left before that was known
	default:
		if q.reset == meter.Never && q.length != nil {
			q.backoff = max(q.backoff, q.length.refused(sent))
		}
		end := q.end()
		if end > now && end < meter.Never {
			q.try = q.start(now)
			return
		}
		if lasts := q.lasts(); lasts > 0 && q.shared() { // they may have used up the next window
			q.backoff = min(max(q.backoff, q.turn()), lasts/2)
		}
		q.again(now, q.account.dice.Chance())
		q.past()
	}
}

// missed takes a response that does not name the quota.
func (q *quota) missed(now meter.Instant, rep *Report) {
	sent, refused := rep.Sent, rep.Verdict.Refused()
	switch {
	case !q.counted || q.left == meter.MaxCount || refused && !q.empty():
	case refused:
		q.refused(now, sent)
	case sent >= q.end(), q.empty() && sent >= q.try: // something is left
		q.left, q.reset, q.backoff = q.most, meter.Never, 0
		q.newest.n, q.newest.sent = q.before(rep.Number), sent
	default:
		q.left, q.newest.n = max(0, q.left-1), q.newest.n+1
		q.dry(now)
	}
}

// bounds reports whether the quota may have less than n left besides what is in flight.
func (q *quota) bounds(n int64) bool { return q.believed() && q.free() < n }

// believed reports whether what responses report of the quota bounds requests.
func (q *quota) believed() bool { return q.served && !q.doubt.on && !q.covered }

// next returns when need requests can leave, not before from. sure is false if that depends on responses that have not come.
func (q *quota) next(from meter.Instant, need int64) (at meter.Instant, sure bool) {
	asked := max(from, q.held)
	if at, sure = q.ready(asked, need); at <= asked {
		return at, sure
	}
	if q.reset < meter.Never {
		asked = max(asked, q.end())
	}
	if at > asked { // by what was learned, or for another try
		at = max(asked, q.account.backoff.Until(at, need))
	}
	return at, sure
}

// ready is next as far as reports show.
func (q *quota) ready(at meter.Instant, need int64) (meter.Instant, bool) {
	switch {
	case !q.counted, !q.believed() || q.left == meter.MaxCount, !q.scarce && (q.reserve == 0 || q.left > q.reserve) && q.account.own.trusted():
		return at, true
	case q.refills() > 0:
		return q.refilled(at, need), true
	case !q.bounds(need):
		return q.spread(at), true
	case q.empty():
		return max(at, q.try), q.inFlight == 0
	case q.reset < meter.Never:
		at = max(at, q.end())
	}
	return at, q.inFlight == 0
}

// over returns the time over which what is left is used; a second if the end is unknown.
func (q *quota) over() int64 {
	if end := q.end(); end > q.last && end < meter.Never {
		d := end - q.last
		if !q.certain() && !q.shared() { // it may end a second earlier
			d = max(d/2, d-second)
		}
		return min(d, spreadOver)
	}
	return second
}

// spread returns when the next request leaves of what is left until the end. If others use the quota, that may be in the next window.
func (q *quota) spread(at meter.Instant) meter.Instant {
	end, slower := q.end(), q.slower()
	switch {
	case !q.scarce, end == meter.Never, end <= at && slower == 1: // over an unknown time nothing can be spread
		return at
	case end <= at: // others use the new window, too
		return max(at, meter.AddInstant(q.last, q.turn()))
	}
	n := q.free()
	if q.certain() { // else the last one leaves at the earliest end there may be, and shows whether it is one
		n++
	}
	n = max(1, n)
	if part := float64(n) / slower; part < 1 {
		return meter.AddInstant(end, int64((1-part)*float64(q.turn())))
	}
	return max(at, meter.AddInstant(q.last, int64(slower*float64(q.over())/float64(n))))
}

// refilled returns when a quota that refills has enough for need requests. They leave a little slower than it refills, and use what is left
// besides.
func (q *quota) refilled(at meter.Instant, need int64) meter.Instant {
	if need > q.free() && q.ages.known() {
		if gone, ok := q.ages.gone(q.limit - q.withheld() - q.inFlight - need + 1); ok {
			at = max(at, gone)
		}
	}
	rate := q.refills()
	level := float64(q.free()) + rate*float64(max(0, at-q.newest.sent))
	level = min(level, float64(q.most)) - float64(need)
	rate = flowUsed*rate + max(0, level)/float64(max(q.over(), second))
	return max(at, meter.AddInstant(q.last, int64(min(1/rate, max(float64(sparsest), float64(q.backoff), q.flow.longest())))))
}

// room returns how many requests per second the quota can be seen to allow now; +Inf: it does not say.
func (q *quota) room(now meter.Instant) float64 {
	if !q.counted || !q.believed() || q.left == meter.MaxCount {
		return math.Inf(1)
	}
	rate, over := q.refills(), spreadOver
	if end := q.end(); end < meter.Never {
		over = max(end-now, second)
	}
	if rate > 0 {
		over = min(over, sparsest)
	}
	return 1e9 * (rate + float64(max(0, q.left-q.reserve))/float64(over))
}

// ended reports whether the window of which responses report has ended.
func (q *quota) ended(now meter.Instant) bool { return q.end() <= now && q.refills() == 0 }

// heldUntil returns until when nothing of the quota is sent, because of a refusal, because nothing is left for the client, or because what
// is left is spread; 0: nothing holds it.
func (q *quota) heldUntil(now meter.Instant) meter.Instant {
	until, _ := q.next(now, 1)
	if !q.counted && q.believed() && q.empty() && q.account.units != nil {
		until = max(until, q.account.units.Ready(now, 0, 1))
	}
	if until > now {
		return until
	}
	return 0
}

// backsOff reports whether nothing is left, and the next request asks later whether something is.
func (q *quota) backsOff(now meter.Instant) bool {
	return q.counted && q.believed() && q.empty() && q.scarce && now < q.try
}

// remaining returns what is left now, with what is in flight; MaxCount: unknown. After the end it is what a new window has, unless requests
// wait all the same.
func (q *quota) remaining(now meter.Instant) int64 {
	switch {
	case !q.ended(now), q.backsOff(now):
		return q.left
	case q.limit < 0:
		return meter.MaxCount
	}
	return q.limit
}

// shown returns what remains for people; -1: unknown.
func (q *quota) shown(now meter.Instant) int64 {
	if left := q.remaining(now); left < meter.MaxCount {
		return left
	}
	return -1
}

// bound returns how many requests the quota allows now, with those in flight, if it bounds them.
func (q *quota) bound(now meter.Instant) (n int64, known bool) {
	left := q.remaining(now)
	return left - q.reserve, q.believed() && left < meter.MaxCount && (q.counted || left <= q.reserve)
}

func (q *quota) size() int {
	n := int(unsafe.Sizeof(*q)) + len(q.name) + len(q.unitName()) + q.ages.size()
	if q.length != nil {
		n += int(unsafe.Sizeof(*q.length))
	}
	return n
}

// known returns until when what is known of the quota counts.
func (q *quota) known() meter.Instant {
	if q.reset < meter.Never {
		return max(q.reset, q.held)
	}
	return max(q.newest.sent, q.held)
}

// stops reports whether the quota stops requests until a known time, such as when the next one asks whether something is left.
func (q *quota) stops(now meter.Instant) bool {
	return now < q.held || q.backsOff(now) || q.believed() && q.empty() && q.reset < meter.Never && now < q.end()
}

// worth is higher for a quota that stops requests.
func (q *quota) worth(now meter.Instant) int {
	if q.stops(now) {
		return 1
	}
	return 0
}
