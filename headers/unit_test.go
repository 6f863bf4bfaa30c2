package headers_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/headers"
)

func TestTheBodyOfARefusalSaysWhatTheLimitCounts(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":{"message":"Rate limit reached on tokens per min (TPM): Limit 10, Used 9, Requested 5."}}`:                       "tokens",
		`{"error":{"message":"Rate limit reached on requests per min (RPM): Limit 3."}}`:                                           "requests",
		`{"error":{"message":"Requests to the Operation have exceeded token rate limit."}}`:                                        "tokens",
		`{"message":"Exceeded workspace output tokens per minute rate limit."}`:                                                    "output-tokens",
		`{"error":{"message":"Too many requests","details":[{"quotaId":"GenerateContentInputTokensPerModelPerMinute-FreeTier"}]}}`: "input-tokens",
		`{"error":{"message":"Slow down","code":"token_limit"}}`:                                                                   "",
	} {
		signal := headers.Dialect{}.Parse(http.StatusTooManyRequests, http.Header{}, []byte(body), time.Unix(0, 0))
		require.Equal(t, want, signal.Unit, body)
		signal = headers.Dialect{}.Parse(http.StatusOK, http.Header{}, []byte(body), time.Unix(0, 0))
		require.Empty(t, signal.Unit, "no refusal: %s", body)
	}
}
