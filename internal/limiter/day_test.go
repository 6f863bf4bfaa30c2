package limiter_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// A dayStore is a Store that is so far away, and counts what is leased and not returned of each limit.
type dayStore struct {
	store.Store
	trip time.Duration

	mu     sync.Mutex
	leased map[string]int64
	calls  int
}

func newDayStore(trip time.Duration) *dayStore {
	return &dayStore{Store: store.NewMemory(), trip: trip, leased: make(map[string]int64)}
}

func (s *dayStore) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	time.Sleep(s.trip / 2)
	leases, err := s.Store.Lease(ctx, asks)
	time.Sleep(s.trip / 2)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	for i := range leases {
		for k, p := range asks[i].Parts {
			for _, r := range p.Back {
				s.leased[p.Budget.Limit] -= r.Tokens
			}
			s.leased[p.Budget.Limit] += leases[i].Parts[k].Tokens
		}
	}
	return leases, err
}

func (s *dayStore) of(limit string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leased[limit]
}

// A process whose requests wait for another limit leases of the day what that lets go, and some milliseconds of requests. So another
// process has the rest of the day, and a kill costs no more.
func TestADayIsLeasedAsFastAsTheScarcestLimitLetsGo(t *testing.T) {
	const day, queue = 5000, 1000
	bucket := func(o ...throttle.LimitOption) throttle.Limit {
		return throttle.TokenBucket(5, time.Second, append(o, throttle.Burst(50))...)
	}
	fast := func(o ...throttle.LimitOption) throttle.Limit {
		return throttle.TokenBucket(500, time.Second, append(o, throttle.Burst(1))...)
	}
	pace := func(o ...throttle.LimitOption) throttle.Limit { return throttle.Pace(5, time.Second, o...) }
	fixed := func(o ...throttle.LimitOption) throttle.Limit { return throttle.FixedWindow(100, time.Minute, o...) }
	sliding := func(o ...throttle.LimitOption) throttle.Limit { return throttle.SlidingWindow(100, time.Minute, o...) }
	for name, c := range map[string]struct {
		beside func(opts ...throttle.LimitOption) throttle.Limit
		local  bool
		trip   time.Duration
		unused int64 // at most: what was sent in 10 ms lately, or can be sent until two round trips and 5 ms later
		sent   int   // in 150 s, at least
	}{
		"a shared minute":         {fixed, false, 4 * ms, 20, 300},
		"a local minute":          {fixed, true, 4 * ms, 100, 300},
		"a shared sliding minute": {sliding, false, 4 * ms, 20, 300},
		"a local sliding minute":  {sliding, true, 4 * ms, 100, 300},
		"a shared bucket":         {bucket, false, 4 * ms, 2, 790},
		"a local bucket":          {bucket, true, 4 * ms, 10, 790},
		"a local bucket, far":     {bucket, true, 100 * ms, 10, 790},
		"a fast shared bucket":    {fast, false, 4 * ms, 15, queue},
		"a fast local bucket":     {fast, true, 4 * ms, 15, queue},
		"a shared pace":           {pace, false, 4 * ms, 2, 745},
		"a local pace":            {pace, true, 4 * ms, 1, 745},
	} {
		within(t, name, func(t *testing.T) {
			s := newDayStore(c.trip)
			options := []throttle.LimitOption{throttle.Name("beside")}
			if !c.local {
				options = append(options, throttle.Shared(s))
			}
			limits := func() throttle.Option {
				return throttle.WithLimit(
					throttle.FixedWindow(day, 24*time.Hour, throttle.Name("day"), throttle.Shared(s)), c.beside(options...))
			}
			l, other := limiterOf(t, limits()), limiterOf(t, throttle.WithLimit(
				throttle.FixedWindow(day, 24*time.Hour, throttle.Name("day"), throttle.Shared(s))))
			ctx, cancel := context.WithCancel(t.Context())
			var mu sync.Mutex
			sent, others := 0, 0
			var wg sync.WaitGroup
			for range queue {
				wg.Go(func() {
					if l.Wait(ctx, throttle.Ask{}) == nil {
						mu.Lock()
						sent++
						mu.Unlock()
					}
				})
			}
			most, mostAt := int64(0), time.Duration(0)
			began := time.Now()
			for step := range 15_000 {
				time.Sleep(10 * ms)
				if step%100 == 50 {
					assert.NoError(t, other.Wait(t.Context(), throttle.Ask{MaxWait: new(time.Second)}), "the day has tokens")
					others++
				}
				mu.Lock()
				unused := s.of("day") - int64(sent+others)
				mu.Unlock()
				if unused > most {
					most, mostAt = unused, time.Since(began)
				}
			}
			t.Logf("%d sent, at most %d unused at %v, %d calls", sent, most, mostAt, s.calls)
			assert.LessOrEqual(t, most, c.unused)
			assert.GreaterOrEqual(t, sent, c.sent)
			cancel()
			wg.Wait()
			s.rest()
		})
	}
}

// rest waits until what was not used has been returned.
func (s *dayStore) rest() { time.Sleep(time.Minute) }
