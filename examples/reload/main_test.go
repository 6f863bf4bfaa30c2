package main

import (
	"bytes"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/httpthrottle/throttle/examples/internal/exampletest"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLimitsFollowTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		require.NoError(t, run(t.Context(), &out, throttletest.WithInMemory()))
		lines := strings.Split(out.String(), "\n")
		require.Len(t, lines, 11, out.String())
		exampletest.AssertNarrow(t, out.String())
		require.Contains(t, lines[3], `error="throttle: limit \"tenant\": n of -10 is not positive"`)
		for i, want := range map[int][2]float64{1: {40, 5}, 2: {80, 10}, 4: {80, 10}, 5: {40, 40}, 6: {20, 20}} {
			columns := strings.Fields(lines[i])
			gold, err := strconv.ParseFloat(columns[len(columns)-2], 64)
			require.NoError(t, err)
			other, err := strconv.ParseFloat(columns[len(columns)-1], 64)
			require.NoError(t, err)
			if i >= 5 { // what both have together, of 4 or 2 in flight for 100 ms each
				gold += other
				other = gold
			}
			assert.InDelta(t, want[0], gold, 1+want[0]/20, lines[i])
			assert.InDelta(t, want[1], other, 1+want[1]/20, lines[i])
		}
	})
}
