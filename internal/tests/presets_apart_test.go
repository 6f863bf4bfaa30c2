package tests

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
)

// A part of an API is what it counts separately: a limit for each window, the requests that fall under it, and how it is reported.
type part struct {
	name    string
	limit   int
	window  time.Duration
	request func(i int) *http.Request
	report  func(h http.Header, limit, left int, until time.Duration, ok bool)
}

// smallAndLarge returns two parts of 20 and of 200 requests a minute.
func smallAndLarge(small, large func(i int) *http.Request, report func(h http.Header, limit, left int, until time.Duration, ok bool)) []part {
	return []part{{"small", 20, time.Minute, small, report}, {"large", 200, time.Minute, large, report}}
}

// playParts has callers send requests of each part for a time, and returns how many were accepted and refused of each.
func playParts(t *testing.T, parts []part, span time.Duration, opts ...throttle.Option) (accepted, refused []int) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		var mu sync.Mutex
		start := time.Now()
		used, windows := make([]int, len(parts)), make([]int64, len(parts))
		accepted, refused = make([]int, len(parts)), make([]int, len(parts))
		tr := throttle.Must(throttle.New(roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.Body != nil {
				io.Copy(io.Discard, r.Body)
				r.Body.Close()
			}
			time.Sleep(50 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			k := r.Context().Value(key{}).(int)
			p, status := &parts[k], 200
			at := int64(time.Since(start) / p.window)
			if at != windows[k] {
				windows[k], used[k] = at, 0
			}
			ok := used[k] < p.limit
			if ok {
				used[k]++
				accepted[k]++
			} else {
				refused[k]++
				status = 429
			}
			h := http.Header{}
			p.report(h, p.limit, p.limit-used[k], time.Duration(at+1)*p.window-time.Since(start), ok)
			return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: r}, nil
		}), opts...))
		ctx, cancel := context.WithTimeout(t.Context(), span)
		defer cancel()
		var wg sync.WaitGroup
		for k := range parts {
			for c := range 3 {
				wg.Go(func() {
					for i := c; ctx.Err() == nil; i += 3 {
						resp, err := tr.RoundTrip(parts[k].request(i).WithContext(context.WithValue(ctx, key{}, k)))
						if err != nil {
							return
						}
						resp.Body.Close()
					}
				})
			}
		}
		wg.Wait()
	})
	return accepted, refused
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An empty quota of an API costs what it counts separately nothing.
func TestPresetsKeepApartWhatTheirAPIsCountApart(t *testing.T) {
	ceil := func(d time.Duration) string { return fmt.Sprint(int((d + time.Second - 1) / time.Second)) }
	path := func(method, url string, header ...string) func(int) *http.Request {
		return func(i int) *http.Request {
			r, _ := http.NewRequest(method, strings.ReplaceAll(url, "{}", fmt.Sprint("r", i%40)), nil)
			for j := 0; j < len(header); j += 2 {
				r.Header.Set(header[j], header[j+1])
			}
			return r
		}
	}
	model := func(url, model string) func(int) *http.Request {
		return func(i int) *http.Request {
			r, _ := http.NewRequest("POST", url, strings.NewReader(fmt.Sprintf(`{"messages":["%d"],"model":%q}`, i, model)))
			r.Header.Set("Content-Type", "application/json")
			return r
		}
	}
	github := func(resource string) func(http.Header, int, int, time.Duration, bool) {
		return func(h http.Header, limit, left int, until time.Duration, _ bool) {
			h.Set("X-RateLimit-Limit", fmt.Sprint(limit))
			h.Set("X-RateLimit-Remaining", fmt.Sprint(left))
			h.Set("X-RateLimit-Reset", fmt.Sprint(time.Now().Add(until+time.Second-1).Unix()))
			h.Set("X-RateLimit-Resource", resource)
		}
	}
	wait := func(h http.Header, _, _ int, until time.Duration, ok bool) {
		if !ok {
			h.Set("Retry-After", ceil(until))
		}
	}
	counts := func(h http.Header, limit, left int, until time.Duration, ok bool) {
		h.Set("X-RateLimit-Limit-Requests", fmt.Sprint(limit))
		h.Set("X-RateLimit-Remaining-Requests", fmt.Sprint(left))
		h.Set("X-RateLimit-Reset-Requests", ceil(until)+"s")
	}
	okta := func(h http.Header, limit, left int, until time.Duration, _ bool) {
		h.Set("X-Rate-Limit-Limit", fmt.Sprint(limit))
		h.Set("X-Rate-Limit-Remaining", fmt.Sprint(left))
		h.Set("X-Rate-Limit-Reset", fmt.Sprint(time.Now().Add(until+time.Second-1).Unix()))
	}
	discord := func(h http.Header, limit, left int, until time.Duration, ok bool) {
		h.Set("X-RateLimit-Bucket", "a1b2c3")
		h.Set("X-RateLimit-Limit", fmt.Sprint(limit))
		h.Set("X-RateLimit-Remaining", fmt.Sprint(left))
		h.Set("X-RateLimit-Reset-After", fmt.Sprintf("%.3f", until.Seconds()))
		wait(h, limit, left, until, ok)
	}
	var channels []part
	for i := range 10 {
		channels = append(channels, part{fmt.Sprint(i), 5, 5 * time.Second, path("POST", fmt.Sprintf("https://discord.com/api/v10/channels/10%d/messages", i)), discord})
	}
	one, two := []string{"Authorization", "token one"}, []string{"Authorization", "token two"}
	for name, c := range map[string]struct {
		span  time.Duration
		parts []part
		most  int // refused of each
		first int // less than alone, because of what is learned in the first window
	}{
		"GitHub, resources": {10 * time.Minute, []part{
			{"search", 30, time.Minute, path("GET", "https://api.github.com/search/issues", one...), github("search")},
			{"code_search", 10, time.Minute, path("GET", "https://api.github.com/search/code", one...), github("code_search")},
			{"core", 500, 5 * time.Minute, path("GET", "https://api.github.com/repos/o/{}/issues", one...), github("core")},
			{"snapshots", 20, time.Minute, path("POST", "https://api.github.com/repos/o/{}/dependency-graph/snapshots", one...), github("dependency_snapshots")},
			{"scanning", 15, time.Minute, path("POST", "https://api.github.com/repos/o/{}/code-scanning/sarifs", one...), github("code_scanning_upload")},
			{"graphql", 500, 5 * time.Minute, path("POST", "https://api.github.com/graphql", one...), github("graphql")},
		}, 6, 30},
		"GitHub, two tokens": {30 * time.Minute, []part{
			{"one", 500, 10 * time.Minute, path("GET", "https://api.github.com/repos/o/{}/issues", one...), github("core")},
			{"two", 500, 10 * time.Minute, path("GET", "https://api.github.com/repos/o/{}/pulls", two...), github("core")},
		}, 6, 0},
		"Okta": {5 * time.Minute, []part{
			{"users", 60, time.Minute, path("GET", "https://x.okta.com/api/v1/users"), okta},
			{"user", 100, time.Minute, path("GET", "https://x.okta.com/api/v1/users/{}"), okta},
			{"apps", 20, time.Minute, path("GET", "https://x.okta.com/api/v1/apps"), okta},
		}, 6, 30},
		"Discord, channels": {time.Minute, channels, 1, 0},
		"Slack, methods": {5 * time.Minute, []part{
			{"post", 20, time.Minute, path("POST", "https://slack.com/api/chat.postMessage", one...), wait},
			{"list", 50, time.Minute, path("GET", "https://slack.com/api/conversations.list", one...), wait},
		}, 20, 0},
		"OpenAI, models":              {5 * time.Minute, smallAndLarge(model("https://api.openai.com/v1/chat/completions", "gpt-4o"), model("https://api.openai.com/v1/chat/completions", "gpt-4o-mini"), counts), 6, 0},
		"OpenAI, models, only a wait": {5 * time.Minute, smallAndLarge(model("https://api.openai.com/v1/chat/completions", "gpt-4o"), model("https://api.openai.com/v1/chat/completions", "gpt-4o-mini"), wait), 20, 0},
		"Azure, deployments":          {5 * time.Minute, smallAndLarge(path("POST", "https://x.openai.azure.com/openai/deployments/a/chat/completions"), path("POST", "https://x.openai.azure.com/openai/deployments/b/chat/completions"), wait), 20, 0},
		"Anthropic, models":           {5 * time.Minute, smallAndLarge(model("https://api.anthropic.com/v1/messages", "claude-a"), model("https://api.anthropic.com/v1/messages", "claude-b"), wait), 20, 0},
		"Gemini, models":              {5 * time.Minute, smallAndLarge(path("POST", "https://generativelanguage.googleapis.com/v1beta/models/pro:generateContent"), path("POST", "https://generativelanguage.googleapis.com/v1beta/models/flash:generateContent"), wait), 20, 0},
		"Bedrock, models":             {5 * time.Minute, smallAndLarge(path("POST", "https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-v2%3A1/converse"), path("POST", "https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-v2%3A0/converse"), wait), 20, 0},
		"Databricks, endpoints":       {5 * time.Minute, smallAndLarge(path("POST", "https://x.cloud.databricks.com/serving-endpoints/a/invocations"), path("POST", "https://x.cloud.databricks.com/serving-endpoints/b/invocations"), wait), 20, 0},
		"Groq, models":                {5 * time.Minute, smallAndLarge(model("https://api.groq.com/openai/v1/chat/completions", "llama-a"), model("https://api.groq.com/openai/v1/chat/completions", "llama-b"), counts), 6, 0},
		"Mistral, models":             {5 * time.Minute, smallAndLarge(model("https://api.mistral.ai/v1/chat/completions", "mistral-a"), model("https://api.mistral.ai/v1/chat/completions", "mistral-b"), wait), 20, 0},
	} {
		t.Run(name, func(t *testing.T) {
			auto := throttle.WithServerHints(headers.Auto)
			accepted, refused := playParts(t, c.parts, c.span, auto)
			for k, p := range c.parts {
				alone, aloneRefused := playParts(t, c.parts[k:k+1], c.span, auto)
				t.Logf("%s: %d accepted and %d refused, alone %d and %d", p.name, accepted[k], refused[k], alone[0], aloneRefused[0])
				require.GreaterOrEqual(t, accepted[k], alone[0]*95/100-c.first, p.name)
				require.LessOrEqual(t, refused[k], max(c.most, aloneRefused[0]+3), p.name)
			}
		})
	}
}
