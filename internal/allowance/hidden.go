package allowance

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	burst = minute // what a limit that is not reported is taken to have saved up at first, in time

	longWait    = 10        // times as long as a request takes at the rate is a wait for the end of a window
	windowTries = 1.0 / 512 // of what was accepted in a window is left, four times, and then tried in addition, twice as much each time
)

// A hidden is a limit that only refusals show: a bucket or, if a refusal asks for a wait that is much longer than a request takes, a window.
type hidden struct {
	begun  meter.Instant
	began  bool
	known  bool
	sure   bool          // the rate is what was accepted between two refusals, and not a guess
	rate   float64       // of what is charged, per ns
	at     meter.Instant // of the refused request that showed it
	then   float64       // charged by then
	stops  meter.Instant // of the requests that were sent before its response, all are of that refusal
	window float64       // what is charged in a window; 0: it is none
	ends   meter.Instant // of the window
	more   float64       // by what part the next window is larger, unless a request of this one is refused
	from   float64       // charged when it began
}

// begin notes the first request.
func (h *hidden) begin(now meter.Instant, s *sends) {
	if !h.began {
		h.begun, h.began = now, true
	}
	if h.window > 0 && now >= h.ends {
		h.ends += (now-h.ends)/minute*minute + minute
		h.from = s.charged()
		h.window *= 1 + h.more
		h.more = min(2*h.more, 1)
	}
}

// refused takes a refusal.
func (h *hidden) refused(now, sent meter.Instant, cost int64, before total, wait int64) {
	if sent <= h.stops {
		return
	}
	took := float64(sent - h.begun)
	charged := before.charged()
	switch {
	case h.known && h.window == 0:
		rate := (charged - h.then) / float64(max(sent-h.at, 1))
		weigh := min(1, float64(sent-h.at)/float64(60*second))
		h.rate += (rate - h.rate) * weigh
		h.sure = h.sure || weigh == 1
	case !h.known:
		h.rate = charged / (took + float64(burst))
	}
	if h.rate <= 0 {
		return
	}
	if h.window > 0 || float64(wait) > max(2e9, longWait*float64(cost)/h.rate) {
		h.window, h.more = (charged-h.from)*(1-4*windowTries), windowTries
		if wait > 0 {
			h.ends = now + wait
		}
	}
	h.known, h.at, h.then, h.stops = true, sent, charged, now
}

// A trial is how fast more than the rate is tried after a refusal: nothing for a time, then a share of the rate that doubles in another time.
type trial struct{ after, doubles, share float64 }

// trial returns how more is tried now. A guess is tried sooner.
func (h *hidden) trial() trial {
	if h.sure {
		return trial{60e9, 120e9, 0.005}
	}
	return trial{10e9, 20e9, 0.02}
}

// at returns the rate a time after a refusal, as a factor, and what has come back in that time, as a time.
func (t trial) at(since float64) (factor, grown float64) {
	factor, grown = 1-t.share, (1-t.share)*since
	if after := since - t.after; after > 0 {
		e := math.Exp2(min(after/t.doubles, 10)) - 1
		factor += t.share * e
		grown += t.share * (t.doubles/math.Ln2*e - after)
	}
	return factor, grown
}

// ready returns when cost can be paid, not before from.
func (h *hidden) ready(from, last meter.Instant, cost float64, s *sends) meter.Instant {
	if !h.known {
		return from
	}
	if h.window > 0 {
		if from >= h.ends {
			return from
		}
		free := h.window - (s.charged() - h.from)
		if free < cost {
			return h.ends
		}
		even := float64(h.ends-from) / free * cost
		return min(h.ends, max(from, meter.AddInstant(last, int64(even))))
	}
	want := s.charged() - h.then + cost
	factor, grown := h.trial().at(float64(from - h.at))
	if short := want - h.rate*grown; short > 0 {
		return meter.AddInstant(from, int64(short/(h.rate*factor))+1)
	}
	return from
}
