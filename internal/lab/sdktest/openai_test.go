package sdktest

import (
	"context"
	"net/http"
	"testing"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/stretchr/testify/assert"
)

// The usage that the local OpenAI reports, on every call.
const openAIUsage = 37

var openAI = api{
	serve: func(w http.ResponseWriter, r *http.Request) {
		ask := asked[struct {
			Stream        bool
			StreamOptions struct {
				IncludeUsage bool `json:"include_usage"`
			} `json:"stream_options"`
		}](r)
		switch {
		case r.URL.Path == "/v1/responses" && ask.Stream:
			writeEvents(w, responseEvents...)
		case r.URL.Path == "/v1/responses":
			writeJSON(w, http.StatusOK, response)
		case ask.Stream && ask.StreamOptions.IncludeUsage:
			writeEvents(w, chunkHello, chunkStop, chunkUsage, "data: [DONE]")
		case ask.Stream:
			writeEvents(w, chunkHello, chunkStop, "data: [DONE]")
		default:
			writeJSON(w, http.StatusOK, completion)
		}
	},
	refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
		writeJSON(w, refusal.Status, openAIRefusal)
	},
}

// As the API documents them.
const (
	openAIRefusal = `{"error": {"message": "Rate limit reached", "type": "requests", "param": null, "code": "rate_limit_exceeded"}}`

	completion = `{"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-test",
		"choices": [{"index": 0, "finish_reason": "stop",
			"message": {"role": "assistant", "content": "Hello! \"usage\": {\"total_tokens\": 9}"}}],
		"usage": {"prompt_tokens": 25, "completion_tokens": 12, "total_tokens": 37}}`
	chunkHello = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Hello"}}],"usage":null}`
	chunkStop  = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}`
	chunkUsage = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[],` +
		`"usage":{"prompt_tokens":25,"completion_tokens":12,"total_tokens":37}}`

	response = `{"id": "resp_1", "object": "response", "status": "completed", "output": [],
		"usage": {"input_tokens": 25, "output_tokens": 12, "total_tokens": 37}}`
)

var responseEvents = []string{
	"event: response.created\n" + `data: {"type":"response.created","response":{"id":"resp_1","status":"in_progress","usage":null}}`,
	"event: response.output_text.delta\n" + `data: {"type":"response.output_text.delta","delta":"Hello"}`,
	"event: response.completed\n" + `data: {"type":"response.completed","response":{"id":"resp_1","status":"completed",` +
		`"usage":{"input_tokens":25,"output_tokens":12,"total_tokens":37}}}`,
}

// openAITokens is what settles all of it.
func openAITokens() throttle.LimitOption {
	return throttle.SettleJSON("usage.total_tokens|response.usage.total_tokens")
}

func newOpenAI(url string, client *http.Client, opts ...option.RequestOption) openai.Client {
	return openai.NewClient(append([]option.RequestOption{
		option.WithBaseURL(url + "/v1/"), option.WithAPIKey("secret"), option.WithHTTPClient(client),
	}, opts...)...)
}

func chatParams() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:    "gpt-test",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")},
	}
}

func responseParams() responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: "gpt-test",
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String("Hello")},
	}
}

func chat(ctx context.Context, c openai.Client) (usage int64, err error) {
	answer, err := c.Chat.Completions.New(ctx, chatParams())
	if err != nil {
		return 0, err
	}
	return answer.Usage.TotalTokens, nil
}

func chatStream(ctx context.Context, c openai.Client) (usage int64, err error) {
	params := chatParams()
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := c.Chat.Completions.NewStreaming(ctx, params)
	for stream.Next() {
		usage = max(usage, stream.Current().Usage.TotalTokens)
	}
	return usage, stream.Err()
}

func respond(ctx context.Context, c openai.Client) (usage int64, err error) {
	answer, err := c.Responses.New(ctx, responseParams())
	if err != nil {
		return 0, err
	}
	return answer.Usage.TotalTokens, nil
}

func respondStream(ctx context.Context, c openai.Client) (usage int64, err error) {
	stream := c.Responses.NewStreaming(ctx, responseParams())
	for stream.Next() {
		usage = max(usage, stream.Current().Response.Usage.TotalTokens)
	}
	return usage, stream.Err()
}

func TestOpenAIKeepsTheLimit(t *testing.T) {
	checkLimitKept(t, openAI, func(_ *testing.T, url string, client *http.Client) func(context.Context) error {
		c := newOpenAI(url, client)
		return func(ctx context.Context) error {
			_, err := chat(ctx, c)
			return err
		}
	})
}

func TestOpenAIUsageIsCharged(t *testing.T) {
	for name, call := range map[string]func(context.Context, openai.Client) (int64, error){
		"chat completion":          chat,
		"chat completion, streams": chatStream,
		"response":                 respond,
		"response, streams":        respondStream,
	} {
		t.Run(name, func(t *testing.T) {
			checkSettled(t, openAI, openAITokens(), openAIUsage,
				func(ctx context.Context, url string, client *http.Client) (int64, error) {
					return call(ctx, newOpenAI(url, client))
				})
		})
	}
}

func TestOpenAIStreamWithoutUsageIsChargedTheEstimate(t *testing.T) {
	bubble(t, "chat completion", func(t *testing.T) {
		server := openAI.start(t)
		transport, client := throttled(t, server, throttle.WithLimit(tokens(estimate, openAITokens())))
		c := newOpenAI(server.URL, client)
		stream := c.Chat.Completions.NewStreaming(t.Context(), chatParams())
		for stream.Next() {
			assert.Zero(t, stream.Current().Usage.TotalTokens)
		}
		assert.NoError(t, stream.Err())
		assert.EqualValues(t, size-estimate, left(t, transport, "tpm"))
	})
}
