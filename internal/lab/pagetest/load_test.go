package pagetest

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/require"
)

// dashboard runs examples/apps/dashboard until the test ends, and returns the address of its page.
func dashboard(t *testing.T) string {
	program := filepath.Join(t.TempDir(), "dashboard")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = "../../../examples/apps/dashboard"
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	run := exec.CommandContext(t.Context(), program, "-listen", "127.0.0.1:0", "-change", "20s")
	run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
	run.WaitDelay = 5 * time.Second
	stdout, err := run.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	t.Cleanup(func() { _ = run.Wait() }) // it was interrupted
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	url := regexp.MustCompile(`http://\S+/`).FindString(line)
	require.NotEmpty(t, url, line)
	return url
}

// hostile returns a Limiter with names that are made to break a page.
func hostile(t *testing.T) *throttle.Limiter {
	l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(2, time.Hour, throttle.Name(`<img src="//example.com/x">`))))
	require.NoError(t, err)
	for _, key := range []string{"<script>alert(1)</script>", "a\x00b\u202ec\xff", strings.Repeat("w", 200), "\"><b onclick=alert(1)>", "a\r\n\r\ndata: b"} {
		require.NoError(t, l.Wait(t.Context(), throttle.Ask{Key: key}))
	}
	return l
}
