package throttle

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/stretchr/testify/require"
)

func TestMeaningOfEachStatus(t *testing.T) {
	for status := 100; status < 600; status++ {
		want := meaning{outcome: []Outcome{1: OutcomeOK, 2: OutcomeOK, 3: OutcomeOK, 4: OutcomeClientError, 5: OutcomeError}[status/100]}
		switch status {
		case 403:
			want.bare = quota.Forbidden
		case 429:
			want.outcome = OutcomeThrottled
		case 503:
			want = meaning{OutcomeUnavailable, quota.Unavailable, true}
		case 504:
			want.outcome = OutcomeUnavailable
		case 529:
			want.host = true
		}
		require.Equal(t, want, meaningOf(status), status)
		if limited := headers.Parse(status, http.Header{}, time.Time{}).Limited; limited {
			require.Equal(t, quota.NotBare, meaningOf(status).bare, "%d always mentions a limit", status)
		}
	}
}

// 418, 430 and 509 are refusals if the server says when to try again.
func TestRefusalOfAnUnusualStatusHoldsRequestsAsLongAsItAsks(t *testing.T) {
	for _, status := range []int{418, 430, 503, 509} {
		for _, after := range []string{"30", `"30"`, "30 seconds"} {
			synctest.Test(t, func(t *testing.T) {
				tr := Must(New(answersWith(status, after), WithFailFast()))
				request := func() *Rejection {
					resp, err := tr.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil))
					require.NoError(t, err)
					r, _ := RejectionOf(resp)
					return r
				}
				require.Nil(t, request())
				r := request()
				require.NotNil(t, r, "%d, %s", status, after)
				require.GreaterOrEqual(t, r.Wait, 30*time.Second)
				require.LessOrEqual(t, r.Wait, 31*time.Second)
				require.Equal(t, uint64(1), tr.Stats().ServerRefused)
			})
		}
	}
}

type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answersWith(status int, retryAfter string) http.RoundTripper {
	return answers(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Header: http.Header{"Retry-After": {retryAfter}}, Body: http.NoBody, Request: r}, nil
	})
}
