package quota

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

// A response that reports nothing leaves a registry as it is after Apply, where Accepted takes it; otherwise Accepted changes nothing.
func TestAcceptedIsApplyOfAResponseThatReportsNothing(t *testing.T) {
	short, long := 0, 0
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		a, b := NewRegistry(100, seed), NewRegistry(100, seed)
		type sent struct {
			x, y *Gate
			n    int64
			at   meter.Instant
		}
		var flying []sent
		now, credit := second, errors.New("no credit")
		for range 600 {
			now += rnd.Int64N(100) * rnd.Int64N(1+rnd.Int64N(30)) * milli
			switch key := at([]string{"a", "b"}[rnd.IntN(2)], rnd.Uint64N(3)); {
			case rnd.IntN(2) == 0 || len(flying) == 0:
				x, y := a.Gate(key, now), b.Gate(key, now)
				require.Equal(t, x.Payable(now, 1), y.Payable(now, 1))
				if x.Payable(now, 1) || rnd.IntN(4) == 0 {
					n := x.Take(now, now, 1, false)
					require.Equal(t, n, y.Take(now, now, 1, false))
					flying = append(flying, sent{x: x, y: y, n: n, at: now})
				}
				if rnd.IntN(5) == 0 {
					x.SetWaiting(x.at == 0)
					y.SetWaiting(y.at == 0)
				}
			default:
				i := rnd.IntN(len(flying))
				s := flying[i]
				flying = append(flying[:i], flying[i+1:]...)
				rep := Report{Sent: s.at, Number: s.n, Accepted: true, Done: true, Own: Own{Rate: float64(rnd.IntN(2)), Fastest: float64(rnd.IntN(3)), Slots: rnd.IntN(9) == 0}}
				left := rnd.Int64N(4)
				switch rnd.IntN(24) {
				case 0:
					rep.Accepted, rep.Done = false, false
					rep.Reading = (&Hints{Limited: true, Status: 429, Wait: time.Duration(rnd.IntN(3)) * time.Second, Asked: true, Host: rnd.IntN(2) == 0}).Read(now)
				case 1:
					rep.Accepted, rep.Done = false, false
					rep.Reading = (&Hints{Limited: true, Status: 402, Final: credit}).Read(now)
				case 2, 3, 4:
					rep.Reading = (&Hints{Quotas: []QuotaHint{{Name: "q", Limit: 6, Left: left, Known: true, Reset: 10 * time.Second, Ends: true}}}).Read(now)
				case 5:
					rep.Reading = (&Hints{Bare: Unavailable, Status: 503}).Read(now)
					rep.Accepted, rep.Done = false, false
				}
				x, y := rep, rep
				if rep.Hints != nil {
					again := *rep.Hints
					y.Hints = &again
				}
				change := b.Apply(s.y, &y, now)
				switch {
				case rep.Hints != nil || !rep.Done:
					a.Apply(s.x, &x, now)
				case a.Accepted(s.x, &x, now):
					short++
					require.Equal(t, Change{Verdict: server.Done}, change)
				default:
					long++
					require.Equal(t, rep, x)
					a.Apply(s.x, &x, now)
				}
			}
			require.True(t, reflect.DeepEqual(a.hosts, b.hosts), "seed %d", seed)
			require.Equal(t, a.size, b.size)
		}
	}
	require.Greater(t, short, 300)
	require.Greater(t, long, 500)
}
