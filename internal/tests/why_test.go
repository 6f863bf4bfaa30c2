package tests

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/store"
)

// A request that waits because a server refused another one says so, in its rejection and in the statistics.
func TestWhyARequestWaitsIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			time.Sleep(100 * time.Millisecond)
			if n++; n == 21 {
				return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"30"}}, Body: http.NoBody, Request: r}, nil
			}
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		}), throttle.WithMaxWait(time.Second)))
		ask := func() error {
			r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://api.example/", nil)
			resp, err := tr.RoundTrip(r)
			if err != nil {
				return err
			}
			if rejection, ok := throttle.RejectionOf(resp); ok {
				return rejection
			}
			return nil
		}
		for range 21 {
			require.NoError(t, ask())
		}
		refused := time.Now()
		time.Sleep(3 * time.Second)
		require.ErrorContains(t, ask(), "; the server refused a request with 429, 3s ago (too fast)")

		s := tr.Limiter().Servers()[0]
		require.Equal(t, &throttle.LastRefusal{Status: 429, Verdict: throttle.VerdictTooFast, At: refused, Until: refused.Add(30 * time.Second)}, s.Last)
		require.InDelta(t, 10, s.Pace, 0.6)
		require.Equal(t, "as accepted before the refusal", s.PaceWhy)
		require.Contains(t, s.String(), "paced at ")
		require.Contains(t, s.String(), "last: 429 at ")

		time.Sleep(time.Minute)
		require.NoError(t, ask())
		time.Sleep(2 * time.Minute)
		require.Empty(t, tr.Limiter().Servers(), "nothing waits because of it any more")
	})
}

// sends has a client send n requests, one after the other, and returns how it decides about the next one, which may not wait.
func sends(t *testing.T, tr *throttle.Transport, n int) (why string) {
	t.Helper()
	ask := func(ctx context.Context) *http.Response {
		r, _ := http.NewRequestWithContext(ctx, "GET", "http://api.example/", nil)
		r.Header.Set("Authorization", "a")
		resp, err := tr.RoundTrip(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp
	}
	for range n {
		ask(t.Context())
	}
	rejection, ok := throttle.RejectionOf(ask(throttle.ContextWithMaxWait(t.Context(), 0)))
	require.True(t, ok)
	return rejection.Error()
}

// serves returns a server that decides about the nth request of all, counted from 1.
func serves(decide func(n int) (status int, h http.Header)) http.RoundTripper {
	n := 0
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		time.Sleep(100 * time.Millisecond)
		n++
		status, h := decide(n)
		return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: r}, nil
	})
}

// Whatever of a server stops requests, the rejection says what it is, and the statistics say until when.
func TestARejectionSaysWhatOfAServerStopsRequests(t *testing.T) {
	left := func(n, limit int, more ...string) http.Header {
		h := http.Header{"X-Ratelimit-Limit": {strconv.Itoa(limit)}, "X-Ratelimit-Remaining": {strconv.Itoa(max(0, limit-n))}}
		for i := 0; i < len(more); i += 2 {
			h.Set(more[i], more[i+1])
		}
		return h
	}
	accepts := func(h func(n int) http.Header) http.RoundTripper {
		return serves(func(n int) (int, http.Header) { return 200, h(n) })
	}
	refuses := func(nth int, status int, h http.Header) http.RoundTripper {
		return serves(func(n int) (int, http.Header) {
			if n == nth {
				return status, h
			}
			return 200, http.Header{}
		})
	}
	for name, c := range map[string]struct {
		base  http.RoundTripper
		opts  []throttle.Option
		n     int
		says  string
		until func(l *throttle.Limiter) time.Time // as the statistics say
	}{
		"an empty quota": {
			accepts(func(n int) http.Header { return left(n, 3, "X-Ratelimit-Reset", "30") }), nil, 3,
			"; the server's quota default: 0 of 3 left", untilOfQuota,
		},
		"a quota that is kept for others": {
			accepts(func(n int) http.Header { return left(n, 10, "X-Ratelimit-Reset", "30") }),
			[]throttle.Option{throttle.WithLimit(throttle.TokenBucket(1000, time.Second, throttle.Fraction(0.7)))}, 7,
			"; the server's quota default: 3 of 10 left", untilOfQuota,
		},
		"a quota of tokens without an end": {
			serves(func(n int) (int, http.Header) {
				h := http.Header{"X-Ratelimit-Limit-Tokens": {"100"}, "X-Ratelimit-Remaining-Tokens": {"0"}}
				if n == 1 {
					return 200, h
				}
				return 429, h
			}),
			[]throttle.Option{throttle.WithServerHints(headers.OpenAI)}, 3,
			"; the server's quota tokens: 0 of 100 left; the server refused a request with 429, 0s ago", untilOfQuota,
		},
		"a hold beside a learned limit": {
			refuses(5, 429, http.Header{"Retry-After": {"30"}}), []throttle.Option{throttle.WithAdaptive()}, 5,
			"; the server refused a request with 429, 0s ago", func(l *throttle.Limiter) time.Time { return l.Limits()[1].HeldUntil },
		},
		"a hold of a shared limit": {
			refuses(5, 429, http.Header{"Retry-After": {"30"}}),
			[]throttle.Option{throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Name("fleet"), throttle.Shared(store.NewMemory())))}, 5,
			"; the server refused a request with 429, 0s ago", func(l *throttle.Limiter) time.Time { return l.Limits()[0].HeldUntil },
		},
		"one request a second, after bare refusals": {
			serves(func(n int) (int, http.Header) {
				if n == 1 {
					return 200, http.Header{}
				}
				return 503, http.Header{}
			}), nil, 20,
			"; the server refused a request with 503, 0s ago", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := throttle.Must(throttle.New(c.base, c.opts...))
				require.Contains(t, sends(t, tr, c.n), c.says)
				if c.until != nil {
					require.True(t, c.until(tr.Limiter()).After(time.Now()), "%v", tr.Limiter().Servers())
				}
			})
		})
	}
}

func untilOfQuota(l *throttle.Limiter) (until time.Time) {
	for _, q := range l.Servers()[0].Quotas {
		if q.HeldUntil.After(until) {
			until = q.HeldUntil
		}
	}
	return until
}

// A 503 with Retry-After of one account holds the others of its host, and they say which refusal it was.
func TestAHoldOfAHostNamesTheRefusalOfAnotherAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := throttle.Must(throttle.New(serves(func(n int) (int, http.Header) {
			if n == 3 {
				return 503, http.Header{"Retry-After": {"30"}}
			}
			return 200, http.Header{}
		}), throttle.WithKey(throttle.ByHeader("Authorization"))))
		require.Contains(t, sends(t, tr, 3), "; the server refused a request with 503, 0s ago")
		r, _ := http.NewRequestWithContext(throttle.ContextWithMaxWait(t.Context(), 0), "GET", "http://api.example/", nil)
		r.Header.Set("Authorization", "b")
		resp, err := tr.RoundTrip(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		rejection, _ := throttle.RejectionOf(resp)
		require.ErrorContains(t, rejection, "; the server refused a request with 503, 0s ago")
		for _, s := range tr.Limiter().Servers() {
			require.Equal(t, 503, s.Last.Status)
		}
	})
}
