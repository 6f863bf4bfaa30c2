package sdktest

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The usage that the local Anthropic reports, on every call.
const anthropicUsage = 25 + 15

var anthropicAPI = api{
	serve: func(w http.ResponseWriter, r *http.Request) {
		if asked[struct{ Stream bool }](r).Stream {
			writeEvents(w, messageEvents...)
		} else {
			writeJSON(w, http.StatusOK, message)
		}
	},
	refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
		writeJSON(w, refusal.Status, anthropicRefusal)
	},
}

// As the API documents them: a stream begins with the tokens of the input and a first few of the output, whose count is
// corrected at its end.
const (
	anthropicRefusal = `{"type": "error", "error": {"type": "rate_limit_error", "message": "Number of requests has exceeded your limit"}}`

	message = `{"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-5",
		"content": [{"type": "text", "text": "Hello"}], "stop_reason": "end_turn",
		"usage": {"input_tokens": 25, "cache_read_input_tokens": 0, "output_tokens": 15}}`
)

var messageEvents = []string{
	"event: message_start\n" + `data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],` +
		`"usage":{"input_tokens":25,"output_tokens":1}}}`,
	"event: content_block_start\n" + `data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
	"event: ping\n" + `data: {"type":"ping"}`,
	"event: content_block_delta\n" + `data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}`,
	"event: content_block_stop\n" + `data: {"type":"content_block_stop","index":0}`,
	"event: message_delta\n" + `data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}`,
	"event: message_stop\n" + `data: {"type":"message_stop"}`,
}

// anthropicTokens is what settles all of it. The output is not looked for in message_start, so that a stream that is
// abandoned does not pass for one of a single token.
func anthropicTokens() throttle.LimitOption {
	return throttle.SettleJSON("usage.input_tokens|message.usage.input_tokens", "usage.output_tokens")
}

func newAnthropic(url string, client *http.Client, opts ...option.RequestOption) anthropic.Client {
	return anthropic.NewClient(append([]option.RequestOption{option.WithoutEnvironmentDefaults(),
		option.WithBaseURL(url), option.WithAPIKey("secret"), option.WithHTTPClient(client),
	}, opts...)...)
}

func messageParams() anthropic.MessageNewParams {
	return anthropic.MessageNewParams{
		Model:     anthropic.ModelClaudeSonnet5,
		MaxTokens: 1024,
		Messages:  []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Hello"))},
	}
}

func newMessage(ctx context.Context, c anthropic.Client) (usage int64, err error) {
	answer, err := c.Messages.New(ctx, messageParams())
	if err != nil {
		return 0, err
	}
	return answer.Usage.InputTokens + answer.Usage.OutputTokens, nil
}

func streamMessage(ctx context.Context, c anthropic.Client) (usage int64, err error) {
	stream := c.Messages.NewStreaming(ctx, messageParams())
	defer stream.Close()
	var whole anthropic.Message
	for stream.Next() {
		if err := whole.Accumulate(stream.Current()); err != nil {
			return 0, err
		}
	}
	return whole.Usage.InputTokens + whole.Usage.OutputTokens, stream.Err()
}

func TestAnthropicKeepsTheLimit(t *testing.T) {
	checkLimitKept(t, anthropicAPI, func(_ *testing.T, url string, client *http.Client) func(context.Context) error {
		c := newAnthropic(url, client)
		return func(ctx context.Context) error {
			_, err := newMessage(ctx, c)
			return err
		}
	})
}

func TestAnthropicUsageIsCharged(t *testing.T) {
	for name, call := range map[string]func(context.Context, anthropic.Client) (int64, error){
		"message":          newMessage,
		"message, streams": streamMessage,
	} {
		t.Run(name, func(t *testing.T) {
			checkSettled(t, anthropicAPI, anthropicTokens(), anthropicUsage,
				func(ctx context.Context, url string, client *http.Client) (int64, error) {
					return call(ctx, newAnthropic(url, client))
				})
		})
	}
	bubble(t, "from the beginning of a stream as well as from its end", func(t *testing.T) {
		server := anthropicAPI.start(t)
		transport, client := throttled(t, server, throttle.WithLimit(tokens(estimate, throttle.SettleJSON(
			"usage.input_tokens|message.usage.input_tokens", "usage.output_tokens|message.usage.output_tokens"))))
		_, err := streamMessage(t.Context(), newAnthropic(server.URL, client))
		require.NoError(t, err)
		assert.EqualValues(t, size-anthropicUsage, left(t, transport, "tpm"))
	})
}

func TestAnthropicAbandonedStreamIsChargedTheEstimate(t *testing.T) {
	bubble(t, "message", func(t *testing.T) {
		server := anthropicAPI.start(t)
		transport, client := throttled(t, server, throttle.WithLimit(tokens(estimate, anthropicTokens())))
		c := newAnthropic(server.URL, client)
		stream := c.Messages.NewStreaming(t.Context(), messageParams())
		require.True(t, stream.Next())
		assert.Equal(t, "message_start", stream.Current().Type)
		require.NoError(t, stream.Close())
		assert.EqualValues(t, size-estimate, left(t, transport, "tpm"))
	})
}

// The SDK gives each attempt ten minutes, so the Transport knows of a deadline where the caller has set none.
func TestAnthropicWaitIsBoundByTheTimeoutOfTheSDK(t *testing.T) {
	bubble(t, "message", func(t *testing.T) {
		server := anthropicAPI.start(t)
		transport, client := throttled(t, server, throttle.WithLimit(throttle.Pace(1, 11*time.Minute)))
		c := newAnthropic(server.URL, client, option.WithMaxRetries(0))
		_, err := newMessage(t.Context(), c)
		require.NoError(t, err)

		begun := time.Now()
		_, err = newMessage(t.Context(), c)
		require.ErrorIs(t, err, throttle.ErrThrottled)
		var rejection *throttle.Rejection
		require.ErrorAs(t, err, &rejection)
		assert.Equal(t, throttle.ReasonDeadline, rejection.Reason)
		assert.Equal(t, 10*time.Minute, rejection.MaxWait)
		assert.Zero(t, time.Since(begun))
		assert.EqualValues(t, 1, transport.Stats().Rejected[throttle.ReasonDeadline])

		patient := newAnthropic(server.URL, client, option.WithRequestTimeout(time.Hour))
		_, err = newMessage(t.Context(), patient)
		require.NoError(t, err)
		assert.Equal(t, 11*time.Minute, time.Since(begun))
	})
}
