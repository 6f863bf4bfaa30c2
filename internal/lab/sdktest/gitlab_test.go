package sdktest

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/require"
	gitlab "gitlab.com/gitlab-org/api/client-go/v2"
)

// GitLab's client retries a 429 five times, after 0.1, 0.2, 0.4, 0.8 and 1.6 s, each up to 0.3 s longer; it ignores Retry-After and
// looks for RateLimit-Reset.
func TestGitLab(t *testing.T) {
	all := outcome{tries: 6, min: 3100 * time.Millisecond, max: 4600 * time.Millisecond}
	checkSDK(t, sdk{
		api: api{
			serve: func(w http.ResponseWriter, _ *http.Request) {
				writeJSON(w, http.StatusOK, `{"id": 1, "name": "p"}`)
			},
			refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
				w.WriteHeader(refusal.Status)
				_, _ = w.Write([]byte("Retry later\n"))
			},
		},
		call: func(t *testing.T, url string, client *http.Client) func(context.Context) error {
			c, err := gitlab.NewClient("secret", gitlab.WithBaseURL(url), gitlab.WithHTTPClient(client))
			require.NoError(t, err)
			return func(ctx context.Context) error {
				_, _, err := c.Projects.GetProject(1, nil, gitlab.WithContext(ctx))
				return err
			}
		},
		refused: func(err error) (*http.Response, bool) {
			e, ok := errors.AsType[*gitlab.ErrorResponse](err)
			if !ok {
				return nil, false
			}
			return e.Response, e.Response.StatusCode == http.StatusTooManyRequests
		},
		rejected: rejections{
			short: outcome{tries: 4, most: 6, min: shortWait, max: 3500 * time.Millisecond, ok: true},
			long:  all,
			hour:  all,
		},
		errored:  once,
		deadline: once,
	})
}
