package main

import (
	"bytes"
	"regexp"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle/examples/internal/exampletest"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A row is what the table says of a limit.
type row struct{ allowed, most, waited int }

func rowOf(t *testing.T, out, limit string) row {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + limit + ` +(\d+) +(\d+) +(\d+)x$`).FindStringSubmatch(out)
	require.NotNil(t, m, "no row %q in:\n%s", limit, out)
	var n [3]int
	for i := range n {
		var err error
		n[i], err = strconv.Atoi(m[i+1])
		require.NoError(t, err)
	}
	return row{n[0], n[1], n[2]}
}

// inMemory runs the program in the time of a bubble, where no request is delayed by more than the margin.
func inMemory(t *testing.T, args ...string) (out string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		c, err := parse(args, &b)
		require.NoError(t, err)
		c.api = []throttletest.Option{throttletest.WithInMemory()}
		require.NoError(t, show(t.Context(), c, &b))
		out = b.String()
	})
	return out
}

func TestBothLimitsBindAndNeitherIsExceeded(t *testing.T) {
	t.Parallel()
	out := inMemory(t)
	for limit, allowed := range map[string]int{"requests": 5, "tokens": 1000} {
		r := rowOf(t, out, limit)
		assert.Equal(t, allowed, r.allowed)
		assert.LessOrEqual(t, r.most, allowed)
		assert.Positive(t, r.waited, "no request waited for %q:\n%s", limit, out)
	}
	assert.Contains(t, out, "saw 12 requests and refused 0.", "all but the book, and those that were tried before their time")
	assert.Regexp(t, `book +5000  never: more than "tokens" can ever pay`, out)
	assert.Regexp(t, `question 6 +20  after [\d.]+s in the queue for "requests"`, out)
	assert.Regexp(t, `document 3 +400  after [\d.]+s in the queue for "tokens"`, out)
}

func TestOneLimitBindsAlone(t *testing.T) {
	t.Parallel()
	out := inMemory(t, "-requests", "6", "-tokens", "1000000")
	assert.Positive(t, rowOf(t, out, "requests").waited)
	assert.Zero(t, rowOf(t, out, "tokens").waited)
	assert.Contains(t, out, "saw 13 requests and refused 0.")
}

// On sockets a busy machine may delay a request by more than the margin: then the API refuses it, and the program says so.
func TestOnSockets(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(t.Context(), nil, &out); err != nil {
		assert.ErrorContains(t, err, "429 Too Many Requests")
		return
	}
	assert.Contains(t, out.String(), "saw 12 requests")
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).Interrupted(t, 100*time.Millisecond)
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).RejectsArguments(t, "-tokens int", map[string]string{
		"-requests 0":  "-requests 0",
		"-tokens -1":   "-tokens -1",
		"-tokens many": `invalid value "many" for flag -tokens`,
		"-what":        "-what",
		"now":          `unexpected argument "now"`,
	})
}
