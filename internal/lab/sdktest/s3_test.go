package sdktest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const slowDown = `<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message><RequestId>1</RequestId></Error>`

// S3 says 503 and SlowDown, and no Retry-After.
var s3API = api{
	serve: func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		switch {
		case err != nil || r.Method == http.MethodPut && string(body) != object:
			w.WriteHeader(http.StatusBadRequest)
		case r.Method == http.MethodPut:
			w.Header().Set("ETag", `"1"`)
		default:
			w.Header().Set("Content-Type", "application/octet-stream")
			_, _ = io.WriteString(w, object)
		}
	},
	refusal: func(w http.ResponseWriter, _ *http.Request, _ throttletest.Refusal) {
		w.Header().Del("Retry-After")
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, slowDown)
	},
}

// asS3 refuses as S3 does.
func asS3(status int) throttle.Option {
	return throttle.WithRejectionResponse(func(*throttle.Rejection, *http.Request) *http.Response {
		return &http.Response{
			StatusCode: status,
			Header:     http.Header{"Content-Type": {"application/xml"}},
			Body:       io.NopCloser(strings.NewReader(slowDown)),
		}
	})
}

func newS3(t *testing.T, url string, client *http.Client) *s3.Client {
	t.Helper()
	cfg, err := config.LoadDefaultConfig(t.Context(), config.WithHTTPClient(client), config.WithRegion("us-east-1"),
		config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("id", "secret", "")),
		config.WithSharedConfigFiles([]string{}), config.WithSharedCredentialsFiles([]string{}))
	require.NoError(t, err)
	return s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.BaseEndpoint = aws.String(url)
		o.UsePathStyle = true
		o.DisableLogOutputChecksumValidationSkipped = true
	})
}

func get(ctx context.Context, c *s3.Client) error {
	out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String("b"), Key: aws.String("k")})
	if err != nil {
		return err
	}
	defer out.Body.Close()
	body, err := io.ReadAll(out.Body)
	if err == nil && string(body) != object {
		return fmt.Errorf("the object is %q", body)
	}
	return err
}

func head(ctx context.Context, c *s3.Client) error {
	_, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String("b"), Key: aws.String("k")})
	return err
}

func put(ctx context.Context, c *s3.Client) error {
	_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String("b"), Key: aws.String("k"), Body: bytes.NewReader([]byte(object))})
	return err
}

var s3Calls = map[string]func(context.Context, *s3.Client) error{"get": get, "head": head, "put": put}

// isThrottle reports whether the SDK takes an error for throttling, and isRetryable whether it retries it.
func isThrottle(err error) bool {
	return retry.IsErrorThrottles(retry.DefaultThrottles).IsErrorThrottle(err) == aws.TrueTernary
}

func isRetryable(err error) bool { return retry.NewStandard().IsErrorRetryable(err) }

func TestS3KeepsTheLimit(t *testing.T) {
	for name, call := range s3Calls {
		t.Run(name, func(t *testing.T) {
			checkLimitKept(t, s3API, func(t *testing.T, url string, client *http.Client) func(context.Context) error {
				c := newS3(t, url, client)
				return func(ctx context.Context) error { return call(ctx, c) }
			})
		})
	}
}

// seen returns what an SDK's error says of a refusal.
func seen(t *testing.T, err error) (code string, resp *http.Response) {
	t.Helper()
	var e smithy.APIError
	require.ErrorAs(t, err, &e)
	var r *awshttp.ResponseError
	require.ErrorAs(t, err, &r)
	return e.ErrorCode(), r.Response.Response
}

func TestS3TakesAPlainRefusalForFinal(t *testing.T) {
	for name, call := range s3Calls {
		bubble(t, name, func(t *testing.T) {
			server := s3API.start(t)
			transport, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, time.Minute)), throttle.WithFailFast())
			c := newS3(t, server.URL, client)
			require.NoError(t, call(t.Context(), c))

			begun := time.Now()
			err := call(t.Context(), c)
			code, resp := seen(t, err)
			assert.Equal(t, "TooManyRequests", code)
			assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
			rejection, ok := throttle.RejectionOf(resp)
			require.True(t, ok)
			assert.Equal(t, time.Minute, rejection.Wait)
			assert.False(t, isThrottle(err))
			assert.False(t, isRetryable(err))
			assert.Zero(t, time.Since(begun))
			assert.EqualValues(t, 1, transport.Stats().Rejected.Total())
		})
	}
}

func TestS3RetriesARefusalThatSpeaksAsS3(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
		for name, call := range s3Calls {
			if name == "head" {
				continue // which has no body to speak with: see below
			}
			bubble(t, fmt.Sprint(name, " with ", status), func(t *testing.T) {
				server := s3API.start(t)
				transport, client := throttled(t, server,
					throttle.WithLimit(throttle.Pace(1, time.Hour)), throttle.WithFailFast(), asS3(status))
				c := newS3(t, server.URL, client)
				require.NoError(t, call(t.Context(), c))

				err := call(t.Context(), c)
				code, resp := seen(t, err)
				assert.Equal(t, "SlowDown", code)
				assert.Equal(t, status, resp.StatusCode)
				_, ok := throttle.RejectionOf(resp)
				assert.True(t, ok)
				assert.True(t, isThrottle(err))
				assert.EqualValues(t, 3, transport.Stats().Rejected.Total(), "one attempt and two retries")
				assert.EqualValues(t, 1, server.Counts().Received)
			})
		}
	}
}

// The answer to a HEAD has no body, so its status is all that the SDK goes by.
func TestS3HeadIsRetriedAfter503Only(t *testing.T) {
	for status, attempts := range map[int]uint64{http.StatusTooManyRequests: 1, http.StatusServiceUnavailable: 3} {
		bubble(t, fmt.Sprint(status), func(t *testing.T) {
			server := s3API.start(t)
			transport, client := throttled(t, server,
				throttle.WithLimit(throttle.Pace(1, time.Hour)), throttle.WithFailFast(), asS3(status))
			c := newS3(t, server.URL, client)
			require.NoError(t, head(t.Context(), c))
			err := head(t.Context(), c)
			_, resp := seen(t, err)
			_, ok := throttle.RejectionOf(resp)
			assert.True(t, ok)
			assert.False(t, isThrottle(err))
			assert.Equal(t, attempts, transport.Stats().Rejected.Total())
		})
	}
}

func TestS3RetriesStandInLineAndPay(t *testing.T) {
	for name, call := range s3Calls {
		bubble(t, name, func(t *testing.T) {
			server := s3API.start(t, throttletest.WithFaults(throttletest.Respond(http.StatusServiceUnavailable, nil).First(2)))
			transport, client := throttled(t, server, throttle.WithLimit(
				throttle.Pace(1, time.Minute), throttle.FixedWindow(100, time.Hour, throttle.Name("hourly"))))
			begun := time.Now()
			require.NoError(t, call(t.Context(), newS3(t, server.URL, client)))
			assert.Equal(t, 2*time.Minute, time.Since(begun))
			assert.EqualValues(t, 3, server.Counts().Received)
			assert.EqualValues(t, 97, left(t, transport, "hourly"))
		})
	}
}

func TestS3RejectionErrorsPassThroughTheSDK(t *testing.T) {
	bubble(t, "get", func(t *testing.T) {
		server := s3API.start(t)
		transport, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, time.Minute)),
			throttle.WithFailFast(), throttle.WithRejectionError())
		c := newS3(t, server.URL, client)
		require.NoError(t, get(t.Context(), c))
		err := get(t.Context(), c)
		require.ErrorIs(t, err, throttle.ErrThrottled)
		var rejection *throttle.Rejection
		require.ErrorAs(t, err, &rejection)
		assert.Equal(t, throttle.ReasonNoTokens, rejection.Reason)
		assert.EqualValues(t, 3, transport.Stats().Rejected.Total(), "the SDK takes it for a broken connection")
		assert.EqualValues(t, 1, server.Counts().Received)
	})
	bubble(t, "get, for the deadline", func(t *testing.T) {
		server := s3API.start(t)
		transport, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, time.Hour)))
		c := newS3(t, server.URL, client)
		require.NoError(t, get(t.Context(), c))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := get(ctx, c)
		require.ErrorIs(t, err, throttle.ErrThrottled)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.EqualValues(t, 1, transport.Stats().Rejected[throttle.ReasonDeadline], "a request that cannot succeed is not retried")
	})
}

func TestS3UploadIsWholeAfterARefusal(t *testing.T) {
	bubble(t, "put", func(t *testing.T) {
		server := s3API.start(t)
		transport, client := throttled(t, server, throttle.WithLimit(throttle.TokenBucket(10, time.Second)), throttle.WithFailFast(),
			asS3(http.StatusServiceUnavailable))
		transport.Limiter().Hold("", 1)
		require.NoError(t, put(t.Context(), newS3(t, server.URL, client)), "the server has compared what came")
		assert.EqualValues(t, 1, transport.Stats().Rejected.Total())
		assert.EqualValues(t, 1, server.Counts().Received)
	})
}
