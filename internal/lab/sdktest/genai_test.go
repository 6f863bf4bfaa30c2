package sdktest

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/require"
	"google.golang.org/genai"
)

const generated = `{"candidates": [{"content": {"role": "model", "parts": [{"text": "Hello"}]}}], "usageMetadata": {"totalTokenCount": 9}}`

func newGenai(t *testing.T, url string, client *http.Client, retries *genai.HTTPRetryOptions) *genai.Client {
	t.Helper()
	c, err := genai.NewClient(t.Context(), &genai.ClientConfig{
		APIKey: "key", Backend: genai.BackendGeminiAPI, HTTPClient: client,
		HTTPOptions: genai.HTTPOptions{BaseURL: url, RetryOptions: retries},
	})
	require.NoError(t, err)
	return c
}

func genaiCaller(retries *genai.HTTPRetryOptions) caller {
	return func(t *testing.T, url string, client *http.Client) func(context.Context) error {
		c := newGenai(t, url, client, retries)
		return func(ctx context.Context) error {
			_, err := c.Models.GenerateContent(ctx, "gemini", genai.Text("Hello"), nil)
			return err
		}
	}
}

var genaiSDK = sdk{
	api: api{
		serve: func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, ":streamGenerateContent") {
				event := "data: " + generated
				writeEvents(w, event, event)
				return
			}
			writeJSON(w, http.StatusOK, generated)
		},
		refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
			writeJSON(w, refusal.Status, googleRefusal)
		},
	},
	call: genaiCaller(nil),
	refused: func(err error) (*http.Response, bool) {
		e, ok := errors.AsType[genai.APIError](err)
		return nil, ok && e.Code == http.StatusTooManyRequests
	},
	open: func(t *testing.T, url string, client *http.Client) stream {
		next, stop := iter.Pull2(newGenai(t, url, client, nil).Models.GenerateContentStream(t.Context(), "gemini", genai.Text("Hello"), nil))
		_, err, ok := next()
		require.True(t, ok)
		require.NoError(t, err)
		return stream{
			rest: func() error {
				for {
					if _, err, ok := next(); err != nil || !ok {
						return err
					}
				}
			},
			close: func() error { stop(); return nil },
		}
	},
	rejected: rejections{once, once, once},
	errored:  once,
	deadline: once,
}

func TestGenai(t *testing.T) { checkSDK(t, genaiSDK) }

// With RetryOptions genai tries five times, after about 1, 2, 4 and 8 s and up to a second more, and ignores Retry-After.
func TestGenaiRetrying(t *testing.T) {
	s := genaiSDK
	s.call = genaiCaller(&genai.HTTPRetryOptions{})
	all := outcome{tries: 5, min: 15 * time.Second, max: 19 * time.Second}
	s.rejected = rejections{short: outcome{tries: 2, most: 3, min: shortWait, max: 5 * time.Second, ok: true}, long: all, hour: all}
	s.errored = all
	s.deadline = outcome{tries: 3, min: patience, unlike: true}
	checkSDK(t, s)
}
