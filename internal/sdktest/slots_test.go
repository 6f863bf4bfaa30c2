package sdktest

import (
	"io"
	"net/http"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A stream is an answer that is being read.
type stream struct {
	rest  func() error // reads it to its end, without closing it
	close func() error // leaves it
}

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
		return stream{close: out.Body.Close, rest: func() error {
			_, err := io.Copy(io.Discard, out.Body)
			return err
		}}
	}},
}

func TestStreamHoldsItsSlotUntilItIsOver(t *testing.T) {
	ends := map[string]func(stream) error{
		"read": func(s stream) error { return s.rest() },
		"left": func(s stream) error { return s.close() },
	}
	for name, sdk := range streaming {
		for how, end := range ends {
			bubble(t, name+", "+how, func(t *testing.T) {
				server := sdk.api.start(t)
				transport, client := throttled(t, server, throttle.WithLimit(throttle.InFlight(1, throttle.Name("slots"))))
				s := sdk.open(t, server.URL, client)
				assert.Zero(t, left(t, transport, "slots"))
				require.NoError(t, end(s))
				assert.EqualValues(t, 1, left(t, transport, "slots"))
				require.NoError(t, s.close())
				assert.EqualValues(t, 1, left(t, transport, "slots"))
			})
		}
	}
}
