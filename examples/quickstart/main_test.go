package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/examples/internal/exampletest"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A result is a row of the table.
type result struct{ requests, ok, refused, other int }

func resultOf(t *testing.T, out, name string) result {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + ` +(\d+) +(\d+) +(\d+) +(\d+) +[\d.]+s$`).FindStringSubmatch(out)
	require.NotNil(t, m, "no row %q in:\n%s", name, out)
	var n [4]int
	for i := range n {
		var err error
		n[i], err = strconv.Atoi(m[i+1])
		require.NoError(t, err)
	}
	return result{n[0], n[1], n[2], n[3]}
}

func TestRefusedBeforeAndNotAfter(t *testing.T) { // slow: the program in real time
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), nil, &out))

	before, after := resultOf(t, out.String(), "without throttle"), resultOf(t, out.String(), "with throttle")
	assert.Equal(t, result{60, 60 - after.refused, after.refused, 0}, after)
	exampletest.NoneRefused(t, after.refused)
	assert.Equal(t, 60, before.ok+before.refused)
	exampletest.AssertNarrow(t, out.String())

	_, charts, _ := strings.Cut(out.String(), "other\n")
	first, second, found := strings.Cut(charts, "with throttle\n")
	require.True(t, found)
	assert.Equal(t, before.ok, strings.Count(first, "█"))
	assert.Equal(t, before.refused, strings.Count(first, "x"))
	assert.Equal(t, after.ok, strings.Count(second, "█"))
	assert.Equal(t, after.refused, strings.Count(second, "x"))
}

func TestOtherServer(t *testing.T) {
	t.Parallel()
	api := throttletest.Start(t, throttletest.WithLimits(throttletest.SlidingWindow(5, 200*time.Millisecond)))
	var out bytes.Buffer
	args := []string{"-url", api.URL + "/ping", "-rate", "5", "-per", "200ms", "-n", "20", "-workers", "4"}
	require.NoError(t, run(t.Context(), args, &out))

	before, after := resultOf(t, out.String(), "without throttle"), resultOf(t, out.String(), "with throttle")
	assert.Equal(t, result{20, 20 - after.refused, after.refused, 0}, after)
	exampletest.NoneRefused(t, after.refused)
	seen := api.Counts()
	assert.EqualValues(t, 40, seen.Received)
	assert.EqualValues(t, before.refused+after.refused, seen.Refused)
	most, err := api.MaxAccepted("", 200*time.Millisecond)
	require.NoError(t, err)
	assert.LessOrEqual(t, most, int64(5))
	assert.Contains(t, out.String(), api.URL+"/ping allows 5 requests per 200ms")
}

func TestOtherAnswers(t *testing.T) {
	t.Parallel()
	api := throttletest.Start(t, throttletest.WithFaults(
		throttletest.Respond(http.StatusNoContent, nil).OnRequests(1),
		throttletest.Respond(http.StatusTeapot, nil).OnRequests(2),
		throttletest.Hang().OnRequests(9),
	))
	c := config{url: api.URL, n: 4, workers: 1, rate: 1, per: time.Second}
	answers, err := work(t.Context(), http.DefaultClient, c)
	require.NoError(t, err)
	var out bytes.Buffer
	report(&out, answers, answers)
	assert.Equal(t, result{4, 3, 0, 1}, resultOf(t, out.String(), "with throttle"))
	assert.Contains(t, out.String(), "other, e.g.: 418 I'm a teapot")
}

func TestServerOutOfReach(t *testing.T) {
	t.Parallel()
	api := throttletest.Start(t)
	api.Close()
	err := run(t.Context(), []string{"-url", api.URL}, io.Discard)
	assert.ErrorContains(t, err, "no request got an answer")
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	api := throttletest.Start(t, throttletest.WithFaults(throttletest.Hang()))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	assert.ErrorIs(t, run(ctx, []string{"-url", api.URL}, io.Discard), context.Canceled)
	assert.ErrorIs(t, sleep(ctx, time.Hour), context.Canceled)
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).RejectsArguments(t, "-workers int", map[string]string{
		"-n 0":                          "-n 0",
		"-n many":                       `invalid value "many" for flag -n`,
		"-workers -1":                   "-workers -1",
		"-rate 0":                       "-rate 0",
		"-per -1s":                      "-per -1s",
		"-per 1":                        `invalid value "1" for flag -per`,
		"-url http://a:b/":              "-url: parse",
		"-url localhost:8080":           `-url "localhost:8080": want http://HOST`,
		"-url http://":                  `-url "http://": want http://HOST`,
		"-url ftp://example.com/":       `-url "ftp://example.com/": want http://HOST`,
		"-what":                         "-what",
		"http://example.com":            `unexpected argument "http://example.com"`,
		"-url http://x -per 2000000000": "-per",
	})
}

func TestHelp(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	assert.ErrorIs(t, run(t.Context(), []string{"-h"}, &out), flag.ErrHelp)
	assert.Contains(t, out.String(), "-workers int")
}

func TestChartFits(t *testing.T) {
	t.Parallel()
	for _, whole := range []time.Duration{0, 3 * time.Millisecond, time.Second, 61 * time.Second, 25 * time.Hour} {
		answers := make([]answer, 5000)
		for i := range answers {
			answers[i] = answer{at: whole, status: []int{200, 429, 500}[i%3]}
		}
		var out bytes.Buffer
		report(&out, answers, answers[:1])
		exampletest.AssertNarrow(t, out.String())
		assert.Less(t, strings.Count(out.String(), "\n"), 45, fmt.Sprint(whole))
	}
}
