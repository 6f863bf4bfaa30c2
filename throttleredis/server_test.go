package throttleredis

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// withoutServer matches the names of tests that need no server.
const withoutServer = "^Test(Clock|Fence[AS]|ReplicationIsRead|ErrorsAre|KeysAre|WrongOptions)"

func TestMain(m *testing.M) {
	flag.Parse()
	redis.SetLogger(silent{})          // go-redis logs every failed dial
	_ = flag.Set("test.parallel", "8") // most tests wait, for servers or for time to pass
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("THROTTLE_REAL_SERVERS") != "" {
			fmt.Println("THROTTLE_REAL_SERVERS is set, and there is no redis-server")
			os.Exit(1)
		}
		fmt.Println("There is no redis-server here: only the tests that need none are run.")
		_ = flag.Set("test.run", withoutServer)
		_ = flag.Set("test.bench", "")
	}
	os.Exit(m.Run())
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// A server is a redis-server, which may be a sentinel, that a test has started on a loopback port.
type server struct {
	port string
	bus  string // its port as a node of a Cluster
	cmd  *exec.Cmd
	log  string
}

func (s *server) addr() string { return "127.0.0.1:" + s.port }

// freePort returns a port that is free, as is that of the bus of a Cluster, which is the port plus 10,000. Both are below those
// that the kernel gives to connections, which could take them before the server does.
func freePort(t testing.TB) int {
	t.Helper()
	for range 1000 {
		port := 20_000 + rand.IntN(2_000)
		if isFree(port) && isFree(port+busAfter) {
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

const busAfter = 10_000

func isFree(port int) bool {
	l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port))
	return err == nil && l.Close() == nil
}

// start runs a redis-server with these options until the test ends.
func start(t testing.TB, options ...string) *server {
	t.Helper()
	return run(t, append([]string{"--save", "", "--appendonly", "no"}, options...)...)
}

// run starts a server on a free port, which another process may take before the server does: then it is started on another one.
func run(t testing.TB, args ...string) *server {
	t.Helper()
	dir := t.TempDir()
	for try := 1; ; try++ {
		port := freePort(t)
		s := &server{port: fmt.Sprint(port), bus: fmt.Sprint(port + busAfter), log: filepath.Join(dir, fmt.Sprint("log", try))}
		own := []string{"--port", s.port, "--bind", "127.0.0.1", "--dir", dir, "--logfile", s.log}
		s.cmd = exec.Command("redis-server", append(slices.Clone(args), own...)...)
		must(t, s.cmd.Start())
		if s.responds(t) {
			t.Cleanup(func() {
				_ = s.cmd.Process.Kill()
				_ = s.cmd.Wait()
			})
			return s
		}
		_ = s.cmd.Wait()
		if text, _ := os.ReadFile(s.log); try == 5 {
			t.Fatalf("redis-server ended before it responded:\n%s", text)
		}
	}
}

// responds waits up to a minute for the response of a server, and returns false if it has ended.
func (s *server) responds(t testing.TB) (ok bool) {
	t.Helper()
	c := s.client(t)
	eventually(t, s.cmd.Path+" responds, or ends", func() bool {
		info, err := c.Info(t.Context(), "server").Result()
		ok = isAuth(err) || strings.Contains(info, fmt.Sprintf("process_id:%d\r", s.cmd.Process.Pid)) // and no other server
		return ok || s.ended()
	})
	return ok
}

// ended reports whether the program of a server has ended with an error about its ports, which is the last that it logs.
func (s *server) ended() bool {
	text, _ := os.ReadFile(s.log)
	return strings.Contains(string(text), "Address already in use") || strings.Contains(string(text), "Failed listening")
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

// major returns the version of Redis; of Valkey, that of the Redis that it is compatible with.
func major(t testing.TB, c *redis.Client) int {
	t.Helper()
	_, version, _ := strings.Cut(c.Info(t.Context(), "server").Val(), "redis_version:")
	version, _, _ = strings.Cut(version, ".")
	n, err := strconv.Atoi(version)
	if err != nil {
		t.Fatal(err)
	}
	return n
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("unexpected: %w", err))
	}
}
