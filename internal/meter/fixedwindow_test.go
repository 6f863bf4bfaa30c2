package meter

import (
	"fmt"
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
		m := &metertest.FixedWindow{N: rt.N, Per: int64(rt.Per), Used: make(map[int64]int64)}
		if seed%2 == 0 {
			m.Origin = r.Int64N(1<<61) - 1<<60
			start = time.Unix(0, m.Origin)
		}
		now := r.Int64N(1 << 50)
		w := NewFixedWindow(now, rt, start, &Wall{Unix: unix})
		var grants []metertest.Event
		for range 100 {
			what := fmt.Sprintf("seed %d: %+v, now %d", seed, w, now)
			i, cost := m.Index(now+unix), 1+r.Int64N(m.N)
			switch r.IntN(6) {
			case 0:
				now += r.Int64N(2 * m.Per)
			case 1, 2:
				ok := w.Payable(now, cost)
				require.Equal(t, m.Used[i]+cost <= m.N, ok, what)
				if ok {
					w.Take(now, now, cost, false)
					m.Used[i] += cost
					if e := (metertest.Event{At: now, Cost: cost}); !slices.Contains(grants, e) {
						grants = append(grants, e)
					}
				}
			case 3, 4:
				ahead := r.Int64N(3 * m.N)
				due := w.Ready(now, ahead, 1)
				windows := (m.Used[i] + ahead) / m.N
				want := now
				if windows > 0 {
					want = (i+windows)*m.Per + m.Origin - unix
				}
				require.Equal(t, want, due, "%s, ahead %d", what, ahead)
				require.Equal(t, Never, w.Ready(now, 0, m.N+1), what)
			case 5:
				if len(grants) > 0 {
					e := grants[r.IntN(len(grants))]
					grants = slices.DeleteFunc(grants, func(other metertest.Event) bool { return other == e })
					giveBackTo(w, e.At, now, e.Cost)
					if m.Index(e.At+unix) == i { // else its window is over
						m.Used[i] -= e.Cost
					}
				}
			}
			i = m.Index(now + unix)
			require.InDelta(t, float64(m.N-m.Used[i]), w.Tokens(now), 0, what)
			if full := fullAt(w); m.Used[i] > 0 {
				require.Equal(t, (i+1)*m.Per+m.Origin-unix, full, what)
			} else {
				require.LessOrEqual(t, full, now, what)
			}
		}
	}
}
