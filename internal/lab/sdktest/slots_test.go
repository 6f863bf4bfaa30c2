package sdktest

import (
	"net/http"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/require"
)

// streaming has a stream of each SDK that has any.
var streaming = map[string]struct {
	api  api
	open func(t *testing.T, url string, client *http.Client) stream
}{
	"OpenAI": {openAI, func(t *testing.T, url string, client *http.Client) stream {
		c := newOpenAI(url, client)
		s := c.Chat.Completions.NewStreaming(t.Context(), chatParams())
		require.True(t, s.Next())
		return stream{close: s.Close, rest: func() error {
			for s.Next() {
			}
			return s.Err()
		}}
	}},
	"Anthropic": {anthropicAPI, func(t *testing.T, url string, client *http.Client) stream {
		c := newAnthropic(url, client)
		s := c.Messages.NewStreaming(t.Context(), messageParams())
		require.True(t, s.Next())
		return stream{close: s.Close, rest: func() error {
			for s.Next() {
			}
			return s.Err()
		}}
	}},
	"S3": {s3API, func(t *testing.T, url string, client *http.Client) stream {
		out, err := newS3(t, url, client).GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("b"), Key: aws.String("k")})
		require.NoError(t, err)
		return streamOf(out.Body)
	}},
}

func TestStreamHoldsItsSlotUntilItIsOver(t *testing.T) {
	for name, sdk := range streaming {
		for how, end := range ends {
			bubble(t, name+", "+how, func(t *testing.T) {
				server := sdk.api.start(t)
				transport, client := throttled(t, server, throttle.WithLimit(throttle.InFlight(1, throttle.Name("slots"))))
				checkSlotHeld(t, transport, sdk.open(t, server.URL, client), end)
			})
		}
	}
}
