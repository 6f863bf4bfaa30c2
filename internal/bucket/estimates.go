package bucket

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	estimatesKept = 100                   // settlements that count
	estimatesFew  = 20                    // of which one is a high quantile; before, requests are charged what was estimated
	estimatesHigh = 20                    // one of this many requests may cost more than it is charged
	estimatesStay = 3600 * int64(1e9)     // how long they are kept after the last settlement
	WholeShare    = Share(math.MaxUint16) // of an estimate
)

// A Share is a part of an estimate, in 65,535ths; 0: it is not known.
type Share uint16

// Of returns the part of an estimate, at least 1.
func (s Share) Of(cost int64) int64 {
	if s == 0 || s == WholeShare || cost <= 0 {
		return cost
	}
	return max(1, int64(math.Round(float64(cost)*s.Part())))
}

// Part returns the share as a number up to 1; 0: it is not known.
func (s Share) Part() float64 { return float64(s) / float64(WholeShare) }

// ShareOfPart returns the Share that is that part, from 0 to 1.
func ShareOfPart(part float64) Share { return Share(math.Round(part * float64(WholeShare))) }

// ShareOf returns which part of an estimate a request did cost, of which that share was charged. It is at most the whole.
func ShareOf(charged, cost int64, of Share) Share {
	return max(1, ShareOfPart(min(1, float64(cost)/float64(max(1, charged))*of.Part())))
}

// estimates are which parts of their estimates the last requests of a key did cost. The zero value knows of none.
type estimates struct {
	shares [estimatesKept]Share
	n      uint64 // settlements
	share  Share
	at     meter.Instant // of the last one
}

// newEstimates returns the estimates of a key of which just enough requests did cost that part.
func newEstimates(now meter.Instant, s Share) *estimates {
	e := new(estimates)
	for range estimatesFew {
		e.Add(now, s)
	}
	return e
}

// Add takes a settlement.
func (e *estimates) Add(now meter.Instant, s Share) {
	e.shares[e.n%estimatesKept] = s
	e.n++
	e.at = now
	e.share = e.high()
}

// Share returns which part of its estimate the next request is charged: at most one of 20 did cost more. It is 0 if too few are known.
func (e *estimates) Share() Share { return e.share }

// mean returns which part of their estimates requests did cost in the mean; 0: none is known.
func (e *estimates) mean() (part float64) {
	known := e.shares[:min(e.n, estimatesKept)]
	for _, s := range known {
		part += s.Part() / float64(len(known))
	}
	return part
}

// high returns the least share that was enough for all but one of 20.
func (e *estimates) high() Share {
	known := e.shares[:min(e.n, estimatesKept)]
	if len(known) < estimatesFew {
		return 0
	}
	var top [estimatesKept/estimatesHigh + 1]Share // the largest ones, falling
	most := top[:len(known)/estimatesHigh+1]
	for _, s := range known {
		for i := range most {
			if s > most[i] {
				s, most[i] = most[i], s
			}
		}
	}
	return most[len(most)-1]
}

// keptUntil returns until when they are kept.
func (e *estimates) keptUntil() meter.Instant {
	if e == nil || e.n == 0 {
		return 0
	}
	return meter.AddInstant(e.at, estimatesStay)
}
