package main

import (
	"bytes"
	"flag"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/httpthrottle/throttle/examples/internal/exampletest"
	"github.com/httpthrottle/throttle/throttletest"
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

// In the time of a bubble no request is delayed by more than the margin.
func TestRetriesWithinTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := config{n: 60, workers: 15, api: []throttletest.Option{throttletest.WithInMemory()}}
		var out bytes.Buffer
		require.NoError(t, compare(t.Context(), c, &out))
		t.Log("\n" + out.String())
		plain, ours, keyed := rowsOf(t, out.String())
		assert.Positive(t, plain.refused)
		assert.Positive(t, plain.doubled)
		assert.Less(t, ours.attempts, plain.attempts)
		assert.Zero(t, ours.refused)
		assert.LessOrEqual(t, ours.givenUp, 10, "more than there are orders")
		assert.Zero(t, keyed.refused)
		assert.Equal(t, 60, keyed.done)
	})
}

func TestOnSockets(t *testing.T) { // slow: the program in real time
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), nil, &out))
	rowsOf(t, out.String())
}

// rowsOf asserts what does not depend on time, and returns the rows.
func rowsOf(t *testing.T, out string) (plain, ours, keyed row) {
	t.Helper()
	plain = rowOf(t, out, "retryablehttp")
	ours = rowOf(t, out, "with throttle")
	keyed = rowOf(t, out, "and with keys")
	for _, r := range []row{plain, ours, keyed} {
		assert.Equal(t, 60, r.done+r.givenUp)
	}
	assert.Zero(t, ours.doubled)
	assert.Zero(t, keyed.doubled)
	for line := range strings.Lines(out) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 86, line)
	}
	return plain, ours, keyed
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
