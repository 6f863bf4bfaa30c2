package throttleredis

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

type sentinel struct {
	*redis.SentinelClient
	addr string
}

// startSentinels starts a master, a replica that is in sync, and sentinels that watch them.
func startSentinels(t *testing.T, count int) (master, replica *server, sentinels []*sentinel) {
	t.Helper()
	master, replica = startReplicated(t)
	for range count {
		conf := filepath.Join(t.TempDir(), "sentinel.conf")
		text := fmt.Sprintf("sentinel monitor main 127.0.0.1 %s %d\nsentinel down-after-milliseconds main 500\n"+
			"sentinel failover-timeout main 3000\n", master.port, count/2+1)
		must(t, os.WriteFile(conf, []byte(text), 0o600))
		s := run(t, conf, "--sentinel")
		c := redis.NewSentinelClient(&redis.Options{Addr: s.addr()})
		t.Cleanup(func() { _ = c.Close() })
		sentinels = append(sentinels, &sentinel{c, s.addr()})
	}
	for _, s := range sentinels {
		eventually(t, "each sentinel knows the replica and the others", func() bool {
			replicas, err := s.Replicas(t.Context(), "main").Result()
			others, _ := s.Sentinels(t.Context(), "main").Result()
			return err == nil && len(replicas) == 1 && replicas[0]["master-link-status"] == "ok" && len(others) == count-1
		})
	}
	return master, replica, sentinels
}

// startReplicated starts a master and a replica that is in sync.
func startReplicated(t *testing.T) (master, replica *server) {
	t.Helper()
	master = start(t)
	replica = start(t, "--replicaof", "127.0.0.1", master.port)
	c := master.client(t)
	eventually(t, "the replica is in sync", func() bool {
		return strings.Contains(c.Info(t.Context(), "replication").Val(), "state=online")
	})
	return master, replica
}

// follow returns a client that asks one sentinel where the master is.
func follow(t *testing.T, s *sentinel) *redis.Client {
	c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{s.addr}})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestFailoverCostsAtMostABurst(t *testing.T) {
	t.Parallel()
	for name, failover := range map[string]func(*testing.T, *server, *sentinel){
		"orderly": func(t *testing.T, _ *server, s *sentinel) { must(t, s.Failover(t.Context(), "main").Err()) },
		"killed":  func(t *testing.T, master *server, _ *sentinel) { master.kill(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			master, _, sentinels := startSentinels(t, 1)
			sentinel := sentinels[0]
			st := newStore(t, follow(t, sentinel))
			must(t, st.Check(t.Context()))
			b := store.Budget{Kind: store.Bucket, Limit: "l", Key: "k", N: 100, Per: time.Second, Burst: 50, Initial: 50}
			began := time.Now()
			var out time.Duration
			got := under(t, st, b, func() {
				time.Sleep(300 * time.Millisecond)
				failover(t, master, sentinel)
				failed := time.Now()
				eventually(t, "another master", func() bool {
					addr, err := sentinel.GetMasterAddrByName(t.Context(), "main").Result()
					return err == nil && addr[1] != master.port
				})
				eventually(t, "leases from the new master", func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
					defer cancel()
					_, err := try(ctx, st, store.Part{Budget: b})
					return err == nil
				})
				out = time.Since(failed)
				time.Sleep(300 * time.Millisecond)
			})
			most := int64(2*50 + 100*time.Since(began).Seconds() + 1)
			t.Logf("unreachable for %v; %d tokens, at most %d", out, got, most)
			if got > most {
				t.Errorf("%d tokens, at most %d", got, most)
			}
			if least := int64(50 + 1); got < least { // 60 more, on a busy machine fewer
				t.Errorf("%d tokens, at least %d", got, least)
			}
		})
	}
}

// TestOrderlyFailoverGrantsNothingTwice has four clients. Two ask different sentinels. Two learn of the new master only when the old one
// has become a replica, after ten seconds in which it serves them.
func TestOrderlyFailoverGrantsNothingTwice(t *testing.T) { // slow: it takes seconds of real time
	if testing.Short() {
		return // it takes seconds of real time
	}
	t.Parallel()
	master, replica, sentinels := startSentinels(t, 3)
	const rate, burst = 200, 20
	var address atomic.Pointer[string]
	old := master.addr()
	address.Store(&old)
	var granted atomic.Int64
	latest := make([]atomic.Int64, 4) // the instants of the grants of each client
	ctx, cancel := context.WithCancel(t.Context())
	began := time.Now()
	var wg sync.WaitGroup
	for i := range latest {
		client := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, *address.Load())
		}})
		t.Cleanup(func() { _ = client.Close() })
		if i%2 == 0 {
			client = follow(t, sentinels[1+i/2])
		}
		l := limiterOver(t, newStore(t, client), bucketOf(rate, burst))
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					if l.Wait(ctx, throttle.Ask{}) != nil {
						time.Sleep(10 * time.Millisecond)
						continue
					}
					granted.Add(1)
					latest[i].Store(int64(time.Since(began)))
				}
			})
		}
	}
	time.Sleep(time.Second)
	failover := time.Now()
	must(t, sentinels[0].Failover(t.Context(), "main").Err())
	eventually(t, "the replica is master", func() bool {
		return strings.Contains(replica.client(t).Info(t.Context(), "replication").Val(), "role:master")
	})
	promoted := time.Now()
	eventually(t, "the old master is a replica", func() bool {
		return strings.Contains(master.client(t).Info(t.Context(), "replication").Val(), "role:slave")
	})
	demoted := time.Now()
	current := replica.addr()
	address.Store(&current)
	eventually(t, "every client goes on", func() bool {
		for i := range latest {
			if began.Add(time.Duration(latest[i].Load())).Before(demoted) {
				return false
			}
		}
		return true
	})
	all := time.Since(began)
	went := time.Now()
	cancel()
	wg.Wait()
	over := float64(granted.Load()) - burst - rate*all.Seconds()
	t.Logf("promoted after %v, the old master demoted %v later; every client went on %v after that; %.0f tokens beyond the limit",
		promoted.Sub(failover), demoted.Sub(promoted), went.Sub(demoted), over)
	if most := float64(burst + rate); over > most { // 26 to 29, on a busy machine more; without the fence those of ten seconds
		t.Errorf("%.0f tokens beyond %d + %d/s, want at most the %d of lost state, and those of a second", over, burst, rate, burst)
	}
}
