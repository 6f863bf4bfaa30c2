package limiter

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/aimd"
)

// Each failure has exactly one owner, whatever is learned; and where Classify speaks for one limit, it is that one.
func TestEachFailureHasOneOwner(t *testing.T) {
	failures := []aimd.Outcome{aimd.Throttled, aimd.Unavailable, aimd.Error, aimd.Forbidden}
	for _, learned := range []side{ofRate, ofNumber, ofBoth} {
		for _, judged := range []side{0, ofRate, ofNumber, ofBoth} {
			for flags := range 16 {
				s := sides{learned: learned, judged: judged & learned, tried: flags&1 > 0, asked: flags&2 > 0, counted: flags&4 > 0, tested: flags&8 > 0}
				for _, o := range failures {
					owner := s.owner(o)
					assert.Equal(t, 1, bits.OnesCount8(uint8(owner)), "%+v, %v", s, o)
					assert.NotZero(t, owner&learned, "%+v, %v", s, o)
					for _, by := range []side{ofRate, ofNumber} {
						if heeds := s.seen(by, o) == o; learned&by > 0 {
							assert.Equal(t, by == owner, heeds, "%+v, %v", s, o)
						}
					}
				}
				assert.Equal(t, learned, s.owner(aimd.OK), "a success concerns all limits")
			}
		}
	}
	for _, c := range []struct {
		o     aimd.Outcome
		s     sides
		owner side
	}{
		{aimd.Throttled, sides{}, ofRate},
		{aimd.Throttled, sides{tried: true}, ofNumber},
		{aimd.Throttled, sides{tried: true, asked: true}, ofRate},
		{aimd.Unavailable, sides{}, ofRate},
		{aimd.Unavailable, sides{tried: true}, ofNumber},
		{aimd.Unavailable, sides{tried: true, counted: true}, ofRate},
		{aimd.Unavailable, sides{tested: true, counted: true}, ofNumber},
		{aimd.Throttled, sides{tested: true}, ofNumber},
		{aimd.Unavailable, sides{tested: true, asked: true}, ofRate},
		{aimd.Error, sides{tried: true, tested: true}, ofRate},
		{aimd.Error, sides{judged: ofNumber}, ofNumber},
		{aimd.Unavailable, sides{judged: ofRate}, ofRate},
	} {
		c.s.learned = ofBoth
		assert.Equal(t, c.owner, c.s.owner(c.o), "%+v, %v", c.s, c.o)
	}
}

// A refusal of one part of the requests says nothing of a rate of all, and of their number what it says otherwise.
func TestNoRateIsLearnedOfAPart(t *testing.T) {
	for _, learned := range []side{ofRate, ofBoth} {
		for _, tried := range []bool{false, true} {
			s, part := sides{learned: learned, tried: tried}, sides{learned: learned, tried: tried, ofPart: true}
			for _, o := range []aimd.Outcome{aimd.Throttled, aimd.Unavailable, aimd.Error, aimd.Forbidden} {
				assert.Equal(t, aimd.Ignore, part.seen(ofRate, o))
				assert.Equal(t, s.seen(ofNumber, o), part.seen(ofNumber, o))
			}
			assert.Equal(t, aimd.OK, part.seen(ofRate, aimd.OK))
		}
	}
}
