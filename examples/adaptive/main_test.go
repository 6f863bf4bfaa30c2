package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle/examples/internal/exampletest"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A row is what the summary says of a phase.
type row struct{ lasted, gives, accepted, refused, found float64 }

func rowOf(t *testing.T, out, name string) row {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + ` +(?:\d+/s)? +([\d.]+)s +(\d+) +(\d+) +(\d+)(?: +([\d.]+)s +\d+%)?$`).FindStringSubmatch(out)
	require.NotNil(t, m, "no row %q in:\n%s", name, out)
	n := [5]float64{4: -1}
	for i := range n {
		if m[i+1] != "" {
			var err error
			n[i], err = strconv.ParseFloat(m[i+1], 64)
			require.NoError(t, err)
		}
	}
	return row{n[0], n[1], n[2], n[3], n[4]}
}

// The whole of it in the time of a bubble, which nothing disturbs. There is a leak if the bubble does not end.
func TestEachLimitIsFound(t *testing.T) { // slow: minutes of a program
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, err := parse([]string{"-seed", fmt.Sprint(seed)}, io.Discard)
				require.NoError(t, err)
				api, err := startAPI(c, throttletest.WithInMemory())
				require.NoError(t, err)
				defer api.Close()
				var out bytes.Buffer
				require.NoError(t, show(t.Context(), api, c, &out))

				assert.Less(t, rowOf(t, out.String(), "at first").found, 6.0)
				assert.Less(t, rowOf(t, out.String(), "after the drop").found, 2.0)
				assert.Less(t, rowOf(t, out.String(), "after the return").found, 16.0)
				all := rowOf(t, out.String(), "all")
				assert.Less(t, all.refused, 0.03*(all.accepted+all.refused))
				assert.Greater(t, all.accepted, 0.35*all.gives)
				assert.Regexp(t, `\nAdaptive, without a guess: [0-3]\.\d% refused, and (8[5-9]|9\d|10[0-5])% of each limit used once found\.\n$`, out.String())
				seen := api.Counts()
				assert.InDelta(t, seen.Accepted, all.accepted, 50, "except those on the way at the end")
				assert.InDelta(t, seen.Refused, all.refused, 5)
				exampletest.AssertNarrow(t, out.String())
			})
		})
	}
}

// On real sockets, for a few seconds. Whether that is enough depends on what else the machine has to do.
func TestOnSockets(t *testing.T) { // slow: the program in real time
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-high", "40", "-low", "30", "-workers", "8", "-duration", "4s"}, &out); err != nil {
		require.ErrorContains(t, err, "was not found within 4s")
	}
	all := rowOf(t, out.String(), "all")
	assert.Less(t, all.accepted, 1.1*all.gives+10, "no more than it could: 4 at once, and what is rounded")
	if !testing.Short() {
		assert.Greater(t, all.accepted, 10.0)
		assert.Less(t, all.refused, 0.3*all.accepted)
	}
	assert.Regexp(t, `(?m)^ +\d\.\ds +40/s +\d+/s +\d+ +\d+   █`, out.String())
	assert.Regexp(t, `\nA fixed 40/s would have had 25% .*\n.*\nAdaptive, without a guess: \d+\.\d% refused, and \d+% of each limit used once found\.\n$`, out.String())
}

func TestNotFound(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := run(t.Context(), []string{"-high", "5000", "-duration", "1s", "-workers", "4"}, &out)
	require.ErrorContains(t, err, "the limit at first, 5000/s, was not found within 1s")
	assert.Regexp(t, `(?m)^at first +5000/s .* never +-$`, out.String())
}

func TestAFailureEndsIt(t *testing.T) {
	t.Parallel()
	api := throttletest.Start(t, throttletest.WithLimits(throttletest.TokenBucket(10, time.Second)),
		throttletest.WithFaults(throttletest.Respond(http.StatusTeapot, nil).OnRequests(3)))
	err := show(t.Context(), api, config{high: 10, low: 1, workers: 4, duration: time.Minute}, io.Discard)
	assert.ErrorContains(t, err, "418 I'm a teapot")
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	out := exampletest.Program(run).Interrupted(t, 200*time.Millisecond)
	assert.Regexp(t, `(?m)^at first +200/s .* never +-$`, out, "what was seen is reported")
}

func TestBar(t *testing.T) {
	t.Parallel()
	full := func(n int) string { return strings.Repeat("█", n) }
	assert.Equal(t, strings.Repeat(" ", 22)+"|", bar(0, 200, 200))
	assert.Equal(t, full(11)+strings.Repeat(" ", 11)+"|", bar(100, 200, 200))
	assert.Equal(t, full(2)+"|"+full(19), bar(200, 20, 200))
	assert.Equal(t, full(22)+"|"+full(8), bar(1e9, 200, 200))
	assert.Equal(t, "|", bar(0, 1, 200))
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).RejectsArguments(t, "-duration duration", map[string]string{
		"-high 10":       "-high 10 -low 20",
		"-low 0":         "-high 200 -low 0",
		"-workers 0":     "-workers 0",
		"-duration -1s":  "-duration -1s",
		"-duration soon": `invalid value "soon" for flag -duration`,
		"-seed -1":       `invalid value "-1" for flag -seed`,
		"-what":          "-what",
		"now":            `unexpected argument "now"`,
	})
}
