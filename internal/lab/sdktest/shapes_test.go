package sdktest

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"cloud.google.com/go/storage"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/bwmarrin/discordgo"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/shape"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"
	gitlab "gitlab.com/gitlab-org/api/client-go/v2"
	"google.golang.org/api/googleapi"
	"google.golang.org/genai"
)

// A shapedSDK is an SDK over a Transport that rejects by its shape.
type shapedSDK struct {
	name  string
	shape func(*throttle.Rejection, *http.Request) *http.Response
	api   api
	call  caller
	want  map[time.Duration]outcome            // of a call that is rejected, by the wait
	text  func(t *testing.T, err error) string // the message of the SDK's own error for an exceeded limit, of which err must be
}

func answers(text string) api {
	return api{serve: func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, text) }, refusal: nothing}
}

func nothing(http.ResponseWriter, *http.Request, throttletest.Refusal) {}

var shapedSDKs = []shapedSDK{
	{
		name: "storage", shape: shape.Google, api: storageSDK.api,
		call: func(t *testing.T, url string, client *http.Client) func(context.Context) error {
			o := newStorage(t, url, client).Retryer(storage.WithPolicy(storage.RetryNever))
			return func(ctx context.Context) error { _, err := o.Attrs(ctx); return err }
		},
		want: map[time.Duration]outcome{shortWait: once, time.Hour: once},
		text: func(t *testing.T, err error) string {
			e, ok := errors.AsType[*googleapi.Error](err)
			require.True(t, ok, err)
			require.Equal(t, "rateLimitExceeded", e.Errors[0].Reason)
			return e.Message
		},
	},
	{
		name: "genai", shape: shape.Google, api: genaiSDK.api, call: genaiSDK.call,
		want: map[time.Duration]outcome{shortWait: once, time.Hour: once},
		text: func(t *testing.T, err error) string {
			e, ok := errors.AsType[genai.APIError](err)
			require.True(t, ok, err)
			require.Equal(t, "RESOURCE_EXHAUSTED", e.Status)
			return e.Message
		},
	},
	{
		// Its backoff is up to 1 and 2 s for throttling, whatever Retry-After says.
		name: "dynamodb", shape: shape.AWSJSON, api: dynamoDB.api, call: dynamoDB.call,
		want: map[time.Duration]outcome{time.Hour: {tries: 3, max: 6 * time.Second}},
		text: func(t *testing.T, err error) string {
			e, ok := errors.AsType[*types.ThrottlingException](err)
			require.True(t, ok, err)
			require.True(t, isThrottle(err))
			return e.ErrorMessage()
		},
	},
	{
		name: "s3", shape: shape.S3, api: s3API,
		call: func(t *testing.T, url string, client *http.Client) func(context.Context) error {
			c := newS3(t, url, client)
			return func(ctx context.Context) error { return get(ctx, c) }
		},
		want: map[time.Duration]outcome{time.Hour: {tries: 3, max: 6 * time.Second}},
		text: func(t *testing.T, err error) string {
			code, _ := seen(t, err)
			require.Equal(t, "SlowDown", code)
			require.True(t, isThrottle(err))
			e, _ := errors.AsType[interface {
				error
				ErrorMessage() string
			}](err)
			return e.ErrorMessage()
		},
	},
	{
		// It waits until RateLimit-Reset, a whole second, and up to 0.3 s longer.
		name: "gitlab", shape: shape.GitLab, api: answers(`{"id": 1, "name": "p"}`),
		call: func(t *testing.T, url string, client *http.Client) func(context.Context) error {
			c, err := gitlab.NewClient("secret", gitlab.WithBaseURL(url), gitlab.WithHTTPClient(client))
			require.NoError(t, err)
			return func(ctx context.Context) error {
				_, _, err := c.Projects.GetProject(1, nil, gitlab.WithContext(ctx))
				return err
			}
		},
		want: map[time.Duration]outcome{
			shortWait: {tries: 2, min: shortWait, max: shortWait + 1300*time.Millisecond, ok: true},
			longWait:  {tries: 2, min: longWait, max: longWait + 1300*time.Millisecond, ok: true},
			time.Hour: {tries: 2, min: time.Hour, max: time.Hour + 1300*time.Millisecond, ok: true},
		},
	},
	{
		name: "stripe", shape: shape.Stripe, api: stripeAPI,
		call: func(_ *testing.T, url string, client *http.Client) func(context.Context) error {
			c := newStripe(url, client)
			return func(ctx context.Context) error { _, err := c.V1Customers.Retrieve(ctx, "cus_1", nil); return err }
		},
		want: map[time.Duration]outcome{shortWait: once, time.Hour: once},
		text: func(t *testing.T, err error) string {
			e, ok := errors.AsType[*stripe.Error](err)
			require.True(t, ok, err)
			require.Equal(t, stripe.ErrorCodeRateLimit, e.Code)
			return e.Msg
		},
	},
	{
		// It sleeps for retry_after.
		name: "discordgo", shape: shape.Discord, api: answers(`{"id": "1"}`), call: newDiscord,
		want: map[time.Duration]outcome{
			shortWait: {tries: 2, min: shortWait, ok: true}, longWait: {tries: 2, min: longWait, ok: true}, time.Hour: {tries: 2, min: time.Hour, ok: true},
		},
	},
}

func newDiscord(t *testing.T, url string, client *http.Client) func(context.Context) error {
	session, err := discordgo.New("Bot token")
	require.NoError(t, err)
	session.Client = client
	return func(ctx context.Context) error {
		_, err := session.RequestWithBucketID(http.MethodGet, url+"/users/1", nil, url, discordgo.WithContext(ctx))
		return err
	}
}

// By its own shape an SDK knows a rejection as a server's refusal, with a text that a person can read, and retries as it does
// after one.
func TestAnSDKKnowsItsShape(t *testing.T) {
	for _, s := range shapedSDKs {
		for wait, want := range s.want {
			bubble(t, s.name+", "+wait.String(), func(t *testing.T) {
				err := sdk{api: s.api, call: s.call}.check(t, t.Context(), wait, want,
					throttle.WithFailFast(), throttle.WithRejectionResponse(s.shape))
				if !want.ok {
					assert.Regexp(t, `^throttle: limit "pace": cost 1 can be paid in [0-9hms.]+, and the request may not wait$`, s.text(t, err))
				}
			})
		}
	}
}

// A request that can never pass is not retried by azcore, which finds NonRetriable in the chain.
func TestAzcoreStopsAtACostThatCanNeverBePaid(t *testing.T) {
	bubble(t, "download", func(t *testing.T) {
		server := azblobAPI.start(t)
		transport, _ := throttled(t, server, throttle.WithLimit(throttle.TokenBucket(1, time.Hour)), throttle.WithCost(func(*http.Request) int64 { return 2 }))
		trips := &counted{next: transport}
		begun := time.Now()
		_, err := newAzblob(t, server.URL, &http.Client{Transport: trips}).DownloadStream(t.Context(), nil)
		assert.ErrorIs(t, err, throttle.ErrThrottled)
		assert.EqualValues(t, 1, trips.tries.Load())
		assert.Zero(t, time.Since(begun))
	})
}
