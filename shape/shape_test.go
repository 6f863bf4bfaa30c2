package shape_test

import (
	"encoding/json"
	"encoding/xml"
	"io"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/shape"
)

type shaping = func(*throttle.Rejection, *http.Request) *http.Response

var shapes = map[string]shaping{
	"Google": shape.Google, "AWSJSON": shape.AWSJSON, "S3": shape.S3, "GitLab": shape.GitLab, "Stripe": shape.Stripe, "Discord": shape.Discord,
	"Problem": shape.Problem,
}

const text = `throttle: limit "a<b>&": cost 1 can be paid in 1.501s, and the request may not wait`

var rejection = &throttle.Rejection{Reason: throttle.ReasonNoTokens, Limit: "a<b>&", Cost: 1, Wait: 1500*time.Millisecond + 1}

func body(t *testing.T, resp *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.EqualValues(t, len(text), resp.ContentLength)
	require.Equal(t, strconv.Itoa(len(text)), resp.Header.Get("Content-Length"))
	return string(text)
}

func request(t *testing.T, method string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "https://api.example.com/", nil)
	require.NoError(t, err)
	return req
}

func TestTheWireFormats(t *testing.T) {
	quoted, err := json.Marshal(text)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		status, contentType, body string
	}{
		"Google": {"429 Too Many Requests", "application/json; charset=UTF-8", `{"error":{"code":429,"message":` + string(quoted) +
			`,"errors":[{"message":` + string(quoted) + `,"domain":"usageLimits","reason":"rateLimitExceeded"}],"status":"RESOURCE_EXHAUSTED",` +
			`"details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"1.501s"}]}}`},
		"AWSJSON": {"400 Bad Request", "application/x-amz-json-1.0", `{"__type":"ThrottlingException","message":` + string(quoted) + `}`},
		"GitLab":  {"429 Too Many Requests", "application/json", `{"message":` + string(quoted) + `}`},
		"Stripe":  {"429 Too Many Requests", "application/json", `{"error":{"type":"invalid_request_error","code":"rate_limit","message":` + string(quoted) + `}}`},
		"Discord": {"429 Too Many Requests", "application/json", `{"message":` + string(quoted) + `,"retry_after":1.501,"global":false}`},
		"Problem": {"429 Too Many Requests", "application/problem+json", `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",` +
			`"title":"Too Many Requests","status":429,"detail":` + string(quoted) +
			`,"rejection":{"reason":"no_tokens","limit":"a\u003cb\u003e\u0026","key":"","cost":1,"wait":1.500000001,"max_wait":0}}`},
		"S3": {"503 Service Unavailable", "application/xml", xml.Header +
			`<Error><Code>SlowDown</Code><Message>throttle: limit &#34;a&lt;b&gt;&amp;&#34;: cost 1 can be paid in 1.501s, and the request may not wait</Message></Error>`},
	} {
		t.Run(name, func(t *testing.T) {
			resp := shapes[name](rejection, request(t, "GET"))
			assert.Equal(t, c.status, resp.Status)
			assert.Equal(t, c.contentType, resp.Header.Get("Content-Type"))
			assert.Equal(t, "2", resp.Header.Get("Retry-After"))
			assert.Equal(t, c.body, body(t, resp))
		})
	}
	assert.Equal(t, "ThrottlingException", shape.AWSJSON(rejection, request(t, "GET")).Header.Get("X-Amzn-Errortype"))
}

// The reset of a whole second is not before the request could go.
func TestGitLabsResetIsRoundedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // whose time begins with a whole second
		for wait, seconds := range map[time.Duration]int64{1: 1, time.Second: 1, time.Second + 1: 2, time.Hour: 3600} {
			resp := shape.GitLab(&throttle.Rejection{Wait: wait}, request(t, "GET"))
			assert.Equal(t, strconv.FormatInt(time.Now().Unix()+seconds, 10), resp.Header.Get("RateLimit-Reset"), wait)
		}
	})
}

// A wait is reported in milliseconds, and never as 0, after which discordgo would retry immediately.
func TestAWaitIsNeverReportedAsZero(t *testing.T) {
	for wait, want := range map[time.Duration]string{0: "0.001", 1: "0.001", time.Millisecond: "0.001", time.Millisecond + 1: "0.002", time.Hour: "3600"} {
		assert.Contains(t, body(t, shape.Discord(&throttle.Rejection{Wait: wait}, request(t, "GET"))), `"retry_after":`+want+`,`)
	}
}

// Through a Transport, and for HEAD, each is whole and known as a rejection.
func TestAShapeIsKnownAsARejection(t *testing.T) {
	for name, f := range shapes {
		for _, method := range []string{"GET", "HEAD"} {
			t.Run(name+"/"+method, func(t *testing.T) {
				tr, err := throttle.New(nil, throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0))),
					throttle.WithFailFast(), throttle.WithRejectionResponse(f))
				require.NoError(t, err)
				resp, err := tr.RoundTrip(request(t, method))
				require.NoError(t, err)
				r, ok := throttle.RejectionOf(resp)
				require.True(t, ok)
				assert.Equal(t, throttle.ReasonNoTokens, r.Reason)
				assert.Equal(t, "3600", resp.Header.Get("Retry-After"))
				text, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				assert.Equal(t, method == "HEAD", len(text) == 0)
				require.NoError(t, resp.Body.Close())
			})
		}
	}
}
