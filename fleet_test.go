package throttle

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// far is a Store whose calls take 2 ± 1 ms, and of which a part of the responses is lost.
type far struct {
	Store
	mu   sync.Mutex
	dice *rand.Rand
	lost float64
	n    int // calls
}

func (s *far) roll() (there, back time.Duration, lost bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	return ms/2 + time.Duration(s.dice.Int64N(int64(ms))), ms/2 + time.Duration(s.dice.Int64N(int64(ms))), s.dice.Float64() < s.lost
}

func (s *far) Lease(ctx context.Context, asks []LeaseAsk) ([]Lease, error) {
	there, back, lost := s.roll()
	time.Sleep(there)
	leases, err := s.Store.Lease(ctx, asks)
	time.Sleep(back)
	if lost {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return leases, err
}

// TestFleetSharesOneBudget has eight Limiters with callers that always want more, and counts what each gets.
func TestFleetSharesOneBudget(t *testing.T) {
	for name, c := range map[string]struct {
		limit   func(LimitOption) Limit
		perSec  float64
		burst   float64
		callers int
		lost    float64
		used    float64 // of the budget, at least
		shares  float64 // how far that of a process may be from the mean
	}{
		"bucket":         {func(s LimitOption) Limit { return TokenBucket(1000, time.Second, Burst(100), s) }, 1000, 100, 16, 0, 0.97, 0.25},
		"fast bucket":    {func(s LimitOption) Limit { return TokenBucket(20_000, time.Second, Burst(1000), s) }, 20_000, 1000, 64, 0, 0.97, 0.25},
		"slow bucket":    {func(s LimitOption) Limit { return TokenBucket(20, time.Second, Burst(5), s) }, 20, 5, 4, 0, 0.97, 0.25},
		"pace":           {func(s LimitOption) Limit { return Pace(500, time.Second, s) }, 500, 1, 16, 0, 0.97, 0.25},
		"sliding window": {func(s LimitOption) Limit { return SlidingWindow(500, time.Second, s) }, 500, 500, 16, 0, 0.95, 0.6},
		"fixed window":   {func(s LimitOption) Limit { return FixedWindow(500, time.Second, s) }, 500, 1000, 16, 0, 0.97, 0.6},
		"lost responses": {func(s LimitOption) Limit { return TokenBucket(1000, time.Second, Burst(100), s) }, 1000, 100, 16, 0.01, 0.9, 0.3},
	} {
		within(t, name, func(t *testing.T) {
			s := &far{Store: NewMemoryStore(), dice: rand.New(rand.NewPCG(1, 2)), lost: c.lost}
			limit := c.limit(Shared(s))
			limit.name = "calls"
			const processes, warm = 8, 2
			seconds := 8.0
			if c.perSec > 5000 {
				seconds = 2
			}
			ctx, cancel := context.WithCancel(t.Context())
			var mu sync.Mutex
			var wg sync.WaitGroup
			all, over := 0, 0.0
			used := make([]int, processes)
			began := time.Now()
			var fleet []*Limiter
			for i := range processes {
				l := limiterOf(t, WithLimit(limit))
				fleet = append(fleet, l)
				for range c.callers {
					wg.Go(func() {
						for l.Wait(ctx, "", 1) == nil {
							mu.Lock()
							all++
							over = max(over, float64(all)-c.burst-c.perSec*time.Since(began).Seconds())
							if time.Since(began) >= warm*time.Second {
								used[i]++
							}
							mu.Unlock()
							time.Sleep(time.Microsecond)
						}
					})
				}
			}
			time.Sleep(time.Duration((warm + seconds) * float64(time.Second)))
			cancel()
			wg.Wait()
			s.mu.Lock()
			sum, calls := 0, s.n
			s.mu.Unlock()
			for _, n := range used {
				sum += n
			}
			part := float64(sum) / (c.perSec * seconds)
			t.Logf("%.3f of the budget, %v, %.2f calls a token, over %.1f", part, used, float64(calls)/float64(all), over)
			require.LessOrEqual(t, over, 1.0)
			require.GreaterOrEqual(t, part, c.used)
			for _, n := range used {
				require.InEpsilon(t, float64(sum)/processes, n, c.shares, "%v", used)
			}
			synctest.Wait()
			for _, l := range fleet {
				checkInvariants(t, l)
			}
			time.Sleep(time.Second)
		})
	}
}
