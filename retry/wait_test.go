package retry_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/retry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const s = time.Second

// Backoff doubles from RetryWaitMin to RetryWaitMax, and its jitter is never more than half.
func TestBackoffDoublesWithEqualJitter(t *testing.T) {
	t.Parallel()
	bubble(t, "responses", func(t *testing.T) {
		script := scripted(answer(500))
		c := newClient(t, script)
		c.RetryMax = 7
		resp, err := c.Get(site)
		whole(t, resp, err, 500)
		between(t, script, s, 2*s, 2*s, 4*s, 4*s, 8*s, 8*s, 16*s, 15*s, 30*s, 15*s, 30*s, 15*s, 30*s)
	})
	bubble(t, "errors", func(t *testing.T) {
		script := scripted(fail(errBroken))
		resp, err := newClient(t, script).Get(site)
		assert.Nil(t, resp)
		assert.ErrorIs(t, err, errBroken)
		between(t, script, s, 2*s, 2*s, 4*s, 4*s, 8*s, 8*s, 16*s)
	})
	bubble(t, "cut to WithMaxWait", func(t *testing.T) {
		script := scripted(answer(500))
		resp, err := newClient(t, script, retry.WithMaxWait(3*s)).Get(site)
		whole(t, resp, err, 500)
		between(t, script, s, 2*s, 2*s, 3*s, 3*s, 3*s, 3*s, 3*s)
	})
	bubble(t, "spread", func(t *testing.T) {
		p, err := retry.New(retryablehttp.NewClient())
		require.NoError(t, err)
		low, high := 0, 0
		for range 1000 {
			switch d := p.Backoff(s, 30*s, 2, nil); {
			case d < 5*s:
				low++
			case d > 7*s:
				high++
			}
		}
		assert.InDelta(t, 250, low, 80)
		assert.InDelta(t, 250, high, 80)
	})
}

// The server's word is kept to the nanosecond where it is longer than the backoff, in whatever form it comes.
func TestServersWordIsKept(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status      int
		line        string
		least, most time.Duration
	}{
		{429, "Retry-After: 7", 7 * s, 7 * s},
		{503, "Retry-After: 7", 7 * s, 7 * s},
		{500, "Retry-After: 7", 7 * s, 7 * s},
		{403, "Retry-After: 7", 7 * s, 7 * s},
		{429, "Retry-After: 7.66", 7660 * time.Millisecond, 7660 * time.Millisecond},
		{429, "Retry-After: 0", s, 2 * s},
		{429, "Retry-After: -7", s, 2 * s},
		{429, "Retry-After: soon", s, 2 * s},
		{429, "Retry-After: 1", s, 2 * s},
		{429, "Retry-After: Sat, 01 Jan 2000 00:00:09 GMT", 9 * s, 9 * s}, // a bubble begins at midnight UTC 2000-01-01
		{429, "Retry-After: Saturday, 01-Jan-00 00:00:09 GMT", 9 * s, 9 * s},
		{429, "Retry-After: 2000-01-01T00:00:09Z", 9 * s, 9 * s},
		{429, "Retry-After: 6m0s", -1, -1},
		{429, "Retry-After: Fri, 31 Dec 1999 23:59:59 GMT", s, 2 * s},
		{429, "Retry-After-Ms: 7500", 7500 * time.Millisecond, 7500 * time.Millisecond},
		{429, "RateLimit: \"default\";r=0;t=11", 11 * s, 11 * s},
		{500, "RateLimit: \"default\";r=0;t=11", 11 * s, 11 * s},
		{429, "X-RateLimit-Reset: 12\nX-RateLimit-Remaining: 0", 12 * s, 12 * s},
		{429, "X-RateLimit-Reset: 12", 12 * s, 12 * s},
		{429, "X-RateLimit-Reset: 12\nX-RateLimit-Remaining: 3", s, 2 * s}, // another limit refused it
		{429, "X-RateLimit-Reset: 3600\nX-RateLimit-Remaining: 3", s, 2 * s},
		{429, "X-RateLimit-Reset: 12\nX-RateLimit-Remaining: 3\nRetry-After: 7", 7 * s, 7 * s},
		{429, "Retry-After: 60", 60 * s, 60 * s},
		{429, "Retry-After: 61", -1, -1},
		{429, "Retry-After: 9223372036854775807", -1, -1},
		{429, "Retry-After: 9223372037", -1, -1}, // seconds that overflow a Duration
		{429, "Retry-After: 1e400", s, 2 * s},
		{429, "Retry-After: Sat, 01 Jan 2900 00:00:00 GMT", -1, -1},
		{429, "Retry-After: 99999999999999999999999999", -1, -1},
	} {
		bubble(t, fmt.Sprint(c.status, " ", c.line), func(t *testing.T) {
			script := scripted(answerLines(c.status, c.line), answer(200))
			resp, err := newClient(t, script).Get(site)
			if c.most < 0 {
				whole(t, resp, err, c.status)
				between(t, script)
				assert.Zero(t, time.Since(script.begun))
				return
			}
			whole(t, resp, err, 200)
			between(t, script, c.least, c.most)
			script.checkBodies(t)
		})
	}
}

// An epoch is a Retry-After as well, and one of the far future is no reason to wait for hours.
func TestEpochs(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]string{
		"Retry-After": "Retry-After: %d", "reset": "X-RateLimit-Reset: %d\nX-RateLimit-Remaining: 0",
	} {
		for away, retried := range map[time.Duration]bool{9 * s: true, 7 * 24 * time.Hour: false} {
			bubble(t, fmt.Sprint(name, " ", away), func(t *testing.T) {
				time.Sleep(10 * 365 * 24 * time.Hour) // a bubble begins in 2000, when epochs were short
				epoch := time.Now().Add(away).Unix()
				script := scripted(answerLines(429, fmt.Sprintf(line, epoch)), answer(200))
				resp, err := newClient(t, script).Get(site)
				if !retried {
					whole(t, resp, err, 429)
					return
				}
				whole(t, resp, err, 200)
				between(t, script, away, away)
			})
		}
	}
}

// For any client, any headers, any attempt: never less than what the server reported, never more than the longest wait, never
// past the deadline, and what is not retried is whole and costs no time.
func TestWaitHolds(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	synctest.Test(t, func(t *testing.T) {
		for range 5_000 {
			checkWait(t, random)
		}
	})
}

func checkWait(t *testing.T, random *rand.Rand) {
	anything := func() time.Duration { return pick(random, absurd...)() }
	c := retryablehttp.NewClient()
	c.RetryWaitMin, c.RetryWaitMax, c.RetryMax = anything(), anything(), random.IntN(4)
	most := max(1, anything())
	p, err := retry.New(c, retry.WithMaxWait(most), retry.WithoutBudget())
	require.NoError(t, err)

	value := pick(random, retryAfters...)(random)
	req, err := http.NewRequest("GET", site, nil)
	require.NoError(t, err)
	resp, err := answer(pick(random, 429, 500, 503), "Retry-After: "+value)(req)
	require.NoError(t, err)
	resp.Request = req
	ctx, room := t.Context(), time.Duration(math.MaxInt64)
	if random.IntN(2) == 0 {
		var cancel func()
		room = anything()
		ctx, cancel = withTimeout(ctx, room)
		defer cancel()
	}

	signal := headers.Parse(resp.StatusCode, resp.Header, time.Now())
	word := signal.RetryAfter.Or(0)
	again, err := p.CheckRetry(ctx, resp, nil)
	require.NoError(t, err)
	info := fmt.Sprintf("min %v, max %v, longest %v, room %v, Retry-After %q",
		c.RetryWaitMin, c.RetryWaitMax, most, room, value)
	if word > most || word >= room {
		require.False(t, again, info)
	}
	if !again {
		require.Equal(t, text, readAll(t, resp.Body), info)
		return
	}
	require.NoError(t, resp.Body.Close())
	for _, attempt := range []int{0, 1, 2, 5, 40, 62, 63, 64, 1000, math.MaxInt} {
		d := p.Backoff(c.RetryWaitMin, c.RetryWaitMax, attempt, resp)
		require.GreaterOrEqual(t, d, word, info)
		require.LessOrEqual(t, d, most, info)
		if _, bound := ctx.Deadline(); bound && attempt == 0 {
			require.Less(t, d, room, info)
		}
		require.GreaterOrEqual(t, d, min(max(0, c.RetryWaitMin), most), info)
		alone := p.Backoff(c.RetryWaitMin, c.RetryWaitMax, attempt, nil)
		require.GreaterOrEqual(t, alone, time.Duration(0), info)
		require.LessOrEqual(t, alone, min(most, max(0, c.RetryWaitMin, c.RetryWaitMax)), info)
	}
}

func pick[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

var absurd = []func() time.Duration{
	func() time.Duration { return 0 },
	func() time.Duration { return 1 },
	func() time.Duration { return -s },
	func() time.Duration { return math.MinInt64 },
	func() time.Duration { return math.MaxInt64 },
	func() time.Duration { return math.MaxInt64 - 1 },
	func() time.Duration { return math.MaxInt64/2 + 1 },
	func() time.Duration { return rand.N(100 * time.Second) },
	func() time.Duration { return rand.N(10000 * time.Hour) },
}

var retryAfters = []func(*rand.Rand) string{
	func(r *rand.Rand) string { return strconv.Itoa(r.IntN(100)) },
	func(r *rand.Rand) string { return strconv.FormatUint(r.Uint64()>>r.IntN(64), 10) },
	func(r *rand.Rand) string { return strconv.FormatFloat(math.Exp(60*r.NormFloat64()), 'g', -1, 64) },
	func(r *rand.Rand) string {
		return time.Now().Add(time.Duration(r.Int64()) - 1<<62).UTC().Format(http.TimeFormat)
	},
	func(r *rand.Rand) string {
		return pick(r, "", "9223372036854775807", "1e400", "-1", "NaN", "Inf", "-0", "0x7f", "1_000", "now")
	},
}

// With another's CheckRetry, Backoff keeps the word all the same, but cuts it.
func TestBackoffAlone(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]time.Duration{"Retry-After: 7": 7 * s, "Retry-After: 3600": 60 * s} {
		bubble(t, line, func(t *testing.T) {
			script := scripted(answer(429, line), answer(200))
			c := newClient(t, script)
			c.CheckRetry = retryablehttp.DefaultRetryPolicy
			resp, err := c.Get(site)
			whole(t, resp, err, 200)
			between(t, script, want, want)
			script.checkBodies(t)
		})
	}
}

// A refusal of the Transport is tried again after its wait, whichever way it comes.
func TestRefusalIsRetriedAfterItsWait(t *testing.T) {
	t.Parallel()
	oneIn := func(d time.Duration) throttle.Option { return throttle.WithLimit(throttle.TokenBucket(1, d)) }
	for name, refuse := range map[string][]throttle.Option{
		"response, fail fast": {throttle.WithFailFast()},
		"response, max wait":  {throttle.WithMaxWait(time.Second)},
		"response of a shape": {throttle.WithFailFast(), throttle.WithRejectionResponse(
			func(*throttle.Rejection, *http.Request) *http.Response { return &http.Response{StatusCode: 418} })},
		"error": {throttle.WithFailFast(), throttle.WithRejectionError()},
	} {
		for _, method := range []string{"GET", "POST"} {
			bubble(t, name+" "+method, func(t *testing.T) {
				script := scripted(answer(200))
				c := retry.NewClient(newTransport(t, script, append(refuse, oneIn(20*s))...)).Client
				for range 2 {
					resp, err := c.Do(newRequest(t, method, []byte("payload")))
					whole(t, resp, err, 200)
				}
				most := 20 * s
				if name == "error" {
					most += s // jitter comes on top
				}
				between(t, script, 20*s, most)
				script.checkBodies(t)
			})
			bubble(t, name+" "+method+", too long", func(t *testing.T) {
				script := scripted(answer(200))
				c := retry.NewClient(newTransport(t, script, append(refuse, oneIn(61*s))...)).Client
				resp, err := c.Do(newRequest(t, method, nil))
				whole(t, resp, err, 200)
				resp, err = c.Do(newRequest(t, method, nil))
				checkRefused(t, resp, err, throttle.ReasonNoTokens, throttle.ReasonMaxWait)
				assert.Zero(t, time.Since(script.begun))
			})
			bubble(t, name+" "+method+", past the deadline", func(t *testing.T) {
				script := scripted(answer(200))
				c := retry.NewClient(newTransport(t, script, append(refuse, oneIn(20*s))...)).Client
				resp, err := c.Do(newRequest(t, method, nil))
				whole(t, resp, err, 200)
				ctx, cancel := withTimeout(t.Context(), 20*s)
				defer cancel()
				resp, err = c.Do(newRequest(t, method, nil).WithContext(ctx))
				checkRefused(t, resp, err, throttle.ReasonNoTokens, throttle.ReasonMaxWait, throttle.ReasonDeadline)
				assert.Zero(t, time.Since(script.begun))
			})
		}
	}
}

// Every reason that may pass is retried, and the others are not.
func TestRefusalsByReason(t *testing.T) {
	t.Parallel()
	for reason := throttle.ReasonNoTokens; reason <= throttle.ReasonKeys; reason++ {
		for _, wait := range []time.Duration{0, 10 * s, math.MaxInt64} {
			bubble(t, fmt.Sprint(reason, " ", wait), func(t *testing.T) {
				script := scripted(fail(&throttle.Rejection{Reason: reason, Wait: wait}), answer(200))
				resp, err := newClient(t, script).Do(newRequest(t, "POST", nil))
				if reason == throttle.ReasonCost || reason == throttle.ReasonDeadline || wait > time.Minute {
					checkRefused(t, resp, err, reason)
					between(t, script)
					return
				}
				whole(t, resp, err, 200)
				between(t, script, max(wait, s), max(wait, s)+s)
			})
		}
	}
	bubble(t, "held", func(t *testing.T) {
		script := scripted(answer(200))
		transport := newTransport(t, script, throttle.WithLimit(throttle.TokenBucket(9, s)), throttle.WithFailFast())
		transport.Limiter().Hold("", 30*s)
		resp, err := retry.NewClient(transport).Get(site)
		whole(t, resp, err, 200)
		assert.Equal(t, []time.Duration{30 * s}, script.at)
	})
	bubble(t, "attempts are used up", func(t *testing.T) {
		script := scripted(answer(200))
		transport := newTransport(t, script, throttle.WithFailFast(), throttle.WithRejectionError(),
			throttle.WithLimit(throttle.TokenBucket(1, 50*s)))
		c := retry.NewClient(transport)
		c.RetryMax = 0
		resp, err := c.Get(site)
		whole(t, resp, err, 200)
		resp, err = c.Get(site)
		checkRefused(t, resp, err, throttle.ReasonNoTokens)
		assert.Zero(t, time.Since(script.begun), "it waited for nothing")
	})
}

// What the server has said in a 429 holds the Transport as well, and a retry is not refused for that.
func TestHoldsOfTheTransport(t *testing.T) {
	t.Parallel()
	bubble(t, "waits for both", func(t *testing.T) {
		script := scripted(answer(429, "Retry-After: 5"), answer(200))
		resp, err := retry.NewClient(newTransport(t, script)).Get(site)
		whole(t, resp, err, 200)
		between(t, script, 5*s, 5500*time.Millisecond)
	})
	bubble(t, "deadline just before the longest hold", func(t *testing.T) {
		script := scripted(answer(429, "Retry-After: 5"), answer(200))
		ctx, cancel := withTimeout(t.Context(), 5500*time.Millisecond)
		defer cancel()
		resp, err := retry.NewClient(newTransport(t, script)).Do(newRequest(t, "GET", nil).WithContext(ctx))
		whole(t, resp, err, 429)
		assert.Zero(t, time.Since(script.begun))
	})
	bubble(t, "deadline just after it", func(t *testing.T) {
		script := scripted(answer(429, "Retry-After: 5"), answer(200))
		ctx, cancel := withTimeout(t.Context(), 5501*time.Millisecond)
		defer cancel()
		resp, err := retry.NewClient(newTransport(t, script)).Do(newRequest(t, "GET", nil).WithContext(ctx))
		whole(t, resp, err, 200)
	})
}
