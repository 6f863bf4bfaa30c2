package bench

import (
	"context"
	"math/rand/v2"
	"net"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttleredis"
)

// startRedis starts a redis-server on a loopback port and returns a client.
func startRedis(b *testing.B) *redis.Client {
	b.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		b.Skip("no redis-server on this machine")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(path, "--port", port, "--bind", "127.0.0.1", "--dir", b.TempDir(), "--save", "", "--appendonly", "no")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	c := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 64})
	b.Cleanup(func() {
		_ = c.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for end := time.Now().Add(5 * time.Second); c.Ping(b.Context()).Err() != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatal("redis-server does not respond")
		}
	}
	return c
}

// overRedis is a limiter of several processes: it pays a token for a key.
type overRedis struct {
	name string
	make func(*testing.B, *redis.Client) func(context.Context, string) error
}

func leased(name string, opts ...throttle.ShareOption) overRedis {
	return overRedis{name, func(b *testing.B, c *redis.Client) func(context.Context, string) error {
		store, err := throttleredis.New(c)
		if err != nil {
			b.Fatal(err)
		}
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(many, time.Second, throttle.Shared(store, opts...))))
		if err != nil {
			b.Fatal(err)
		}
		return func(ctx context.Context, key string) error { return l.Wait(ctx, key, 1) }
	}}
}

var sharedLimiters = []overRedis{
	leased("throttle"),
	leased("throttle-nothing-ahead", throttle.LeaseAhead(0)),
	{"redis_rate", func(_ *testing.B, c *redis.Client) func(context.Context, string) error {
		l := redis_rate.NewLimiter(c)
		limit := redis_rate.Limit{Rate: many, Burst: many, Period: time.Second}
		return func(ctx context.Context, key string) error {
			_, err := l.Allow(ctx, key, limit)
			return err
		}
	}},
}

// BenchmarkShared is what a token of a budget over Redis costs 64 callers: of one key that all ask for, and of many.
func BenchmarkShared(b *testing.B) {
	for _, keys := range []int{1, 10_000} {
		for _, l := range sharedLimiters {
			b.Run("op=shared/keys="+strconv.Itoa(keys)+"/impl="+l.name, func(b *testing.B) {
				wait := l.make(b, startRedis(b))
				names := make([]string, keys)
				for i := range names {
					names[i] = "key-" + strconv.Itoa(i)
				}
				var failed atomic.Pointer[error]
				b.SetParallelism(64)
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if err := wait(b.Context(), names[rand.IntN(keys)]); err != nil {
							failed.Store(&err)
							return
						}
					}
				})
				if err := failed.Load(); err != nil {
					b.Fatal(*err)
				}
			})
		}
	}
}

// BenchmarkSharedGrant is what a grant costs one caller while tokens are at hand, beside a limit in memory.
func BenchmarkSharedGrant(b *testing.B) {
	for _, c := range []struct {
		name string
		opts []throttle.LimitOption
	}{{"memory", nil}, {"shared", []throttle.LimitOption{throttle.Shared(throttle.NewMemoryStore(), throttle.LeaseAhead(time.Second))}}} {
		b.Run("op=shared-grant/impl="+c.name, func(b *testing.B) {
			l := limiterOf(b, throttle.WithLimit(throttle.TokenBucket(many, time.Second, c.opts...)))
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Wait(b.Context(), "", 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
