package allowance

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

const (
	longWait    = 10            // times as long as a request takes at the rate is a wait for the end of a window
	shortWait   = 2e9           // and no shorter one is, in ns
	sureAfter   = float64(60e9) // between two refusals, for the rate to be what was accepted between them
	windowTries = 1.0 / 1024    // of what was accepted in a window is tried in addition in the next one, and then twice as much each time
	windowSpare = 8             // times that is left at first
)

// A hidden is a limit that only refusals show. It is taken for a bucket that was full when the first request came, and holds what
// comes back in a minute. If a refusal asks for a wait that is much longer than a request takes, it is a window of a minute.
//
// What is charged is the estimates of requests in flight, and what others did cost, or the requests. So the first refusal is a
// guess of the rate, and what was accepted between two refusals is the rate: both times nothing was left. A little more is tried as
// time goes by.
type hidden struct {
	counts bool          // requests, and not what they cost, because refusals say so
	begun  meter.Instant // when the first request was sent
	rate   float64       // of what is charged, per ns; 0: there was no refusal
	sure   bool          // it is no guess
	at     meter.Instant // when the request was sent that was refused last
	then   float64       // what was charged by then
	rested int64         // for how long the client had rested in all by then
	stops  meter.Instant // requests that were sent by then are of the same refusal; -1: there was none
	window float64       // what may be charged in a window; 0: it is none
	more   float64       // by what part the next window is larger, unless a request of this one is refused
	ends   meter.Instant // of the window
	from   float64       // what was charged when it began
}

// charged returns what is charged of all that was sent.
func (h *hidden) charged(t total) float64 {
	if h.counts {
		return t.count
	}
	return t.charged()
}

// turn begins the window of which now is a part.
func (h *hidden) turn(now meter.Instant, then total) {
	h.ends += (now-h.ends)/minute*minute + minute
	h.from = h.charged(then)
	h.window *= 1 + h.more
	h.more = min(2*h.more, 1)
}

// refused takes a refusal. In all, the client has rested for so long.
func (h *hidden) refused(now meter.Instant, x *send, wait, rested int64) {
	charged, cost := h.charged(x.before), float64(x.cost)
	if h.counts {
		cost = 1
	}
	if x.at <= h.stops || charged <= 0 || h.rate == 0 && charged <= h.then {
		return
	}
	switch since := float64(x.at - h.at - (rested - h.rested)); {
	case h.rate == 0:
		h.rate = (charged - h.then) / float64(x.at-h.begun-(rested-h.rested)+minute)
	case h.window == 0:
		weight := min(1, since/sureAfter)
		h.rate += weight * (max(charged-h.then, 0)/since - h.rate)
		h.sure = h.sure || weight == 1
	}
	if h.window > 0 || float64(wait) > max(shortWait, longWait*cost/h.rate) {
		h.window, h.more = (charged-h.from)*(1-windowSpare*windowTries), windowTries
		if wait > 0 {
			h.ends = now + wait
		}
	}
	h.at, h.then, h.stops, h.rested = x.at, charged, now, rested
}

// ended takes that a request has ended. A rate that is a guess is at least what was accepted of a bucket that was full at first: of
// requests that are sent together, the second may be refused and all others accepted.
func (h *hidden) ended(now meter.Instant, s *sends) {
	if h.rate == 0 || h.sure || h.window > 0 {
		return
	}
	spent := s.spent
	if h.counts {
		spent = s.count - float64(s.open)
	}
	h.rate = max(h.rate, (spent-h.from)/float64(now-h.begun+minute))
}

// A trial is how fast more than the rate is tried after a refusal: a little less for a time, in ns, and then a share of the rate
// that doubles in another time.
type trial struct{ after, doubles, share float64 }

// trial returns how more is tried. A guess is tried sooner.
func (h *hidden) trial() trial {
	if h.sure {
		return trial{60e9, 120e9, 0.005}
	}
	return trial{10e9, 20e9, 0.02}
}

// at returns the rate a time after a refusal, as a factor, and what has come back in that time, as a time.
func (t trial) at(since float64) (factor, back float64) {
	factor, back = 1-t.share, (1-t.share)*since
	if after := since - t.after; after > 0 {
		e := math.Exp2(min(after/t.doubles, 10)) - 1
		factor += t.share * e
		back += t.share * (t.doubles/math.Ln2*e - after)
	}
	return factor, back
}

// ready returns when cost can be paid, not before from, after a request that was sent last. It is that of n requests. A refusal has shown
// the rate.
func (h *hidden) ready(from, last meter.Instant, cost, n float64, s *sends, b *server.Backoff) meter.Instant {
	switch {
	case h.window > 0 && from >= h.ends:
		return from
	case h.window > 0:
		free := h.window - (h.charged(s.total) - h.from)
		if free < cost {
			return h.ends
		}
		each := float64(h.ends-from) / free
		return min(h.ends, max(from, meter.AddInstant(last, int64(each*cost))))
	}
	factor, back := h.trial().at(float64(from - h.at))
	if short := h.charged(s.total) - h.then + cost - h.rate*back; short > 0 {
		return max(from, b.Until(meter.AddInstant(from, int64(min(short/(h.rate*factor), float64(meter.MaxPer)))+1), int64(math.Ceil(n))))
	}
	return from
}
