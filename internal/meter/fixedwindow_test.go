package meter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

func TestFixedWindowFollowsANewRate(t *testing.T) {
	w := NewFixedWindow(0, Rate{10, 1000}, time.Time{}, new(Wall))
	w.Take(500, 500, 10, false)
	w.Retune(1500, Rate{10, 2000})
	require.True(t, w.Payable(1500, 10), "what an earlier window used counts")
	w.Take(1500, 1500, 7, false)
	w.Retune(1600, Rate{10, 500})
	require.False(t, w.Payable(1600, 4))
	require.Equal(t, Instant(2000), w.Ready(1600, 0, 4))
}

func TestFixedWindowAgreesWithACalendar(t *testing.T) {
	for seed := range uint64(200) {
		r := metertest.Seeded(t, seed)
		unix := r.Int64N(1<<61) - 1<<60
		rt, start := Rate{1 + r.Int64N(20), time.Duration(1 + r.Int64N(1<<r.IntN(50)))}, time.Time{}
		m := &metertest.FixedWindow{N: rt.N, Per: int64(rt.Per), Unix: unix, Used: make(map[int64]int64)}
		if seed%2 == 0 {
			m.Origin = r.Int64N(1<<61) - 1<<60
			start = time.Unix(0, m.Origin)
		}
		now := r.Int64N(1 << 50)
		w := NewFixedWindow(now, rt, start, &Wall{Unix: unix})
		var grants []metertest.Event
		var tooLate Late
		for range 100 {
			what := fmt.Sprintf("seed %d: %+v, now %d", seed, w, now)
			i, cost := m.Index(now+unix), 1+r.Int64N(m.N)
			switch r.IntN(6) {
			case 0:
				now += r.Int64N(2 * m.Per)
			case 1, 2:
				ok := w.Payable(now, cost)
				require.Equal(t, cost <= m.Left(now), ok, what)
				if _, spent := spendOrTake(w, r, now, cost); spent {
					m.Used[i] += cost
					if e := (metertest.Event{At: now, Cost: cost}); !slices.Contains(grants, e) {
						grants = append(grants, e)
					}
				}
			case 3, 4:
				ahead := r.Int64N(3 * m.N)
				due := w.Ready(now, ahead, 1)
				want := now
				if windows := (m.N - m.Left(now) + ahead) / m.N; windows > 0 {
					want = (i+windows)*m.Per + m.Origin - unix
				}
				require.Equal(t, want, due, "%s, ahead %d", what, ahead)
				require.Equal(t, Never, w.Ready(now, 0, m.N+1), what)
			case 5:
				if len(grants) > 0 {
					e := grants[r.IntN(len(grants))]
					grants = slices.DeleteFunc(grants, func(other metertest.Event) bool { return other == e })
					settled := r.Int64N(5 * e.Cost)
					w.Settle(e.At, now, e.Cost, settled)
					switch {
					case settled > e.Cost:
						m.Owe(now, tooLate.Reduce(now, settled-e.Cost, m.Per))
					case m.Index(e.At+unix) == i:
						m.GiveBack(now, e.Cost-settled)
					default: // its window has ended
						tooLate.Add(now, e.Cost-settled, m.Per, m.Per)
					}
				}
			}
			i = m.Index(now + unix)
			require.InDelta(t, float64(m.Left(now)), w.Tokens(now), 0, what)
			ends := (i+1)*m.Per + m.Origin - unix
			require.Equal(t, ends, w.Turns(now), what)
			must, full := w.Matters(now)
			require.Equal(t, m.Left(now) < 0, must > now, what)
			if must > now {
				require.Negative(t, m.Left(must-1), what)
				require.GreaterOrEqual(t, m.Left(must), int64(0), what)
			}
			if m.Left(now) < m.N {
				require.Less(t, m.Left(full-1), m.N, what)
				require.Equal(t, m.N, m.Left(full), what)
			} else {
				require.LessOrEqual(t, full, now, what)
			}
		}
	}
}

// spendOrTake spends a cost, by Spend or by Payable and Take.
func spendOrTake(m Meter, r *rand.Rand, now Instant, cost int64) (charged int64, ok bool) {
	if r.IntN(2) == 0 {
		return m.Spend(now, cost)
	}
	return SpendIf(m, now, cost)
}

// When the wall clock was set back, the window that it shows then counts what was used of a later one: nothing is free
// twice, and nothing is locked for as long as the clock was ahead.
func TestFixedWindowFollowsAWallClockThatIsSetBack(t *testing.T) {
	const unix = 1_000_500
	wall := &Wall{Unix: unix}
	w := NewFixedWindow(0, Rate{10, 1000}, time.Time{}, wall)
	w.Take(100, 100, 7, false)
	require.Equal(t, Instant(500), w.Turns(100))
	for _, ends := range []Instant{700, 900} {
		wall.Unix -= 7200
		wall.SetBack(200)
		require.Equal(t, ends, w.Turns(200))
		require.Equal(t, ends, fullAt(w))
		require.Equal(t, 3.0, w.Tokens(200))
		require.False(t, w.Payable(ends-1, 4))
	}
	require.True(t, w.Payable(900, 10))
	wall.Unix += 5000
	require.Equal(t, Instant(1900), w.Turns(900), "a clock that is set forward ends the window")
	require.True(t, w.Payable(900, 10))
}
