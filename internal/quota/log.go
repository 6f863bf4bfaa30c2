package quota

import (
	"sort"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	maxLogged = 1000 // the largest limit for which a log is kept; each departure takes 24 bytes
	spareLog  = 64   // departures that are kept besides as many as the limit allows
	fewLogged = 64   // with fewer responses, a fixed window may look like a log by chance
)

// A log is the sliding log of a server, as far as one client can know it. Servers that keep such a log often tell the reset in
// whole seconds, rounded up, and a client that waits for it loses up to a second for each request that would have found room.
// What is left tells more: of u requests in the log the u-th last was still there, and the one before it was not. Their ages
// bound the length of the log. Once the bounds are close, the client's own departures tell when there is room.
//
// If the bounds contradict each other, the server counts in windows or in a bucket, or other clients share the quota. Then
// only what it tells counts.
type log struct {
	off         bool  // the bounds contradicted each other
	newest      int32 // in ring
	limit       int64 // for which they were learned
	heard       int64 // responses that they were learned from
	need        int64 // so many responses tell enough
	least, most int64 // bounds of the length
	ring        []departure
	certain     int64         // departures since the last doubt
	doubted     meter.Instant // when that was
}

// A departure is a request that left.
type departure struct {
	at, answered meter.Instant // answered is 0 until the response comes
	inFlight     int64         // other requests that had no response then
}

func newLog(limit int64) log { return log{limit: limit, need: 2 * limit, most: meter.MaxCount} }

// back returns the n-th departure before the newest.
func (l *log) back(n int) *departure {
	return &l.ring[(int(l.newest)-n+len(l.ring))%len(l.ring)]
}

// take notes that a request leaves.
func (l *log) take(now meter.Instant, inFlight int64) {
	l.certain++
	switch d := (departure{at: now, inFlight: inFlight}); {
	case l.off || l.limit <= 0 || l.limit > maxLogged:
	case int64(len(l.ring)) < l.limit+spareLog:
		l.ring = append(l.ring, d)
		l.newest = int32(len(l.ring) - 1)
	default:
		l.newest = (l.newest + 1) % int32(len(l.ring))
		l.ring[l.newest] = d
	}
}

// place returns the place of the last request that left by sentAt, counted from the newest departure.
func (l *log) place(sentAt meter.Instant) int {
	return sort.Search(len(l.ring), func(n int) bool { return l.back(n).at <= sentAt })
}

// answer takes the response to a request that left at sentAt.
func (l *log) answer(now, sentAt meter.Instant) {
	for n := l.place(sentAt); n < len(l.ring); n++ {
		if d := l.back(n); d.answered == 0 {
			d.answered = now
			return
		}
	}
}

// doubt says that the server may not have counted a request that left at sentAt. Learning goes on with later ones. A second
// doubt soon after the first, about a request that left after it, ends what was learned. To learn it again takes twice as many
// responses, up to fewLogged.
func (l *log) doubt(now, sentAt meter.Instant) {
	if sentAt >= l.doubted && l.certain <= l.limit && !l.off {
		need := max(l.need, min(2*l.need, fewLogged))
		*l = newLog(l.limit)
		l.need = need
	}
	l.doubted, l.certain = now, 0
}

// hear takes what is left, as told by the response to a request that left at sentAt.
func (l *log) hear(now, sentAt meter.Instant, left, limit int64) {
	if limit != l.limit {
		*l = newLog(limit)
	}
	later := l.place(sentAt)
	if later == len(l.ring) || l.back(later).at != sentAt {
		return
	}
	used := int(limit - left) // this request, and those before it that are in the log
	certain := int(min(l.certain, int64(len(l.ring))))
	if used < 1 || used >= certain {
		return
	}
	l.heard++
	if gone := later + used + int(l.back(later).inFlight); gone < certain { // those in flight may have been counted later
		l.most = min(l.most, now-l.back(gone).at)
	}
	if kept := used - 1; kept > later && l.back(kept).answered > 0 { // later ones may have been counted earlier
		l.least = max(l.least, sentAt-l.back(kept).answered)
	}
	if l.least > l.most+l.most/8 {
		*l = log{off: true, limit: limit}
	}
}

// known reports whether departures tell how much is left. It takes twice as many responses as the limit at least, because a
// fixed window shows only at its end that it is no log.
func (l *log) known() bool {
	return !l.off && l.limit > 0 && l.heard >= l.need && l.least >= l.most-l.most/4
}

// ready returns when at most room requests are in the log. A request may have been counted as late as its response came, but
// a request that hangs is not waited for.
func (l *log) ready(from meter.Instant, room int64) meter.Instant {
	if room >= int64(len(l.ring)) {
		return from
	}
	d := l.back(int(max(0, room)))
	counted := d.at + l.most/8
	if d.answered > 0 {
		counted = min(counted, d.answered)
	}
	return max(from, meter.AddInstant(counted, l.most))
}
