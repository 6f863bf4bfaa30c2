package main

import (
	"net/http"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
)

// maxTokens is what each request allows its answer.
const maxTokens = 1000

// newTransport is the program of docs/llm.md. A vendor whose models are not known to be counted separately has a key.
func newTransport(base http.RoundTripper, key ...throttle.LimitOption) (*throttle.Transport, error) {
	limit := func(unit string, cost throttle.CostFunc, paths string) throttle.Limit {
		return throttle.ServerQuota(unit, append(key, throttle.Cost(cost), throttle.SettleJSON(paths))...)
	}
	input := func(r *http.Request) int64 { return r.ContentLength / 4 } // about four bytes a token
	output := func(*http.Request) int64 { return maxTokens }
	return throttle.New(base, throttle.WithServerHints(headers.Auto), throttle.WithLimit(
		limit("tokens", func(r *http.Request) int64 { return input(r) + output(r) }, "usage.total_tokens|usage.totalTokens|usageMetadata.totalTokenCount"),
		limit("input_tokens", input, "usage.prompt_tokens|usage.input_tokens|message.usage.input_tokens|usageMetadata.promptTokenCount"),
		limit("output_tokens", output, "usage.completion_tokens|usage.output_tokens|usageMetadata.candidatesTokenCount"),
	))
}
