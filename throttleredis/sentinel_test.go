package throttleredis

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/internal/lease"
)

// startSentinel starts a master, a replica that is in sync, and a sentinel that watches them.
func startSentinel(t *testing.T) (master *server, sentinel *redis.SentinelClient, client *redis.Client) {
	t.Helper()
	program(t, "redis-sentinel")
	master = start(t)
	replica := start(t, "--replicaof", "127.0.0.1 "+master.port)
	eventually(t, "the replica is in sync", func() bool {
		return strings.Contains(replica.client(t).Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("sentinel monitor main 127.0.0.1 %s 1\nsentinel down-after-milliseconds main 500\n"+
		"sentinel failover-timeout main 3000\n", master.port)
	must(t, os.WriteFile(conf, []byte(text), 0o600))
	s := run(t, "redis-sentinel", conf)
	sentinel = redis.NewSentinelClient(&redis.Options{Addr: s.addr()})
	t.Cleanup(func() { _ = sentinel.Close() })
	eventually(t, "the sentinel knows the replica", func() bool {
		replicas, err := sentinel.Replicas(t.Context(), "main").Result()
		return err == nil && len(replicas) == 1 && replicas[0]["master-link-status"] == "ok"
	})
	client = redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{s.addr()}})
	t.Cleanup(func() { _ = client.Close() })
	return master, sentinel, client
}

func TestFailoverCostsAtMostABurst(t *testing.T) {
	t.Parallel()
	for name, failover := range map[string]func(*testing.T, *server, *redis.SentinelClient){
		"orderly": func(t *testing.T, _ *server, s *redis.SentinelClient) { must(t, s.Failover(t.Context(), "main").Err()) },
		"killed":  func(t *testing.T, master *server, _ *redis.SentinelClient) { master.kill(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			master, sentinel, client := startSentinel(t)
			st := newStore(t, client)
			must(t, st.Check(t.Context()))
			b := lease.Budget{Kind: lease.Bucket, Limit: "l", Key: "k", N: 100, Per: time.Second, Burst: 50, Initial: 50}
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
					_, err := try(ctx, st, lease.Part{Budget: b})
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
			if least := int64(50 + 20); got < least && !testing.Short() { // 60 more, on a machine that is three times slower
				t.Errorf("%d tokens, at least %d", got, least)
			}
		})
	}
}
