package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The tests of this file use processes, sockets and real time. With -short, they are shorter, and run no other programs.

func TestMain(m *testing.M) {
	if os.Getenv("THROTTLE_PROXY") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// installed reports whether a program is here, and prints it if it is not.
func installed(t *testing.T, name string) bool {
	t.Helper()
	if testing.Short() {
		return false
	}
	if _, err := exec.LookPath(name); err != nil {
		fmt.Printf("There is no %s here: the proxy is tested without it.\n", name)
		return false
	}
	return true
}

// command returns what a program prints to standard output.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	var failed strings.Builder
	c := exec.CommandContext(t.Context(), name, args...)
	c.Stderr = &failed
	out, err := c.Output()
	require.NoError(t, err, "%s %v: %s", name, args, failed.String())
	return string(out)
}

// startModel starts a vendor of a language model, and counts its requests. It streams a piece each 200 ms.
func startModel(t *testing.T) (api *httptest.Server, received *atomic.Int64) {
	received = new(atomic.Int64)
	api = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received.Add(1)
		assert.Equal(t, "/v1/chat/completions", r.URL.Path)
		assert.Equal(t, "Bearer sk-test", r.Header.Get("Authorization"))
		assert.Equal(t, "gzip", r.Header.Get("Accept-Encoding"))
		var ask struct{ Stream bool }
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&ask))
		if !ask.Stream {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0, "finish_reason": "stop",
				"message": {"role": "assistant", "content": "Hello"}}], "usage": {"prompt_tokens": 25, "completion_tokens": 12, "total_tokens": 37}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		const chunk = `data: {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [%s], "usage": %s}` + "\n\n"
		for _, piece := range []string{"He", "ll", "o", "!"} {
			fmt.Fprintf(w, chunk, fmt.Sprintf(`{"index": 0, "delta": {"content": %q}}`, piece), "null")
			http.NewResponseController(w).Flush()
			time.Sleep(200 * time.Millisecond)
		}
		fmt.Fprintf(w, chunk+"data: [DONE]\n\n", "", `{"prompt_tokens": 25, "completion_tokens": 12, "total_tokens": 37}`)
	}))
	t.Cleanup(api.Close)
	return api, received
}

// Python's client of OpenAI streams, is settled, and comes again when a rejection says so.
func TestPython(t *testing.T) { // slow: the client sleeps until its retry
	if !installed(t, "python3") {
		return
	}
	api, received := startModel(t)
	p := runProgram(t, writeConfig(t, t.TempDir(), api.URL, `"hints": "openai", "max_wait": "100ms", "limits": [
		{"kind": "sliding-window", "name": "requests", "n": 1, "per": "3s"},
		{"kind": "bucket", "name": "tokens", "n": 10000, "per": "24h", "costs": {"/": 1000}, "settle": ["usage.total_tokens"]}]`))
	var got struct {
		Client, Text, Streamed string
		Tokens                 int64
		StreamTokens           int64 `json:"stream_tokens"`
		First, Whole           float64
	}
	require.NoError(t, json.Unmarshal([]byte(command(t, "python3", "testdata/openai_client.py", p.clients+"/up/v1", "m")), &got))
	t.Logf("%+v", got)
	assert.Equal(t, "Hello", got.Text)
	assert.Equal(t, "Hello!", got.Streamed)
	assert.EqualValues(t, 37, got.Tokens)
	assert.EqualValues(t, 37, got.StreamTokens)
	assert.GreaterOrEqual(t, got.First, 1.0, "it waited for the window")
	assert.GreaterOrEqual(t, got.Whole-got.First, 0.6, "it got pieces as they came")
	assert.EqualValues(t, 2, received.Load(), "the rejected attempt was not sent")
	_, metrics := fetch(t, p.page+"/metrics")
	for _, line := range []string{`throttle_requests_total{limiter="up",outcome="rejected"} 1`, `throttle_tokens_settled_total{limit="tokens",limiter="up"} 74`} {
		assert.True(t, strings.Contains(metrics, line+"\n"), line)
	}
}

// curl shows a stream as it comes, and comes again when a rejection says so.
func TestCurl(t *testing.T) { // slow: curl sleeps until its retry
	if !installed(t, "curl") {
		return
	}
	api, received := startModel(t)
	p := runProgram(t, writeConfig(t, t.TempDir(), api.URL, `"max_wait": "100ms", "limits": [{"kind": "sliding-window", "n": 1, "per": "3s"}]`))
	args := []string{"-sS", "--no-buffer", "--compressed", "--retry", "5", "-H", "Authorization: Bearer sk-test", "-H", "Content-Type: application/json",
		"-d", `{"stream": true}`, p.clients + "/up/v1/chat/completions"}
	c := exec.CommandContext(t.Context(), "curl", args...)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	var came []time.Time
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() != "" {
			came = append(came, time.Now())
		}
	}
	require.NoError(t, c.Wait())
	require.Len(t, came, 6)
	assert.Greater(t, came[5].Sub(came[0]), 600*time.Millisecond)
	begin := time.Now()
	again := command(t, "curl", args...)
	assert.Equal(t, 6, strings.Count(again, "data: "))
	assert.Greater(t, time.Since(begin), time.Second)
	assert.EqualValues(t, 2, received.Load())

	p = runProgram(t, writeConfig(t, t.TempDir(), api.URL, `"max_wait": "0s", "limits": [{"kind": "bucket", "n": 1, "per": "24h", "costs": {"/": 2}}]`))
	assert.Equal(t, "413", command(t, "curl", "-sS", "-o", filepath.Join(t.TempDir(), "body"), "-w", "%{http_code}", p.clients+"/up/"))
}

// A process that gets SIGTERM sends the requests that wait, answers new ones with 503 and Retry-After, ends with status 0, and leaves its
// budget to the next process.
func TestSIGTERM(t *testing.T) { // slow: a request waits
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "served") }))
	defer api.Close()
	file := writeConfig(t, t.TempDir(), api.URL, `"limits": [{"kind": "pace", "n": 1, "per": "3s"}]`)
	c := exec.CommandContext(t.Context(), os.Args[0], "-config", file, "-listen", "127.0.0.1:0", "-page", "127.0.0.1:0")
	c.Env = append(os.Environ(), "THROTTLE_PROXY=1")
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	defer c.Process.Kill()
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	clients := address.FindString(lines.Text())
	for lines.Scan() && !strings.Contains(lines.Text(), "/metrics") {
	}
	metrics := address.FindString(lines.Text()) + "/metrics"
	_, text := fetch(t, clients+"/up/")
	assert.Equal(t, "served", text)
	waiting := make(chan string)
	go func() {
		_, text := fetch(t, clients+"/up/")
		waiting <- text
	}()
	waits := regexp.MustCompile(`(?m)^throttle_waiting_requests\{.*\} 1$`)
	require.Eventually(t, func() bool { _, text := fetch(t, metrics); return waits.MatchString(text) }, time.Minute, 10*time.Millisecond)
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	for deadline := time.Now().Add(time.Minute); ; {
		resp, err := http.Get(clients + "/up/")
		if err != nil { // it has ended already
			break
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusServiceUnavailable {
			assert.NotEmpty(t, resp.Header.Get("Retry-After"))
			break
		}
		require.True(t, time.Now().Before(deadline), "it does not end")
	}
	assert.Equal(t, "served", <-waiting)
	rest, err := io.ReadAll(out)
	require.NoError(t, err)
	assert.NoError(t, c.Wait(), "%s", rest)
}

// A thousand streams at the same time, over sockets.
func TestStreamsOverSockets(t *testing.T) { // slow: each takes five seconds
	many, pause := 1000, time.Second
	if testing.Short() {
		many, pause = 50, 10*time.Millisecond
	}
	var open, most atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := open.Add(1)
		defer open.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		for i := range 5 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			http.NewResponseController(w).Flush()
			time.Sleep(pause)
		}
	}))
	defer api.Close()
	p := runProgram(t, writeConfig(t, t.TempDir(), api.URL, fmt.Sprintf(`"limits": [{"kind": "in-flight", "n": %d}]`, many)))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: many}}
	defer client.CloseIdleConnections()
	begin := time.Now()
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			resp, err := client.Post(p.clients+"/up/", "application/json", strings.NewReader(`{"stream": true}`))
			if !assert.NoError(t, err) {
				return
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			assert.NoError(t, err)
			assert.Equal(t, fiveEvents, string(text))
		})
	}
	all.Wait()
	t.Logf("%d streams of %v in %v, %d at the same time", many, 5*pause, time.Since(begin).Round(time.Millisecond), most.Load())
	if !testing.Short() { // where a stream takes as long as the others need to begin
		assert.EqualValues(t, many, most.Load())
	}
}
