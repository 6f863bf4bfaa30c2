package meter

import (
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

// A history is what was taken from a token bucket, and how it was changed: it can be gone through again without what
// was given back.
type history struct {
	rate           Rate
	burst, initial int64
	events         []historic
}

// A historic event is a take, or a change to another burst or rate.
type historic struct {
	at    Instant
	cost  int64
	paid  int64
	gone  bool
	burst int64
	rate  Rate
}

// level returns what there would be now.
func (h *history) level(now Instant) *big.Rat {
	m := metertest.NewBucket(0, h.rate, h.burst, h.initial)
	for _, e := range h.events {
		switch {
		case e.burst > 0:
			m.Resize(e.at, e.burst)
		case e.rate.N > 0:
			m.Retune(e.at, e.rate)
		case !e.gone:
			m.Take(e.at, e.cost, false)
		}
	}
	return m.At(now, nil)
}

// TestWhatIsGivenBackIsAsIfItHadNeverBeen gives back at any time, and never finds more than if it had not been taken:
// just as much where few grants are younger.
func TestWhatIsGivenBackIsAsIfItHadNeverBeen(t *testing.T) {
	seeds := uint64(500)
	if testing.Short() {
		seeds = 100
	}
	for seed := range seeds {
		r := metertest.Seeded(t, seed)
		burst, most, pause := 1+r.Int64N(20), int64(20), int64(2)
		if seed%3 == 0 { // many small ones, so that more is to be remembered than is
			burst, most, pause = 200, 8, 1
		}
		h := &history{rate: Rate{1 + r.Int64N(9), time.Duration(1 + r.Int64N(100))}, burst: burst, initial: burst - r.Int64N(min(burst, 20)+1)}
		b, now, takes, changed := NewTokenBucket(0, h.rate, burst, h.initial), Instant(0), 0, false
		for range 40 * (1 + seed%5/4*4) {
			switch r.IntN(8) {
			case 0, 1, 2:
				now += r.Int64N(2 + pause*int64(h.rate.Per))
			case 3, 4, 5:
				if cost := 1 + r.Int64N(min(burst, most)); b.Payable(now, cost) {
					takes++
					h.events = append(h.events, historic{at: now, cost: cost, paid: b.Take(now, now, cost, false)})
				}
			case 6:
				i := r.IntN(1 + len(h.events))
				if i == len(h.events) || h.events[i].cost == 0 || h.events[i].gone {
					continue
				}
				h.events[i].gone = true
				b.GiveBack(h.events[i].paid, now, h.events[i].cost)
			case 7:
				if r.IntN(4) == 0 {
					burst, changed = 1+r.Int64N(20), true
					b.Resize(now, burst)
					h.events = append(h.events, historic{at: now, burst: burst})
				} else if r.IntN(4) == 0 {
					next := Rate{1 + r.Int64N(9), time.Duration(1 + r.Int64N(100))}
					changed = true
					b.Retune(now, next)
					h.events = append(h.events, historic{at: now, rate: next})
				}
			}
			copied := *b
			copied.past = &past{peaks: slices.Clone(b.peaks())}
			copied.Payable(now, 1)
			diff := copied.rational().Cmp(h.level(now))
			if takes <= MaxPeaks && !changed {
				require.Zero(t, diff, "seed %d: %v, not %v", seed, copied.rational(), h.level(now))
			} else if !changed {
				require.LessOrEqual(t, diff, 0, "seed %d: %v, more than %v", seed, copied.rational(), h.level(now))
			} else { // a new rate rounds what there is down, which may have been more
				over, _ := new(big.Rat).Sub(copied.rational(), h.level(now)).Float64()
				require.LessOrEqual(t, over, 0.5, "seed %d: %v, more than %v", seed, copied.rational(), h.level(now))
			}
		}
	}
}

// TestMoreThanIsRememberedMintsNothing gives back a grant after which the bucket was nearly full, and then used often.
func TestMoreThanIsRememberedMintsNothing(t *testing.T) {
	for younger := range 3 * MaxPeaks {
		b := NewTokenBucket(0, Rate{1, 1}, 1000, 1000)
		first := b.Take(0, 0, 10, false)
		for range 1 + younger {
			b.Take(5, 5, 6, false)
		}
		left := b.Tokens(5)
		b.GiveBack(first, 5, 10)
		require.InDelta(t, 5, b.Tokens(5)-left, 0, "%d younger", younger)
	}
}

// A costly grant among more small ones than are remembered is given back as far as the bucket would not have been full
// since: never more, and seldom less.
func TestACostlyGrantIsGivenBackAsFarAsThereWasRoom(t *testing.T) {
	const burst = 10_000
	for older := range 4 * MaxPeaks {
		b := NewTokenBucket(0, Rate{1, 1}, burst, burst)
		for range older {
			b.Take(0, 0, 1, false)
		}
		costly := b.Take(0, 0, 1000, false)
		b.Take(990, 990, 1, false) // the room is 10 more than before the costly one
		b.Take(990, 990, 5000, false)
		left := b.Tokens(990)
		b.GiveBack(costly, 990, 1000)
		back := b.Tokens(990) - left
		require.LessOrEqual(t, back, float64(10+older), "%d older", older)
		require.GreaterOrEqual(t, back, 10.0, "%d older", older)
	}
}

// TestManyOnTheWayAreSettledToTheToken has a full bucket go down by one charge after the other, and then corrects them all,
// in order, backwards or at random. Were all that is remembered merged at one end, nearly nothing would come back.
func TestManyOnTheWayAreSettledToTheToken(t *testing.T) {
	const burst = 100_000
	for _, n := range []int{9, 10, 63, 64, 65, 100, 999} {
		perm := rand.New(rand.NewPCG(1, 2)).Perm(n)
		for name, order := range map[string]func(i int) int{
			"in order": func(i int) int { return i }, "backwards": func(i int) int { return n - 1 - i },
			"at random": func(i int) int { return perm[i] },
		} {
			b := NewTokenBucket(0, Rate{1, time.Hour}, burst, burst)
			charged := make([]int64, n)
			for i := range charged {
				charged[i] = b.Take(0, 0, 100, false)
				require.LessOrEqual(t, len(b.peaks()), MaxPeaks)
			}
			for i := range charged {
				b.Settle(charged[order(i)], 0, 100, 10)
			}
			lost := float64(burst-10*n) - b.Tokens(0)
			if n <= MaxPeaks {
				require.Zero(t, lost, "%d %s", n, name)
			} else {
				require.GreaterOrEqual(t, lost, 0.0)
				require.LessOrEqual(t, lost, float64(burst)/16, "%d %s", n, name)
			}
		}
	}
}

func TestPeaksAreThinnedHoweverCloseTheyAre(t *testing.T) {
	for _, unit := range []int128{{lo: 1}, {hi: 1 << 40}} {
		var peaks []peak
		room := int128{}
		for i := range int64(10 * MaxPeaks) {
			room = room.add(unit)
			peaks = pushPeak(peaks, peak{i, room})
			require.LessOrEqual(t, len(peaks), MaxPeaks)
		}
		require.Greater(t, len(peaks), MaxPeaks/4)
		require.Equal(t, unit, peaks[0].room, "the least of all")
	}
	require.Equal(t, int128{1, 1 << 63}, int128{3, 0}.half(1))
}
