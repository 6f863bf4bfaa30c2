//go:build unix

package postgres

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/store/storetest"
)

// start runs a server of PostgreSQL until the test ends, and returns a pool of connections to it.
func start(t testing.TB) *pgxpool.Pool {
	t.Helper()
	dir, err := os.MkdirTemp("", "throttle-postgres")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	attributes := ordinary(t, dir)
	run := func(name string, args ...string) {
		t.Helper()
		path, err := program(name)
		must(t, err)
		cmd := exec.Command(path, args...)
		cmd.Dir, cmd.SysProcAttr, cmd.Env = dir, attributes, append(os.Environ(), "LC_ALL=C")
		out, err := os.Create(filepath.Join(t.TempDir(), "out")) // not a pipe, which the server would keep open
		must(t, err)
		defer out.Close()
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil {
			text, _ := os.ReadFile(out.Name())
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	must(t, l.Close())
	data := filepath.Join(dir, "data")
	run("initdb", "-D", data, "-U", "throttle", "-A", "trust", "-E", "UTF8", "--no-sync")
	run("pg_ctl", "-D", data, "-w", "-l", filepath.Join(dir, "log"),
		"-o", fmt.Sprintf("-h 127.0.0.1 -p %d -k '' -c fsync=off -c max_connections=100", port), "start")
	t.Cleanup(func() { run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop") })
	pool, err := pgxpool.New(t.Context(), fmt.Sprintf("postgres://throttle@127.0.0.1:%d/postgres?pool_max_conns=20", port))
	must(t, err)
	t.Cleanup(pool.Close)
	_, err = pool.Exec(t.Context(), Schema)
	must(t, err)
	return pool
}

func TestMain(m *testing.M) {
	if _, err := program("initdb"); err == nil {
		os.Exit(m.Run())
	}
	fmt.Println("There is no PostgreSQL here: the store is not tested.")
	if os.Getenv("THROTTLE_REAL_SERVERS") != "" {
		os.Exit(1)
	}
}

// program returns the path of a program of PostgreSQL.
func program(name string) (string, error) {
	if paths, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name); len(paths) > 0 { // where Debian has them
		return paths[len(paths)-1], nil
	}
	return exec.LookPath(name)
}

// ordinary returns the credentials of an ordinary user and makes that user the owner of the directory. PostgreSQL refuses to run
// as root.
func ordinary(t testing.TB, dir string) *syscall.SysProcAttr {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	must(t, err)
	uid, err := strconv.Atoi(u.Uid)
	must(t, err)
	gid, err := strconv.Atoi(u.Gid)
	must(t, err)
	must(t, os.Chown(dir, uid, gid))
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestStore(t *testing.T) {
	pool := start(t)
	t.Run("conforms", func(t *testing.T) {
		storetest.Run(t, func(*testing.T) store.Store { return New(pool) })
	})
	t.Run("an unreadable state fails its own asks", func(t *testing.T) {
		s := New(pool)
		budget := func(key string) store.Budget {
			return store.Budget{Kind: store.Bucket, Limit: "unreadable", Key: key, N: 1, Per: time.Hour, Burst: 5, Initial: 5}
		}
		ask := func(key string) store.Ask { return store.Ask{Parts: []store.Part{{Budget: budget(key), Want: 1}}} }
		_, err := s.Lease(t.Context(), []store.Ask{ask("bad"), ask("good")})
		must(t, err)
		_, err = pool.Exec(t.Context(), `UPDATE throttle_budgets SET state = 'x' WHERE name LIKE '%"unreadable" "bad"'`)
		must(t, err)
		leases, err := s.Lease(t.Context(), []store.Ask{ask("bad"), ask("good")})
		must(t, err)
		if leases[0].Err == nil || leases[1].Err != nil || leases[1].Parts[0].Tokens != 1 {
			t.Errorf("%+v", leases)
		}
	})
	t.Run("a wrong set-up is reported", func(t *testing.T) {
		config := pool.Config()
		config.ConnConfig.Database = "none"
		other, err := pgxpool.NewWithConfig(t.Context(), config)
		must(t, err)
		defer other.Close()
		_, err = New(other).Lease(t.Context(), []store.Ask{{Parts: []store.Part{{Budget: store.Budget{Kind: store.Fixed, N: 1, Per: time.Hour}}}}})
		if !errors.Is(err, store.ErrSetup) {
			t.Error(err)
		}
	})
	t.Run("budgets that are as good as new are deleted", func(t *testing.T) {
		_, err := pool.Exec(t.Context(), `UPDATE throttle_budgets SET until = now() - interval '1 day'`)
		must(t, err)
		must(t, New(pool).Expire(t.Context()))
		var n int
		must(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM throttle_budgets`).Scan(&n))
		if n > 0 {
			t.Errorf("%d rows are left", n)
		}
	})
	t.Run("a fleet shares a quota", func(t *testing.T) { fleet(t, pool) })
}

// fleet has four processes that share a daily quota and a rate.
func fleet(t *testing.T, pool *pgxpool.Pool) {
	const quota, processes = 200, 4
	var granted atomic.Int64
	var wg sync.WaitGroup
	shared := throttle.Shared(New(pool), throttle.StoreTimeout(10*time.Second)) // a busy machine is no outage
	began := time.Now()
	for range processes {
		l, err := throttle.NewLimiter(throttle.WithLimit(
			throttle.CalendarWindow(quota, throttle.CalendarMonth, time.UTC, throttle.Name("quota"), shared),
			throttle.TokenBucket(1000, time.Second, throttle.Burst(10), throttle.Name("rate"), shared)))
		must(t, err)
		for range 8 {
			wg.Go(func() {
				for l.Wait(t.Context(), throttle.Ask{MaxWait: new(10 * time.Second)}) == nil {
					granted.Add(1)
				}
			})
		}
	}
	wg.Wait()
	t.Logf("%d of %d in %v", granted.Load(), quota, time.Since(began))
	if granted.Load() != quota {
		t.Errorf("%d of a quota of %d were granted", granted.Load(), quota)
	}
}

func BenchmarkLease(b *testing.B) {
	s := New(start(b))
	for _, keys := range []int{1, 16} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			var next atomic.Int64
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					key := strconv.FormatInt(next.Add(1)%int64(keys), 10)
					_, err := s.Lease(b.Context(), []store.Ask{{Parts: []store.Part{{
						Budget: store.Budget{Kind: store.Bucket, Limit: "requests", Key: key, N: 1e6, Per: time.Second, Burst: 1e6, Initial: 1e6}, Want: 1,
					}}}})
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
