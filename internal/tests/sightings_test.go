package tests

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// What no option can be wrong about by itself, responses show: a path or a unit that is in none of 100 of them.
func TestAPathOrAUnitThatNoResponseHasIsSaidOnce(t *testing.T) {
	var log bytes.Buffer
	status, named := 200, false
	tr := transportTo(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		h := http.Header{"Content-Type": {"application/json"}}
		if named {
			h.Set("RateLimit-Policy", `"tokns";q=1000;w=1;qu="tokns"`)
			h.Set("RateLimit", `"tokns";r=900;t=1`)
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(`{"usage":{"total_tokens":7}}`)), Request: r}, nil
	}), throttle.WithLogger(slog.New(slog.NewTextHandler(&log, nil))), throttle.WithLimit(
		throttle.TokenBucket(1e6, 1e9, throttle.Name("right"), throttle.SettleJSON("usage.total_tokens")),
		throttle.TokenBucket(1e6, 1e9, throttle.Name("half"), throttle.SettleJSON("usage.total_tokens", "usage.other")),
		throttle.TokenBucket(1e6, 1e9, throttle.Name("some"), throttle.SettleJSONFunc(func(_ *http.Response, n []int64) (int64, bool) { return n[0], n[0] >= 0 }, "usage.total_tokens", "usage.cached")),
		throttle.TokenBucket(1e6, 1e9, throttle.Name("none"), throttle.SettleJSONFunc(func(_ *http.Response, n []int64) (int64, bool) { return n[0], n[0] >= 0 }, "usage.tokens", "usage.cached")),
		throttle.ServerQuota("tokns")))
	warnings := func() map[string]string {
		all := make(map[string]string)
		for _, l := range tr.Limiter().Limits() {
			if l.Warning != "" {
				all[l.Name] = l.Warning
				require.Contains(t, l.String(), l.Warning)
			}
		}
		return all
	}
	send := func(n int) {
		for range n {
			resp, err := tr.RoundTrip(request(t.Context()))
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
	}
	status = 500
	send(200) // which show nothing of paths
	status = 200
	send(99)
	for _, name := range []string{"half", "none"} {
		require.NotContains(t, warnings(), name)
	}
	send(1)
	require.Equal(t, map[string]string{
		"half":  `none of 100 responses had a number at "usage.other"`,
		"none":  `none of 100 responses had a number at "usage.tokens", nor at "usage.cached"`,
		"tokns": `none of 100 responses named the unit "tokns"; each of 100 requests was taken to cost 1 tokns: estimate it by Cost`,
	}, warnings())
	send(200)
	require.Equal(t, 3, strings.Count(log.String(), "finds nothing of what it looks for"), log.String())
	named = true
	send(2)
	require.Equal(t, "each of 100 requests was taken to cost 1 tokns: estimate it by Cost", warnings()["tokns"])
	resp, err := tr.RoundTrip(request(throttle.ContextWithCost(t.Context(), 7)))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.NotContains(t, warnings(), "tokns")
}

// A body whose context ends is settled by a goroutine in which the panic of a logger would end the program: the log is written by the Close
// that comes next.
func TestTheLogIsWrittenByTheCallerOfABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		tr := transportTo(t, roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{"a":7} `)), Request: r}, nil
		}), throttle.WithLogger(slog.New(slog.NewTextHandler(&log, nil))), throttle.WithLimit(throttle.InFlight(1),
			throttle.TokenBucket(1e6, 1e9, throttle.Name("tokens"), throttle.SettleJSON("a", "b"))))
		send := func() (resp *http.Response, end func()) {
			ctx, cancel := context.WithCancel(t.Context())
			resp, err := tr.RoundTrip(request(ctx))
			require.NoError(t, err)
			_, err = io.ReadFull(resp.Body, make([]byte, len(`{"a":7}`)))
			require.NoError(t, err)
			return resp, cancel
		}
		for range 99 {
			resp, end := send()
			require.NoError(t, resp.Body.Close())
			end()
		}
		resp, end := send()
		end()
		synctest.Wait()
		require.Empty(t, log.String())
		require.NotEmpty(t, tr.Limiter().Limits()[1].Warning)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 1, strings.Count(log.String(), "finds nothing of what it looks for"), log.String())
	})
}

// Nine units are looked for as one is.
func TestEachOfManyUnitsIsSeen(t *testing.T) {
	var limits []throttle.Limit
	var policy, left []string
	for i := range 9 {
		unit := fmt.Sprintf("unit%d", i)
		limits = append(limits, throttle.ServerQuota(unit, throttle.Cost(costing(1))))
		policy, left = append(policy, fmt.Sprintf(`"%s";q=1000;w=1;qu="%s"`, unit, unit)), append(left, fmt.Sprintf(`"%s";r=900;t=1`, unit))
	}
	tr := transportTo(t, roundTripper(func(r *http.Request) (*http.Response, error) {
		h := http.Header{"Ratelimit-Policy": {strings.Join(policy, ", ")}, "Ratelimit": {strings.Join(left, ", ")}}
		return &http.Response{StatusCode: 200, Header: h, Body: http.NoBody, Request: r}, nil
	}), throttle.WithLimit(limits...))
	for range 101 {
		_, err := tr.RoundTrip(request(t.Context()))
		require.NoError(t, err)
	}
	for _, l := range tr.Limiter().Limits() {
		require.Empty(t, l.Warning)
	}
}
