package allowance

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	burst     = minute      // what a limit that is not reported is taken to have saved up at first, in time
	steadyFor = 30 * second // after a refusal, for which nothing more is tried
	growsIn   = 60 * second // in which what is tried doubles
	growsFrom = 0.005       // of the rate: a little less at first, and then a little more
	longWait  = 10          // times as long as a request takes at the rate is a wait for the end of a window
)

// A hidden is a limit that only refusals show: a bucket or, if a refusal asks for a wait that is much longer than a request takes, a window.
type hidden struct {
	begun  meter.Instant
	began  bool
	known  bool
	rate   float64       // of what is charged, per ns
	at     meter.Instant // of the refused request that showed it
	then   float64       // charged by then
	stops  meter.Instant // of the requests that were sent before its response, all are of that refusal
	window float64       // what is charged in a window; 0: it is none
	ends   meter.Instant // of the window
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
		weigh := min(1, float64(sent-h.at)/float64(30*second))
		h.rate += (rate - h.rate) * weigh
	case !h.known:
		h.rate = charged / (took + float64(burst))
	}
	if h.rate <= 0 {
		return
	}
	if h.window > 0 || float64(wait) > max(2e9, longWait*float64(cost)/h.rate) {
		h.window, h.ends = charged-h.from, now+wait
		if wait <= 0 {
			h.ends = now + minute
		}
	}
	h.known, h.at, h.then, h.stops = true, sent, charged, now
}

// factor returns how much of the rate is used some time after a refusal.
func (h *hidden) factor(since int64) float64 {
	f := 1 - growsFrom
	if since > steadyFor {
		f += growsFrom * (math.Exp2(min(float64(since-steadyFor)/float64(growsIn), 10)) - 1)
	}
	return f
}

// grown returns what has come back some time after a refusal.
func (h *hidden) grown(since int64) float64 {
	g := (1 - growsFrom) * float64(since)
	if after := float64(since - steadyFor); after > 0 {
		g += growsFrom * (float64(growsIn)/math.Ln2*(math.Exp2(min(after/float64(growsIn), 10))-1) - after)
	}
	return h.rate * g
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
	if short := want - h.grown(from-h.at); short > 0 {
		return meter.AddInstant(from, int64(short/(h.rate*h.factor(from-h.at)))+1)
	}
	return from
}
