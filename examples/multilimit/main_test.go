package main

import (
	"bytes"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/examples/internal/exampletest"
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

func TestBothLimitsBindAndNeitherIsExceeded(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), nil, &out))

	for limit, allowed := range map[string]int{"requests": 5, "tokens": 1000} {
		r := rowOf(t, out.String(), limit)
		assert.Equal(t, allowed, r.allowed)
		assert.LessOrEqual(t, r.most, allowed)
		assert.Positive(t, r.waited, "no request waited for %q:\n%s", limit, out.String())
	}
	assert.Contains(t, out.String(), "saw 12 requests and refused 0.", "all but the book, and those that were tried before their time")
	assert.Regexp(t, `book +5000  never: more than "tokens" can ever pay`, out.String())
	assert.Regexp(t, `question 6 +20  after [\d.]+s in the queue for "requests"`, out.String())
	assert.Regexp(t, `document 3 +400  after [\d.]+s in the queue for "tokens"`, out.String())
}

func TestOneLimitBindsAlone(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-requests", "6", "-tokens", "1000000"}, &out))
	assert.Positive(t, rowOf(t, out.String(), "requests").waited)
	assert.Zero(t, rowOf(t, out.String(), "tokens").waited)
	assert.Contains(t, out.String(), "saw 13 requests and refused 0.")
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
