package throttleredis

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/redis/go-redis/v9"
)

// TestCallersFollowAFailoverOfACluster kills the master of a budget's key. Clients with the default options learn by themselves of
// the new one once a minute.
func TestCallersFollowAFailoverOfACluster(t *testing.T) { // slow: it takes seconds of real time
	if testing.Short() {
		return // it takes seconds of real time
	}
	t.Parallel()
	c := startCluster(t)
	const key = "tenant"
	master := c.nodes[slotOf(key)*3/slotCount]
	replica := start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
	admin := replica.client(t)
	for _, n := range c.nodes {
		must(t, admin.Do(t.Context(), "CLUSTER", "MEET", "127.0.0.1", n.port, n.bus).Err())
	}
	id := c.ids[slotOf(key)*3/slotCount]
	eventually(t, "the replica knows its master", func() bool { return admin.ClusterReplicate(t.Context(), id).Err() == nil })
	eventually(t, "the replica is in sync", func() bool {
		return strings.Contains(admin.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	for _, n := range c.nodes {
		node := n.client(t)
		eventually(t, "every master knows the replica", func() bool {
			return strings.Contains(node.ClusterNodes(t.Context()).Val(), ":"+replica.port)
		})
	}
	var mu sync.Mutex
	latest := make([]time.Time, 4) // of the grants of each client
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range latest {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{c.nodes[0].addr(), c.nodes[1].addr(), c.nodes[2].addr()}})
		t.Cleanup(func() { _ = client.Close() })
		l := limiterOver(t, newStore(t, client), bucketOf(200, 10))
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if l.Wait(t.Context(), throttle.Ask{Key: key}) != nil {
						time.Sleep(10 * time.Millisecond)
						continue
					}
					mu.Lock()
					latest[i] = time.Now()
					mu.Unlock()
				}
			})
		}
	}
	defer wg.Wait()
	defer close(stop)
	time.Sleep(500 * time.Millisecond)
	killed := time.Now()
	master.kill(t)
	eventually(t, "the replica is master", func() bool { return strings.Contains(admin.Info(t.Context(), "replication").Val(), "role:master") })
	failedOver := time.Now()
	eventually(t, "every client goes on", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, at := range latest {
			if at.Before(failedOver) {
				return false
			}
		}
		return true
	})
	took := time.Since(failedOver)
	t.Logf("another master after %v, all callers %v later", failedOver.Sub(killed), took)
	if took > 5*time.Second { // 0.5 to 0.8 s, on a busy machine more
		t.Errorf("callers went on %v after the failover", took)
	}
}
