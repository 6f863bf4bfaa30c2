package main

import (
	"bytes"
	"flag"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/httpthrottle/throttle/examples/internal/exampletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A row is what a line of the table says.
type row struct{ attempts, refused, broken, done, givenUp, doubled int }

func rowOf(t *testing.T, out, name string) row {
	t.Helper()
	m := regexp.MustCompile(`(?m)^ *` + name + strings.Repeat(` +(\d+)`, 6) + ` +[\d.]+s$`).FindStringSubmatch(out)
	require.NotNil(t, m, "no row %q in:\n%s", name, out)
	var n [6]int
	for i := range n {
		var err error
		n[i], err = strconv.Atoi(m[i+1])
		require.NoError(t, err)
	}
	return row{n[0], n[1], n[2], n[3], n[4], n[5]}
}

func TestRetriesWithinTheLimit(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), nil, &out))
	t.Log("\n" + out.String())

	plain := rowOf(t, out.String(), "retryablehttp")
	ours := rowOf(t, out.String(), "with throttle")
	keyed := rowOf(t, out.String(), "and with keys")
	for _, r := range []row{plain, ours, keyed} {
		assert.Equal(t, 60, r.done+r.givenUp)
	}
	assert.Positive(t, plain.refused)
	assert.Positive(t, plain.doubled)
	assert.Less(t, ours.attempts, plain.attempts)
	assert.Zero(t, ours.refused)
	assert.Zero(t, ours.doubled)
	assert.LessOrEqual(t, ours.givenUp, 10, "more than there are orders")
	assert.Zero(t, keyed.refused)
	assert.Zero(t, keyed.doubled)
	assert.Equal(t, 60, keyed.done)
	for line := range strings.Lines(out.String()) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 86, line)
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).Interrupted(t, 50*time.Millisecond)
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).RejectsArguments(t, "-workers int", map[string]string{
		"-n 0":        "-n 0",
		"-n many":     `invalid value "many" for flag -n`,
		"-workers -1": "-workers -1",
		"-what":       "-what",
		"now":         `unexpected argument "now"`,
	})
}

func TestHelp(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	assert.ErrorIs(t, run(t.Context(), []string{"-h"}, &out), flag.ErrHelp)
	assert.Contains(t, out.String(), "-workers int")
}
