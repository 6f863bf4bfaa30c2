package sdktest

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const throttlingException = "ThrottlingException"

var dynamoDB = sdk{
	api: api{
		serve: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Amz-Crc32", "2745614147")
			writeJSON(w, http.StatusOK, `{}`)
		},
		refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
			w.Header().Set("X-Amzn-Errortype", throttlingException)
			writeJSON(w, refusal.Status, `{"__type": "com.amazon.coral.availability#ThrottlingException", "message": "Rate exceeded"}`)
		},
	},
	call: func(_ *testing.T, url string, client *http.Client) func(context.Context) error {
		c := newDynamoDB(url, client)
		return func(ctx context.Context) error {
			_, err := c.GetItem(ctx, &dynamodb.GetItemInput{
				TableName: aws.String("t"), Key: map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: "1"}}})
			return err
		}
	},
	refused: func(err error) (*http.Response, bool) {
		e, ok := errors.AsType[*awshttp.ResponseError](err)
		if !ok {
			return nil, false
		}
		return e.Response.Response, e.HTTPStatusCode() == http.StatusTooManyRequests
	},
	// A 429 says nothing to this SDK: it goes by the code.
	rejected: rejections{once, once, once},
	// An error is one of the connection, retried twice after up to 2 and 4 s.
	errored:  outcome{tries: 3, max: 6 * time.Second},
	deadline: once,
}

func newDynamoDB(url string, client *http.Client) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		BaseEndpoint: &url, HTTPClient: client, Region: "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider("id", "secret", ""),
	})
}

func TestDynamoDB(t *testing.T) { checkSDK(t, dynamoDB) }

// The header alone makes a rejection the SDK's own error, which it retries by its own backoff, whatever Retry-After says.
func TestDynamoDBTakesTheHeaderForThrottling(t *testing.T) {
	bubble(t, "get", func(t *testing.T) {
		server := dynamoDB.start(t)
		transport, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, time.Hour)), throttle.WithFailFast(),
			throttle.WithRejectionResponse(func(*throttle.Rejection, *http.Request) *http.Response {
				return &http.Response{Header: http.Header{"X-Amzn-Errortype": {throttlingException}, "Retry-After": {"3600"}}}
			}))
		call := dynamoDB.call(t, server.URL, client)
		require.NoError(t, call(t.Context()))

		begun := time.Now()
		err := call(t.Context())
		_, ok := errors.AsType[*types.ThrottlingException](err)
		assert.True(t, ok, err)
		assert.Equal(t, aws.TrueTernary, retry.IsErrorThrottles(retry.DefaultThrottles).IsErrorThrottle(err))
		assert.EqualValues(t, 3, transport.Stats().Rejected.Total())
		assert.Less(t, time.Since(begun), 10*time.Second)
	})
}
