package limiter_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/meter"
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

// called returns how many calls have ended. Another one may be under way.
func (s *dayStore) called() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *dayStore) of(limit string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leased[limit]
}

// A process whose requests wait for another limit leases of the day what that lets go, and some milliseconds of requests. So another
// process has the rest of the day, and a kill costs no more.
func TestADayIsLeasedAsFastAsTheScarcestLimitLetsGo(t *testing.T) { // slow: a day of calls
	const day, queue = 5000, 1000
	bucket := func(o ...ruleOption) rule {
		return tokenBucket(5, time.Second, append(o, withBurst(50))...)
	}
	fast := func(o ...ruleOption) rule {
		return tokenBucket(500, time.Second, append(o, withBurst(1))...)
	}
	pace := func(o ...ruleOption) rule { return pace(5, time.Second, o...) }
	fixed := func(o ...ruleOption) rule { return fixedWindow(100, time.Minute, o...) }
	sliding := func(o ...ruleOption) rule { return slidingWindow(100, time.Minute, o...) }
	for name, c := range map[string]struct {
		beside func(opts ...ruleOption) rule
		local  bool
		trip   time.Duration
		unused int64 // at most: what was sent in 10 ms lately, or can be sent until two round trips and 5 ms later
		sent   int   // in 150 s, at least
	}{
		"a shared minute":         {fixed, false, 4 * ms, 20, 300},
		"a local minute":          {fixed, true, 4 * ms, 100, 300},
		"a shared sliding minute": {sliding, false, 4 * ms, 20, 300},
		"a local sliding minute":  {sliding, true, 4 * ms, 100, 300},
		"a shared bucket":         {bucket, false, 4 * ms, 20, 790}, // 50 were sent when it begins
		"a local bucket":          {bucket, true, 4 * ms, 10, 790},
		"a local bucket, far":     {bucket, true, 100 * ms, 10, 790},
		"a fast shared bucket":    {fast, false, 4 * ms, 15, queue},
		"a fast local bucket":     {fast, true, 4 * ms, 15, queue},
		"a shared pace":           {pace, false, 4 * ms, 2, 745},
		"a local pace":            {pace, true, 4 * ms, 1, 745},
	} {
		within(t, name, func(t *testing.T) {
			s := newDayStore(c.trip)
			options := []ruleOption{named("beside")}
			if !c.local {
				options = append(options, shared(s))
			}
			daily := fixedWindow(day, 24*time.Hour, named("day"), shared(s))
			l, other := drive(t, daily, c.beside(options...)), drive(t, daily)
			ctx, cancel := context.WithCancel(t.Context())
			var mu sync.Mutex
			sent, others := 0, 0
			var wg sync.WaitGroup
			for range queue {
				wg.Go(func() {
					if l.wait(ctx, ask{}) == nil {
						mu.Lock()
						sent++
						mu.Unlock()
					}
				})
			}
			most, mostAt := int64(0), time.Duration(0)
			began := time.Now()
			time.Sleep(ms / 3) // not when a response arrives
			for step := range 15_000 {
				time.Sleep(10 * ms)
				if step%100 == 50 {
					assert.NoError(t, other.wait(t.Context(), ask{MaxWait: ptr(time.Second)}), "the day has tokens")
					others++
				}
				mu.Lock()
				unused := s.of("day") - int64(sent+others)
				mu.Unlock()
				if unused > most {
					most, mostAt = unused, time.Since(began)
				}
			}
			t.Logf("%d sent, at most %d unused at %v, %d calls", sent, most, mostAt, s.called())
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

// A batch beside processes that want little gets what these leave of a long window, at the speed of its other limits, until nothing is
// left.
func TestALongWindowIsFirstComeFirstServed(t *testing.T) { // slow: a day of eight processes
	const n, neighbours = 8000, 7
	day := 24 * time.Hour
	fixed := func(into time.Duration) func(...ruleOption) rule {
		return func(o ...ruleOption) rule {
			return fixedWindow(n, day, append(o, startingAt(time.Now().Add(-into)))...)
		}
	}
	sliding := func(o ...ruleOption) rule { return slidingWindow(n, day, o...) }
	month := func(o ...ruleOption) rule {
		return calendarWindow(n, meter.Month, time.UTC, o...)
	}
	rate := func(perSecond int64) []rule {
		return []rule{tokenBucket(perSecond, time.Second, named("rate"), withBurst(1))}
	}
	for name, c := range map[string]struct {
		window  func(...ruleOption) rule
		callers int
		beside  []rule
		within  time.Duration // in which it has what the neighbours leave
		rate    float64       // at which it is served until then; 0: not asserted
	}{
		"a day, sequential":                {fixed(time.Hour), 1, nil, time.Minute, 0},
		"a day, 64 callers":                {fixed(time.Hour), 64, nil, 15 * time.Second, 0},
		"a day that begins, 64 callers":    {fixed(0), 64, nil, 25 * time.Second, 0},
		"a day that ends, 64 callers":      {fixed(23 * time.Hour), 64, nil, 15 * time.Second, 0},
		"a sliding day, sequential":        {sliding, 1, nil, time.Minute, 0},
		"a sliding day, 64 callers":        {sliding, 64, nil, 25 * time.Second, 0},
		"a month, sequential":              {month, 1, nil, time.Minute, 0},
		"a month, 64 callers":              {month, 64, nil, 25 * time.Second, 0},
		"a day at 50/s, sequential":        {fixed(time.Hour), 1, rate(50), 3 * time.Minute, 50},
		"a day at 50/s, 64 callers":        {fixed(time.Hour), 64, rate(50), 3 * time.Minute, 50},
		"a day at 200/s, 64 callers":       {fixed(time.Hour), 64, rate(200), time.Minute, 200},
		"a day that begins at 200/s":       {fixed(0), 64, rate(200), time.Minute, 200},
		"a month at 200/s, 64 callers":     {month, 64, rate(200), time.Minute, 200},
		"a sliding day at 50/s":            {sliding, 64, rate(50), 4 * time.Minute, 50},
		"a sliding day at 5/s, sequential": {sliding, 1, rate(5), 28 * time.Minute, 5},
	} {
		within(t, name, func(t *testing.T) {
			s := newDayStore(4 * ms)
			window := c.window(named("day"), shared(s))
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var batch, others atomic.Int64
			for i := range neighbours {
				l := drive(t, window)
				wg.Go(func() {
					time.Sleep(time.Duration(i) * 700 * ms)
					for l.wait(ctx, ask{}) == nil {
						others.Add(1)
						time.Sleep(5 * time.Second)
					}
				})
			}
			time.Sleep(20 * time.Second)
			l := drive(t, limits(append([]rule{window}, c.beside...)...))
			began, latest := time.Now(), atomic.Int64{}
			for range c.callers {
				wg.Go(func() {
					for l.wait(ctx, ask{}) == nil {
						batch.Add(1)
						latest.Store(int64(time.Since(began))) // time does not go back in a bubble
					}
				})
			}
			time.Sleep(10 * time.Second)
			early := batch.Load()
			time.Sleep(c.within - 10*time.Second)
			last := time.Duration(latest.Load())
			t.Logf("%d after 10 s, %d after %v and %d of others", early, batch.Load(), last, others.Load())
			assert.InDelta(t, n, batch.Load()+others.Load(), 2, "nothing is withheld")
			assert.Less(t, others.Load(), int64(n/2))
			if c.rate > 0 {
				assert.InDelta(t, c.rate*last.Seconds(), batch.Load(), 0.02*n, "nothing but the other limit delays it")
			}
			cancel()
			wg.Wait()
			s.rest()
		})
	}
}

// Three processes share a day, a minute for each tenant, and slots, beside a bucket of their own. Tenants whose minute is used up stop no
// others, and of the day no more is leased than what is sent.
func TestADayIsLeasedForTheTenantsThatCanGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newDayStore(4 * ms)
		shared := shared(s)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		var sent [3]atomic.Int64 // by tenant
		for range 3 {
			l := drive(t, fixedWindow(5000, 24*time.Hour, named("day"), shared), fixedWindow(60, time.Minute, named("tenant"), shared), inFlight(30, named("flight"), shared), tokenBucket(50, time.Second, named("own"), withBurst(1)))
			for i := range sent {
				for range 20 {
					wg.Go(func() {
						for {
							g, err := l.acquire(ctx, ask{Keys: map[string]string{"tenant": string(rune('a' + i))}})
							if err != nil {
								return
							}
							sent[i].Add(1)
							time.Sleep(50 * ms)
							g.done()
							if i > 0 {
								time.Sleep(10 * time.Second)
							}
						}
					})
				}
			}
		}
		time.Sleep(ms / 3)
		most := int64(0)
		for range 20 * 60 * 2 {
			time.Sleep(50 * ms)
			most = max(most, s.of("day")-sent[0].Load()-sent[1].Load()-sent[2].Load())
		}
		for i := range sent {
			assert.EqualValues(t, 2*60, sent[i].Load(), "two minutes of tenant %d", i)
		}
		assert.LessOrEqual(t, most, int64(9), "a request of each tenant in each process")
		t.Logf("%d, %d and %d sent, at most %d unused, %d calls", sent[0].Load(), sent[1].Load(), sent[2].Load(), most, s.called())
		cancel()
		wg.Wait()
		s.rest()
	})
}
