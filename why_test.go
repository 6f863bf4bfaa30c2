package throttle_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
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
		require.ErrorContains(t, ask(), "; the server refused a request with 429, 3s ago")

		s := tr.Limiter().Servers()[0]
		require.Equal(t, &throttle.LastRefusal{Status: 429, At: refused, Until: refused.Add(30 * time.Second)}, s.Last)
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
