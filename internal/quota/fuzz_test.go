package quota

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

// A script is a source of choices.
type script []byte

// one returns a choice among n; 0 at the end.
func (s *script) one(n int) int {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return int(b) % n
}

var extremes = []int64{math.MinInt64, -1, 0, 1, 2, 3, 5, 10, 50, 1000, meter.MaxCount, math.MaxInt64}

func (s *script) count() int64 { return extremes[s.one(len(extremes))] }

func (s *script) figures(now meter.Instant, refused bool) Figures {
	c := Figures{Name: []string{"a", "b", Unnamed}[s.one(3)], Limit: s.count(), Left: s.count(), Reset: meter.Never, Counted: s.one(4) > 0}
	if s.one(4) > 0 {
		c.Reset = meter.AddInstant(now, max(0, extremes[s.one(len(extremes))])*int64(s.one(1000))*milli&math.MaxInt64)
	}
	if s.one(8) == 0 {
		c.Reserve = s.count()
	}
	c.Refused = refused && c.Left <= 0
	return c
}

// Whatever servers report, in whatever order, nothing overflows and no request waits forever.
func FuzzWhateverServersReport(f *testing.F) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 0))
		b := make([]byte, 100+r.IntN(2000))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := script(b[:min(len(b), 1<<12)])
		type sent struct {
			*Gate
			n  int64
			at meter.Instant
		}
		a, x, y := newFamilies()
		gates := []*Gate{x, y}
		var flying []sent
		own := Own{Rate: float64(s.one(2) * 10), Fastest: []float64{10, 1e12}[s.one(2)], Adaptive: s.one(3) == 0, Slots: s.one(3) == 0}
		now := second
		apply := func(i int, accepted bool, figures []Figures) {
			q := flying[i]
			flying = append(flying[:i], flying[i+1:]...)
			rep := &Report{Sent: q.at, Number: q.n, Accepted: accepted, Own: own}
			if s.one(5) > 0 {
				rep.Hints = &Hints{Limited: !accepted, Bare: Bare(s.one(3))}
				rep.figures = figures
				for _, c := range figures {
					rep.empty = rep.empty || c.Refused
					rep.named = rep.named || c.Refused && c.Name != Unnamed
				}
				if !accepted && s.one(3) == 0 {
					rep.Hints.Wait, rep.Hints.Asked = time.Duration(s.one(20))*time.Second, s.one(2) == 0
				}
			}
			q.apply(rep, now)
		}
		for len(s) > 0 {
			g := gates[s.one(2)]
			switch s.one(8) {
			case 0:
				now += int64(s.one(100)) * int64(s.one(100)) * milli
			case 1, 2, 3:
				if g.Payable(now, 1) || s.one(10) == 0 {
					due := now - int64(s.one(20))*milli
					flying = append(flying, sent{g, g.Take(due, now, 1, true), now})
				}
			case 4:
				if n := len(flying); n > 0 && s.one(4) == 0 {
					flying[n-1].GiveBack(flying[n-1].n, now, 1)
					flying = flying[:n-1]
				}
			default:
				if n := len(flying); n > 0 {
					accepted := s.one(3) > 0
					var figures []Figures
					for range s.one(4) {
						figures = append(figures, s.figures(now, !accepted))
					}
					apply(s.one(n), accepted, figures)
				}
			}
			for _, g := range gates {
				at := g.Ready(now, 0, 1)
				require.GreaterOrEqual(t, at, now)
				require.GreaterOrEqual(t, g.Plan(now, math.MaxInt64, 1), now)
				require.LessOrEqual(t, g.Plan(now, 0, 1), at)
				require.Equal(t, at, g.Ready(now, 0, 1), "asking changes nothing")
				if at < meter.Never {
					require.True(t, g.Payable(at, 1))
				}
				require.False(t, math.IsNaN(g.Room(now)) || g.Room(now) < 0)
				g.Open(now)
				g.Tokens(now)
			}
			for _, q := range a.quotas {
				require.GreaterOrEqual(t, q.left, int64(0))
				require.GreaterOrEqual(t, q.most, int64(0))
				require.GreaterOrEqual(t, q.inFlight, int64(0))
				require.LessOrEqual(t, max(q.late(), int64(q.more)), rounding)
				require.GreaterOrEqual(t, q.backoff, int64(0))
				require.False(t, math.IsNaN(q.refills()) || q.refills() < 0)
			}
		}
		for len(flying) > 0 {
			now += milli
			apply(0, true, nil)
		}
		for _, g := range gates {
			require.Zero(t, g.InFlight())
			bound := max(now, a.Until(), a.even.next)
			for _, q := range g.quotas {
				require.Zero(t, q.inFlight)
				bound = max(bound, q.held, meter.AddInstant(max(now, q.last, q.held), server.Longest))
				if end := q.end(); end < meter.Never {
					bound = max(bound, end)
				}
				if q.reset < meter.Never {
					bound = max(bound, q.end())
				}
			}
			at := g.Ready(now, 0, 1)
			require.LessOrEqual(t, at, meter.AddInstant(bound, second)) // where others use a quota, requests wait for up to a second longer
			if bound < meter.Never {
				require.True(t, g.Payable(at, 1), "nothing in flight: no response is needed")
			}
		}
	})
}
