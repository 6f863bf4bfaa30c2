package aimd

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAServerIsExpectedToBeClosedForAsLongAfterAsManyRequests(t *testing.T) {
	var w closures
	closes := func(n float64, shut, open int64) (expected bool) {
		w.begins(n)
		w.closed(shut)
		return w.opened(open)
	}
	assert.Zero(t, w.opens(7), "nothing is known")
	assert.False(t, closes(100, 20, 60))
	assert.Equal(t, instant(7+19+20), w.opens(7), "halfway between when it was closed and open")
	assert.True(t, closes(104, 50, 58), "a sixteenth makes no difference")
	assert.Equal(t, int64(58), w.open)
	w.shut = 57
	assert.Equal(t, instant(7+58), w.opens(7))
	w.shut = 47
	assert.False(t, closes(112, 50, 90), "it is closed for another reason")
	assert.False(t, closes(0, 50, 90), "nothing was accepted")
	assert.False(t, closes(0, 50, 90))
	w = closures{n: 100, shut: 20, open: 60}
	w.closed(70)
	assert.Zero(t, w.open, "it is closed for longer now")
}
