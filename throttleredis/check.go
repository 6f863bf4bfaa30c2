package throttleredis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
)

// ErrEvicts is in the chain of [Store.Check]'s error if Redis may evict keys for lack of memory. A budget whose key is
// evicted starts again: at most one burst of a bucket, or n of a window, is granted in addition.
var ErrEvicts = errors.New("throttleredis: Redis may evict the keys of budgets")

// checkTags is the number of slots of a Cluster that Check uses. With three masters, the chance that it misses one is 10^-11.
const checkTags = 64

// Check reports whether the store can work. On every server that it would write to, it decides an ask by the script's hash and by
// its source, and checks whether keys may be evicted. Call it when a program starts, because New sends nothing to Redis.
//
// The error has store.ErrSetup in its chain if the set-up must change, and ErrEvicts if eviction is the only problem. If the user has
// no permission for INFO, Check cannot find out whether keys may be evicted, and reports nothing about it. The keys that Check writes
// expire after two seconds.
func (s *Store) Check(ctx context.Context) error {
	var asks []store.Ask
	for i := range checkTags {
		var a store.Ask
		for _, limit := range []string{"check-1", "check-2"} {
			a.Parts = append(a.Parts, store.Part{
				Budget: store.Budget{Kind: store.Bucket, Limit: limit, Key: fmt.Sprintf("throttleredis.Check-%d", i), N: 1, Per: time.Second, Burst: 1, Initial: 1},
				Need:   1, Back: []store.Return{{Tokens: 1}}, // for the nonce
			})
		}
		if asks = append(asks, a); !s.cluster && i > 0 {
			break // two keys are enough to find out that the server belongs to a Cluster
		}
	}
	for _, run := range []func(context.Context, []*call){
		func(ctx context.Context, calls []*call) { s.execHash(ctx, calls, nil) }, s.execSource,
	} {
		leases := make([]store.Lease, len(asks))
		calls := s.calls(asks, leases)
		run(ctx, calls)
		for _, c := range calls {
			err := c.err
			if redis.HasErrorPrefix(err, "NOSCRIPT") {
				continue
			}
			if err == nil {
				err = c.read(leases)
			}
			for _, i := range c.asks {
				err = cmp.Or(err, leases[i].Err)
			}
			if err != nil {
				return s.classifyAfter(false, err)
			}
		}
	}
	return s.checkEviction(ctx)
}

func (s *Store) checkEviction(ctx context.Context) error {
	cluster, ok := s.client.(*redis.ClusterClient)
	if !ok {
		return s.evicts(ctx, s.client)
	}
	var mu sync.Mutex
	var faults []error
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		fault := s.evicts(ctx, c)
		mu.Lock()
		defer mu.Unlock()
		faults = append(faults, fault)
		return nil
	})
	return errors.Join(append(faults, err)...)
}

func (s *Store) evicts(ctx context.Context, c redis.Cmdable) error {
	info, err := c.Info(ctx, "memory").Result()
	if redis.HasErrorPrefix(err, "NOPERM") {
		s.logger.DebugContext(ctx, "throttleredis: INFO is not permitted, so it is unknown whether keys may be evicted")
		return nil
	}
	if err != nil {
		return s.classifyAfter(false, err)
	}
	values := make(map[string]string)
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			values[name] = value
		}
	}
	if policy := values["maxmemory_policy"]; values["maxmemory"] != "0" && policy != "" && policy != "noeviction" {
		return fmt.Errorf("%w: maxmemory is %s bytes, maxmemory-policy is %s", ErrEvicts, values["maxmemory"], policy)
	}
	return nil
}
