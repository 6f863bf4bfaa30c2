package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle"
)

// throttled is all there is to it. An SDK takes it as the Transport of its http.Client.
//
// The cost of a request in tokens is known only after the response. So the request is charged an estimate, and SettleJSON
// corrects it by the usage in the response, which is JSON or a stream of events. Most estimates are too high: the
// overcharged tokens go to waiting requests immediately. A request whose estimate exceeds the size of the limit would always
// be rejected; with ClampCost it waits until the limit is full instead.
//
// The API counts a request when it arrives, a little later than we do. If the first one is delayed on the way and the next
// one is not, its bucket has had less time to refill than ours. So our burst is smaller than the API's, by the tokens that
// come in during such a delay.
func throttled(base http.RoundTripper, margin time.Duration, hooks throttle.Hooks) (*throttle.Transport, error) {
	burst := func(perMinute int64) throttle.LimitOption {
		return throttle.Burst(max(1, perMinute/parts-perMinute*int64(margin)/int64(minute)))
	}
	return throttle.New(base, throttle.WithHooks(hooks), throttle.WithLimit(
		throttle.TokenBucket(requestsPerMinute, minute, burst(requestsPerMinute), throttle.Name("requests")),
		throttle.TokenBucket(tokensPerMinute, minute, burst(tokensPerMinute), throttle.Name("tokens"),
			throttle.Cost(estimate), throttle.SettleJSON("usage.total_tokens"), throttle.ClampCost()),
	))
}

// estimate is what a request may cost: four letters of a prompt are about a token, and the answer is as long as it may be.
// It reads a copy of the body, which http.NewRequest and the SDKs provide for redirects.
func estimate(r *http.Request) int64 {
	const unknown = 1000
	if r.GetBody == nil {
		return unknown
	}
	body, err := r.GetBody()
	if err != nil {
		return unknown
	}
	defer body.Close()
	var asked chatRequest
	if err := json.NewDecoder(body).Decode(&asked); err != nil {
		return unknown
	}
	tokens := asked.MaxTokens
	for _, m := range asked.Messages {
		tokens += int64(len(m.Content)) / 4
	}
	return tokens
}

// An answer is the outcome of a prompt.
type answer struct {
	status        int
	waited        time.Duration
	charged, cost int64 // when it was sent, and when it was answered
}

// ask sends a prompt and reads the answer. A receipt shows what it was charged, also through an SDK.
func ask(ctx context.Context, client *http.Client, url string, p prompt) (a answer, err error) {
	chat := chatRequest{Model: "local", Messages: []message{{"user", p.text}}, MaxTokens: p.maxTokens, Stream: p.stream}
	if p.stream {
		chat.StreamOptions = &streamOptions{IncludeUsage: true} // or it would not say what it cost, and the estimate stand
	}
	body, err := json.Marshal(chat)
	if err != nil {
		return a, err
	}
	ctx, receipt := throttle.ContextWithReceipt(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	a.status, a.waited = resp.StatusCode, receipt.Waited()
	a.charged, _ = receipt.Cost("tokens")
	_, err = io.Copy(io.Discard, resp.Body)
	a.cost, _ = receipt.Cost("tokens")
	return a, err
}
