package bench

import (
	"context"
	"math/rand/v2"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/throttleredis"
)

// startRedis starts a redis-server on a loopback port and returns a client. It returns nil if redis-server is not installed.
func startRedis(b *testing.B) *redis.Client {
	b.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		b.Log("redis-server is not installed")
		return nil
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

func leased(name string, opts ...throttle.SharedOption) overRedis {
	return overRedis{name, func(b *testing.B, c *redis.Client) func(context.Context, string) error {
		store, err := throttleredis.New(c)
		if err != nil {
			b.Fatal(err)
		}
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(many, time.Second, throttle.Shared(store, opts...))))
		if err != nil {
			b.Fatal(err)
		}
		return func(ctx context.Context, key string) error { return l.Wait(ctx, throttle.Ask{Key: key}) }
	}}
}

// scripted runs a script for each token through rueidis, which sends what many goroutines ask for in one write.
func scripted(name, source string) overRedis {
	return overRedis{name, func(b *testing.B, c *redis.Client) func(context.Context, string) error {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{c.Options().Addr}, DisableCache: true})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(client.Close)
		script := rueidis.NewLuaScript(source)
		args := []string{"0.001", "1000000"} // interval and burst in µs
		return func(ctx context.Context, key string) error {
			return script.Exec(ctx, client, []string{key}, args).Error()
		}
	}}
}

const (
	// gcra is about the least that a script can do for a token of a bucket: one instant is kept. It returns for how long to wait.
	gcra = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local at = math.max(now, tonumber(redis.call('GET', KEYS[1]) or 0)) + ARGV[1]
local wait = at - ARGV[2] - now
if wait > 0 then return wait end
redis.call('SET', KEYS[1], string.format('%.3f', at), 'PX', math.max(1, math.ceil((at - now) / 1000)))
return 0`

	// counter is the same for a token of a window that begins with the first request.
	counter = `
local n = redis.call('INCR', KEYS[1])
if n == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[2] / 1000) end
return n`
)

var sharedLimiters = []overRedis{
	leased("throttle"),
	leased("throttle-nothing-ahead", throttle.LeaseAhead(0)),
	scripted("gcra", gcra),
	scripted("counter", counter),
	{"redis_rate", func(_ *testing.B, c *redis.Client) func(context.Context, string) error {
		l := redis_rate.NewLimiter(c)
		limit := redis_rate.Limit{Rate: many, Burst: many, Period: time.Second}
		return func(ctx context.Context, key string) error {
			_, err := l.Allow(ctx, key, limit)
			return err
		}
	}},
}

// BenchmarkShared is what a token of a budget over Redis costs 64 callers: of one key that all ask for, and of many. The times of
// processors are those of this process and of Redis.
func BenchmarkShared(b *testing.B) {
	for _, keys := range []int{1, 10_000} {
		for _, l := range sharedLimiters {
			b.Run("keys="+strconv.Itoa(keys)+"/impl="+l.name, func(b *testing.B) { benchShared(b, l, keys) })
		}
	}
}

func benchShared(b *testing.B, l overRedis, keys int) {
	c := startRedis(b)
	if c == nil {
		return
	}
	wait := l.make(b, c)
	names := make([]string, keys)
	for i := range names {
		names[i] = "key-" + strconv.Itoa(i)
	}
	if err := wait(b.Context(), names[0]); err != nil { // Redis gets the script
		b.Fatal(err)
	}
	ours, redis := processorTime(), redisTime(b, c)
	var next atomic.Int64
	var callers sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range 64 {
		callers.Go(func() {
			for next.Add(1) <= int64(b.N) {
				if err := wait(b.Context(), names[rand.IntN(keys)]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	b.StopTimer()
	perToken := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(b.N) }
	b.ReportMetric(perToken(processorTime()-ours), "cpu-µs/token")
	b.ReportMetric(perToken(redisTime(b, c)-redis), "redis-µs/token")
}

// redisTime is the processor time that Redis has used.
func redisTime(b *testing.B, c *redis.Client) (all time.Duration) {
	b.Helper()
	info, err := c.Info(b.Context(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user" || name == "used_cpu_sys" {
			s, err := strconv.ParseFloat(value, 64)
			if err != nil {
				b.Fatal(err)
			}
			all += time.Duration(s * 1e9)
		}
	}
	return all
}

// BenchmarkSharedGrant is what a grant costs one caller while tokens are available, beside a limit in memory.
func BenchmarkSharedGrant(b *testing.B) {
	for _, c := range []struct {
		name string
		opts []throttle.LimitOption
	}{{"memory", nil}, {"throttle", []throttle.LimitOption{throttle.Shared(store.NewMemory(), throttle.LeaseAhead(time.Second))}}} {
		b.Run("impl="+c.name, func(b *testing.B) {
			l := limiterOf(b, throttle.WithLimit(throttle.TokenBucket(many, time.Second, c.opts...)))
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Wait(b.Context(), throttle.Ask{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A timedStore records how long its calls take.
type timedStore struct {
	store.Store
	mu   sync.Mutex
	took []time.Duration
}

func (s *timedStore) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	began := time.Now()
	leases, err := s.Store.Lease(ctx, asks)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took = append(s.took, time.Since(began))
	return leases, err
}

// BenchmarkSharedLateness keeps 100 waiting at a limit of 1,000/s in memory and over Redis, as BenchmarkLateness does, and
// reports the median round trip to Redis as well: of a PING, and where calls are made, of these calls.
func BenchmarkSharedLateness(b *testing.B) {
	c := startRedis(b)
	if c == nil {
		return
	}
	for _, name := range []string{"memory", "throttle"} {
		b.Run("impl="+name, func(b *testing.B) {
			trip := roundTrip(b, c)
			for b.Loop() {
				timed := &timedStore{}
				var opts []throttle.LimitOption
				if name == "throttle" {
					store, err := throttleredis.New(c, throttleredis.Prefix("late-"+strconv.FormatUint(rand.Uint64(), 36)))
					if err != nil {
						b.Fatal(err)
					}
					timed.Store = store
					opts = append(opts, throttle.Shared(timed))
				}
				l := limiterOf(b, throttle.WithLimit(throttle.TokenBucket(1000, time.Second, append(opts, throttle.Burst(1))...)))
				if err := l.Wait(b.Context(), throttle.Ask{Key: "another"}); err != nil { // there is a connection, and Redis has the script
					b.Fatal(err)
				}
				late := lateness(b, func(ctx context.Context) error { return l.Wait(ctx, throttle.Ask{}) }, 1000)
				b.ReportMetric(float64(quantile(late, 0.5).Nanoseconds())/1e3, "p50-µs-late")
				b.ReportMetric(float64(quantile(late, 0.99).Nanoseconds())/1e3, "p99-µs-late")
				if len(timed.took) > 0 {
					trip = quantile(timed.took, 0.5)
				}
			}
			b.ReportMetric(float64(trip.Nanoseconds())/1e3, "p50-µs-trip")
		})
	}
}

func roundTrip(b *testing.B, c *redis.Client) time.Duration {
	var took []time.Duration
	for range 200 {
		began := time.Now()
		if err := c.Ping(b.Context()).Err(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
		time.Sleep(time.Millisecond)
	}
	return quantile(took, 0.5)
}
