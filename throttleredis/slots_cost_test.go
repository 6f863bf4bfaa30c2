package throttleredis

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
)

// scriptTime returns for how long Redis ran scripts by their hash since its statistics were reset, in µs, and how many.
func scriptTime(t testing.TB, c *redis.Client) (micros, calls float64) {
	t.Helper()
	m := regexp.MustCompile(`cmdstat_evalsha:calls=(\d+),usec=(\d+)`).FindStringSubmatch(c.Info(t.Context(), "commandstats").Val())
	if m == nil {
		t.Fatal("Redis has no statistics of scripts")
	}
	calls, _ = strconv.ParseFloat(m[1], 64)
	micros, _ = strconv.ParseFloat(m[2], 64)
	return micros, calls
}

// TestSlotsCostAsMuchWithManyProcesses has up to 1,000 processes that renew their slots, in turn.
func TestSlotsCostAsMuchWithManyProcesses(t *testing.T) {
	if testing.Short() {
		return // it takes seconds of real time
	}
	s := start(t)
	c := s.client(t)
	st := newStore(t, c)
	cost := make(map[int]float64)
	for _, processes := range []int{10, 100, 500, 1000} {
		b := store.Budget{Kind: store.Slots, Limit: "slots", Key: fmt.Sprint(processes), N: 10_000}
		renew := func(rounds int) {
			for i := range rounds * processes {
				lease1(t, st, store.Part{Budget: b, Holder: fmt.Sprintf("host-1234-%016d", i%processes), Held: 3, Need: 1, Want: 1})
			}
		}
		renew(1)
		must(t, c.ConfigResetStat(t.Context()).Err())
		renew(max(1, 3000/processes))
		micros, calls := scriptTime(t, c)
		cost[processes] = micros / calls
		t.Logf("%d processes: %.1f µs a call", processes, cost[processes])
	}
	if cost[1000] > 8*cost[10] {
		t.Errorf("a call costs %.1f µs with 1,000 processes, %.1f with 10", cost[1000], cost[10])
	}
}
