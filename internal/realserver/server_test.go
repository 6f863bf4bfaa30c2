// Package realserver_test lets clients meet the limits of real servers: nginx's limit_req and HAProxy's stick tables,
// in real time over loopback sockets. So nothing here is timed closely: what is asserted are shares of what was accepted
// and refused, far from what is usual, which the log shows (go test -v).
//
// Where a server is not installed, throttletest's imitation takes its place, and the log says so. In the environment,
// THROTTLE_REAL_SERVERS=1 makes that fail, and THROTTLE_REAL_SERVERS=0 runs the imitations only.
package realserver_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"flag"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"text/template"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/require"
)

// The tests wait most of the time, so they all run at once, however few processors there are.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// A proxy is a server with a limit for each path.
type proxy struct {
	program, config string // the configuration is a template in testdata
	args            func(config string) []string
	settings        map[string]string
	imitation       []throttletest.Option
}

// start runs the proxy, or its imitation, until the test is over, and returns its address.
func (p proxy) start(t *testing.T) (url string) {
	t.Helper()
	served := throttletest.WithServiceTime(throttletest.LogNormal(20*time.Millisecond, 0.1))
	wanted := os.Getenv("THROTTLE_REAL_SERVERS")
	program, found := find(p.program)
	if wanted == "0" || !found {
		require.NotEqual(t, "1", wanted, "%s is not installed", p.program)
		t.Logf("no %s: throttletest's imitation runs in its place", p.program)
		byPath := throttletest.WithKey(func(r *http.Request) string { return r.URL.Path })
		return throttletest.Start(t, append(p.imitation, byPath, served)...).URL
	}
	origin := throttletest.Start(t, served)
	for range 5 { // somebody else may take the port before the server does
		if url, ok := p.launch(t, program, origin.URL[len("http://"):]); ok {
			return url
		}
	}
	require.FailNow(t, p.program+" does not start")
	return ""
}

// find looks in PATH and where Debian puts servers, which is not in everybody's PATH.
func find(program string) (path string, found bool) {
	for _, name := range []string{program, filepath.Join("/usr/sbin", program)} {
		if path, err := exec.LookPath(name); err == nil {
			return path, true
		}
	}
	return "", false
}

func (p proxy) launch(t *testing.T, program, origin string) (url string, ok bool) {
	t.Helper()
	dir, addr, token := t.TempDir(), freeAddr(t), rand.Text()
	settings := map[string]string{"Dir": dir, "Addr": addr, "Token": token, "Origin": origin}
	maps.Copy(settings, p.settings)
	tmpl, err := template.ParseFiles(filepath.Join("testdata", p.config))
	require.NoError(t, err)
	var config bytes.Buffer
	require.NoError(t, tmpl.Option("missingkey=error").Execute(&config, settings))
	path := filepath.Join(dir, p.config)
	require.NoError(t, os.WriteFile(path, config.Bytes(), 0o600))

	var log bytes.Buffer // read after the server has ended only
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program, p.args(path)...)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it takes its children along
	cmd.WaitDelay = 5 * time.Second
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		if log.Len() > 0 {
			t.Logf("%s says:\n%s", p.program, log.Bytes())
		}
	})

	url = "http://" + addr
	for range 200 {
		select {
		case <-ended:
			return "", false
		case <-time.After(50 * time.Millisecond):
			if says(url+"/ready", token) {
				return url, true
			}
		}
	}
	return "", false
}

// freeAddr returns a loopback address that nobody listens at, for now.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

// says reports whether the answer is that text, and so that of the server that was told to give it.
func says(url, text string) bool {
	client := http.Client{Timeout: time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return err == nil && string(body) == text
}
