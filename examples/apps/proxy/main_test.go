package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/examples/internal/exampletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A program is the whole program, at work on sockets.
type program struct {
	clients, page string // addresses, as URLs without a slash at the end
	out           *output
	stop          func() // as SIGTERM does; returns when it has ended
}

// An output is what a program prints.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// writeConfig writes a file with an upstream "up".
func writeConfig(t *testing.T, dir, upstream, fields string) string {
	t.Helper()
	name := filepath.Join(dir, "limits.json")
	require.NoError(t, os.WriteFile(name, fmt.Appendf(nil, `{"drain": "5s", "store": "budgets", "upstreams": {"up": {"url": %q, %s}}}`, upstream, fields), 0o600))
	return name
}

var address = regexp.MustCompile(`http://127\.0\.0\.1:\d+`)

// runProgram runs the program with a file until the test ends.
func runProgram(t *testing.T, file string) *program {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &program{out: new(output)}
	over := make(chan error, 1)
	go func() {
		over <- run(ctx, []string{"-config", file, "-listen", "127.0.0.1:0", "-page", "127.0.0.1:0"}, p.out)
	}()
	p.stop = sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-over)
	})
	t.Cleanup(p.stop)
	for !strings.Contains(p.out.String(), "/metrics") {
		select {
		case err := <-over:
			require.NoError(t, err, "it ended")
		case <-time.After(5 * time.Millisecond):
		}
	}
	all := address.FindAllString(p.out.String(), -1)
	p.clients, p.page = all[0], all[len(all)-1]
	return p
}

// fetch returns a response and its body.
func fetch(t *testing.T, url string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(text)
}

// Two processes and one after them spend one budget, in the folder beside the file.
func TestTheStoreKeepsTheBudget(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer api.Close()
	dir := t.TempDir()
	// Windows of a century, so that none ends during the test.
	file := writeConfig(t, dir, api.URL, `"max_wait": "1s", "limits": [{"kind": "fixed-window", "n": 6, "per": "876000h"}]`)
	spend := func(p *program, n int) (accepted int) {
		for range n {
			resp, _ := fetch(t, p.clients+"/up/")
			switch resp.StatusCode {
			case http.StatusOK:
				accepted++
			case http.StatusTooManyRequests:
			default:
				t.Errorf("status %d", resp.StatusCode)
			}
		}
		return accepted
	}
	first, second := runProgram(t, file), runProgram(t, file)
	assert.Equal(t, 2, spend(first, 2))
	assert.Equal(t, 3, spend(second, 3))
	first.stop()
	second.stop()
	third := runProgram(t, file)
	assert.Equal(t, 1, spend(third, 3))
	assert.FileExists(t, filepath.Join(dir, "budgets", "up"))
}

// Keys come in headers and URLs, and upstreams repeat them in errors. None is in what the program prints, on the page, or in metrics.
func TestKeysAreShownNowhere(t *testing.T) {
	const key = "sk-proj-51a9c7e2TOPSECRET"
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Contains(t, fmt.Sprint(r.Header, r.URL), key, "it is passed on")
		switch r.URL.Path {
		case "/abort":
			panic(http.ErrAbortHandler)
		case "/half":
			io.WriteString(w, "half")
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/final":
			w.Header().Set("X-Should-Retry", "false")
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprintf(w, `{"error": {"code": "insufficient_quota", "message": "the key %s has no credit"}}`, key)
		}
	}))
	defer api.Close()
	p := runProgram(t, writeConfig(t, t.TempDir(), api.URL, `"hints": "openai", "max_wait": "0s", "shape": "problem", "limits": [
		{"kind": "bucket", "n": 2, "per": "24h", "key_by": "X-Tenant", "fair_by": "Authorization"},
		{"kind": "in-flight", "n": 9, "key_by": "X-Api-Key"}]`))
	headers := []string{"Authorization: Bearer " + key, "X-Api-Key: " + key, "X-Goog-Api-Key: " + key, "X-Tenant: " + key}
	seen := make(map[int]bool)
	var rejections strings.Builder
	for tenant, path := range []string{"/", "/abort", "/half", "/final", "/v1/" + key, "/", "/"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.clients+"/up"+path+"?key="+key, nil)
		require.NoError(t, err)
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			req.Header.Set(name, value)
		}
		if tenant < 4 {
			req.Header.Add("X-Tenant", fmt.Sprint(tenant))
			req.Header.Set("Authorization", fmt.Sprint("Bearer ", key, tenant))
		}
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		text, _ := io.ReadAll(resp.Body) // of half of a response: an error
		resp.Body.Close()
		seen[resp.StatusCode] = true
		if path != "/final" { // the response of the upstream itself
			rejections.Write(text)
		}
	}
	assert.Equal(t, map[int]bool{200: true, 429: true, 502: true}, seen)
	for name, text := range map[string]string{
		"output":     p.out.String(),
		"rejections": rejections.String(),
		"404":        func() string { _, text := fetch(t, p.clients+"/other?key="+key, headers...); return text }(),
		"page":       func() string { _, text := fetch(t, p.page+"/"); return text }(),
		"state":      func() string { _, text := fetch(t, p.page+"/state.json"); return text }(),
		"metrics":    func() string { _, text := fetch(t, p.page+"/metrics"); return text }(),
	} {
		assert.NotEmpty(t, text, name)
		assert.NotContains(t, text, "TOPSECRET", name)
	}
	assert.Contains(t, p.out.String(), "request failed")
	assert.Contains(t, p.out.String(), "request rejected")
}

// A stream that outlasts the time for it is cut off, and its client sees that.
func TestTheProgramEndsDuringAStream(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "begins")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer api.Close()
	dir, err := os.MkdirTemp("", "proxy")
	require.NoError(t, err)
	defer func() { // the slot of a stream that was cut off is still given back, in the file of the store
		assert.Eventually(t, func() bool { return os.RemoveAll(dir) == nil }, 10*time.Second, 10*time.Millisecond)
	}()
	file := writeConfig(t, dir, api.URL, `"limits": [{"kind": "in-flight", "n": 1}]`)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, bytes.Replace(text, []byte("5s"), []byte("10ms"), 1), 0o600))
	p := runProgram(t, file)
	resp, err := http.Get(p.clients + "/up/")
	require.NoError(t, err)
	defer resp.Body.Close()
	p.stop()
	got, err := io.ReadAll(resp.Body)
	assert.Equal(t, "begins", string(got))
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.Contains(t, p.out.String(), "responses were cut off")
}

func TestThePageAndTheMetricsHaveAnAddressOfTheirOwn(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer api.Close()
	p := runProgram(t, writeConfig(t, t.TempDir(), api.URL, `"limits": [{"kind": "quota", "name": "points", "n": 10, "per": "1m"}]`))
	fetch(t, p.clients+"/up/")
	_, page := fetch(t, p.page+"/")
	assert.Contains(t, page, "<h2>up</h2>")
	_, metrics := fetch(t, p.page+"/metrics")
	assert.Contains(t, metrics, `throttle_tokens_charged_total{limit="points",limiter="up"} 1`)
	for _, path := range []string{"/", "/metrics"} {
		resp, _ := fetch(t, p.clients+path)
		assert.Equal(t, http.StatusNotFound, resp.StatusCode)
	}
	p.stop()
	assert.NotContains(t, p.out.String(), "level=")
}

func TestAddressInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	file := writeConfig(t, t.TempDir(), "http://127.0.0.1:1", `"limits": []`)
	for _, flag := range []string{"-listen", "-page"} {
		args := []string{"-config", file, "-listen", "127.0.0.1:0", "-page", "127.0.0.1:0", flag, taken.Addr().String()}
		assert.ErrorContains(t, run(t.Context(), args, io.Discard), "bind")
	}
}

func TestBadArguments(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.json")
	require.NoError(t, os.WriteFile(bad, []byte("{\n\"upstream\": {}}"), 0o600))
	exampletest.Program(run).RejectsArguments(t, "-config string", map[string]string{
		"":                "-config is missing",
		"-config nothere": "nothere: no such file",
		"-config " + bad:  bad + ":2:1: upstream: unknown field",
		"-what":           "-what",
		"now":             `unexpected argument "now"`,
	})
}
