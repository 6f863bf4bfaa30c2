package tests

import (
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
