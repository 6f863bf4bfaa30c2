package sdktest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-github/v89/github"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var gitHub = api{
	serve: func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, `{"id": 1, "full_name": "`+strings.TrimPrefix(r.URL.Path, "/repos/")+`"}`)
	},
	refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
		writeJSON(w, refusal.Status, secondaryLimit)
	},
}

const secondaryLimit = `{
	"message": "You have exceeded a secondary rate limit.",
	"documentation_url": "https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"
}`

func newGitHub(t *testing.T, url string, client *http.Client) *github.Client {
	t.Helper()
	c, err := github.NewClient(github.WithHTTPClient(client), github.WithURLs(new(url+"/"), nil), github.WithAuthToken("secret"))
	require.NoError(t, err)
	return c
}

func getRepository(ctx context.Context, c *github.Client) error {
	_, _, err := c.Repositories.Get(ctx, "o", "r")
	return err
}

func TestGitHubKeepsTheLimit(t *testing.T) {
	checkLimitKept(t, gitHub, func(t *testing.T, url string, client *http.Client) func(context.Context) error {
		c := newGitHub(t, url, client)
		return func(ctx context.Context) error { return getRepository(ctx, c) }
	})
}

func TestGitHubSeesARefusal(t *testing.T) {
	bubble(t, "as an ErrorResponse with 429, and asks again when it may", func(t *testing.T) {
		server := gitHub.start(t)
		_, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, 1500*time.Millisecond)), throttle.WithFailFast())
		c := newGitHub(t, server.URL, client)
		require.NoError(t, getRepository(t.Context(), c))

		err := getRepository(t.Context(), c)
		var refused *github.ErrorResponse
		require.ErrorAs(t, err, &refused)
		assert.Equal(t, http.StatusTooManyRequests, refused.Response.StatusCode)
		assert.Equal(t, "2", refused.Response.Header.Get("Retry-After"))
		rejection, ok := throttle.RejectionOf(refused.Response)
		require.True(t, ok)
		assert.Equal(t, 1500*time.Millisecond, rejection.Wait)
		var problem struct{ Detail string }
		require.NoError(t, json.NewDecoder(refused.Response.Body).Decode(&problem))
		assert.Equal(t, "Too many requests: retry in 1.5 s", problem.Detail)
		assert.ErrorContains(t, err, problem.Detail)

		time.Sleep(rejection.Wait)
		assert.NoError(t, getRepository(t.Context(), c), "go-github must not refuse by itself")
		assert.EqualValues(t, 2, server.Counts().Received)
	})
	bubble(t, "as an AbuseRateLimitError if it is shaped so, and is then refused by go-github until Retry-After", func(t *testing.T) {
		server := gitHub.start(t)
		transport, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, 1500*time.Millisecond)), throttle.WithFailFast(),
			throttle.WithRejectionResponse(func(*throttle.Rejection, *http.Request) *http.Response {
				return &http.Response{
					Header: http.Header{"Retry-After": {"2"}},
					Body:   io.NopCloser(strings.NewReader(secondaryLimit)),
				}
			}))
		c := newGitHub(t, server.URL, client)
		require.NoError(t, getRepository(t.Context(), c))

		err := getRepository(t.Context(), c)
		var refused *github.AbuseRateLimitError
		require.ErrorAs(t, err, &refused)
		assert.Equal(t, new(2*time.Second), refused.RetryAfter)
		_, ok := throttle.RejectionOf(refused.Response)
		assert.True(t, ok)

		asked := transport.Stats()
		again := time.Now().Add(2 * time.Second)
		time.Sleep(time.Until(again) - time.Nanosecond)
		require.ErrorAs(t, getRepository(t.Context(), c), &refused)
		assert.Equal(t, asked, transport.Stats(), "the Transport must not have been asked")
		time.Sleep(time.Until(again))
		assert.NoError(t, getRepository(t.Context(), c))
	})
	bubble(t, "as a *throttle.Rejection where refusals are errors", func(t *testing.T) {
		server := gitHub.start(t)
		_, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, time.Minute)),
			throttle.WithMaxWait(time.Second), throttle.WithRejectionError())
		c := newGitHub(t, server.URL, client)
		require.NoError(t, getRepository(t.Context(), c))

		err := getRepository(t.Context(), c)
		require.ErrorIs(t, err, throttle.ErrThrottled)
		var rejection *throttle.Rejection
		require.ErrorAs(t, err, &rejection)
		assert.Equal(t, throttle.ReasonMaxWait, rejection.Reason)
		assert.Equal(t, time.Minute, rejection.Wait)
	})
	bubble(t, "as context.DeadlineExceeded, at once, where it could not be sent in time", func(t *testing.T) {
		server := gitHub.start(t)
		_, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, time.Minute)))
		c := newGitHub(t, server.URL, client)
		require.NoError(t, getRepository(t.Context(), c))

		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begun := time.Now()
		err := getRepository(ctx, c)
		require.ErrorIs(t, err, throttle.ErrThrottled)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Zero(t, time.Since(begun))
	})
}

// At the end of a quota go-github refuses what the Transport would let wait, unless an option says not to look.
func TestGitHubQuotaIsWaitedFor(t *testing.T) {
	quota := []throttletest.Option{
		throttletest.WithLimits(throttletest.FixedWindow(3, time.Hour, throttletest.FromFirstRequest())),
		throttletest.WithFields(throttletest.XEpoch),
	}
	bubble(t, "by go-github's own check: not at all", func(t *testing.T) {
		server := gitHub.start(t, quota...)
		_, client := throttled(t, server, throttle.WithServerHints(headers.GitHub))
		c := newGitHub(t, server.URL, client)
		for range 3 {
			require.NoError(t, getRepository(t.Context(), c))
		}
		var refused *github.RateLimitError
		require.ErrorAs(t, getRepository(t.Context(), c), &refused)
		_, ok := throttle.RejectionOf(refused.Response)
		assert.False(t, ok)
		assert.EqualValues(t, 3, server.Counts().Received)
	})
	bubble(t, "without that check: by the Transport", func(t *testing.T) {
		server := gitHub.start(t, quota...)
		_, client := throttled(t, server, throttle.WithServerHints(headers.GitHub))
		c := newGitHub(t, server.URL, client)
		c, err := c.Clone(github.WithDisableRateLimitCheck())
		require.NoError(t, err)
		begun := time.Now()
		for range 4 {
			require.NoError(t, getRepository(t.Context(), c))
		}
		assert.GreaterOrEqual(t, time.Since(begun), time.Hour)
		assert.Less(t, time.Since(begun), time.Hour+5*time.Second)
		assert.Zero(t, server.Counts().Refused)
	})
}
