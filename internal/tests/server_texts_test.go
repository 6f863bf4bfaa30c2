package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/saved"
)

// A key, a host, and the name of a quota or of a limit must not forge a line of a log.
func TestNoTextContainsANameThatBreaksALine(t *testing.T) {
	const forged = "x\nlevel=ERROR msg=forged\u2028\x1b[31m"
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		refuses := false
		tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			if refuses {
				return reply(429, "Retry-After", "60", "X-RateLimit-Remaining", "0", "X-RateLimit-Limit", "9", "X-RateLimit-Reset", "60", "X-RateLimit-Resource", "a b")
			}
			return reply(200)
		}), throttle.WithLimit(throttle.TokenBucket(2, time.Hour, throttle.Name(forged)), throttle.Adaptive(throttle.AIMD{})), throttle.WithKey(throttle.ByContext), throttle.WithFailFast(), throttle.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
		l := tr.Limiter()
		send := func() (texts []string) {
			req := get(t, throttle.ContextWithKey(t.Context(), forged), "http://a.com/x")
			req.Host = forged
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			for name, lines := range resp.Header {
				texts = append(texts, name+strings.Join(lines, ""))
			}
			if r, ok := throttle.RejectionOf(resp); ok {
				texts = append(texts, r.Error(), fmt.Sprint(r), fmt.Sprintf("%+v", r))
				assert.Falsef(t, strings.ContainsAny(strings.TrimSpace(string(body)), "\n\x1b"), "%q", body)
			}
			return texts
		}
		texts := send()
		refuses = true
		time.Sleep(time.Second)
		texts = append(texts, send()...)
		texts = append(texts, send()...)
		require.NotEmpty(t, l.Servers())
		for _, s := range l.Servers() {
			texts = append(texts, s.String(), fmt.Sprint(s))
			for _, q := range s.Quotas {
				texts = append(texts, q.String(), throttle.QuotaStats{Name: forged, Unit: forged}.String())
			}
		}
		texts = append(texts, throttle.ServerStats{Host: forged, Account: forged}.String(), throttle.BucketStats{Limit: forged}.String())
		for b := range l.Buckets() {
			texts = append(texts, b.String(), fmt.Sprint(b))
		}
		for _, s := range l.Limits() {
			texts = append(texts, s.String(), fmt.Sprint(s))
		}
		_, err := l.Acquire(context.Background(), throttle.Ask{Keys: map[string]string{forged: ""}, Costs: map[string]int64{forged + "2": 1}})
		texts = append(texts, strings.ReplaceAll(err.Error(), "\nthrottle: ", "")) // one fault a line
		for _, fault := range []error{l.SetRate(forged+"2", 1, time.Second), l.SetBurst(forged+"2", 1), l.Refresh(forged + "2"),
			l.Restore(snapshotOf(saved.State{Buckets: []saved.Bucket{{Limit: forged, Key: forged, Held: -1}}})),
			l.Restore(snapshotOf(saved.State{Servers: []saved.Server{{Host: forged, Held: -1}}})),
			l.Restore(snapshotOf(saved.State{Servers: []saved.Server{{Host: forged, Keys: map[string]saved.Key{forged + "2": "x"}}}})),
		} {
			require.Error(t, fault)
			texts = append(texts, fault.Error())
		}
		_, err = throttle.New(nil, throttle.WithWeights(map[string]int64{"GET /" + forged: 1, "{" + forged: 1, "/a": -1}))
		for line := range strings.SplitSeq(err.Error(), "\n") {
			assert.True(t, strings.HasPrefix(line, "throttle: "), "%q", line)
		}
		for _, text := range texts {
			assert.Falsef(t, strings.ContainsAny(text, "\n\u2028\x1b"), "%q", text)
		}
		for line := range strings.Lines(log.String()) {
			assert.Truef(t, strings.HasPrefix(line, "time="), "%q", line)
		}
		require.Contains(t, log.String(), "forged")
	})
}

// Servers count tenants apart, whatever characters their keys have.
func TestKeysThatLookAlikeWhenJoinedAreAccountsOfTheirOwn(t *testing.T) {
	tenant := throttle.Key(func(r *http.Request) string { return r.Header.Get("Tenant") })
	user := throttle.Key(func(r *http.Request) string { return r.Header.Get("User") })
	for _, c := range [][2][2]string{
		{{"x\x00y", "z"}, {"x", "y\x00z"}},
		{{"x y", "z"}, {"x", "y z"}},
		{{"x", "a.com"}, {"a.com", "x"}},
		{{"x", "x"}, {"x", "a.com"}},
		{{"a.com", "x"}, {"x", "x"}},
		{{"x", "1:1:x"}, {"x1:1:x", "x"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
				if n++; n == 1 {
					return reply(429, "Retry-After", "60")
				}
				return reply(200)
			}), throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Name("a"), tenant), throttle.TokenBucket(100, time.Second, throttle.Name("b"), user)), throttle.WithFailFast(), throttle.WithRejectionError()))
			send := func(keys [2]string) error {
				req := get(t, t.Context(), "http://a.com/x")
				req.Header.Set("Tenant", keys[0])
				req.Header.Set("User", keys[1])
				_, err := tr.RoundTrip(req)
				return err
			}
			require.NoError(t, send(c[0]))
			require.ErrorIs(t, send(c[0]), throttle.ErrThrottled)
			require.NoError(t, send(c[1]), "%q", c)

			kept := tr.Limiter().Snapshot() // of the account that is held
			require.Len(t, stateOf(&kept).Servers, 1)
			require.NoError(t, tr.Limiter().Restore(snapshotOf(saved.State{
				Taken: time.Now(), Servers: []saved.Server{{Host: "b.com", Keys: stateOf(&kept).Servers[0].Keys, Held: time.Minute}},
			})))
			other := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) { return reply(200) }),
				throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Name("a"), tenant), throttle.TokenBucket(100, time.Second, throttle.Name("b"), user)), throttle.WithFailFast(), throttle.WithRejectionError()))
			require.NoError(t, other.Limiter().Restore(kept))
			tr = other
			var r *throttle.Rejection
			require.ErrorAs(t, send(c[0]), &r)
			require.NoError(t, send(c[1]))
			tr.Limiter().ForgetServer(r.Key)
			require.NoError(t, send(c[0]), r.Key)
			require.False(t, errors.Is(send(c[0]), throttle.ErrThrottled))
		})
	}
}
