package retry_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/retry"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// noCredit refuses for a reason that no waiting ends.
func noCredit(lines ...string) step {
	return func(req *http.Request) (*http.Response, error) {
		resp, err := answer(429, append([]string{"Content-Type: application/json"}, lines...)...)(req)
		resp.Body, resp.ContentLength = &body{Reader: strings.NewReader(`{"error":{"code":"insufficient_quota","message":"pay"}}`)}, -1
		return resp, err
	}
}

func TestAFinalRefusalIsNotRetried(t *testing.T) {
	t.Parallel()
	reader, err := headers.NewReader(headers.OpenAI)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		first step
		hints []headers.Hint
		opts  []retry.Option
		sent  int
		took  time.Duration
	}{
		"body":                {noCredit(), []headers.Hint{headers.OpenAI}, []retry.Option{retry.WithReader(reader)}, 1, 0},
		"header":              {noCredit("X-Should-Retry: false"), nil, nil, 1, 0},
		"the Transport knows": {noCredit(), []headers.Hint{headers.OpenAI}, nil, 1, 2 * time.Second},
	} {
		bubble(t, name, func(t *testing.T) {
			s := scripted(c.first)
			client := retry.NewClient(newTransport(t, s, throttle.WithServerHints(c.hints...)), c.opts...)
			begin := time.Now()
			for range 20 {
				resp, err := client.Get("http://example.com/")
				require.NoError(t, err)
				require.Equal(t, 429, resp.StatusCode)
				require.Contains(t, readAll(t, resp.Body), "insufficient_quota")
			}
			assert.Len(t, s.at, c.sent)
			assert.LessOrEqual(t, time.Since(begin), c.took)
		})
	}
}
