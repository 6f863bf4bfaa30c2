package allowance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

// An account is a server's bucket, by a way of counting: what a request is charged when it comes, and when it ends, for each token of its
// estimate.
type account struct {
	limit, left, rate float64 // rate: per ns
	at                meter.Instant
	arrive, end       float64
}

func (a *account) fill(now meter.Instant) {
	a.left, a.at = min(a.limit, a.left+a.rate*float64(now-a.at)), now
}

// A flight is a request under way.
type flight struct {
	n       int64
	cost    float64
	ends    meter.Instant
	figures Figures
	refused bool
}

// play sends requests with random costs as soon as the meter allows it, ten at a time, and reports each response when it ends, until that many have
// ended or for ten minutes. It returns how many were accepted, refused, and how much was charged.
func play(m *Meter, a *account, r *rand.Rand, responses int, silent bool) (accepted, refused int, charged float64) {
	var under []flight
	cost := int64(500 + r.IntN(1000))
	for now := meter.Instant(0); now < 600*second && responses > 0; now += second / 20 {
		for i := 0; i < len(under); i++ {
			f := under[i]
			if f.ends > now {
				continue
			}
			under = append(under[:i], under[i+1:]...)
			i--
			figures := []Figures{f.figures}
			if silent {
				figures = nil
			}
			m.Report(f.n, now, figures, f.refused)
			if f.refused {
				m.Refused(f.n, now, 0, false)
				continue
			}
			a.fill(now)
			a.left -= a.end * f.cost
			charged += a.end * f.cost
			responses--
			m.Settle(f.n, now, int64(f.cost), int64((a.arrive+a.end)*f.cost))
		}
		if len(under) == 10 || !m.Payable(now, cost) {
			continue
		}
		n := m.Take(now, now, cost, false)
		a.fill(now)
		f := flight{n: n, cost: float64(cost), ends: now + second + r.Int64N(3*second), refused: a.left < max(1, a.arrive*float64(cost))}
		if f.refused {
			refused++
			f.ends = now + 50*second/1000
		} else {
			accepted++
			a.left -= a.arrive * f.cost
			charged += a.arrive * f.cost
		}
		f.figures = Figures{Name: "tokens", Limit: int64(a.limit), Left: int64(max(0, a.left)), Reset: int64((a.limit - a.left) / a.rate)}
		under = append(under, f)
		cost = int64(500 + r.IntN(1000))
	}
	return accepted, refused, charged
}

func TestTheWayOfCountingIsSeenWithinTwentyResponses(t *testing.T) {
	for _, way := range []struct {
		name        string
		arrive, end float64
		full        int // responses that report a full bucket, because nothing is charged before a request ends
	}{{"estimates kept", 1, 0, 0}, {"settled at the end", 1, -0.6, 0}, {"counted as produced", 0, 0.4, 10}, {"half of the estimate", 0.5, 0, 0}} {
		t.Run(way.name, func(t *testing.T) {
			for seed := range uint64(10) {
				a := &account{limit: 5e4, left: 5e4, rate: 5e4 / float64(minute), arrive: way.arrive, end: way.end}
				m := New(new(meter.Wall))
				play(m, a, rand.New(rand.NewPCG(seed, 1)), way.full+20, false)
				require.True(t, m.parts[0].isBucket(), "seed %d", seed)
				require.InDelta(t, way.arrive+way.end, m.parts[0].fit.whole, 0.2, "seed %d", seed)
			}
		})
	}
}

func TestALimitIsUsedWhateverTheServerCounts(t *testing.T) {
	for _, way := range []struct {
		name        string
		arrive, end float64
		silent      bool
		refused     float64
	}{
		{"estimates kept", 1, 0, false, 0.002}, {"settled at the end", 1, -0.6, false, 0.002}, {"counted as produced", 0, 0.4, false, 0.002},
		{"settled, and nothing reported", 1, -0.6, true, 0.01}, {"estimates kept, and nothing reported", 1, 0, true, 0.01},
	} {
		t.Run(way.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			perSecond := 1500 * (way.arrive + way.end) // the callers ask for about twice as much
			a := &account{limit: 60 * perSecond, left: 60 * perSecond, rate: perSecond / 1e9, arrive: way.arrive, end: way.end}
			accepted, refused, charged := play(New(new(meter.Wall)), a, r, math.MaxInt, way.silent)
			require.GreaterOrEqual(t, charged/(660*perSecond), 0.97)
			require.LessOrEqual(t, float64(refused)/float64(accepted), way.refused)
		})
	}
}

func TestAWindowIsSpreadOnceItRanDryAndTurnsAtTheMinute(t *testing.T) {
	m := New(new(meter.Wall))
	report := func(now meter.Instant, cost, left int64) {
		n := m.Take(now, now, cost, false)
		m.Report(n, now, []Figures{{Name: "tokens", Limit: 1000, Left: left, Reset: -1}}, false)
		m.End(n, now)
	}
	report(0, 100, 900)
	require.Equal(t, second, m.Ready(second, 0, 100), "nothing is spread before it ran dry")
	report(10*second, 890, 10)
	require.Equal(t, minute, m.Ready(11*second, 0, 100))
	require.False(t, m.Payable(minute-1, 100))
	require.True(t, m.Payable(minute, 100))
	report(minute, 100, 900)
	even := m.Ready(minute, 0, 100) - minute
	require.InDelta(t, 6.7*1e9, float64(even), 0.2*1e9, "of what is left, 100 of about 900")
}

func TestARefusalSaysWhenThereIsEnough(t *testing.T) {
	m := New(new(meter.Wall))
	for i := range int64(4) { // a bucket of 1000 that refills in 100 s
		now := i * 5 * second
		n := m.Take(now, now, 300, false)
		left := 1000 - 300*(i+1) + 50*i
		m.Report(n, now, []Figures{{Name: "tokens", Limit: 1000, Left: max(left, 0), Reset: (1000 - max(left, 0)) * second / 10}}, left < 0)
		if left < 0 {
			m.Refused(n, now, 20*second, false)
			require.Equal(t, 35*second, m.HeldUntil())
			require.False(t, m.Payable(35*second-1, 1))
			return
		}
		m.End(n, now)
	}
	t.Fatal("nothing was refused")
}

func TestARefusalThatNothingExplainsSpreadsWindows(t *testing.T) {
	m := New(new(meter.Wall))
	refused := func(now meter.Instant) {
		n := m.Take(now, now, 10, false)
		m.Report(n, now, []Figures{{Name: "tokens", Limit: 1000, Left: 900, Reset: -1}}, true)
		m.Refused(n, now+1, 0, false)
	}
	refused(0)
	require.True(t, m.parts[0].dry)
	require.False(t, m.parts[0].tight)
	refused(second)
	require.True(t, m.parts[0].tight)
}

func TestSendsKeepTheirSums(t *testing.T) {
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 1))
		var s sends
		open := map[int64]int64{}
		var sent, ended, spent, count float64
		for now := range int64(1500) {
			switch n := r.Int64N(s.next + 1); r.IntN(4) {
			case 0, 1:
				cost := r.Int64N(100)
				open[s.add(now, cost)] = cost
				sent += float64(cost)
				count++
			case 2:
				if cost, ok := open[n]; ok && s.find(n) != nil {
					s.end(n, now, 2*cost)
					ended, spent = ended+float64(cost), spent+2*float64(cost)
					delete(open, n)
				}
			case 3:
				if cost, ok := open[n]; ok && s.find(n) != nil {
					require.Equal(t, cost, s.undo(n))
					sent -= float64(cost)
					count--
					delete(open, n)
				}
			}
			for n, cost := range open { // what is too old has ended as estimated
				if s.find(n) == nil {
					ended, spent = ended+float64(cost), spent+float64(cost)
					delete(open, n)
				}
			}
			checkInvariants(t, &s, fmt.Sprint("seed ", seed))
			require.Equal(t, total{sent, ended, spent, count}, s.total)
			require.Equal(t, int64(len(open)), s.open)
		}
	}
}

// checkInvariants checks what holds of requests whenever a Meter is not at work.
func checkInvariants(t *testing.T, s *sends, where string) {
	t.Helper()
	require.LessOrEqual(t, len(s.ring), mostSends, where)
	require.LessOrEqual(t, s.next-s.kept, int64(len(s.ring)), where)
	pending, open := 0.0, int64(0)
	for n := s.kept; n < s.next; n++ {
		x := s.at(n)
		if x.open {
			pending, open = pending+float64(x.cost), open+1
		}
		if before := s.at(max(n-1, s.kept)); x.at < before.at || x.before.ended < before.before.ended {
			t.Fatalf("%s: request %d is not in order", where, n)
		}
	}
	require.Equal(t, open, s.open, where)
	require.InDelta(t, pending, s.pending(), 1e-6, where)
	require.False(t, math.IsNaN(s.charged()), where)
}

func TestAServerThatAcceptsNothingIsAskedLessAndLess(t *testing.T) {
	m := New(new(meter.Wall))
	var now, asked meter.Instant
	for i := range 12 {
		require.True(t, m.Payable(now, 100))
		n := m.Take(now, now, 100, false)
		m.Report(n, now, nil, true)
		m.Refused(n, now+1, 0, false)
		asked, now = now, m.HeldUntil()
		require.Equal(t, min(asked+1+second/8<<min(i+1, 9), asked+server.Longest), now)
		require.False(t, m.Payable(now-1, 100))
	}
	n := m.Take(now, now, 100, false)
	m.Report(n, now, nil, false)
	m.End(n, now+1)
	n = m.Take(now+1, now+1, 100, false)
	m.Report(n, now, nil, true)
	m.Refused(n, now+2, 0, false)
	require.Less(t, m.HeldUntil(), now+2, "the row has ended")
}

// When a request arrives is not known, so the end of a window is later than what its response says by up to the time that it took.
func TestAWindowTurnsWhenItMustHaveEnded(t *testing.T) {
	for _, took := range []meter.Instant{second / 25, 3 * second} {
		m := New(new(meter.Wall))
		n := m.Take(second, second, 990, false)
		m.Report(n, second+took, []Figures{{Name: "tokens", Limit: 1000, Left: 10, Reset: 20 * second}}, false)
		m.End(n, second+took)
		ends := 21*second + min(took, second/10)
		require.Equal(t, ends, m.Ready(5*second, 0, 100))
		require.False(t, m.Payable(ends-1, 100))
		require.True(t, m.Payable(ends, 100))
	}
}

// A refusal that names requests is of a limit of their number, whatever they cost.
func TestALimitOfRequestsIsLearnedInRequests(t *testing.T) {
	m := New(new(meter.Wall))
	for i := range int64(60) { // in 60 s
		n := m.Take(i*second, i*second, 10+i, false)
		m.Report(n, i*second, nil, false)
		m.End(n, i*second)
	}
	n := m.Take(60*second, 60*second, 100, false)
	m.Report(n, 60*second, nil, true)
	m.Refused(n, 60*second, 0, true)
	for _, cost := range []int64{1, 1000} {
		require.InDelta(t, 62.04, float64(m.Ready(60*second, 0, cost))/1e9, 0.01, "60 in two minutes, less 2 %%, whatever it costs")
	}
	require.InDelta(t, 0.5*39.5, m.PerSecond(0), 0.01, "in what requests cost in the mean")
}

// Of sixteen requests that were sent together, the second was refused and the others were accepted: fifteen a minute are allowed at least.
func TestAGuessIsNoLessThanWhatWasAccepted(t *testing.T) {
	m := New(new(meter.Wall))
	for range firstSends {
		m.Take(0, 0, 1000, false)
	}
	m.Report(1, second, nil, true)
	m.Refused(1, second, 0, false)
	require.InDelta(t, 1000./60, m.PerSecond(second), 1e-9)
	for n := range int64(firstSends) {
		if n != 1 {
			m.Report(n, 2*second, nil, false)
			m.Settle(n, 2*second, 1000, 1000)
		}
	}
	require.InDelta(t, 15*1000./62, m.PerSecond(2*second), 1e-9)
}
