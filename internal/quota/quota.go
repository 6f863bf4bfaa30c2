// Package quota is the arithmetic of what servers say about their limits: how long to stay away, and what is left.
//
// It has no lock and no clock. A server is one host, an account is one host and whom a request counts for there, and a gate
// is what the requests of one family pass: they fall under the quotas that the answers to requests of their family name.
package quota

import (
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	second = int64(time.Second)

	maxSilent   = 128
	maxQuotas   = 32
	plenty      = int64(1) << 40       // a quota with that much left bounds nobody
	quotaStale  = 3600 * second        // a quota that was over that long ago makes room for the next
	meanOver    = float64(10 * second) // what the rate is measured over, from which a pace begins
	paceLeast   = 1.0                  // per second
	paceMost    = 10_000.0             // per second; there is no pace above
	paceDoubles = float64(2 * second)  // in which the rate of a pace doubles
	paceIdle    = second               // a pace that is not used for longer is over
	longestBack = 6                    // doublings of the backoff of 1 s
	sameWindow  = second               // resets of one window are told with that precision
)

// A tell is what an answer says of one quota.
type Tell struct {
	Name    string
	Limit   int64 // -1: unknown
	Left    int64
	Reset   meter.Instant // Never: unknown
	Counted bool          // its unit is requests
	Reserve int64         // is left for others
}

// A quota is what a server counts under one name. Where its unit is not requests, it is not known what one costs: it
// stops them only while nothing is left of it.
type quota struct {
	name     string
	limit    int64 // -1: unknown
	told     int64 // what is left, by the server's word; maxCount: unknown
	at       meter.Instant
	low      int64           // the lowest word since then, if told is lower; maxCount: none
	silent   []meter.Instant // the last answers that did not name it
	reset    meter.Instant   // never: unknown
	counted  bool            // its unit is requests
	reserve  int64           // of what is left is for others
	renewed  meter.Instant   // its reset when it was empty, until an answer tells what that gave; never: none
	sent     int64           // since then
	gives    int64           // no more than that was left after such a reset
	inFlight int64           // requests whose answers may tell that less is left
	emptied  meter.Instant   // since then nothing is left for us; never: something is
	luck     float64         // of the jitter after that
	pace     pace
	dice     meter.Dice
	dropped  bool // by its account
}

// newQuota returns a quota of which nothing is known: it stops nobody.
func newQuota(name string, d meter.Dice) quota {
	return quota{name: name, limit: -1, told: meter.MaxCount, at: -1, low: meter.MaxCount, renewed: meter.Never, gives: meter.MaxCount, reset: meter.Never, emptied: meter.Never, dice: d}
}

// ends returns when what is known of it is over.
func (q *quota) ends() meter.Instant {
	if q.reset < meter.Never {
		return q.reset
	}
	return q.at
}

func (q *quota) stale(now meter.Instant) bool { return q.inFlight == 0 && q.ends() < now-quotaStale }

// pays reports whether so many requests can go.
func (q *quota) pays(need int64) bool {
	if !q.counted {
		return q.told > q.reserve || q.reset == meter.Never
	}
	return q.told-q.reserve-q.inFlight >= need
}

// next returns when so many requests can go, not before from. It is not sure if answers that are on their way decide it.
func (q *quota) next(from meter.Instant, need int64) (at meter.Instant, sure bool) {
	if q.reset < meter.Never && !q.pays(need) {
		from = max(from, q.reset)
		renewed := *q
		renewed.renew(0)
		q = &renewed
	}
	return max(from, q.pace.next), q.inFlight == 0 || q.pays(need)
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
	left := min(max(t.Left, 0), meter.MaxCount)
	if t.Limit >= 0 {
		q.limit = min(t.Limit, meter.MaxCount)
	}
	if q.limit >= 0 {
		left = min(left, q.limit)
	}
	if sentAt >= q.renewed {
		q.gives, q.renewed = left+q.sent, meter.Never
	}
	for _, at := range q.silent {
		if at > sentAt {
			left-- // it may have been counted after
		}
	}
	learn := news || left <= q.told
	if t.Reset < meter.Never && (learn || q.reset == meter.Never) {
		q.reset = t.Reset
	}
	q.low = min(q.low, left)
	if learn {
		q.learn(q.low, now)
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
	switch {
	case told > q.reserve:
		q.emptied = meter.Never
	case q.emptied == meter.Never:
		q.emptied, q.luck = at, q.dice.Chance()
	}
}

// resumes returns when the first goes after the reset of an empty quota.
func (q *quota) resumes() meter.Instant {
	return meter.AddInstant(q.reset, meter.Jitter(q.luck, q.reset-q.emptied))
}

// roll brings the quota up to date.
func (q *quota) roll(a *Account, now meter.Instant) {
	switch {
	case q.reset > now:
	case q.emptied == meter.Never:
		q.renew(0)
	default:
		q.renew(a.stopped(q.emptied, q.resumes()))
	}
}

// renew is the reset: all is left again, if it is known how much that is. Those who were stopped go at that rate.
func (q *quota) renew(rate float64) {
	told, at := q.limit, q.reset
	if told < 0 {
		told = meter.MaxCount
	}
	if q.emptied < meter.Never {
		q.pace.begin(q.resumes(), rate)
		q.renewed, q.sent = at, 0
		told = min(told, q.gives)
	}
	q.reset, q.emptied = meter.Never, meter.Never
	q.learn(told, at)
}

// probe forgets what is left when nothing is and nobody is on the way who could tell that there is more. Nor does
// anybody know when it will be, so that requests go one by one.
func (q *quota) probe(a *Account, due meter.Instant) {
	if q.pays(1) || q.inFlight > 0 || q.reset < meter.Never {
		return
	}
	q.pace.begin(due, a.stopped(min(q.emptied, due), due))
	q.learn(meter.MaxCount, due)
}
