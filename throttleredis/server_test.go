package throttleredis

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})          // go-redis logs every failed dial
	_ = flag.Set("test.parallel", "8") // most tests wait, for servers or for time to pass
	os.Exit(m.Run())
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// A server is a redis-server, or a redis-sentinel, that a test has started on a loopback port.
type server struct {
	port string
	cmd  *exec.Cmd
	log  string
}

func (s *server) addr() string { return "127.0.0.1:" + s.port }

// program returns the path of a program of Redis. Without it the test is skipped, or fails if THROTTLE_REAL_SERVERS is set.
func program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("THROTTLE_REAL_SERVERS") != "" {
			t.Fatalf("THROTTLE_REAL_SERVERS is set, and there is no %s", name)
		}
		t.Skipf("no %s on this machine", name)
	}
	return path
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// start runs a redis-server with these options, until the test is over.
func start(t testing.TB, options ...string) *server {
	t.Helper()
	return run(t, "redis-server", append([]string{"--save", "", "--appendonly", "no"}, options...)...)
}

func run(t testing.TB, name string, args ...string) *server {
	t.Helper()
	path, dir := program(t, name), t.TempDir()
	s := &server{port: freePort(t), log: filepath.Join(dir, "log")}
	if len(args) > 0 && strings.HasSuffix(args[0], ".conf") {
		args = append([]string{args[0], "--port", s.port}, args[1:]...)
	} else {
		args = append([]string{"--port", s.port}, args...)
	}
	s.cmd = exec.Command(path, append(args, "--bind", "127.0.0.1", "--dir", dir, "--logfile", s.log)...)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
	c := s.client(t)
	eventually(t, name+" responds", func() bool { return c.Ping(t.Context()).Err() == nil || isAuth(c.Ping(t.Context()).Err()) })
	return s
}

func isAuth(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "NOAUTH") }

func (s *server) client(t testing.TB) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.addr()})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *server) kill(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait()
}

// eventually waits up to a minute until ok returns true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func newStore(t *testing.T, c redis.UniversalClient, opts ...Option) *Store {
	t.Helper()
	s, err := New(c, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("unexpected: %w", err))
	}
}
