// Package server has what is known of a server, for all that learns from its responses.
//
// It has no lock and no clock.
package server

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	second = int64(1e9)

	// Longest is the longest wait between two requests of an account that no server has asked for, unless what was seen explains a longer
	// one; see [Backoff.Until].
	Longest = 64 * second

	outageMost = 120 * second // what refuses everything for longer is not only down

	darkPart  = 3  // of the time in which nothing was accepted is a wait at most, and one after a refusal at least
	lateParts = 16 // of the time in which nothing was accepted: so much later than asked for a request is sent
	gapTimes  = 3  // as long as the longest gap is a wait at most
	gapMemory = 16 // times as long as a gap it takes until it is forgotten
)

// A Backoff bounds the waits of an account that no server has asked for. Such waits are guesses, and arithmetic about what is not known
// could make one of them last for days.
//
// Its time stands still while the client rests, which means that it has nothing to send: that shows nothing of the server. And a gap is
// as long as the server has shown, up to the last request in it that was not accepted, or as one before: otherwise a wait would make the
// next one three times as long.
type Backoff struct {
	last  meter.Instant // when the last request was sent; -1: none was
	since meter.Instant // when the last accepted request was sent, or else the first request; later by the rests since
	gap   int32         // the longest time lately between two accepted requests, in seconds
	shut  int32         // from since to the request before the last one, in seconds
}

// NewBackoff returns the Backoff of an account of which nothing is known.
func NewBackoff() Backoff { return Backoff{last: -1} }

// Last returns when the last request was sent; -1: none was.
func (b *Backoff) Last() meter.Instant { return b.last }

// Sent takes a request that is sent, and whether it waited. It returns for how long the client rested before it.
func (b *Backoff) Sent(now meter.Instant, waited bool) (rested int64) {
	switch {
	case b.last < 0:
		b.since = now
	case !waited:
		rested = max(0, now-b.last)
		b.since += rested
	}
	b.shut = inSeconds(b.last - b.since)
	b.last = max(b.last, now)
	return rested
}

// Rested takes a time in which the client had nothing to send.
func (b *Backoff) Rested(d int64) { b.since += d }

// Accepted takes an accepted request that was sent then.
func (b *Backoff) Accepted(sent meter.Instant) {
	if d := sent - b.since; d > 0 {
		b.gap = max(min(inSeconds(d), max(b.gap, b.shut)), b.gap-inSeconds(d/gapMemory))
		b.since = sent
	}
}

// Learn takes that requests are accepted that far apart, as was learned before.
func (b *Backoff) Learn(gap int64) { b.gap = max(b.gap, inSeconds(gap)) }

// Most returns the longest wait after the last request: the longest of a minute, a third of the time for which nothing has been accepted,
// and three times the longest gap lately between two accepted requests.
func (b *Backoff) Most() int64 {
	return max(Longest, (b.last-b.since)/darkPart, int64(b.gap)*second*gapTimes)
}

// Wait returns how long to wait after a refusal that does not say so, where the caller would wait for d: no shorter than a third of the time
// in which nothing has been accepted. A refused request may count, or prolong a ban. Each such wait is a third longer than the one before,
// so it outgrows the ban, however long that is. A server that may be down is to be used again right after that, so there d counts for two
// minutes.
func (b *Backoff) Wait(d int64, maybeDown bool) int64 {
	dark := b.last - b.since
	if maybeDown && dark <= outageMost {
		return d
	}
	return max(d, dark/darkPart)
}

// Asked returns how long to wait after a refusal that asks for a wait of d. The end that a server names may be too early each time, and a
// request before the true end may begin the wait again. So a long wait is longer by a sixteenth of the time in which nothing has been
// accepted, but at most twice as long. A short wait stays as it is: it costs little if it begins again, and in a short window that others
// use, too, a client that waits longer gets nothing.
func (b *Backoff) Asked(d int64) int64 {
	if d <= Longest {
		return d
	}
	return d + min(d, (b.last-b.since)/lateParts)
}

func inSeconds(d int64) int32 { return int32(max(0, min(d/second, math.MaxInt32))) }

// Until returns the end of a wait of the n-th request from now that no server has asked for: at, but no later than n times Most after the
// last request.
func (b *Backoff) Until(at meter.Instant, n int64) meter.Instant {
	if b.last < 0 || at-b.last <= Longest {
		return at
	}
	most := b.Most()
	if n >= meter.Never/most {
		return at
	}
	return min(at, meter.AddInstant(b.last, n*most))
}
