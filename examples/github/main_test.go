package main

import (
	"bytes"
	"io"
	"net/http"
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

// A row is what the table says of a resource.
type row struct{ requests, accepted, refused, secondary int }

// rowsOf returns the rows of core and search, without throttle and with it, and how many requests for core were sent
// while search was used up.
func rowsOf(t *testing.T, out string) (rows [4]row, overlap int) {
	t.Helper()
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		return n
	}
	lines := regexp.MustCompile(`(?m)^.{18}(core|search) +(\d+) +(\d+) +(\d+) +(\d+) +[\d.]+s$`).FindAllStringSubmatch(out, -1)
	require.Len(t, lines, 4, out)
	for i, m := range lines {
		require.Equal(t, []string{"core", "search"}[i%2], m[1])
		rows[i] = row{number(m[2]), number(m[3]), number(m[4]), number(m[5])}
	}
	m := regexp.MustCompile(`used up, (\d+) requests for core were sent`).FindStringSubmatch(out)
	require.NotNil(t, m, out)
	return rows, number(m[1])
}

// In the time of a bubble nothing comes late, and so nothing too much. There is a leak if the bubble does not end.
func TestRefusedBeforeAndNotAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Unix(1e9, 0))) // a bubble begins in 2000, when resets in seconds since 1970 had nine digits
		c, err := parse(nil, io.Discard)
		require.NoError(t, err)
		c.api = []throttletest.Option{throttletest.WithInMemory()}
		var out bytes.Buffer
		require.NoError(t, compare(t.Context(), c, &out))
		rows, overlap := rowsOf(t, out.String())
		assert.Equal(t, row{90, 60, 10, 20}, rows[0], "ten times in a row are too many")
		assert.Equal(t, row{15, 10, 5, 0}, rows[1])
		assert.Equal(t, row{90, 90, 0, 0}, rows[2])
		assert.Equal(t, row{15, 15, 0, 0}, rows[3])
		assert.Greater(t, overlap, 30)
	})
}

// On sockets. What is refused without throttle depends on the machine, as does whether one request of the first few,
// of which it is not known yet what is left, is overtaken by all others.
func TestOnSockets(t *testing.T) { // slow: the program in real time
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), nil, &out))
	rows, overlap := rowsOf(t, out.String())
	for _, r := range rows {
		assert.Equal(t, r.requests, r.accepted+r.refused+r.secondary)
	}
	assert.Positive(t, rows[0].refused+rows[0].secondary)
	assert.Positive(t, rows[1].refused+rows[1].secondary)
	if exampletest.NoneRefused(t, max(0, rows[2].refused+rows[3].refused-3)+rows[2].secondary+rows[3].secondary) {
		assert.Positive(t, overlap, "an exhausted search does not stop core")
	}
	for line := range strings.Lines(out.String()) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSpace(line)), 80, line)
	}
}

func TestSecondaryLimits(t *testing.T) {
	t.Parallel()
	g := newGitHub()
	now := time.Unix(1_000_000, 700e6)
	ask := func(resource string) (int, string, http.Header) {
		h := http.Header{}
		status, message := g.admit(h, resource, now)
		return status, message, h
	}
	for i := range mostAtOnce {
		status, _, h := ask("core")
		assert.Equal(t, 200, status)
		assert.Equal(t, strconv.Itoa(59-i), h.Get("X-RateLimit-Remaining"))
		assert.Equal(t, "1000003", h.Get("X-RateLimit-Reset"))
	}
	status, message, h := ask("core")
	assert.Equal(t, 403, status)
	assert.Contains(t, message, "secondary rate limit")
	assert.Equal(t, "1", h.Get("Retry-After"))
	assert.Equal(t, "50", h.Get("X-RateLimit-Remaining"), "it is not for the primary one")

	g.inFlight, now = 0, now.Add(time.Second)
	for range 10 {
		status, _, h = ask("search")
		g.leave()
		assert.Equal(t, 200, status)
		assert.Equal(t, "search", h.Get("X-RateLimit-Resource"))
	}
	for range mostPresses {
		status, message, h = ask("search")
		g.leave()
		assert.Equal(t, 403, status)
		assert.Contains(t, message, "API rate limit exceeded")
		assert.Empty(t, h.Get("Retry-After"))
		assert.Equal(t, "0", h.Get("X-RateLimit-Remaining"))
	}
	_, message, h = ask("search")
	g.leave()
	assert.Contains(t, message, "secondary rate limit")
	assert.Equal(t, "1", h.Get("Retry-After"))
	now = now.Add(time.Second)
	status, _, _ = ask("core")
	assert.Equal(t, 200, status)
}

func TestAFailureEndsIt(t *testing.T) {
	t.Parallel()
	c := config{repos: 5, searches: 5, workers: 2, api: []throttletest.Option{
		throttletest.WithFaults(throttletest.Respond(http.StatusTeapot, nil).OnRequests(3)),
	}}
	assert.ErrorContains(t, compare(t.Context(), c, io.Discard), "418 I'm a teapot")
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).Interrupted(t, time.Second) // while the Transport waits for a reset
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).RejectsArguments(t, "-workers int", map[string]string{
		"-repos 0":     "-repos 0",
		"-searches -1": "-searches -1",
		"-workers 0":   "-workers 0",
		"-repos many":  `invalid value "many" for flag -repos`,
		"-what":        "-what",
		"now":          `unexpected argument "now"`,
	})
}
