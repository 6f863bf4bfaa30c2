package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle/examples/internal/exampletest"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A row is what the table says of a run.
type row struct {
	answered, refused int
	tokens            int64
	used              float64 // percent of the tokens
}

func rowOf(t *testing.T, out, name string) row {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + ` +(\d+) +(\d+) +[\d.]+s +(\d+) +[\d.]+% +([\d.]+)%$`).FindStringSubmatch(out)
	require.NotNil(t, m, "no row %q in:\n%s", name, out)
	var n [4]float64
	for i := range n {
		var err error
		n[i], err = strconv.ParseFloat(m[i+1], 64)
		require.NoError(t, err)
	}
	return row{int(n[0]), int(n[1]), int64(n[2]), n[3]}
}

// The whole of it in the time of a bubble, which nothing disturbs. There is a leak if the bubble does not end.
func TestNothingIsRefusedAndLittleUnused(t *testing.T) { // slow: minutes of a program
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, err := parse([]string{"-seed", fmt.Sprint(seed)}, io.Discard)
				require.NoError(t, err)
				c.api = []throttletest.Option{throttletest.WithInMemory()}
				var out bytes.Buffer
				require.NoError(t, compare(t.Context(), c, &out))

				before, after := rowOf(t, out.String(), "without throttle"), rowOf(t, out.String(), "with throttle")
				assert.Equal(t, 170, before.answered+before.refused)
				assert.Greater(t, before.refused, 85, "most")
				assert.Equal(t, 170, after.answered)
				assert.Zero(t, after.refused)
				assert.Equal(t, costOf(c), after.tokens)
				assert.Greater(t, after.used, 95.0)
				assert.LessOrEqual(t, after.used, 100.0)
				assert.Regexp(t, `(?m)^ +\d\.\d\ds  book 86 +0\.\d\ds +12000 +11\d\d\d$`, out.String(), "cut to what the limit holds")
				exampletest.AssertNarrow(t, out.String())
			})
		})
	}
}

// costOf is what all prompts cost, by the model's count.
func costOf(c config) (tokens int64) {
	for _, p := range prompts(c.prompts, c.seed) {
		chat := chatRequest{Messages: []message{{"user", p.text}}, MaxTokens: p.maxTokens}
		tokens += chat.usage().Total
	}
	return tokens
}

// On sockets, with a margin for a machine that has other things to do. What is used depends on that machine.
func TestOnSockets(t *testing.T) { // slow: the program in real time
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-prompts", "60", "-margin", "250ms"}, &out))
	before, after := rowOf(t, out.String(), "without throttle"), rowOf(t, out.String(), "with throttle")
	assert.Equal(t, 60, before.answered+before.refused)
	assert.Equal(t, 60, after.answered+after.refused)
	exampletest.NoneRefused(t, after.refused)
	assert.LessOrEqual(t, after.used, 100.0)
	exampletest.AssertNarrow(t, out.String())
}

func TestTheEstimateOfAPromptNeedsItsBody(t *testing.T) {
	t.Parallel()
	req := func(body io.Reader) *http.Request {
		r, err := http.NewRequest(http.MethodPost, "http://api.test/", body)
		require.NoError(t, err)
		return r
	}
	chat := `{"messages":[{"content":"` + strings.Repeat("word", 100) + `"},{"content":"four"}],"max_completion_tokens":50}`
	assert.EqualValues(t, 151, estimate(req(strings.NewReader(chat))))
	assert.EqualValues(t, 1000, estimate(req(strings.NewReader("{"))))
	assert.EqualValues(t, 1000, estimate(req(io.MultiReader(strings.NewReader(chat)))), "it can't be read twice")
}

// The model says what is left as OpenAI does, and so that our preset understands it.
func TestAModelReportsWhatIsLeft(t *testing.T) {
	t.Parallel()
	m, now := newModel(), time.Unix(1e9, 0)
	admit := func(tokens int64) (time.Duration, string, http.Header) {
		h := http.Header{}
		wait, limit := m.admit(h, tokens, now)
		return wait, limit, h
	}
	_, limit, h := admit(12_600)
	assert.Empty(t, limit)
	for name, want := range map[string]string{
		"Limit-Requests": "60", "Remaining-Requests": "14", "Reset-Requests": "33ms",
		"Limit-Tokens": "60000", "Remaining-Tokens": "2400", "Reset-Tokens": "420ms",
	} {
		assert.Equal(t, want, h.Get("X-Ratelimit-"+name), name)
	}
	wait, limit, h := admit(3000)
	assert.Equal(t, "tokens", limit)
	assert.Equal(t, 20*time.Millisecond, wait)
	signal := headers.OpenAI.Dialect().Parse(http.StatusTooManyRequests, h, nil, now)
	require.Len(t, signal.Buckets, 2)
	for _, b := range signal.Buckets {
		switch b.Name {
		case "tokens":
			assert.EqualValues(t, 2400, b.Remaining.Or(-1))
			assert.Equal(t, 420*time.Millisecond, b.Reset.Or(-1))
		case "requests":
			assert.EqualValues(t, 14, b.Remaining.Or(-1))
		default:
			t.Errorf("what is %q?", b.Name)
		}
	}

	now = now.Add(wait)
	_, limit, _ = admit(3000)
	assert.Empty(t, limit, "when it said")
	wait, limit, _ = admit(15_001)
	assert.Equal(t, "tokens", limit, "more than it holds")
	assert.Equal(t, never, wait)
	now = now.Add(time.Hour)
	for range 15 {
		_, limit, _ = admit(1)
		assert.Empty(t, limit)
	}
	wait, limit, _ = admit(1)
	assert.Equal(t, "requests", limit)
	assert.Equal(t, (time.Second+29)/30, wait)
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testAnswers)
}

func testAnswers(t *testing.T) {
	api := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithHandler(newModel()))
	post := func(path, body string) (status int, kind, answer string) {
		resp, err := api.Client().Post(api.URL+path, "application/json", strings.NewReader(body))
		require.NoError(t, err)
		defer resp.Body.Close()
		all, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, resp.Header.Get("Content-Type"), string(all)
	}
	const chat = `{"messages":[{"content":"so many unbelievable words"}],"max_completion_tokens":7`
	const cost = `"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}`
	status, kind, answer := post("/v1/chat/completions", chat+"}")
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, "application/json", kind)
	assert.Contains(t, answer, cost)
	_, kind, answer = post("/v1/chat/completions", chat+`,"stream":true,"stream_options":{"include_usage":true}}`)
	assert.Equal(t, "text/event-stream", kind)
	assert.Regexp(t, `"usage":null}\n\ndata: {"choices":\[\],.*`+cost+"}\n\ndata: \\[DONE\\]\n\n$", answer)
	_, _, answer = post("/v1/chat/completions", chat+`,"stream":true}`)
	assert.NotContains(t, answer, cost, "it was not asked for")
	for _, c := range []struct {
		words int
		says  string
	}{{15_000, "Request too large"}, {8000, `"total_tokens":8007`}, {8000, "Please try again in "}} {
		_, _, answer = post("/v1/chat/completions", `{"messages":[{"content":"`+words(int64(c.words))+`"}],"max_completion_tokens":7}`)
		assert.Contains(t, answer, c.says)
	}
	status, _, _ = post("/v1/chat/completions", "{")
	assert.Equal(t, http.StatusBadRequest, status)
	status, _, answer = post("/v1/embeddings", "{}")
	assert.Equal(t, http.StatusNotFound, status)
	assert.Contains(t, answer, `"error":{"code":"unknown_url"`)
}

func TestAFailureEndsIt(t *testing.T) {
	t.Parallel()
	c := config{prompts: 9, workers: 2, api: []throttletest.Option{
		throttletest.WithFaults(throttletest.Respond(http.StatusTeapot, nil).OnRequests(3)),
	}}
	assert.ErrorContains(t, compare(t.Context(), c, io.Discard), "418 I'm a teapot")
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).Interrupted(t, 100*time.Millisecond)
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).RejectsArguments(t, "-margin duration", map[string]string{
		"-prompts 0":    "-prompts 0",
		"-workers -1":   "-workers -1",
		"-margin 500ms": "-margin 500ms",
		"-margin -1ms":  "-margin -1ms",
		"-prompts many": `invalid value "many" for flag -prompts`,
		"-what":         "-what",
		"now":           `unexpected argument "now"`,
	})
}
