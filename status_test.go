package throttle

import (
	"net/http"
	"testing"
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
		case 529:
			want.host = true
		}
		require.Equal(t, want, meaningOf(status), status)
		if limited := headers.Parse(status, http.Header{}, time.Time{}).Limited; limited {
			require.Equal(t, quota.NotBare, meaningOf(status).bare, "%d always mentions a limit", status)
		}
	}
}
