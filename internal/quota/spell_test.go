package quota

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// sentAlways sends a request, even if something stops it. The server accepts it, or refuses it.
func sentAlways(r *Registry, family uint64, now meter.Instant, accepted bool) *Gate {
	g := r.Gate(at("h", family), now)
	n := g.Take(now, now, 1, false)
	rep := &Report{Sent: now, Number: n, Accepted: accepted, Done: accepted, Own: Own{Adaptive: true}}
	if !accepted {
		rep.Reading = (&Hints{Limited: true, Status: 429}).Read(now)
	}
	r.Apply(g, rep, now)
	return g
}

// Refusals of one gate, with requests of others accepted in between, show that it is counted separately: seven hundred to one is not enough,
// 1,100 to one is.
func TestAGateThatAloneIsRefusedIsCountedSeparately(t *testing.T) {
	for _, c := range []struct {
		spell  int // refusals between two accepted requests
		spells int // that show it
	}{{1, 11}, {2, 7}, {9, 4}, {99, 2}} {
		r := NewRegistry(10, 1)
		now := meter.Instant(0)
		sent := func(family uint64, accepted bool) *Gate {
			now += second
			return sentAlways(r, family, now, accepted)
		}
		sick, well := sent(1, false), sent(2, true)
		require.Same(t, sick.Account, well.Account)
		sent(1, true) // begins from the beginning
		for n := range c.spells {
			for range c.spell {
				sent(1, false)
				require.Same(t, sick.Account, well.Account, "%d spells of %d", n, c.spell)
			}
			sent(2, true)
		}
		sent(1, false)
		require.NotSame(t, sick.Account, well.Account, "spells of %d", c.spell)
		require.Same(t, well, sent(2, true))
		require.Empty(t, r.check(now))
	}
}

// Where the gates do not differ, nothing shows it: if others are refused in between, or the gate is accepted, or the accepted request was sent
// before those that were refused.
func TestGatesThatAreRefusedAlikeAreCountedTogether(t *testing.T) {
	for name, times := range map[string][]struct {
		family   uint64
		accepted bool
	}{
		"both are refused":      {{1, false}, {2, false}, {2, true}},
		"both are accepted":     {{1, false}, {2, true}, {1, true}},
		"the same is accepted":  {{1, false}, {1, true}, {2, true}},
		"nothing is accepted":   {{1, false}, {2, false}},
		"nothing of others is":  {{1, false}, {1, false}},
		"a third is refused":    {{1, false}, {3, false}, {2, true}},
		"each one is in a turn": {{1, false}, {2, true}, {2, false}, {1, true}},
	} {
		r := NewRegistry(10, 1)
		now := meter.Instant(0)
		for range 100 {
			for _, x := range times {
				now += second
				require.Len(t, sentAlways(r, x.family, now, x.accepted).Account.group.accounts, 1, name)
			}
		}
	}
}

// Of a bucket that all requests share, no gate seems to be separate, even if there are many refusals, and few requests of one gate.
func TestOfACommonBucketNoGateSeemsSeparate(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		r, now, level := NewRegistry(10, 1), meter.Instant(0), 0.0
		for range 5000 {
			gap := rnd.Int64N(2 * second)
			now += gap
			level = min(3, level+float64(gap)/float64(second)/(1+float64(seed%4)))
			family := uint64(1)
			if rnd.IntN(2+int(seed)) == 0 {
				family = 2
			}
			accepted := level >= 1
			if accepted {
				level--
			}
			require.Len(t, sentAlways(r, family, now, accepted).Account.group.accounts, 1, "seed %d", seed)
		}
	}
}
