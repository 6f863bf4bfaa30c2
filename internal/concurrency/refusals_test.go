package concurrency

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
		a.refusals.succeeded(a.cruise())
		a.measure(a.now, t.seq, 0.05)
		a.free(1)
	}
}

func TestRefusalSaysHowManyWereTooMany(t *testing.T) {
	a := newAdmitter(6, 5)
	a.refusals.since = 0
	a.step()
	assert.Equal(t, 1, a.refused)
	assert.Equal(t, 5.0, a.refusals.ceiling)
	assert.Equal(t, 5.0, a.n, "⌊min(6-1, 0.9·6)⌋")
	assert.Equal(t, int64(5), a.limit())
}

func TestANumberIsGoodOnlyAfterItWasInFlight(t *testing.T) {
	r := newRefusals()
	for range 100 {
		r.succeeded(4)
	}
	assert.Equal(t, 4.0, r.good)
	for range isolated + 8 {
		r.succeeded(8)
	}
	assert.Equal(t, 4.0, r.good, "the first responses are to requests that were sent before")
	r.succeeded(8)
	assert.Equal(t, 8.0, r.good)
}

func TestOneCutForEachRound(t *testing.T) {
	c := newController(0, Config{Initial: 20}, noon)
	c.refusals.since = 0
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
	a.refusals.since = 0
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
	c.refusals.succeeded(1)
	assert.Zero(t, c.refusals.row)
}

// Refusals at random say nothing of how many are in flight.
func TestRandomRefusalsAreNotLoad(t *testing.T) {
	a := newAdmitter(20, math.MaxInt64)
	a.cfg.Max = 40
	for i := 0; a.now < at(600); i++ {
		a.step()
		if i%60 == 59 && a.inFlight > 0 && a.now >= a.refusals.until { // denser than what is ignored anyway
			s := a.send(a.now, 1)
			a.free(1)
			a.refuse(a.now, s, false)
		}
	}
	assert.Greater(t, a.limit(), int64(20))
}

func TestRareRefusalsAreIgnored(t *testing.T) {
	c := newController(0, Config{Initial: 20}, noon)
	for range 20 {
		for range 101 {
			c.refusals.succeeded(20)
		}
		s := c.send(0, 20)
		c.free(20)
		c.refuse(0, s, false)
	}
	assert.Equal(t, int64(20), c.limit())
}

// While a share of refusals is ignored, because load is not their cause, a row of them still is a server that is down.
func TestAServerThatIsDownIsNotTakenForNoise(t *testing.T) {
	a := newAdmitter(1, 1)
	a.refusals.noise, a.refusals.noiseEnd = 1, a.now+noiseFor
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

func TestARequestTriesAHigherNumber(t *testing.T) {
	r := newRefusals()
	require.False(t, r.tries(ticket{1, 100}), "nothing was refused yet")
	r.ceiling, r.step, r.raised = 11, 1, 50
	require.True(t, r.tries(ticket{50 + soon - 1, 11}))
	require.False(t, r.tries(ticket{50 + soon, 11}), "that was long ago")
	require.False(t, r.tries(ticket{51, 10}), "so many were fine")
}
