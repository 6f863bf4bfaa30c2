package server

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A chanceClient sends requests evenly, of which each n-th is refused.
type chanceClient struct {
	chance Chance
	now    meter.Instant
	sent   int64
}

// sends sends requests until that many were refused, and returns what the last refusal shows.
func (c *chanceClient) sends(perSecond, nth int64, refusals int, guessed bool) (f Finding) {
	for range refusals {
		for range nth {
			c.sent++
			c.now += second / perSecond
		}
		f = c.chance.Refused(c.now+1, c.now, c.sent, guessed)
	}
	return f
}

func TestRefusalsThatStayAsManyAtALowerRateAreByChance(t *testing.T) {
	c := new(chanceClient)
	assert.Equal(t, NoFinding, c.sends(10, 20, leastRefused, false))
	assert.Equal(t, NoFinding, c.sends(5, 20, leastSlower*leastRefused-1, false))
	assert.False(t, c.chance.On())
	assert.Equal(t, IsChance, c.sends(5, 20, 1, false))
	assert.True(t, c.chance.On())
	assert.Equal(t, NoFinding, c.sends(10, 20, 1000, false), "as long as the share stays")
	assert.Equal(t, NoFinding, c.sends(10, 3, 2*leastRefused-1, false))
	assert.Equal(t, IsNone, c.sends(10, 3, 1, false))
	assert.False(t, c.chance.On())
	c.sends(10, 20, leastRefused, false)
	assert.Equal(t, NoFinding, c.sends(5, 20, 4*leastSlower*leastRefused-1, false), "it was wrong before")
	assert.Equal(t, IsChance, c.sends(5, 20, 1, false))
}

func TestRefusalsThatBecomeFewerAtALowerRateAreNotByChance(t *testing.T) {
	c := new(chanceClient)
	c.sends(10, 20, leastRefused, false)
	c.sends(5, 50, 1000, false)
	assert.False(t, c.chance.On(), "fewer are refused")
	c.sends(8, 20, 1000, false)
	assert.False(t, c.chance.On(), "it is not much slower")
	c.sends(1, 2, 1000, false)
	assert.False(t, c.chance.On(), "half are refused")
}

func TestAGuessIsTestedAtOnce(t *testing.T) {
	c := new(chanceClient)
	assert.Equal(t, IsChance, c.sends(1, 20, leastRefused, true))
	assert.Equal(t, NoFinding, c.sends(10, 1, atOnce-1, true))
	assert.Equal(t, IsNone, c.sends(10, 1, 1, true), "nearly all of the first few are refused")
}

// Requests that were sent before the last refusal came say nothing new: a server may refuse all that are in flight.
func TestRefusalsOfRequestsInFlightAreOneEvent(t *testing.T) {
	c := new(Chance)
	for n := range int64(100) {
		c.Refused(second+n*second/8, n+1, 20*(n+1), false)
	}
	assert.EqualValues(t, 1, c.refused)
}

// A client that had nothing to send for a while was not slower.
func TestARestIsNoLowerRate(t *testing.T) {
	c := new(chanceClient)
	c.sends(10, 20, leastRefused, false)
	for range 100 {
		c.now += 10 * second
		c.chance.Rested(10 * second)
		c.sends(10, 20, leastRefused, false)
	}
	assert.False(t, c.chance.On())
}

// However often that was wrong, it can be found again.
func TestAHundredSlowerStretchesAreEnough(t *testing.T) {
	c := new(chanceClient)
	for range 5 {
		c.sends(10, 20, leastRefused, false)
		c.sends(5, 20, mostSlower*leastRefused, false)
		assert.True(t, c.chance.On())
		c.sends(10, 20, 2*leastRefused, false) // the share stays
		assert.Equal(t, IsNone, c.sends(10, 3, 2*leastRefused, false))
	}
}
