package quota

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
)

// What is told by a server that gives back a request with each that it accepts is no forecast after a few responses. Windows that
// turn stay one, even where responses come out of order or tell of the window before.
func TestAFlowIsToldFromWindows(t *testing.T) {
	said := func(limit int64, lefts ...int64) (f flow) {
		f.left = -1
		for _, left := range lefts {
			f.hear(left, limit)
		}
		return f
	}
	windows := func(n int64, turns int, order func(lefts []int64)) (all []int64) {
		for range turns {
			lefts := make([]int64, n)
			for i := range lefts {
				lefts[i] = n - 1 - int64(i)
			}
			order(lefts)
			all = append(all, lefts...)
		}
		return all
	}
	straight := func([]int64) {}
	f := said(10)
	assert.False(t, f.forecasts(), "no accepted response has named it")
	for _, n := range []int64{2, 3, 5, 8, 50, 1000} {
		f = said(n, windows(n, 10, straight)...)
		assert.True(t, f.forecasts(), "a window of %d", n)
		assert.Zero(t, f.share)
	}
	dice := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		f = said(50, windows(50, 1+dice.IntN(9), func(lefts []int64) { // up to three places out of order
			for i := 0; i+3 < len(lefts); i += 3 {
				j := i + dice.IntN(3)
				lefts[i], lefts[j] = lefts[j], lefts[i]
			}
		})...)
		assert.Less(t, f.share, float32(0.5))
	}
	f = said(50, 0, 0, 0, 0, 0)
	assert.False(t, f.forecasts(), "an empty bucket")
	f = said(50, 40, 39, 39, 38, 38, 37, 37, 36, 36, 35, 35)
	assert.False(t, f.forecasts(), "a bucket that half of the rate fills")
	for _, left := range windows(50, 2, straight) {
		f.hear(left, 50)
	}
	assert.True(t, f.forecasts(), "the server has changed")
}
