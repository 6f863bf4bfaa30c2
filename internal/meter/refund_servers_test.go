package meter

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// These tests compare two readings of a refund at servers that enforce what a bucket promises: never more than burst + rate·t.
// By the strict one, which [TokenBucket] has, tokens that a full bucket would have lost without the charge are not given back. By
// the plain one, all are given back, up to the burst.

const (
	refundBurst = 100
	refundRate  = 10 // per second
	refundSpan  = 10 * second
	refundMost  = refundBurst + refundRate*int64(refundSpan/second) // in any span
	estimate    = 50
)

// A sent is a request as servers see it.
type sent struct {
	at, answered Instant
	cost         int64
}

// A served is a server. It reports whether it accepts a request of that true cost.
type served interface {
	accepts(at Instant, cost int64) bool
	answers(at Instant, cost int64)
}

// onArrival is a server with a bucket that knows the true cost of a request when it arrives. GCRA is the same.
type onArrival struct{ *TokenBucket }

func (s onArrival) accepts(at Instant, cost int64) bool { _, ok := s.Spend(at, cost); return ok }
func (s onArrival) answers(Instant, int64)              {}

// inSpan counts the true costs of requests on arrival, in any span or in aligned ones.
type inSpan struct {
	aligned bool
	log     []sent
}

func (s *inSpan) accepts(at Instant, cost int64) bool {
	from := at - refundSpan
	if s.aligned {
		from = at - at%refundSpan - 1
	}
	sum := cost
	for _, x := range s.log {
		if x.at > from {
			sum += x.cost
		}
	}
	if sum > refundMost {
		return false
	}
	s.log = append(s.log, sent{at: at, cost: cost})
	return true
}
func (s *inSpan) answers(Instant, int64) {}

// estimating is a server with a bucket that charges the estimate on arrival, and gives the rest back with the response.
type estimating struct{ level, last float64 }

func (s *estimating) at(t Instant) {
	s.level, s.last = min(refundBurst, s.level+(float64(t)-s.last)*refundRate/float64(second)), float64(t)
}
func (s *estimating) accepts(t Instant, _ int64) bool {
	if s.at(t); s.level < estimate-1e-6 {
		return false
	}
	s.level -= estimate
	return true
}
func (s *estimating) answers(t Instant, cost int64) {
	s.at(t)
	s.level = min(refundBurst, s.level+float64(estimate-cost))
}

// plainly is a bucket with plain refunds.
type plainly struct{ *TokenBucket }

func (b plainly) Settle(_ int64, now Instant, paid, cost int64) {
	b.advance(now)
	b.level = b.level.add(b.units(paid - cost))
	b.clip()
}

// refunds simulates 20 callers that send one request after the other through a bucket for an hour.
func refunds(seed uint64, plain bool, costs func(r *rand.Rand) int64, s served) (use, refused float64) {
	r := rand.New(rand.NewPCG(seed, 5))
	inner := NewTokenBucket(0, Rate{refundRate, time.Second}, refundBurst, refundBurst)
	var b Meter = inner
	if plain {
		b = plainly{inner}
	}
	type flight struct {
		sent
		paid int64
	}
	var flying []flight
	now, waiting, all, bad, used := Instant(0), 20, 0., 0., int64(0)
	for now < 3600*second {
		next := Never
		for _, f := range flying {
			next = min(next, f.answered)
		}
		if waiting > 0 {
			if due := b.Ready(now, 0, estimate); due < next || due <= now {
				now = max(now, due)
				f := flight{sent: sent{at: now, answered: now + second/10 + r.Int64N(20*second), cost: costs(r)}, paid: b.Take(now, now, estimate, false)}
				waiting--
				if all++; s.accepts(now, f.cost) {
					used += f.cost
				} else {
					bad++
				}
				flying = append(flying, f)
				continue
			}
		}
		i := slices.IndexFunc(flying, func(f flight) bool { return f.answered == next })
		f := flying[i]
		flying = slices.Delete(flying, i, i+1)
		now = next
		b.Settle(f.paid, now, estimate, f.cost)
		s.answers(now, f.cost)
		waiting++
	}
	return float64(used) / (refundRate * 3600), bad / all
}

// A server that knows the true cost of a request when it arrives sees the difference, whatever its algorithm. A server that charges
// the estimate, and returns the rest with the response, does not, but nothing shows a client which of the two it has.
func TestServersThatChargeTrueCostsOnArrivalSeeAPlainRefund(t *testing.T) {
	servers := map[string]func() served{
		"bucket, GCRA": func() served {
			return onArrival{NewTokenBucket(0, Rate{refundRate, time.Second}, refundBurst, refundBurst)}
		},
		"sliding window":    func() served { return new(inSpan) },
		"fixed window":      func() served { return &inSpan{aligned: true} },
		"charges estimates": func() served { return &estimating{level: refundBurst} },
	}
	for mix, costs := range map[string]func(r *rand.Rand) int64{
		"a tenth":                           func(*rand.Rand) int64 { return estimate / 10 },
		"a tenth, every tenth as estimated": func(r *rand.Rand) int64 { return []int64{estimate / 10, estimate}[max(0, r.IntN(10)-8)] },
		"anything":                          func(r *rand.Rand) int64 { return 1 + r.Int64N(estimate) },
	} {
		for name, server := range servers {
			use, refused := refunds(1, false, costs, server())
			plainUse, plainRefused := refunds(1, true, costs, server())
			t.Logf("%s at %s: strict %.0f %% used; plain %.0f %% used, %.1f %% refused", mix, name, 100*use, 100*plainUse, 100*plainRefused)
			require.Zero(t, refused)
			require.Greater(t, plainUse, use)
			require.Equal(t, mix != "a tenth" && name != "charges estimates", plainRefused > 0, "%s at %s", mix, name)
		}
	}
}
