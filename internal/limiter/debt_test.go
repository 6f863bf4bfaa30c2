package limiter_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/store"
)

// This file has windows of 10 tokens in 10 s in debt, because a request that was granted when the bubble began, and took all of one, did cost 25.

var debtKinds = map[string]func(n int64, per time.Duration, opts ...ruleOption) rule{"fixed": fixedWindow, "sliding": slidingWindow}

// A debtBeside is a request that needs tokens of a window that owes, and one of another limit. The window has 5 tokens after two periods, and 10 after
// three.
type debtBeside struct {
	name   string
	beside time.Duration // another token of the other limit
	cost   int64
	at     time.Duration
	again  map[string]time.Duration // when the window has 6 more
}

var debtsBeside = []debtBeside{
	{"the window is later", time.Second, 5, 20 * sec, map[string]time.Duration{"fixed": 30 * sec, "sliding": 30 * sec}},
	{"by a period", time.Second, 6, 30 * sec, map[string]time.Duration{"fixed": 40 * sec, "sliding": 40 * sec}},
	{"the other limit is later", 25 * sec, 5, 25 * sec, map[string]time.Duration{"fixed": 30 * sec, "sliding": 35 * sec}},
	{"by a period, the other limit is later", 35 * sec, 6, 35 * sec, map[string]time.Duration{"fixed": 40 * sec, "sliding": 45 * sec}},
}

// play returns when the request is granted, one that needs 6 tokens of the window after it, and one of the other limit.
func (c debtBeside) play(t *testing.T, window, beside rule) (both, next, other time.Duration) {
	l := drive(t, window, beside)
	g, err := l.acquire(t.Context(), ask{Costs: map[string]int64{"window": 10, "beside": 1}})
	require.NoError(t, err)
	sleep(2 * sec)
	require.NoError(t, g.settle("window", 25))
	var sent []*request
	for _, costs := range []map[string]int64{{"window": c.cost, "beside": 1}, {"window": 6, "beside": 0}, {"window": 0, "beside": 1}} {
		sent = append(sent, l.send(ask{Costs: costs}))
		for len(sent) == 1 && !sent[0].done {
			sleep(ms)
		}
	}
	sleep(2 * time.Minute)
	l.check()
	for _, r := range sent {
		require.NoError(t, r.err)
	}
	return sent[0].at, sent[1].at, sent[2].at
}

// The request waits for the later of both limits, and neither is charged before, or loses a token.
func TestADebtOfAWindowBesideASecondLimit(t *testing.T) {
	for kind, window := range debtKinds {
		for _, c := range debtsBeside {
			within(t, kind+", "+c.name, func(t *testing.T) {
				both, next, other := c.play(t, window(10, 10*sec, named("window")), pace(1, c.beside, named("beside")))
				require.Equal(t, c.at, both)
				require.Equal(t, c.again[kind], next)
				require.Equal(t, c.at+c.beside, other)
			})
		}
	}
}

// The same holds in a store. A process asks within 10 ms after a fixed window begins, and for tokens of a window 5 ms before another limit lets its
// request go.
func TestADebtOfASharedWindowBesideASecondLimit(t *testing.T) {
	const spread, lead = 10 * ms, 5 * ms
	between := func(t *testing.T, from, at, to time.Duration) {
		require.GreaterOrEqual(t, at, from)
		require.Less(t, at, to)
	}
	for kind, window := range debtKinds {
		for _, c := range debtsBeside {
			for _, all := range []bool{false, true} {
				within(t, fmt.Sprintf("%s, %s, both are shared: %v", kind, c.name, all), func(t *testing.T) {
					s := store.NewMemory()
					var opts []ruleOption
					if all {
						opts = append(opts, shared(s))
					}
					both, next, other := c.play(t, window(10, 10*sec, named("window"), shared(s)), pace(1, c.beside, append(opts, named("beside"))...))
					between(t, c.at, both, c.at+spread)
					between(t, c.again[kind]-lead, next, c.again[kind]+spread)
					between(t, both+c.beside, other, both+c.beside+2*time.Microsecond) // a store counts whole µs
				})
			}
		}
	}
}

// A request that a late timer grants counts when it is granted, beside the debt that the window has paid by then.
func TestADebtOfAWindowBesideALateTimer(t *testing.T) {
	for kind, window := range debtKinds {
		for _, c := range []struct {
			wakes time.Duration
			again map[string]time.Duration // when the window has 10
		}{
			{20 * sec, map[string]time.Duration{"fixed": 30 * sec, "sliding": 30 * sec}},
			{20*sec + 1, map[string]time.Duration{"fixed": 30 * sec, "sliding": 30*sec + 1}},
			{30*sec - 1, map[string]time.Duration{"fixed": 30 * sec, "sliding": 40*sec - 1}},
			{30 * sec, map[string]time.Duration{"fixed": 40 * sec, "sliding": 40 * sec}},
			{57 * sec, map[string]time.Duration{"fixed": 60 * sec, "sliding": 67 * sec}},
		} {
			within(t, kind+", "+c.wakes.String(), func(t *testing.T) {
				l := drive(t, window(10, 10*sec, named("window")))
				g, err := l.acquire(t.Context(), ask{Cost: 10})
				require.NoError(t, err)
				sleep(2 * sec)
				require.NoError(t, g.settle("window", 25))
				five := l.send(ask{Cost: 5})
				l.StopTimers()
				sleep(c.wakes - 2*sec)
				require.False(t, five.done)
				l.WakeAll([]int{0, 1, 2})
				sleep(0)
				requireGranted(t, five, c.wakes)
				ten := l.send(ask{Cost: 10})
				sleep(time.Minute)
				requireGranted(t, ten, c.again[kind])
				l.check()
			})
		}
	}
}

// A request that was due before a debt became known is granted before, although its timer is late.
func TestADebtComesAfterARequestThatWasDue(t *testing.T) {
	for kind, again := range map[string][2]time.Duration{"fixed": {20 * sec, 30 * sec}, "sliding": {22 * sec, 32 * sec}} {
		for i, cost := range []int64{1, 2} {
			within(t, kind, func(t *testing.T) {
				l := drive(t, debtKinds[kind](10, 10*sec, named("window")))
				g, err := l.acquire(t.Context(), ask{Cost: 10})
				require.NoError(t, err)
				four := l.send(ask{Cost: 4})
				l.StopTimers()
				sleep(12 * sec)
				require.False(t, four.done)
				require.NoError(t, g.settle("window", 25)) // 4 and 15 are used, and 10 come in with the next period
				sleep(0)
				requireGranted(t, four, 12*sec)
				next := l.send(ask{Cost: cost})
				sleep(time.Minute)
				requireGranted(t, next, again[i])
				l.check()
			})
		}
	}
}
