package main

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
)

// perMinute is the limit of tokens of each model.
const perMinute = 600_000

// A vendor is an API as throttletest imitates it. Its requests have headers that say what they are going to use.
type vendor struct {
	name, url string // the url has %s for the model
	usage     string // the last event of a stream: input, output and total
	limits    []throttletest.Limit
	produces  string // the limit that is charged each piece
	settles   string // the limit that is charged what was used, once that is known
	counts    string // the limit whose use counts, because it is used up first
	limit     int64  // its size
	window    bool   // it counts in minutes of the clock
	fields    throttletest.Fields
	refuses   func(w http.ResponseWriter, wait time.Duration) // nil: with Retry-After, in OpenAI's words
	key       []throttle.LimitOption
}

func vendors() []vendor {
	openAI := func(name, settles string) vendor {
		return vendor{
			name: name, url: "http://api.openai.com/v1/chat/completions", usage: `{"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`,
			limits: []throttletest.Limit{bucket("tokens", perMinute, whole), requests()}, settles: settles, counts: "tokens", limit: perMinute, fields: throttletest.OpenAI,
		}
	}
	anthropic := openAI("Anthropic: input at the start, output as produced", "")
	anthropic.url, anthropic.usage = "http://api.anthropic.com/v1/messages", `{"type":"message_delta","usage":{"input_tokens":%d,"output_tokens":%d,"sum":%d}}`
	anthropic.limits = []throttletest.Limit{bucket("input-tokens", perMinute, input), bucket("output-tokens", perMinute/2, one), requests()}
	anthropic.produces, anthropic.counts, anthropic.limit, anthropic.fields = "output-tokens", "output-tokens", perMinute/2, throttletest.Anthropic

	azure := openAI("Azure: a window, estimates kept", "")
	azure.url = "http://lab.openai.azure.com/openai/deployments/%s/chat/completions"
	azure.limits = []throttletest.Limit{window("tokens", whole), requests()}
	azure.window = true

	gemini := openAI("Gemini: a window of input, nothing reported", "")
	gemini.url, gemini.usage = "http://generativelanguage.googleapis.com/v1beta/models/%s:streamGenerateContent?alt=sse", `{"usageMetadata":{"promptTokenCount":%d,"candidatesTokenCount":%d,"totalTokenCount":%d}}`
	gemini.limits, gemini.counts, gemini.fields = []throttletest.Limit{window("input-tokens", input)}, "input-tokens", 0
	gemini.window, gemini.refuses = true, refuseAsGemini

	bedrock := openAI("Bedrock: settled at the end, nothing reported", "tokens")
	bedrock.url, bedrock.usage = "http://bedrock-runtime.us-east-1.amazonaws.com/model/%s/converse-stream", `{"usage":{"inputTokens":%d,"outputTokens":%d,"totalTokens":%d}}`
	bedrock.limits, bedrock.fields, bedrock.refuses = bedrock.limits[:1], 0, refuseAsBedrock
	bedrock.key = []throttle.LimitOption{throttle.Key(func(r *http.Request) string { return modelOf(r) })}

	return []vendor{openAI("OpenAI: estimates kept", ""), openAI("the same, settled at the end", "tokens"), azure, anthropic, gemini, bedrock}
}

// What requests cost when they come.
func whole(r *http.Request) int64 { return input(r) + maxTokens }
func input(r *http.Request) int64 { return r.ContentLength / 4 }
func one(*http.Request) int64     { return 1 }
func answer(r *http.Request) int64 {
	n, _ := strconv.ParseInt(r.Header.Get("X-Answer"), 10, 64)
	return n
}
func modelOf(r *http.Request) string { return r.Header.Get("X-Model") }

func bucket(name string, n int64, cost func(*http.Request) int64) throttletest.Limit {
	return throttletest.TokenBucket(n, time.Minute, throttletest.Name(name), throttletest.Cost(cost), throttletest.Key(modelOf))
}

func window(name string, cost func(*http.Request) int64) throttletest.Limit {
	return throttletest.FixedWindow(perMinute, time.Minute, throttletest.Name(name), throttletest.Cost(cost), throttletest.Key(modelOf))
}

// requests is a limit that no client here reaches.
func requests() throttletest.Limit {
	return throttletest.TokenBucket(6000, time.Minute, throttletest.Name("requests"), throttletest.Key(modelOf))
}

func refuseAsGemini(w http.ResponseWriter, wait time.Duration) {
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = fmt.Fprintf(w, `{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.QuotaFailure",
		"violations":[{"quotaId":"GenerateContentInputTokensPerModelPerMinute","quotaValue":"%d"}]},
		{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"%.3fs"}]}}`, perMinute, wait.Seconds())
}

func refuseAsBedrock(w http.ResponseWriter, _ time.Duration) {
	w.Header().Set("X-Amzn-Errortype", "ThrottlingException")
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = fmt.Fprint(w, `{"message":"Too many tokens, please wait before trying again."}`)
}

// options make a server of the vendor. used is called with what a request of a model was charged in the end in the limit that counts.
func (v *vendor) options(used func(model string, tokens int64)) []throttletest.Option {
	opts := []throttletest.Option{
		throttletest.WithLimits(v.limits...), throttletest.WithRoundTrip(40*time.Millisecond, 10*time.Millisecond), throttletest.WithFullResets(),
		throttletest.WithHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { v.serve(w, r, used) })),
		throttletest.WithRefusal(func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
			w.Header().Set("Content-Type", "application/json")
			if v.refuses != nil {
				v.refuses(w, refusal.Wait)
				return
			}
			w.WriteHeader(refusal.Status)
			_, _ = fmt.Fprintf(w, `{"error":{"message":"Rate limit reached","type":"tokens","code":"rate_limit_exceeded"}}`)
		}),
	}
	if v.fields != 0 {
		return append(opts, throttletest.WithFields(v.fields))
	}
	return append(opts, throttletest.WithRetryAfter(throttletest.NoRetryAfter))
}

// Streams are pieces of some tokens.
const (
	toFirst = 200 * time.Millisecond
	piece   = 20
	each    = 80 * time.Millisecond
)

// serve streams an answer, and charges what it produces.
func (v *vendor) serve(w http.ResponseWriter, r *http.Request, used func(model string, tokens int64)) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w).Flush
	out := answer(r)
	time.Sleep(toFirst)
	for done := int64(0); done < out; done += piece {
		_, _ = fmt.Fprintf(w, "data: {\"delta\":%q}\n\n", strings.Repeat("word ", piece))
		_ = flush() // a client that has gone is noticed by the writer
		if v.produces != "" {
			must(throttletest.Charge(r, v.produces, min(piece, out-done)))
		}
		time.Sleep(each)
	}
	if v.settles != "" {
		must(throttletest.Charge(r, v.settles, out-maxTokens))
	}
	used(modelOf(r), v.charged(r, out))
	_, _ = fmt.Fprintf(w, "data: "+v.usage+"\n\ndata: [DONE]\n\n", input(r), out, input(r)+out)
}

// charged returns what a request was charged in the end in the limit that counts.
func (v *vendor) charged(r *http.Request, out int64) int64 {
	switch {
	case v.produces != "":
		return out
	case v.settles != "":
		return input(r) + out
	case v.counts == "input-tokens":
		return input(r)
	}
	return whole(r)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
