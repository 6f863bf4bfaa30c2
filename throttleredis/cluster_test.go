package throttleredis

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/store/storetest"
)

// A cluster is three masters.
type cluster struct {
	nodes  []*server
	ids    []string
	client *redis.ClusterClient
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{}
	var addrs []string
	for range 3 {
		n := start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
		c.nodes, addrs = append(c.nodes, n), append(addrs, n.addr())
	}
	for i, n := range c.nodes { // before any node knows another
		must(t, n.client(t).Do(t.Context(), "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err())
	}
	for i, n := range c.nodes {
		admin := n.client(t)
		for slot := i * slotCount / 3; slot < (i+1)*slotCount/3; slot += 1000 { // Redis 6 has no ADDSLOTSRANGE
			var some []int
			for k := slot; k < min(slot+1000, (i+1)*slotCount/3); k++ {
				some = append(some, k)
			}
			must(t, admin.ClusterAddSlots(t.Context(), some...).Err())
		}
		c.ids = append(c.ids, admin.Do(t.Context(), "CLUSTER", "MYID").Val().(string))
		for k, other := range c.nodes {
			if k != i {
				must(t, admin.Do(t.Context(), "CLUSTER", "MEET", "127.0.0.1", other.port, other.bus).Err())
			}
		}
	}
	c.client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = c.client.Close() })
	for _, n := range c.nodes {
		admin := n.client(t)
		eventually(t, "every node knows all slots", func() bool {
			info := admin.ClusterInfo(t.Context()).Val()
			return strings.Contains(info, "cluster_state:ok\r") && strings.Contains(info, "cluster_size:3\r")
		})
	}
	return c
}

func TestClusterConforms(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	t.Run("OneSlot", func(t *testing.T) {
		t.Parallel()
		storetest.Run(t, func(t *testing.T) store.Store { return newStore(t, c.client, OneSlot()) })
	})
	t.Run("ByKey", func(t *testing.T) {
		t.Parallel()
		storetest.Run(t, func(t *testing.T) store.Store { return newStore(t, c.client) })
	})
	t.Run("Check", func(t *testing.T) {
		must(t, newStore(t, c.client).Check(t.Context()))
		must(t, newStore(t, c.client, OneSlot()).Check(t.Context()))
	})
}

// A client of one server finds no other server of a Cluster.
func TestClientOfOneServerIsAWrongSetUpInACluster(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	for i, n := range c.nodes {
		st := newStore(t, n.client(t))
		for what, err := range map[string]error{
			"Check":      st.Check(t.Context()),
			"other slot": leaseError(t, st, "a"), "yet another": leaseError(t, st, "b"), "third": leaseError(t, st, "c"), // of two nodes at least
		} {
			if what != "Check" && err == nil {
				continue // of this node
			}
			if !errors.Is(err, store.ErrSetup) || !strings.Contains(err.Error(), "redis.ClusterClient") {
				t.Errorf("node %d: %s: %v", i, what, err)
			}
		}
	}
}

func leaseError(t *testing.T, st *Store, key string) error {
	t.Helper()
	_, err := st.Lease(t.Context(), ask(store.Part{Budget: bucket(key), Want: 1}))
	return err
}

func TestPartsInDifferentSlotsAreApart(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	a, b := bucket("a"), bucket("b")
	both := ask(store.Part{Budget: a, Want: 1}, store.Part{Budget: b, Want: 1})
	leases, err := newStore(t, c.client).Lease(t.Context(), append(both, ask(store.Part{Budget: a, Want: 9})...))
	must(t, err)
	if !errors.Is(leases[0].Err, store.ErrApart) {
		t.Errorf("the error is %v", leases[0].Err)
	}
	if leases[1].Err != nil || leases[1].Parts[0].Tokens != 5 {
		t.Errorf("the other ask: %+v", leases[1])
	}
	leases, err = newStore(t, c.client, OneSlot()).Lease(t.Context(), both)
	must(t, err)
	if leases[0].Err != nil || leases[0].Parts[1].Tokens != 1 {
		t.Errorf("in one slot: %+v", leases[0])
	}
}

// Limits without a key are in one slot, or each in its own.
func TestLimitsWithoutAKeyAreDividedAmongServers(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	a, b := bucket(""), bucket("")
	a.Limit, b.Limit = "a", "b"
	both := ask(store.Part{Budget: a, Want: 1}, store.Part{Budget: b, Want: 1})
	leases, err := newStore(t, c.client).Lease(t.Context(), both)
	must(t, err)
	must(t, leases[0].Err)
	st := newStore(t, c.client, SlotPerLimit())
	leases, err = st.Lease(t.Context(), append(both, ask(store.Part{Budget: a, Want: 9})...))
	must(t, err)
	if !errors.Is(leases[0].Err, store.ErrApart) {
		t.Errorf("the error is %v", leases[0].Err)
	}
	if leases[1].Err != nil || leases[1].Parts[0].Tokens != 5 {
		t.Errorf("a new budget has another number of tokens: %+v", leases[1])
	}
	all, err := st.Budgets(t.Context(), "{#a}")
	must(t, err)
	if len(all) != 1 || all[0].Key != "#" || all[0].Limit != "a" {
		t.Errorf("%+v", all)
	}
}

func TestOneFailedNodeFailsItsAsksAlone(t *testing.T) { // slow: it takes seconds of real time
	t.Parallel()
	c := startCluster(t)
	st := newStore(t, c.client)
	var asks []store.Ask
	for i := range 30 {
		asks = append(asks, ask(store.Part{Budget: bucket(fmt.Sprint("key-", i)), Want: 1})...)
	}
	_, err := st.Lease(t.Context(), asks)
	must(t, err)
	must(t, c.nodes[0].client(t).ConfigSet(t.Context(), "maxmemory", "1").Err())
	leases, err := st.Lease(t.Context(), asks)
	must(t, err)
	failed := 0
	for i, l := range leases {
		here := slotOf(asks[i].Parts[0].Budget.Key) < slotCount/3
		if (l.Err != nil) != here {
			t.Errorf("ask %d: %+v", i, l)
		}
		if l.Err != nil {
			failed++
		}
	}
	if failed == 0 || failed == len(asks) {
		t.Errorf("%d of %d failed", failed, len(asks))
	}
}

func TestMovingSlotLosesAndMintsNothing(t *testing.T) { // slow: it takes seconds of real time
	t.Parallel()
	c := startCluster(t)
	st := newStore(t, c.client)
	b := store.Budget{Kind: store.Bucket, Limit: "l", Key: "moves", N: 100, Per: time.Second, Burst: 50, Initial: 50}
	slot := slotOf("moves")
	from := slot * 3 / slotCount
	to := (from + 1) % 3
	source, target := c.nodes[from].client(t), c.nodes[to].client(t)
	var setup atomic.Int64
	began := time.Now()
	got := under(t, st, b, func() {
		time.Sleep(200 * time.Millisecond)
		must(t, target.Do(t.Context(), "CLUSTER", "SETSLOT", slot, "IMPORTING", c.ids[from]).Err())
		must(t, source.Do(t.Context(), "CLUSTER", "SETSLOT", slot, "MIGRATING", c.ids[to]).Err())
		time.Sleep(200 * time.Millisecond)
		must(t, source.Do(t.Context(), "MIGRATE", "127.0.0.1", c.nodes[to].port, st.key(&b), 0, 5000).Err())
		two := b
		two.Limit = "second" // its key is not there yet: a script that needs both
		leases, err := st.Lease(t.Context(), ask(store.Part{Budget: b}, store.Part{Budget: two}))
		if err == nil {
			err = leases[0].Err
		}
		if errors.Is(err, store.ErrSetup) {
			setup.Add(1)
		}
		time.Sleep(200 * time.Millisecond)
		for _, n := range []*redis.Client{target, source} {
			must(t, n.Do(t.Context(), "CLUSTER", "SETSLOT", slot, "NODE", c.ids[to]).Err())
		}
		time.Sleep(200 * time.Millisecond)
	})
	most := int64(50 + 100*time.Since(began).Seconds() + 1)
	least := most / 2 // most*8/10, on a machine that is three times slower
	if testing.Short() {
		least = 0
	}
	if got > most || got < least || setup.Load() > 0 {
		t.Errorf("%d tokens, at most %d; %d set-up errors", got, most, setup.Load())
	}
	if n := target.Exists(t.Context(), st.key(&b)).Val(); n != 1 {
		t.Error("the key is not where it was moved to")
	}
}
