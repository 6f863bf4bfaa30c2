package concurrency

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLevelHasTheRequestsSentInIt(t *testing.T) {
	l := begin(5)
	assert.False(t, l.has(4))
	assert.True(t, l.has(5))
	assert.True(t, l.has(1<<60))
	l.to = 9
	assert.True(t, l.has(9))
	assert.False(t, l.has(10))
}

func TestMeanOfALevelLiesBetweenGeometricAndArithmetic(t *testing.T) {
	l := begin(1)
	for _, x := range []float64{0.01, 0.09} {
		l.send(0, 1)
		l.add(x)
	}
	ln, variance := l.log()
	assert.InDelta(t, 0.04, math.Exp(ln), 1e-12, "((0.1+0.3)/2)²")
	assert.InDelta(t, 4*(0.05/0.04-1)/2, variance, 1e-12)
}

func TestLevelOfEqualLatenciesHasNoVariance(t *testing.T) {
	l := begin(1)
	for range 20 {
		l.send(0, 1)
		l.add(0.05)
	}
	ln, variance := l.log()
	assert.InDelta(t, math.Log(0.05), ln, 1e-9)
	assert.InDelta(t, 0, variance, 1e-9)
}

func TestLevelIsCompleteWithItsResponsesOrAfterFourMeanLatencies(t *testing.T) {
	l := begin(1)
	l.send(at(1), 1)
	l.send(at(2), 2)
	l.add(0.1)
	assert.False(t, l.complete(at(2.4), 0.1))
	assert.True(t, l.complete(at(2.4)+1, 0.1))
	l.add(0.1)
	assert.True(t, l.complete(at(2), 0.1))
}

func TestMissingResponsesCountAsSlow(t *testing.T) {
	l := begin(1)
	for range 4 {
		l.send(0, 1)
	}
	l.add(0.01)
	l.add(0.01)
	l.add(0.01)
	assert.True(t, l.finish(0.01))
	assert.InDelta(t, 4, l.done, 0)
	assert.InDelta(t, 3*0.1+0.2, l.sum, 1e-12, "four times the mean")
}

func TestLevelWithoutHalfOfItsResponsesGivesNoVerdict(t *testing.T) {
	l := begin(1)
	assert.False(t, l.finish(0.01))
	for range 3 {
		l.send(0, 1)
	}
	l.add(0.01)
	assert.False(t, l.finish(0.01))
}

func TestRemovedRequestLeavesNoTrace(t *testing.T) {
	l := begin(1)
	l.send(0, 3)
	l.send(0, 4)
	l.remove(4)
	assert.InDelta(t, 3, l.number(), 0)
	l.add(0.01)
	assert.True(t, l.complete(0, 1))
}
