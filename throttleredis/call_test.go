package throttleredis

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
)

// A script decides no more parts than can be decided in a fraction of a millisecond, whatever the number of parts of an ask.
func TestScriptsAreShort(t *testing.T) {
	s := newStore(t, redis.NewClient(&redis.Options{}))
	for _, c := range []struct{ asks, parts, scripts int }{{0, 1, 0}, {1, 1, 1}, {32, 1, 1}, {33, 1, 2}, {128, 1, 4}, {128, 3, 13}, {128, 16, 64}, {128, 17, 128}, {2, 40, 2}} {
		asks := make([]store.Ask, c.asks)
		for i := range asks {
			for k := range c.parts {
				asks[i].Parts = append(asks[i].Parts, store.Part{Budget: store.Budget{Kind: store.Fixed, Limit: fmt.Sprint(k), Key: fmt.Sprint(i), N: 1, Per: time.Second}})
			}
		}
		calls := s.calls(asks, make([]store.Lease, c.asks))
		if len(calls) != c.scripts {
			t.Errorf("%d asks of %d parts: %d scripts, want %d", c.asks, c.parts, len(calls), c.scripts)
		}
		next := 0
		for _, call := range calls {
			if len(call.ends) > mostParts && len(call.asks) > 1 {
				t.Errorf("a script of %d parts", len(call.ends))
			}
			for _, ask := range call.asks {
				if ask != next {
					t.Fatalf("ask %d follows %d", ask, next-1)
				}
				next++
			}
		}
		if next != c.asks {
			t.Errorf("%d of %d asks", next, c.asks)
		}
	}
}
