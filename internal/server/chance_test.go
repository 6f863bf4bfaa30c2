package server

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A chanceClient sends requests evenly, of which each n-th is refused.
type chanceClient struct {
	chance  Chance
	now     meter.Instant
	sent    int64
	learner Learner
}

// sends sends requests until that many were refused, and returns what the last refusal shows.
func (c *chanceClient) sends(perSecond, nth int64, refusals int) (f Finding) {
	for range refusals {
		for range nth {
			c.sent++
			c.now += second / perSecond
		}
		f = c.chance.Refused(c.now+1, c.now, c.sent, c.sent, c.learner)
	}
	return f
}

// until returns how many refusals it takes until one shows that; 0: more than ten.
func (c *chanceClient) until(f Finding, perSecond, nth int64) int {
	for n := range 10 {
		if c.sends(perSecond, nth, 1) == f {
			return n + 1
		}
	}
	return 0
}

// slower returns how many refusals of a client that has become slower show that they are by chance.
func (c *chanceClient) slower(times int) int { return times * int(c.learner.enough()) * leastRefused }

func TestRefusalsThatStayAsManyAtALowerRateAreByChance(t *testing.T) {
	for _, l := range []Learner{Asked, Slots} {
		c := &chanceClient{learner: l}
		assert.Equal(t, NoFinding, c.sends(10, 20, leastRefused))
		assert.Equal(t, NoFinding, c.sends(5, 20, c.slower(1)-1))
		assert.False(t, c.chance.On())
		assert.Equal(t, IsChance, c.sends(5, 20, 1))
		assert.True(t, c.chance.On())
		assert.Equal(t, NoFinding, c.sends(10, 20, provenBy/2), "as long as the share stays")
		assert.Equal(t, 7, c.until(IsNone, 10, 2), "half are refused")
		assert.False(t, c.chance.On())
		c.sends(10, 20, leastRefused)
		assert.Equal(t, NoFinding, c.sends(5, 20, min(c.slower(8), mostSlower*leastRefused)-1), "it was wrong before")
		assert.Equal(t, IsChance, c.sends(5, 20, 1))
	}
}

// What was right for a long time, until the server changed, is found as quickly again.
func TestAFindingThatWasRightMakesNoneDoubtful(t *testing.T) {
	c := &chanceClient{learner: Slots}
	c.sends(10, 20, leastRefused)
	assert.Equal(t, IsChance, c.sends(5, 20, c.slower(1)))
	c.sends(10, 20, provenBy)
	assert.Positive(t, c.until(IsNone, 10, 2))
	c.sends(10, 20, leastRefused)
	assert.Equal(t, IsChance, c.sends(5, 20, c.slower(1)))
}

func TestRefusalsThatBecomeFewerAtALowerRateAreNotByChance(t *testing.T) {
	c := new(chanceClient)
	c.sends(10, 20, leastRefused)
	c.sends(5, 50, 1000)
	assert.False(t, c.chance.On(), "fewer are refused")
	c.sends(8, 20, 1000)
	assert.False(t, c.chance.On(), "it is not much slower")
	c.sends(1, 2, 1000)
	assert.False(t, c.chance.On(), "half are refused")
}

// The share of the fastest stretch may have been large by chance: what was refused later is compared with what was refused then.
func TestAShareThatWasLargeOnceIsForgotten(t *testing.T) {
	c := &chanceClient{learner: Slots}
	c.sends(10, 4, leastRefused)
	c.sends(5, 20, c.slower(1))
	assert.False(t, c.chance.On())
	assert.Equal(t, IsChance, c.sends(2, 20, c.slower(1)))
}

func TestAGuessIsTestedAtOnce(t *testing.T) {
	c := &chanceClient{learner: Guess}
	assert.Equal(t, IsChance, c.sends(1, 20, leastRefused))
	assert.Equal(t, 7, c.until(IsNone, 10, 1), "all are refused")
}

// A trial is decided by the requests that are sent at once: those that a lower rate avoids say nothing. Three of six may be refused by chance, and to
// take that for a full server would be believed for long.
func TestALearnedRateIsTestedByATrial(t *testing.T) {
	for _, c := range []struct {
		name    string
		refused []int64 // of each trial; the others accept all
		want    Finding
		trials  int
	}{
		{"by chance", nil, IsChance, 3},
		{"by chance, three of the first", []int64{3}, IsChance, 7},
		{"of a full server", []int64{Together}, IsNone, 1},
		{"of a full server that accepts three", []int64{3, 3}, IsNone, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := &chanceClient{learner: Rate}
			client.sends(10, 20, leastRefused)
			f := client.sends(5, 20, client.slower(1))
			trials := 0
			for ; f == IsTried; trials++ {
				refused := int64(0)
				if trials < len(c.refused) {
					refused = c.refused[trials]
				}
				at := client.now + 1
				for i := int64(0); i < refused && f != IsNone; i++ {
					f = client.chance.Refused(at+second/10, at, client.sent+1+i, client.sent+Together, Rate)
				}
				client.sent += Together
				if f == NoFinding || f == IsTried {
					f = client.sends(5, 20, 1)
				}
			}
			assert.Equal(t, c.want, f)
			assert.Equal(t, c.trials, trials)
			assert.Equal(t, c.want == IsChance, client.chance.On())
			if c.want == IsNone {
				client.sends(10, 20, leastRefused)
				assert.Equal(t, NoFinding, client.sends(5, 20, client.slower(8)-1), "it was wrong before")
				assert.Equal(t, IsTried, client.sends(5, 20, 1))
			}
		})
	}
}

// A refusal that comes before that of an earlier request takes this one for accepted, until its refusal comes.
func TestRefusalsThatArriveOutOfOrder(t *testing.T) {
	c := &chanceClient{learner: Slots}
	c.sends(10, 20, leastRefused)
	assert.Equal(t, IsChance, c.sends(5, 20, c.slower(1)))
	c.sends(10, 20, provenBy/2)
	for n := 1; ; n++ {
		f := NoFinding
		for _, number := range []int64{c.sent + 4, c.sent + 2} { // half are refused
			if f != IsNone {
				f = c.chance.Refused(c.now+second, c.now+1, number, c.sent+4, Slots)
			}
		}
		c.sent, c.now = c.sent+4, c.now+2*second
		if f == IsNone {
			assert.Equal(t, 4, n, "pairs: as many as in the order in which they were sent")
			break
		}
		if !assert.Less(t, n, 20) {
			break
		}
	}
}

// Requests that were sent before the last refusal came say nothing new: a server may refuse all that are in flight.
func TestRefusalsOfRequestsInFlightAreOneEvent(t *testing.T) {
	c := new(Chance)
	for n := range int64(100) {
		c.Refused(second+n*second/8, n+1, 20*(n+1), 2000, Asked)
	}
	assert.EqualValues(t, 1, c.refused)
}

// A client that had nothing to send for a while was not slower.
func TestARestIsNoLowerRate(t *testing.T) {
	c := new(chanceClient)
	c.sends(10, 20, leastRefused)
	for range 100 {
		c.now += 10 * second
		c.chance.Rested(10 * second)
		c.sends(10, 20, leastRefused)
	}
	assert.False(t, c.chance.On())
}

// However often that was wrong, it can be found again.
func TestAHundredSlowerStretchesAreEnough(t *testing.T) {
	c := new(chanceClient)
	for range 5 {
		c.sends(10, 20, leastRefused)
		c.sends(5, 20, mostSlower*leastRefused)
		assert.True(t, c.chance.On())
		assert.Positive(t, c.until(IsNone, 10, 2))
	}
}
