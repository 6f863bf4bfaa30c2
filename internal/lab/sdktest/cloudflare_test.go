package sdktest

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/cloudflare/cloudflare-go/v7/option"
	"github.com/cloudflare/cloudflare-go/v7/zones"
	"github.com/httpthrottle/throttle/throttletest"
)

// cloudflareCaller makes one of the services that a cloudflare.Client consists of: all of them are half a million lines.
func cloudflareCaller(opts ...option.RequestOption) caller {
	return func(_ *testing.T, url string, client *http.Client) func(context.Context) error {
		c := zones.NewZoneService(append([]option.RequestOption{
			option.WithBaseURL(url + "/client/v4/"), option.WithAPIToken("secret"), option.WithHTTPClient(client)}, opts...)...)
		return func(ctx context.Context) error {
			var zone zones.ZoneGetParams
			zone.ZoneID.Value, zone.ZoneID.Present = "z", true
			_, err := c.Get(ctx, zone)
			return err
		}
	}
}

// seenByCloudflare finds a cloudflare.Error, which is the alias of an internal type in the package with all services.
func seenByCloudflare(err error) (*http.Response, bool) {
	if _, ok := errors.AsType[interface {
		error
		DumpResponse(body bool) []byte
	}](err); !ok {
		return nil, false
	}
	resp, ok := reflect.ValueOf(err).Elem().FieldByName("Response").Interface().(*http.Response)
	return resp, ok && resp.StatusCode == http.StatusTooManyRequests
}

var cloudflareSDK = sdk{
	api: api{
		serve: func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, `{"success": true, "errors": [], "messages": [], "result": {"id": "z", "name": "example.com"}}`)
		},
		refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
			writeJSON(w, refusal.Status, `{"success": false, "errors": [{"code": 971, "message": "Please wait and consider throttling your request speed"}]}`)
		},
	},
	call:    cloudflareCaller(),
	refused: seenByCloudflare,
	// It waits for Retry-After-Ms, or Retry-After, however long that is.
	rejected: rejections{
		short: outcome{tries: 2, min: shortWait, ok: true},
		long:  outcome{tries: 2, min: longWait, ok: true},
		hour:  outcome{tries: 2, min: time.Hour, ok: true},
	},
	// Errors are retried twice, after half a second and a second, each shortened by up to a quarter.
	errored:  outcome{tries: 3, min: 1125 * time.Millisecond, max: 1500 * time.Millisecond},
	deadline: outcome{tries: 3, min: 1125 * time.Millisecond, max: 1500 * time.Millisecond},
}

func TestCloudflare(t *testing.T) { checkSDK(t, cloudflareSDK) }

func TestCloudflareWithoutRetries(t *testing.T) {
	s := cloudflareSDK
	s.call = cloudflareCaller(option.WithMaxRetries(0))
	s.rejected = rejections{once, once, once}
	s.errored, s.deadline = once, once
	checkSDK(t, s)
}
