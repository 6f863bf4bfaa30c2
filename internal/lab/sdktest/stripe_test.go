package sdktest

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stripe/stripe-go/v85"
)

var stripeAPI = api{
	serve: func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, `{"id": "cus_1", "object": "customer"}`)
	},
	refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
		writeJSON(w, refusal.Status, `{"error": {"type": "invalid_request_error", "code": "rate_limit", "message": "Too many requests"}}`)
	},
}

func newStripe(url string, client *http.Client) *stripe.Client {
	return stripe.NewClient("sk_test_1", stripe.WithBackends(stripe.NewBackendsWithConfig(&stripe.BackendConfig{
		URL: &url, HTTPClient: client, LeveledLogger: &stripe.LeveledLogger{}, EnableTelemetry: new(false),
	})))
}

// Stripe retries errors of the connection twice, after 0.5 s and about 1 s, and a 429 only if Stripe-Should-Retry says so.
func TestStripe(t *testing.T) {
	retried := outcome{tries: 3, min: 1250 * time.Millisecond, max: 1500 * time.Millisecond}
	checkSDK(t, sdk{
		api: stripeAPI,
		call: func(_ *testing.T, url string, client *http.Client) func(context.Context) error {
			c := newStripe(url, client)
			return func(ctx context.Context) error {
				_, err := c.V1Customers.Retrieve(ctx, "cus_1", nil)
				return err
			}
		},
		refused: func(err error) (*http.Response, bool) {
			e, ok := errors.AsType[*stripe.Error](err)
			return nil, ok && e.HTTPStatusCode == http.StatusTooManyRequests
		},
		rejected: rejections{once, once, once},
		errored:  retried,
		deadline: retried,
	})
}
