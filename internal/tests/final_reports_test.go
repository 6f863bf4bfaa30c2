package tests

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/store"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHooksAndLogsSeeAFinalRefusal(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		s := &creditServer{}
		var holds []throttle.HoldEvent
		var rejected []*throttle.Rejection
		tr := finalClient(t, s, throttle.WithHooks(throttle.Hooks{
			OnHold: func(e throttle.HoldEvent) {
				if e.Final != nil {
					holds = append(holds, e)
				}
			},
			OnReject: func(e throttle.RejectEvent) { rejected = append(rejected, e.Rejection) },
		}))
		s.brokeAt(llmHost)
		ask(t, tr, llm)
		ask(t, tr, llm)
		time.Sleep(time.Minute)
		ask(t, tr, llm)
		require.Len(t, holds, 2)
		for _, e := range holds {
			assert.Equal(t, throttle.SourceServer, e.Source)
			assert.Equal(t, llmHost, e.Key)
			assert.Equal(t, "insufficient_quota", e.Final.Code)
		}
		assert.Equal(t, time.Minute, holds[0].For)
		assert.Equal(t, time.Minute-10*time.Millisecond, holds[1].For, "counted from when the request was sent that asked")
		require.Len(t, rejected, 1)
		assert.Equal(t, `throttle: limit "server", key "api.openai.com": the server refuses, and no waiting helps: insufficient_quota: You exceeded your current quota.; `+
			`it is asked again in 1m0s`, rejected[0].Error())
		assert.Equal(t, "final", rejected[0].Reason.Label())
		text := tr.Limiter().Server(llmHost)[0].String()
		assert.Contains(t, text, "refuses, and no waiting helps (insufficient_quota: You exceeded your current quota.)")
	})
}

func TestAFinalRefusalCanBeAnError(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		s := &creditServer{}
		tr := finalClient(t, s, throttle.WithRejectionError())
		s.brokeAt(llmHost)
		ask(t, tr, llm)
		_, err := tr.RoundTrip(get(t, t.Context(), llm))
		require.ErrorIs(t, err, throttle.ErrThrottled)
		var stop interface{ NonRetriable() }
		require.True(t, errors.As(err, &stop), "%v", err)
	})
}

func TestADryRunSendsWhatAFinalRefusalWouldReject(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		s := &creditServer{}
		tr := finalClient(t, s, throttle.WithDryRun())
		s.brokeAt(llmHost)
		for range 10 {
			_, r := ask(t, tr, llm)
			require.Nil(t, r)
		}
		assert.Len(t, s.sent, 10)
		assert.Equal(t, uint64(9), tr.Stats().Rejected[throttle.ReasonFinal])
	})
}

func TestASnapshotHasNoFinalRefusal(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		s := &creditServer{}
		tr := finalClient(t, s)
		s.brokeAt(llmHost)
		ask(t, tr, llm)
		next := finalClient(t, s)
		require.NoError(t, next.Limiter().Restore(tr.Limiter().Snapshot()))
		_, r := ask(t, next, llm)
		require.Nil(t, r, "to ask costs one request")
		_, r = ask(t, next, llm)
		require.NotNil(t, r)
	})
}

func TestTextThatMayBeSecretIsLeftOut(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		body := `{"message":"No credit for sk-proj-0123456789abcdefghij at https://billing.example.com/overview-of-all-plans. ` + strings.Repeat("é", 300) + `"}`
		tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
			resp := says(429, "X-Should-Retry", "false", "Content-Type", "application/json")
			resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(body)), -1
			return resp
		}))
		require.NoError(t, err)
		ask(t, tr, api)
		message := finalOf(tr, "api.example.com").Message
		assert.True(t, strings.HasPrefix(message, "No credit for … at https://billing.example.com/overview-of-all-plans. éé"), message)
		assert.LessOrEqual(t, len(message), 256)
		assert.True(t, strings.HasSuffix(message, "é…"))
	})
}

// A rule that says NotLimited is heeded, also by limits that have taken the response for a refusal before its body was read.
func TestARefusalThatWasNoneIsUndone(t *testing.T) { // slow: minutes of a server
	const body = `{"error":{"code":"no_such_plan"}}`
	for kind, opts := range map[string][]throttle.Option{
		"hints": nil, "bucket": {throttle.WithLimit(throttle.TokenBucket(1000, time.Second))}, "adaptive": {throttle.WithAdaptive()},
		"in flight": {throttle.WithAdaptiveInFlight()}, "both": {throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()},
		"shared": {throttle.WithLimit(throttle.TokenBucket(1000, time.Second, throttle.Shared(store.NewMemory())))},
	} {
		for how, rule := range map[string]headers.Rule{
			"body":   {Body: []headers.Match{{Name: "code", Values: []string{"no_such_plan"}}}, NotLimited: true},
			"header": {Header: headers.Match{Name: "X-Plan", Values: []string{"none"}}, NotLimited: true},
		} {
			for _, status := range []int{429, 403, 529} {
				if status == 529 && (kind == "adaptive" || kind == "both") {
					continue // a server that only fails is down, if not at its limit
				}
				for _, retryAfter := range []string{"", "100"} {
					inBubble(t, fmt.Sprint(kind, " ", how, " ", status, " ", retryAfter), func(t *testing.T) {
						good := true
						rule.Statuses = []int{403, 429, 529}
						tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
							time.Sleep(10 * time.Millisecond)
							if good {
								return says(200)
							}
							resp := says(status, "Content-Type", "application/json", "X-Plan", "none")
							if retryAfter != "" {
								resp.Header.Set("Retry-After", retryAfter)
							}
							resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(body)), -1
							return resp
						}), append(opts, throttle.WithServerHints(headers.Dialect{Rules: []headers.Rule{rule}}))...)
						require.NoError(t, err)
						for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
							ask(t, tr, api)
						}
						good = false
						begin := time.Now()
						for range 50 {
							ask(t, tr, api)
						}
						var wg sync.WaitGroup
						for range 16 {
							wg.Go(func() {
								for range 5 {
									ask(t, tr, api)
								}
							})
						}
						wg.Wait()
						assert.LessOrEqual(t, time.Since(begin), 10*time.Second)
						for _, s := range tr.Limiter().Servers() {
							assert.Zero(t, s.HeldUntil)
							assert.Zero(t, s.Pace)
						}
					})
				}
			}
		}
	}
}

// A refusal that stands, beside one that was none, is heeded.
func TestARefusalThatStandsIsNotUndone(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		d := headers.Dialect{Rules: []headers.Rule{{Statuses: []int{429}, Body: []headers.Match{{Name: "code", Values: []string{"none"}}}, NotLimited: true}}}
		bodies := make(chan string, 2)
		bodies <- `{"code":"none"}`
		bodies <- `{"code":"limit"}`
		tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
			resp := says(429, "Content-Type", "application/json", "Retry-After", "60")
			resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(<-bodies)), -1
			return resp
		}), throttle.WithServerHints(d))
		require.NoError(t, err)
		var resps []*http.Response
		var wg sync.WaitGroup
		var mu sync.Mutex
		for range 2 {
			wg.Go(func() {
				resp, err := tr.RoundTrip(get(t, t.Context(), api))
				require.NoError(t, err)
				mu.Lock()
				defer mu.Unlock()
				resps = append(resps, resp)
			})
		}
		wg.Wait()
		require.Len(t, resps, 2)
		for _, resp := range resps {
			_, err := io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
		}
		require.True(t, tr.Limiter().Servers()[0].HeldUntil.After(time.Now().Add(59*time.Second)))
	})
}
