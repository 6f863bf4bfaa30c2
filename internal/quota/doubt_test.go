package quota

import (
	"testing"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/stretchr/testify/require"
)

// covered returns a gate whose client sends 10 requests a second by its own limits, and has sent one at 1 s.
func covered(t *testing.T) (*Account, *Gate) {
	a, g, _ := newFamilies()
	a.Cover(&Own{Rate: 10, Fastest: 10})
	sends(t, g, second, 1)
	return a, g
}

func TestAClaimStopsAClientWithARateOfItsOwnOnlyForItsPatience(t *testing.T) {
	a, g := covered(t)
	g.Answered(second+milli, second, true, []Tell{core(100, 0, 600*second)})
	own := second + 100*milli
	requireReady(t, g, second+milli, own+patience)
	g.Take(own+patience, own+patience, 1, true)
	require.Equal(t, patience-100*milli/earned, a.doubt.spent, "it was stopped for all of it")
}

func TestAClaimThatIsKeptAgainCostsLittle(t *testing.T) {
	_, g := covered(t)
	now, sent := second, 0
	for now < 601*second {
		g.Answered(now+milli, now, true, []Tell{core(100, 0, now+600*second)})
		now = max(now+100*milli, g.Ready(now+milli, 0, 1))
		g.Take(now, now, 1, true)
		sent++
	}
	require.GreaterOrEqual(t, sent, 5700, "of 6,000")
	require.LessOrEqual(t, sent, 6000)
}

func TestARefusalConfirmsAClaim(t *testing.T) {
	a, g := covered(t)
	g.Answered(second+milli, second, true, []Tell{core(100, 0, 60*second)})
	now := g.Ready(second+milli, 0, 1)
	g.Take(now, now, 1, true)
	g.apply(&Report{Sent: now, Own: Own{Rate: 10}, Reading: Reading{Hints: &Hints{Limited: true}, tells: []Tell{core(100, 0, 60*second)}}}, now+milli)
	requireReady(t, g, 20*second, 60*second)
	require.Equal(t, -(confirmed*(60*second-now-milli) - patience), a.doubt.spent)

	for _, left := range []int64{99, 0} {
		now = max(now+second, g.Ready(60*second, 0, 1))
		g.Take(now, now, 1, true)
		g.Answered(now+milli, now, true, []Tell{core(100, left, 120*second)})
	}
	requireReady(t, g, now+milli, 120*second) // believed without a refusal
}

func TestPatienceHasBounds(t *testing.T) {
	var d doubt
	for now := second; now < 10_000*second; now += second {
		d.left(now-second, now, now, now)
		require.GreaterOrEqual(t, d.spent, patience-mostPatience)
	}
	require.Equal(t, patience-mostPatience, d.spent)
	d.refused(0, meter.Never-1)
	require.Equal(t, patience-mostConfirmed, d.spent)
	d.left(0, second, 2*second, 2*second)
	require.Equal(t, patience-mostConfirmed, d.spent, "what was confirmed is not spent")
	d.refused(2*second, second)
	d.refused(2*second, meter.Never)
	require.Equal(t, meter.Never-1, d.until, "a claim that ended, or has no end, confirms nothing")
}

func TestWhatIsLeftForOthersIsNoClaim(t *testing.T) {
	_, g := covered(t)
	tell := core(100, 5, 600*second)
	tell.Reserve = 5
	g.Answered(second+milli, second, true, []Tell{tell})
	requireReady(t, g, second+milli, 600*second)
}

func TestWithoutARateOfItsOwnAClientBelievesClaims(t *testing.T) {
	_, g, _ := newFamilies()
	sends(t, g, second, 1)
	g.Answered(second+milli, second, true, []Tell{core(100, 0, 600*second)})
	requireReady(t, g, second+milli, 600*second)
}
