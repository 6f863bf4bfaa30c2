package tests

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// Of a request that comes after a first response, and without a limit that differs from request to request, little is remembered. It is
// treated as the first one is.
func TestLaterRequestsAreTreatedAsTheFirst(t *testing.T) {
	base := roundTripper(func(q *http.Request) (*http.Response, error) {
		if q.URL.Path == "/panic" {
			panic("base")
		}
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: q, ProtoMajor: 1, ProtoMinor: 1}, nil
	})
	send := func(tr *throttle.Transport, path string) *http.Response {
		q, err := http.NewRequestWithContext(t.Context(), "GET", "http://host.test"+path, nil)
		require.NoError(t, err)
		resp, err := tr.RoundTrip(q)
		require.NoError(t, err)
		return resp
	}
	use := func(tr *throttle.Transport) (charged uint64) {
		for range 3 {
			send(tr, "/free")
			send(tr, "/paid")
			assert.PanicsWithValue(t, "base", func() { send(tr, "/panic") })
		}
		limits := tr.Limiter().Limits()
		assert.Zero(t, limits[1].InFlight)
		return limits[0].Charged - limits[0].Returned
	}
	limits := throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Burst(9)), throttle.InFlight(3))
	free := throttle.WithExempt(func(q *http.Request) bool { return q.URL.Path == "/free" })
	assert.EqualValues(t, 6, use(throttle.Must(throttle.New(base, limits, free))))

	tr := throttle.Must(throttle.New(base, limits, throttle.WithFailFast()))
	assert.EqualValues(t, 9, use(tr))
	_, rejected := throttle.RejectionOf(send(tr, "/paid"))
	assert.True(t, rejected)
}

// So are requests by host, and those to a server that has reported limits, whose gate they pass, too.
func TestLaterRequestsByHostAreTreatedAsTheFirst(t *testing.T) {
	for _, reported := range []http.Header{{}, {"X-Ratelimit-Limit": {"1000"}, "X-Ratelimit-Remaining": {"990"}, "X-Ratelimit-Reset": {"3600"}}} {
		sent := 0
		base := roundTripper(func(q *http.Request) (*http.Response, error) {
			switch q.URL.Path {
			case "/panic":
				panic("base")
			case "/error":
				return nil, errors.New("base")
			}
			sent++
			h := http.Header{}
			if sent == 1 {
				h = reported
			}
			return &http.Response{StatusCode: http.StatusOK, Header: h, Body: http.NoBody, Request: q, ProtoMajor: 1, ProtoMinor: 1}, nil
		})
		tr := throttle.Must(throttle.New(base, throttle.WithKey(throttle.ByHost), throttle.WithMaxWait(time.Second),
			throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Burst(12)), throttle.InFlight(3))))
		send := func(host, path string) (*http.Response, error) {
			q, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+host+path, nil)
			require.NoError(t, err)
			return tr.RoundTrip(q)
		}
		for _, host := range []string{"a.test", "b.test"} {
			for range 3 {
				for range 2 {
					_, err := send(host, "/paid")
					require.NoError(t, err)
				}
				_, err := send(host, "/error")
				require.EqualError(t, err, "base")
				assert.PanicsWithValue(t, "base", func() { _, _ = send(host, "/panic") })
			}
			resp, err := send(host, "/paid")
			require.NoError(t, err)
			r, rejected := throttle.RejectionOf(resp)
			require.True(t, rejected)
			assert.Equal(t, host, r.Key)
		}
		limits := tr.Limiter().Limits()
		assert.EqualValues(t, 24, limits[0].Charged-limits[0].Returned)
		assert.Zero(t, limits[1].InFlight)
		for _, s := range tr.Limiter().Servers() {
			for _, q := range s.Quotas {
				assert.Zero(t, q.InFlight)
			}
		}
		require.NoError(t, tr.Limiter().Shutdown(t.Context())) // nothing is in flight
	}
}
