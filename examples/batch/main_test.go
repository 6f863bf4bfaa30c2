package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/examples/internal/exampletest"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEnoughTime(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := run(t.Context(), nil, &out)
	if !exampletest.NoneRefused(t, number(t, out.String(), `requests and refused (\d+)`)) {
		return
	}
	require.NoError(t, err)
	assert.Equal(t, 50, number(t, out.String(), `fetched +(\d+) of 50`))
	assert.Equal(t, 50, number(t, out.String(), `saw (\d+) requests`))
	assert.Regexp(t, `  10 of 50, [1-9]\d*s left\n  20 of 50, .*\d+s left\n  30 of 50, .*\n  40 of 50, .*\n  50 of 50, [\d.]+ per second, 0s left\n`, out.String())
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := run(t.Context(), []string{"-deadline", "1s"}, &out)
	if !exampletest.NoneRefused(t, number(t, out.String(), `requests and refused (\d+)`)) {
		return
	}
	require.ErrorIs(t, err, throttle.ErrThrottled)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "of 50 items not fetched")

	fetched := number(t, out.String(), `fetched +(\d+) of 50`)
	cutOff := number(t, out.String(), `cut off by the deadline +(\d+)`)
	refused := number(t, out.String(), `never sent +(\d+)`)
	seen := number(t, out.String(), `saw (\d+) requests`)
	assert.Equal(t, 50, fetched+cutOff+refused)
	assert.Positive(t, refused)
	assert.LessOrEqual(t, seen, 30, "10 at once, and 20 per second")
	assert.LessOrEqual(t, fetched, seen)
	assert.LessOrEqual(t, seen, fetched+cutOff)
}

// The same without the delays of a network and in the time of a bubble, where everything is exact.
func TestDeadlineExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := throttletest.Start(t, throttletest.WithInMemory(),
			throttletest.WithLimits(throttletest.TokenBucket(20, time.Second)))
		client, err := newClient(api.Transport())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		s, err := fetchAll(ctx, client, api.URL, config{n: 50, workers: 8}, &display{out: io.Discard, progress: progress{total: 50, limiter: limiterOf(client)}})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 29, s.fetched, "10 at once, and one each 50ms before the deadline")
		assert.Equal(t, 21, s.refused)
		assert.Zero(t, s.cutOff)
		// Six requests wait when the second worker after them finds out that its turn would come at 1 s.
		assert.Equal(t, 600*time.Millisecond, s.after)
		assert.Equal(t, 950*time.Millisecond, s.took)
		assert.EqualValues(t, 29, api.Counts().Received)
	})
}

func TestSlowAnswersAreCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithFaults(throttletest.Hang()))
		client, err := newClient(api.Transport())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		s, err := fetchAll(ctx, client, api.URL, config{n: 3, workers: 8}, &display{out: io.Discard, progress: progress{total: 3, limiter: limiterOf(client)}})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.NotErrorIs(t, err, throttle.ErrThrottled)
		assert.Equal(t, 3, s.cutOff)
		assert.Equal(t, time.Second, s.took)
	})
}

func TestAFailureEndsTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithFaults(
			throttletest.Respond(http.StatusInternalServerError, nil).OnRequests(12)))
		client, err := newClient(api.Transport())
		require.NoError(t, err)

		s, err := fetchAll(t.Context(), client, api.URL, config{n: 50, workers: 8}, &display{out: io.Discard, progress: progress{total: 50, limiter: limiterOf(client)}})
		require.ErrorContains(t, err, "500 Internal Server Error")
		assert.Equal(t, 11, s.fetched)
		assert.Equal(t, 100*time.Millisecond, s.took, "waiting requests end immediately")
	})
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).Interrupted(t, 100*time.Millisecond)
}

func TestProgressBar(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &display{out: &out, bar: true, progress: progress{total: 4, limiter: limiterWith(t)}}
	p.add()
	p.show(1)
	assert.Equal(t, "\r["+strings.Repeat("█", 10)+strings.Repeat("·", 30)+"] 1 of 4"+strings.Repeat(" ", 34), out.String())
	assert.False(t, example.IsTerminal(&out))
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &progress{total: 1000, limiter: limiterWith(t)}
		assert.Equal(t, "0 of 1000", p.String())
		for range 100 { // a burst
			p.add()
		}
		time.Sleep(time.Second)
		assert.Equal(t, "100 of 1000, 99.0 per second, 9s left", p.String())
		for range 100 {
			time.Sleep(50 * time.Millisecond)
			p.add()
		}
		assert.Equal(t, "200 of 1000, 20.0 per second, 40s left", p.String())
		time.Sleep(10*time.Second - 99*50*time.Millisecond) // a server that is down
		assert.Equal(t, "200 of 1000, 9.9 per second, 1m21s left", p.String())
	})
}

// The first items are sent in a burst, which says nothing of the others. The limit does.
func TestProgressKnowsTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &progress{total: 1000, limiter: limiterWith(t, throttle.WithLimit(throttle.TokenBucket(20, time.Second, throttle.Burst(100))))}
		for i := range 100 {
			require.NoError(t, p.limiter.Wait(t.Context(), throttle.Ask{}))
			if p.add(); i == 49 {
				time.Sleep(time.Second)
			}
		}
		assert.Equal(t, "100 of 1000, 99.0 per second, 44s left", p.String(), "20 tokens are left, and 880 are to come in")
		for range 900 { // all others wait
			_, err := p.limiter.Enqueue(throttle.Ask{})
			require.NoError(t, err)
		}
		assert.Equal(t, "100 of 1000, 99.0 per second, 44s left", p.String())
	})
}

func limiterWith(t *testing.T, opts ...throttle.Option) *throttle.Limiter {
	l, err := throttle.NewLimiter(opts...)
	require.NoError(t, err)
	return l
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).RejectsArguments(t, "-deadline duration", map[string]string{
		"-n 0":           "-n 0",
		"-workers -3":    "-workers -3",
		"-deadline 0s":   "-deadline 0s",
		"-deadline soon": `invalid value "soon" for flag -deadline`,
		"-what":          "-what",
		"17":             `unexpected argument "17"`,
	})
}

// number returns what the pattern finds in out.
func number(t *testing.T, out, pattern string) int {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(out)
	require.NotNil(t, m, "no %s in:\n%s", pattern, out)
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	return n
}
