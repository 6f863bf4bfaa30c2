package throttletest

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// leftAfter sends a request that costs 60 at first and is charged 20 less when it ends, after a second, and returns what is left after that: what
// the next request reports, which costs 1.
func leftAfter(t *testing.T, l Limit, more int64) (left int64) {
	var h *Handler
	h, err := NewHandler(WithLimits(l), WithFields(XDelta), WithHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Second)
		if r.URL.Path == "/large" {
			assert.NoError(t, Charge(r, "tokens", more))
		}
	})))
	require.NoError(t, err)
	for _, path := range []string{"/large", "/small"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.test"+path, nil)
		require.NoError(t, err)
		resp, err := h.Direct().RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode)
		left, err = strconv.ParseInt(resp.Header.Get("X-RateLimit-Remaining"), 10, 64)
		require.NoError(t, err)
		resp.Body.Close()
	}
	return left
}

func TestAHandlerChargesMoreOrLess(t *testing.T) {
	cost := Cost(func(r *http.Request) int64 {
		if r.URL.Path == "/large" {
			return 60
		}
		return 1
	})
	for _, c := range []struct {
		name             string
		limit            Limit
		kept, less, more int64 // what is left if nothing, 20 less and 20 more is charged
	}{
		{"bucket", TokenBucket(100, 100*time.Second, Name("tokens"), cost), 40, 60, 20},
		{"fixed window", FixedWindow(100, time.Hour, Name("tokens"), FromFirstRequest(), cost), 39, 59, 19},
		{"fixed window that ends", FixedWindow(100, time.Second, Name("tokens"), FromFirstRequest(), cost), 99, 99, 79},
		{"sliding window", SlidingWindow(100, time.Minute, Name("tokens"), cost), 39, 59, 19},
		{"sliding window that ends", SlidingWindow(100, time.Second, Name("tokens"), cost), 99, 99, 79},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				assert.Equal(t, c.kept, leftAfter(t, c.limit, 0))
				assert.Equal(t, c.less, leftAfter(t, c.limit, -20))
				assert.Equal(t, c.more, leftAfter(t, c.limit, 20))
			})
		})
	}
}

func TestChargeSaysWhatItCannotCharge(t *testing.T) {
	says := make(map[string]string)
	h, err := NewHandler(WithLimits(InFlight(1), TokenBucket(1, time.Second, Name("free"), Cost(func(*http.Request) int64 { return 0 }))),
		WithHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			for _, limit := range []string{"inflight", "free", "none"} {
				says[limit] = Charge(r, limit, 7).Error()
			}
		})))
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.test", nil)
	require.NoError(t, err)
	require.ErrorContains(t, Charge(req, "free", 1), `Charge("free", 1): the request is not one of WithHandler`)
	resp, err := h.Direct().RoundTrip(req)
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, map[string]string{
		"inflight": `throttletest: Charge("inflight", 7): InFlight counts requests`,
		"free":     `throttletest: Charge("free", 7): the limit does not apply to the request`,
		"none":     `throttletest: Charge("none", 7): there is no such limit`,
	}, says)
}

func TestAModelInTheBodyIsAKey(t *testing.T) {
	model := func(r *http.Request) string { return string(BodyOf(r)) }
	var read string
	h, err := NewHandler(WithLimits(FixedWindow(1, time.Hour, FromFirstRequest(), Key(model))),
		WithHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			all, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			read += string(all)
		})))
	require.NoError(t, err)
	for i, want := range []int{200, 200, 429} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://api.test", strings.NewReader([]string{"a", "b", "a"}[i]))
		require.NoError(t, err)
		resp, err := h.Direct().RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, want, resp.StatusCode)
	}
	assert.Equal(t, "ab", read)

	broken := &http.Request{Body: io.NopCloser(io.MultiReader(strings.NewReader("half"), unreadable{errors.New("cut")}))}
	assert.Equal(t, "half", string(BodyOf(broken)))
	assert.Equal(t, "half", string(BodyOf(broken)))
	all, err := io.ReadAll(broken.Body)
	assert.Equal(t, "half", string(all))
	assert.EqualError(t, err, "cut")
	assert.Nil(t, BodyOf(new(http.Request)))
}

func TestFieldsNameEachLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(TokenBucket(200_000, time.Minute, Name("tokens"), Cost(func(*http.Request) int64 { return 1600 })),
			TokenBucket(60, time.Minute, Name("requests")), InFlight(3)), WithFields(OpenAI, Anthropic), WithFullResets())
		h := api.do().Header
		for name, want := range map[string]string{
			"X-RateLimit-Limit-Tokens": "200000", "X-RateLimit-Remaining-Tokens": "198400", "X-RateLimit-Reset-Tokens": "480ms",
			"X-RateLimit-Limit-Requests": "60", "X-RateLimit-Remaining-Requests": "59", "X-RateLimit-Reset-Requests": "1s",
			"Anthropic-Ratelimit-Tokens-Limit": "200000", "Anthropic-Ratelimit-Tokens-Remaining": "198400",
			"Anthropic-Ratelimit-Tokens-Reset": time.Now().Add(time.Second).UTC().Format(time.RFC3339), "X-RateLimit-Limit-Inflight": "",
		} {
			assert.Equal(t, want, h.Get(name), name)
		}
	})
}
