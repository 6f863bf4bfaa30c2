package sdktest

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"
)

// issuer issues tokens that are valid for five minutes.
type issuer struct{}

const valid = 5 * time.Minute

func (issuer) Token() (*oauth2.Token, error) {
	now := time.Now()
	return &oauth2.Token{AccessToken: strconv.FormatInt(now.Unix(), 10), TokenType: "Bearer", Expiry: now.Add(valid)}, nil
}

// A request that waits for longer than its token is valid needs the token after the wait. So what adds it is the base of a Transport;
// the other way round, it is added before.
func TestATokenIsAddedAfterTheWait(t *testing.T) {
	const requests = 600
	for name, c := range map[string]struct {
		client func(server *throttletest.Server, opt throttle.Option) http.RoundTripper
		old    bool
	}{
		"oauth2 as the base": {func(server *throttletest.Server, opt throttle.Option) http.RoundTripper {
			return throttle.Must(throttle.New(&oauth2.Transport{Source: oauth2.ReuseTokenSource(nil, issuer{}), Base: server.Transport()}, opt))
		}, false},
		"oauth2 above": {func(server *throttletest.Server, opt throttle.Option) http.RoundTripper {
			return &oauth2.Transport{Source: oauth2.ReuseTokenSource(nil, issuer{}), Base: throttle.Must(throttle.New(server.Transport(), opt))}
		}, true},
	} {
		bubble(t, name, func(t *testing.T) {
			var old, got atomic.Int64
			api := plainAPI
			api.serve = func(_ http.ResponseWriter, r *http.Request) {
				issued, err := strconv.ParseInt(r.Header.Get("Authorization")[len("Bearer "):], 10, 64)
				assert.NoError(t, err)
				if got.Add(1); time.Since(time.Unix(issued, 0)) >= valid {
					old.Add(1)
				}
			}
			server := api.start(t)
			client := &http.Client{Transport: c.client(server, throttle.WithLimit(throttle.Pace(1, time.Second)))}
			var all sync.WaitGroup
			for range requests {
				all.Go(func() {
					resp, err := getPlain(t.Context(), server.URL, client)
					if assert.NoError(t, err) {
						resp.Body.Close()
					}
				})
			}
			all.Wait()
			require.EqualValues(t, requests, got.Load())
			assert.Equal(t, c.old, old.Load() > 0, "%d of %d tokens had expired", old.Load(), requests)
		})
	}
}

// beforeSigning has each attempt of an AWS client wait for l before it is signed.
func beforeSigning(l *throttle.Limiter) func(*middleware.Stack) error {
	wait := middleware.FinalizeMiddlewareFunc("throttle", func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (
		middleware.FinalizeOutput, middleware.Metadata, error) {
		if err := l.Wait(ctx, throttle.Ask{}); err != nil {
			return middleware.FinalizeOutput{}, middleware.Metadata{}, err
		}
		return next.HandleFinalize(ctx, in)
	})
	return func(s *middleware.Stack) error { return s.Finalize.Insert(wait, "Signing", middleware.Before) }
}

// The AWS SDK signs a request before it passes it to its HTTP client. A signature is valid for some minutes.
func TestTheAWSSDKSignsAfterTheWait(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		var worst atomic.Int64
		api := dynamoDB.api
		api.serve = func(w http.ResponseWriter, r *http.Request) {
			signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
			assert.NoError(t, err)
			worst.Store(max(worst.Load(), int64(time.Since(signed))))
			dynamoDB.serve(w, r)
		}
		server := api.start(t)
		limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.Pace(1, time.Second)))
		require.NoError(t, err)
		_, client := throttled(t, server)
		name := "t"
		c := newDynamoDB(server.URL, client)
		var all sync.WaitGroup
		for range 400 {
			all.Go(func() {
				_, err := c.GetItem(t.Context(), &dynamodb.GetItemInput{
					TableName: &name, Key: map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: "1"}},
				}, func(o *dynamodb.Options) { o.APIOptions = append(o.APIOptions, beforeSigning(limiter)) })
				assert.NoError(t, err)
			})
		}
		all.Wait()
		assert.Less(t, time.Duration(worst.Load()), time.Second)
		assert.EqualValues(t, 400, limiter.Stats().Granted)
	})
}
