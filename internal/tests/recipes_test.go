package tests

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The programs of docs/recipes.md that have no example of their own. TestDocumentsQuotePrograms compares them with the page.

// Responses that cost nothing.
func unmodifiedIsFree(base http.RoundTripper) (*throttle.Transport, error) {
	free := func(_ *http.Request, resp *http.Response) (int64, bool) {
		return 0, resp.StatusCode == http.StatusNotModified
	}
	return throttle.New(base, throttle.WithLimit(
		throttle.FixedWindow(5000, time.Hour, throttle.Name("hourly"), throttle.Settle(free))))
}

func TestAResponseThatIsNotModifiedCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, err := unmodifiedIsFree(roundTripper(func(r *http.Request) (*http.Response, error) {
			status := http.StatusOK
			if r.Header.Get("If-None-Match") == `"1"` {
				status = http.StatusNotModified
			}
			return &http.Response{StatusCode: status, Request: r, Header: http.Header{"Etag": {`"1"`}}, Body: http.NoBody}, nil
		}))
		require.NoError(t, err)
		for _, c := range []struct {
			etag string
			left float64
		}{{"", 4999}, {`"1"`, 4999}, {`"0"`, 4998}} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.example.com/", nil)
			require.NoError(t, err)
			req.Header.Set("If-None-Match", c.etag)
			resp, err := transport.RoundTrip(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			bucket, ok := transport.Limiter().Bucket("hourly", "")
			require.True(t, ok)
			require.Equal(t, c.left, bucket.Tokens, "If-None-Match: %s", c.etag)
		}
	})
}

// A budget in money, and prompts that are cached.
type payer struct{ team, user string } // of a request, in its context

func budgets(base http.RoundTripper) (*throttle.Transport, error) {
	const dollar = 1_000_000
	month := func(dollars int64, name string, key func(payer) string) throttle.Limit {
		return throttle.CalendarWindow(dollars*dollar, throttle.CalendarMonth, time.UTC, throttle.Name(name),
			throttle.Key(func(r *http.Request) string {
				p, _ := r.Context().Value(payer{}).(payer)
				return key(p)
			}),
			throttle.Cost(func(r *http.Request) int64 { return 3*r.ContentLength/4 + 15*1000 }), // what it may cost: 1,000 tokens of output
			throttle.SettleJSONFunc(price, "usage.prompt_tokens", "usage.prompt_tokens_details.cached_tokens", "usage.completion_tokens"))
	}
	return throttle.New(base, throttle.WithMaxWait(time.Minute), throttle.WithLimit( // and not until the next month
		month(1000, "organisation", func(payer) string { return "all" }),
		month(200, "team", func(p payer) string { return p.team }),
		month(20, "user", func(p payer) string { return p.user })))
}

// price returns millionths of a dollar, for $3 and $15 per million tokens. Input that was cached costs a tenth.
func price(_ *http.Response, n []int64) (int64, bool) {
	input, cached, output := n[0], max(n[1], 0), n[2] // -1: not there
	return (30*(input-cached) + 3*cached + 150*output) / 10, input >= 0 && output >= 0
}

func TestABudgetInMoneyIsThatOfOrganisationTeamAndUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, err := budgets(roundTripper(func(r *http.Request) (*http.Response, error) {
			usage := `{"usage": {"prompt_tokens": 1000000, "prompt_tokens_details": {"cached_tokens": 900000}, "completion_tokens": 1000000}}`
			return &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(strings.NewReader(usage))}, nil
		}))
		require.NoError(t, err)
		call := func(team, user string) *http.Response {
			ctx := context.WithValue(t.Context(), payer{}, payer{team: team, user: user})
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.example.com/", strings.NewReader("hello"))
			require.NoError(t, err)
			resp, err := transport.RoundTrip(req)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			return resp
		}
		left := func(limit, key string) float64 {
			bucket, ok := transport.Limiter().Bucket(limit, key)
			require.True(t, ok)
			return bucket.Tokens
		}
		require.Equal(t, http.StatusOK, call("search", "ada").StatusCode) // .1 million at $3, .9 at $.30, and 1 at $15: $15.57
		assert.Equal(t, 984_430_000., left("organisation", "all"))
		assert.Equal(t, 184_430_000., left("team", "search"))
		assert.Equal(t, 4_430_000., left("user", "ada"))

		require.Equal(t, http.StatusOK, call("search", "ada").StatusCode) // the estimate fits, and what it cost is owed
		rejection, ok := throttle.RejectionOf(call("search", "ada"))
		require.True(t, ok)
		require.Equal(t, "user", rejection.Limit)
		require.Greater(t, rejection.Wait, time.Hour)
		require.Equal(t, http.StatusOK, call("search", "grace").StatusCode, "another user of the team")
	})
}

// Weights that an API documents.
func weighted(base http.RoundTripper) (*throttle.Transport, error) {
	return throttle.New(base, throttle.WithServerHints(headers.Binance),
		throttle.WithLimit(throttle.FixedWindow(6000, time.Minute, throttle.Name("weight"))),
		throttle.WithWeights(map[string]int64{
			"GET /api/v3/klines":       2,
			"GET /api/v3/depth":        250, // 5 with a limit of 100 levels
			"GET /api/v3/trades":       25,
			"GET /api/v3/exchangeInfo": 20,
			"GET /api/v3/account":      20,
			"POST /api/v3/order":       1,
		}))
}

func TestWeightsAreThoseOfTheTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport, err := weighted(offline{})
		require.NoError(t, err)
		for _, path := range []string{"/api/v3/depth?limit=5000", "/api/v3/klines", "/api/v3/ping"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.binance.com"+path, nil)
			require.NoError(t, err)
			resp, err := transport.RoundTrip(req)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		bucket, ok := transport.Limiter().Bucket("weight", "")
		require.True(t, ok)
		require.Equal(t, 6000.-250-2-1, bucket.Tokens)
	})
}

// Refusals of one tenant or domain.
func oneDomain(base http.RoundTripper) (*throttle.Transport, error) {
	perDomain := headers.Rule{
		Statuses:   []int{http.StatusTooManyRequests},
		Body:       []headers.Match{{Name: "detail", Values: []string{"*exact set of identifiers*"}}},
		NotLimited: true,
	}
	return throttle.New(base, throttle.WithServerHints(headers.Dialect{Name: "acme", Rules: []headers.Rule{perDomain}}))
}

func TestARefusalOfOneDomainStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const certificates = `{"type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many certificates (5) already issued for this exact set of identifiers"}`
		const orders = `{"type": "urn:ietf:params:acme:error:rateLimited", "detail": "too many new orders recently"}`
		for detail, waits := range map[string]bool{certificates: false, orders: true} {
			refuse := true
			transport, err := oneDomain(roundTripper(func(r *http.Request) (*http.Response, error) {
				resp := &http.Response{StatusCode: http.StatusOK, Request: r, Header: http.Header{}, Body: http.NoBody}
				if refuse {
					resp.StatusCode, resp.Body = http.StatusTooManyRequests, io.NopCloser(strings.NewReader(detail))
					resp.Header.Set("Retry-After", "600")
					resp.Header.Set("Content-Type", "application/problem+json")
				}
				return resp, nil
			}))
			require.NoError(t, err)
			order := func() {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://acme.example.com/order", nil)
				require.NoError(t, err)
				resp, err := transport.RoundTrip(req)
				require.NoError(t, err)
				_, err = io.Copy(io.Discard, resp.Body)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			}
			order()
			refuse = false
			start := time.Now()
			order()
			require.Equal(t, waits, time.Since(start) >= 600*time.Second, detail)
		}
	})
}

// Items that were not sent, behind an SDK that hides its responses.
func wasSent(ctx context.Context, call func(context.Context) error) (sent bool, err error) {
	ctx, receipt := throttle.ContextWithReceipt(ctx)
	err = call(ctx)
	_, sent = receipt.Cost("api")
	return sent, err
}

func TestAReceiptSaysWhatWasNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := false
		transport, err := throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			if down {
				return nil, errors.New("broken while it was sent")
			}
			return offline{}.RoundTrip(r)
		}), throttle.WithFailFast(), throttle.WithLimit(throttle.SlidingWindow(2, time.Hour, throttle.Name("api"))))
		require.NoError(t, err)
		hidden := func(ctx context.Context) error { // as an SDK that returns an error without the response
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.example.com/", nil)
			if err != nil {
				return err
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				return errors.New("failed")
			}
			if resp.StatusCode != http.StatusOK {
				return errors.New("failed")
			}
			return resp.Body.Close()
		}
		sent, err := wasSent(t.Context(), hidden)
		require.NoError(t, err)
		require.True(t, sent)
		down = true
		sent, err = wasSent(t.Context(), hidden)
		require.Error(t, err)
		require.True(t, sent, "it may have arrived")
		sent, err = wasSent(t.Context(), hidden)
		require.Error(t, err)
		require.False(t, sent, "the window is full")
	})
}
