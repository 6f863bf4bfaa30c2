package pictures

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "draw the pictures of docs again")

const docs = "../../../docs/"

func TestTheTreeIsDrawn(t *testing.T) {
	if *update {
		require.NoError(t, os.WriteFile(docs+"which-limit.svg", []byte(drawTree()), 0o644))
	}
	drawn, err := os.ReadFile(docs + "which-limit.svg")
	require.NoError(t, err)
	require.True(t, drawTree() == string(drawn), "draw it again with -update")
}

func TestTheTreeNamesTheLimitsOfReadme(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	require.NoError(t, err)
	name := regexp.MustCompile(`^[A-Z]\w+`)
	var check func(node)
	check = func(n node) {
		assert.True(t, strings.Contains(string(readme), name.FindString(n.limit)), n.limit)
		for _, next := range n.next {
			check(next)
		}
	}
	check(whichLimit)
}

// What the picture of a refusal says holds in each run.
func TestARefusalIsDrawnFromARun(t *testing.T) {
	r := play(t)
	require.Equal(t, 1, r.count(func(e event) bool { return e.refused }))
	require.GreaterOrEqual(t, r.end-r.begin, retryAfter)
	require.LessOrEqual(t, r.end-r.begin, retryAfter+retryAfter/10)
	sent := func(from, to time.Duration, of int) int {
		return r.count(func(e event) bool { return e.caller == of && !e.rejected && e.sent >= from && e.sent < to })
	}
	for caller := range callers {
		require.Zero(t, sent(r.begin+1, r.end, caller), "nothing is sent before the end")
		require.NotZero(t, sent(r.end, r.end+time.Second, caller))
	}
	apart := time.Duration(0.9 / r.pace[0] * float64(time.Second))
	require.Equal(t, 1, r.count(func(e event) bool { return e.caller < callers && e.sent >= r.end && e.sent < r.end+apart }), "one by one at %v", r.pace)
	require.GreaterOrEqual(t, r.count(func(e event) bool { return e.rejected }), 4)
	require.Zero(t, r.count(func(e event) bool { return e.rejected && e.asked < r.end-2*time.Second && e.sent > e.asked }), "rejected immediately")
	require.GreaterOrEqual(t, sent(r.begin, r.end, otherHost), 4, "another host")
	require.InDelta(t, 11, r.pace[0], 2)
	require.InDelta(t, 1.85*r.pace[0], r.pace[1], r.pace[0]/3) // it grows from the first response on

	if *update {
		require.NoError(t, os.WriteFile(docs+"refusal.svg", []byte(r.draw()), 0o644))
	}
}
