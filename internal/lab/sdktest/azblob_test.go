package sdktest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/require"
)

func newAzblob(t *testing.T, url string, client *http.Client) *blob.Client {
	t.Helper()
	c, err := blob.NewClientWithNoCredential(url+"/c/b", &blob.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: client}})
	require.NoError(t, err)
	return c
}

var azblobAPI = api{
	serve: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Ms-Version", "2021-12-02")
		_, _ = io.WriteString(w, object)
	},
	refusal: func(w http.ResponseWriter, _ *http.Request, _ throttletest.Refusal) {
		w.Header().Set("X-Ms-Error-Code", "ServerBusy")
		w.WriteHeader(http.StatusServiceUnavailable)
	},
}

// azcore retries three times, after 0.8, 2.4 and 5.6 s, each times 0.8 to 1.3, or after Retry-After; it gives up if that is
// longer than a minute.
func TestAzblob(t *testing.T) {
	checkSDK(t, sdk{
		api: azblobAPI,
		call: func(t *testing.T, url string, client *http.Client) func(context.Context) error {
			c := newAzblob(t, url, client)
			return func(ctx context.Context) error {
				resp, err := c.DownloadStream(ctx, nil)
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				_, err = io.Copy(io.Discard, resp.Body)
				return err
			}
		},
		refused: func(err error) (*http.Response, bool) {
			e, ok := errors.AsType[*azcore.ResponseError](err)
			if !ok {
				return nil, false
			}
			return e.RawResponse, e.StatusCode == http.StatusTooManyRequests
		},
		open: func(t *testing.T, url string, client *http.Client) stream {
			resp, err := newAzblob(t, url, client).DownloadStream(t.Context(), nil)
			require.NoError(t, err)
			return streamOf(resp.Body)
		},
		rejected: rejections{
			short: outcome{tries: 2, min: shortWait, ok: true}, // Retry-After-Ms
			long:  outcome{tries: 2, min: longWait, ok: true},
			hour:  once,
		},
		errored:  outcome{tries: 4, min: 7040 * time.Millisecond, max: 11440 * time.Millisecond},
		deadline: outcome{tries: 3, min: patience, unlike: true},
	})
}
