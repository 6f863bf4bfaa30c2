package sdktest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"cloud.google.com/go/storage"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
)

func newStorage(t *testing.T, url string, client *http.Client) *storage.ObjectHandle {
	t.Helper()
	c, err := storage.NewClient(t.Context(), option.WithHTTPClient(client), option.WithEndpoint(url+"/storage/v1/"))
	require.NoError(t, err)
	return c.Bucket("b").Object("k")
}

// seenByGoogle finds the error of Google's API clients, which keeps no response.
func seenByGoogle(err error) (*http.Response, bool) {
	e, ok := errors.AsType[*googleapi.Error](err)
	return nil, ok && e.Code == http.StatusTooManyRequests
}

var storageSDK = sdk{
	api: api{
		serve: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/b/k" {
				_, _ = io.WriteString(w, object)
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			writeJSON(w, http.StatusOK, `{"kind": "storage#object", "bucket": "b", "name": "k"}`)
		},
		refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
			writeJSON(w, refusal.Status, googleRefusal)
		},
	},
	call: func(t *testing.T, url string, client *http.Client) func(context.Context) error {
		o := newStorage(t, url, client)
		return func(ctx context.Context) error {
			_, err := o.Attrs(ctx)
			return err
		}
	},
	refused: seenByGoogle,
	open: func(t *testing.T, url string, client *http.Client) stream {
		r, err := newStorage(t, url, client).NewReader(t.Context())
		require.NoError(t, err)
		return streamOf(r)
	},
	rejected: rejections{
		short: outcome{tries: 2, most: 20, min: shortWait, max: 10 * time.Second, ok: true},
		long:  outcome{tries: 3, most: 40, min: longWait, max: 2 * time.Minute, ok: true},
		hour:  outcome{tries: 180, most: 360, min: time.Hour, max: time.Hour + time.Minute, ok: true},
	},
	errored:  once,
	deadline: once,
}

// What Google's client takes for idempotent is retried without end, after random times of up to 30 s, and Retry-After is ignored.
func TestStorage(t *testing.T) { checkSDK(t, storageSDK) }

// An upload without conditions is not idempotent, and not retried.
func TestStorageUpload(t *testing.T) {
	s := storageSDK
	s.open = nil
	s.call = func(t *testing.T, url string, client *http.Client) func(context.Context) error {
		o := newStorage(t, url, client)
		return func(ctx context.Context) error {
			w := o.NewWriter(ctx)
			if _, err := io.WriteString(w, object); err != nil {
				return err
			}
			return w.Close()
		}
	}
	s.rejected = rejections{once, once, once}
	checkSDK(t, s)
}
