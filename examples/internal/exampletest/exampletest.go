// Package exampletest is what the tests of the example programs have in common.
package exampletest

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A Program is the run function of an example.
type Program func(ctx context.Context, args []string, out io.Writer) error

// RejectsArguments asserts, for each of the arguments, that the program prints nothing and ends with status 2 and an error with the
// wanted text. It also asserts that -h prints the first paragraph of the package comment, which says what the program shows, and
// then the flags.
func (run Program) RejectsArguments(t *testing.T, help string, want map[string]string) {
	t.Helper()
	for args, text := range want {
		var out bytes.Buffer
		err := run(t.Context(), strings.Fields(args), &out)
		assert.ErrorContains(t, err, text, args)
		assert.Equal(t, 2, example.Status(err), args)
		assert.Empty(t, out.String(), args)
	}
	var out bytes.Buffer
	assert.ErrorIs(t, run(t.Context(), []string{"-h"}, &out), flag.ErrHelp)
	assert.Contains(t, out.String(), help)
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	comment, _, _ := strings.Cut(string(source), "\n//\n")
	words := strings.Fields(strings.ReplaceAll(comment, "\n//", "\n"))
	assert.Equal(t, words[1:], strings.Fields(out.String())[:len(words)-1], "help")
}

// Interrupted interrupts the program after d, asserts that it ends with the error of its context, and returns what it printed.
func (run Program) Interrupted(t *testing.T, d time.Duration) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(d, cancel)
	var out bytes.Buffer
	assert.ErrorIs(t, run(ctx, nil, &out), context.Canceled)
	return out.String()
}

// NoneRefused asserts that an API refused no request of the program with a Transport, and reports whether that is so. A busy
// machine may delay a request by more than the program's margin: with -short, that is logged.
func NoneRefused(t *testing.T, refused int) bool {
	t.Helper()
	if refused > 0 && testing.Short() {
		t.Logf("%d requests were refused, because this machine is busy", refused)
		return false
	}
	return assert.Zero(t, refused, "refused requests")
}

// AssertNarrow asserts that the lines fit a terminal of 80 columns.
func AssertNarrow(t *testing.T, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 80, line)
	}
}
