package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/examples/internal/exampletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// lines is a Writer whose lines can be received.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

func TestPageShowsFourClients(t *testing.T) {
	t.Parallel()
	out, over := make(lines, 10), make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		over <- run(ctx, []string{"-listen", "127.0.0.1:0", "-for", "1h", "-change", "500ms"}, out)
	}()
	address := regexp.MustCompile(`http://\S+/`).FindString(<-out)
	require.NotEmpty(t, address)
	assert.Contains(t, <-out, "/metrics")
	for _, name := range []string{"adaptive", "documented", "hints", "tenants"} {
		granted := regexp.MustCompile(`(?m)^throttle_requests_total\{limiter="` + name + `",outcome="granted"\} [1-9]`)
		for !granted.MatchString(get(t, address+"metrics")) {
			time.Sleep(20 * time.Millisecond)
		}
	}
	for _, want := range []string{"<h2>adaptive</h2>", "<h2>documented</h2>", "<h2>hints</h2>", "<h2>tenants</h2>", "acme", "sliding window", "127.0.0.1"} {
		for !strings.Contains(get(t, address), want) { // once there was a response
			time.Sleep(20 * time.Millisecond)
		}
	}
	cancel()
	require.NoError(t, <-over)
	for _, name := range []string{"adaptive", "documented", "hints", "tenants"} {
		assert.Regexp(t, "^"+name+`: granted [1-9]\d*`, <-out)
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(body)
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	out, over := make(lines, 10), make(chan error)
	go func() { over <- run(ctx, []string{"-listen", "127.0.0.1:0"}, out) }()
	<-out
	cancel()
	assert.NoError(t, <-over)
}

func TestAddressInUse(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	assert.ErrorContains(t, run(t.Context(), []string{"-listen", taken.Addr().String()}, io.Discard), "bind")
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).RejectsArguments(t, "-listen string", map[string]string{
		"-for -1s":   "-for -1s: must not be negative",
		"-change 0s": "-change 0s: must be positive",
		"-what":      "-what",
		"now":        `unexpected argument "now"`,
	})
}
