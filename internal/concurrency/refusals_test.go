package concurrency

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/server"
)

// An admitter answers at most k requests at a time, and refuses the others.
type admitter struct {
	*controller
	now     instant
	k       int64
	there   []ticket
	refused int
}

func newAdmitter(n, k int64) *admitter {
	a := &admitter{controller: newController(0, Config{Initial: n}, noon), k: k}
	a.mode = cruising
	return a
}

// step refuses what is too much, and answers the oldest request.
func (a *admitter) step() {
	for a.inFlight < a.limit() && a.now >= a.refusals.until {
		t := a.send(a.now, 1)
		if int64(len(a.there)) >= a.k {
			a.free(1)
			a.refused++
			a.refuse(a.now, t, false)
			continue
		}
		a.there = append(a.there, t)
	}
	a.now += at(0.01)
	if len(a.there) > 0 {
		t := a.there[0]
		a.there = a.there[1:]
		a.succeeded(a.now, t)
		a.measure(a.now, t.seq, 0.05)
		a.free(1)
	}
}

func TestRefusalSaysHowManyWereTooMany(t *testing.T) {
	a := newAdmitter(6, 5)
	a.brink(0)
	a.step()
	assert.Equal(t, 1, a.refused)
	assert.Equal(t, 5.0, a.refusals.ceiling)
	assert.Equal(t, 5.0, a.n, "⌊min(6-1, 0.9·6)⌋")
	assert.Equal(t, int64(5), a.limit())
}

func TestOneCutForEachRound(t *testing.T) {
	c := newController(0, Config{Initial: 20}, noon)
	c.brink(second)
	var sent []ticket
	for range 20 {
		sent = append(sent, c.send(0, 1))
	}
	for _, s := range sent {
		c.free(1)
		c.refuse(at(1), s, false)
	}
	assert.Equal(t, 9.0, c.n, "no cut more than halves it: the refusal of the first request says that one is too many")
	assert.Equal(t, 9.0, c.refusals.ceiling)
}

func TestTriesAreRareAndDoubleTheirDistance(t *testing.T) {
	a := newAdmitter(6, 5)
	a.refusals.failures.Learn(0)
	var tries []float64
	for before := 0; a.now < at(40); before = a.refused {
		a.step()
		if a.refused > before {
			tries = append(tries, float64(a.now)/1e9)
		}
	}
	require.Greater(t, len(tries), 5)
	for i := 2; i < min(5, len(tries)); i++ {
		assert.Greater(t, tries[i]-tries[i-1], 1.5*(tries[i-1]-tries[i-2]), "%v", tries)
	}
	assert.Less(t, float64(a.refused), 0.01*float64(a.seq))
	assert.GreaterOrEqual(t, a.limit(), int64(5), "a try that failed costs nothing else")
}

func TestTriesFindAHigherLimit(t *testing.T) {
	a := newAdmitter(6, 5)
	for a.now < at(60) {
		a.step()
	}
	a.k = 40
	a.n = 100 // as far as latencies say
	for a.now < at(130) {
		a.step()
	}
	assert.Equal(t, int64(40), a.limit())
}

func TestEightRefusalsInARowPause(t *testing.T) {
	c := newController(0, Config{Initial: 16}, noon)
	now := instant(0)
	for i := range 8 {
		assert.Equal(t, instant(0), c.refusals.until, "%d", i)
		s := c.send(now, 1)
		c.free(1)
		c.refuse(now, s, false)
	}
	assert.Equal(t, second/10, c.refusals.until)
	assert.Equal(t, int64(1), c.limit())
	assert.False(t, math.IsInf(c.refusals.ceiling, 1), "or n would double past the ceiling again")
	for i := range 20 {
		now = c.refusals.until
		s := c.send(now, 1)
		c.free(1)
		c.refuse(now, s, false)
		assert.Equal(t, min(2*second, second/10<<(i+1)), c.refusals.until-now)
	}
	c.succeeded(now, ticket{c.seq, 1})
	assert.Zero(t, c.refusals.row)
}

// refuses sends requests and has each n-th of them refused, until f holds. It returns how many were sent.
func (a *admitter) refuses(n int, f func() bool) (sent int) {
	for ; !f() && sent < 10_000; sent++ {
		a.step()
		if sent%n == n-1 && len(a.there) > 0 {
			t := a.there[len(a.there)-1]
			a.there = a.there[:len(a.there)-1]
			a.free(1)
			a.refuse(a.now, t, false)
		}
	}
	return sent
}

// Refusals at random say nothing of how many are in flight. A trial finds that: as many are refused when half as many are in flight. Then
// they are ignored until more are refused.
func TestRandomRefusalsAreNotLoad(t *testing.T) {
	for _, n := range []int{5, 10} {
		a := newAdmitter(20, math.MaxInt64)
		a.cfg.Max = 40
		f := &a.refusals.failures
		a.refuses(n, f.Trying)
		assert.LessOrEqual(t, a.cruise(), 10.0, "cuts have lowered it to a half")
		assert.False(t, f.Higher())
		a.refuses(n, f.Higher)
		assert.GreaterOrEqual(t, a.cruise(), 20.0, "the trial goes back to the number before them")
		a.refuses(n, func() bool { return !f.Trying() })
		assert.GreaterOrEqual(t, a.cruise(), 20.0)
		assert.True(t, isUnknown(a.refusals.ceiling))
		assert.Equal(t, starting, a.mode, "and it is found as at the start")
		a.refuses(n, func() bool { return a.now > at(600) })
		assert.Greater(t, a.limit(), int64(20))
		assert.True(t, isUnknown(a.refusals.ceiling))
		a.refuses(1, func() bool { return !isUnknown(a.refusals.ceiling) })
		assert.Less(t, a.refusals.ceiling, 40.0, "a half is more")
	}
}

// A server that works on a number of requests refuses none of half of them, so load is the cause. n does not go back.
func TestRefusalsThatStopAtALowerNumberAreLoad(t *testing.T) {
	a := newAdmitter(40, 15)
	tried := false
	for a.now < at(60) {
		a.step()
		tried = tried || a.refusals.failures.Trying()
	}
	assert.True(t, tried)
	assert.False(t, a.refusals.failures.Trying())
	_, found := a.refusals.failures.Usual()
	assert.False(t, found)
	assert.InDelta(t, 15, a.refusals.ceiling, 1)
	assert.Less(t, float64(a.refused), 0.1*float64(a.seq))
}

func TestRareRefusalsAreIgnored(t *testing.T) {
	a := newAdmitter(20, math.MaxInt64)
	a.cfg.Max = 20
	a.refuses(100, func() bool { return a.now > at(300) })
	assert.Equal(t, int64(20), a.limit())
}

// While a share of refusals is ignored, because load is not their cause, a row of them still is a server that is down.
func TestAServerThatIsDownIsNotTakenForNoise(t *testing.T) {
	a := newAdmitter(1, 1)
	a.refusals.failures.Agree(byChance(t, 0.25))
	down := a.now
	for range rowAtMost {
		require.LessOrEqual(t, a.refusals.until, a.now)
		tk := a.send(a.now, 1)
		a.free(1)
		a.refuse(a.now, tk, false)
	}
	require.Equal(t, down+firstPause, a.refusals.until)
	sent := 0
	for a.now < down+60*second {
		a.now = max(a.now, a.refusals.until)
		tk := a.send(a.now, 1)
		a.free(1)
		a.refuse(a.now, tk, false)
		sent++
	}
	require.LessOrEqual(t, sent, 60, "a probe a second")
}

// byChance returns what is known after a trial has found that such a share of refusals is by chance.
func byChance(t *testing.T, share float64) *server.Failures {
	f, v := new(server.Failures), server.NoStep
	f.Try(share)
	for range 2 {
		for i := 1; v != server.TryHigher && v != server.NotByLoad; i++ {
			failed := math.Floor(float64(i)*share) - math.Floor(float64(i-1)*share)
			v = f.Take(0, failed, true, true)
		}
		if v == server.TryHigher {
			f.Moved(v)
			v = server.NoStep
		}
	}
	require.Equal(t, server.NotByLoad, v)
	return f
}

func TestARequestTriesAHigherNumber(t *testing.T) {
	r := newRefusals(0)
	require.False(t, r.tries(ticket{1, 100}), "nothing was refused yet")
	r.ceiling, r.step, r.raised = 11, 1, 50
	require.True(t, r.tries(ticket{50 + soon - 1, 11}))
	require.False(t, r.tries(ticket{50 + soon, 11}), "that was long ago")
	require.False(t, r.tries(ticket{51, 10}), "so many were fine")
}
