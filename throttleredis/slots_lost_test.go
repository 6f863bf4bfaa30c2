package throttleredis

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// TestSlotsOfALostStateAreNotGrantedTwice counts what is in flight besides the requests that were when the state was lost.
func TestSlotsOfALostStateAreNotGrantedTwice(t *testing.T) {
	if testing.Short() {
		return // it takes seconds of real time
	}
	flush := func(t *testing.T, s *server) { must(t, s.client(t).FlushAll(t.Context()).Err()) }
	restart := func(away time.Duration) func(*testing.T, *server) {
		return func(t *testing.T, s *server) {
			s.kill(t)
			time.Sleep(away)
			s.again(t)
		}
	}
	for name, c := range map[string]struct {
		processes, callers int
		n                  int64
		takes              time.Duration
		lose               func(*testing.T, *server)
	}{
		"FLUSHALL, 2 processes":                           {2, 6, 5, 5 * time.Millisecond, flush},
		"FLUSHALL, more processes than slots":             {50, 2, 12, 50 * time.Millisecond, flush},
		"a restart after 1 s":                             {8, 8, 16, 5 * time.Millisecond, restart(time.Second)},
		"a restart after 5 s, each with its share":        {8, 8, 16, 20 * time.Millisecond, restart(5 * time.Second)},
		"a restart after more than a lease, with a share": {8, 8, 16, 20 * time.Millisecond, restart(store.SlotLease + time.Second)},
		"a restart, long requests":                        {8, 8, 16, 3 * time.Second, restart(time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
			var mu sync.Mutex
			var wg sync.WaitGroup
			var epoch, inFlight, most, ended int64 // of requests that began in this epoch
			for range c.processes {
				l := limiterOn(t, s.addr(), slotsOf(c.n), throttle.WithoutStore(throttle.OutageLocalShare), throttle.ExpectProcesses(c.processes))
				for range c.callers {
					wg.Go(func() {
						for ctx.Err() == nil {
							g, err := l.Acquire(ctx, throttle.Ask{})
							if err != nil {
								time.Sleep(10 * time.Millisecond)
								continue
							}
							mu.Lock()
							mine := epoch
							inFlight++
							most = max(most, inFlight)
							mu.Unlock()
							time.Sleep(c.takes)
							mu.Lock()
							if mine == epoch {
								inFlight--
								ended++
							}
							mu.Unlock()
							g.Done()
						}
					})
				}
			}
			begin := func() (had int64) {
				mu.Lock()
				defer mu.Unlock()
				had, epoch, inFlight, most, ended = most, epoch+1, 0, 0, 0
				return had
			}
			time.Sleep(4 * time.Second)
			before := begin()
			c.lose(t, s)
			lost := begin()
			time.Sleep(8 * time.Second)
			after := begin()
			cancel()
			wg.Wait()
			t.Logf("in flight at most: %d before, %d until Redis was there again, then %d of %d", before, lost, after, c.n)
			if max(before, lost, after) > c.n {
				t.Errorf("more than %d slots were used", c.n)
			}
			if after < c.n {
				t.Errorf("only %d of %d slots were used", after, c.n)
			}
		})
	}
}

// TestSlotsOfAnEarlierReleaseAreRead has a state without the last field, as releases wrote it that share the store.
func TestSlotsOfAnEarlierReleaseAreRead(t *testing.T) {
	s := start(t)
	c := s.client(t)
	st := newStore(t, c)
	b := store.Budget{Kind: store.Slots, Limit: "slots", N: 5}
	of := func(holder string, held, want int64) store.LeasedPart {
		t.Helper()
		leases, err := st.Lease(t.Context(), []store.Ask{{Parts: []store.Part{{Budget: b, Holder: holder, Held: held, Need: min(1, want), Want: want}}}})
		must(t, err)
		must(t, leases[0].Err)
		return leases[0].Parts[0]
	}
	cut := func() {
		t.Helper()
		state, err := c.HGet(t.Context(), st.key(&b), "").Result()
		must(t, err)
		must(t, c.HSet(t.Context(), st.key(&b), "", state[:1+7*8]).Err())
	}
	if got := of("a", 0, 3); got.Tokens != 3 {
		t.Errorf("%+v", got)
	}
	cut()
	if got := of("b", 0, 9); got.Tokens != 2 || got.Left != 0 {
		t.Errorf("%+v", got)
	}
	if got := of("b", 3, 1); got.Over != 1 || got.Wait != 4*time.Second {
		t.Errorf("a process with a slot that the store does not know: %+v", got)
	}
	of("a", 1, 0)
	if got := of("b", 3, 1); got.Tokens != 0 || got.Over != 0 {
		t.Errorf("before all have asked: %+v", got)
	}
	cut()
	if got := of("b", 3, 1); got.Tokens != 1 {
		t.Errorf("after an earlier release has written the state: %+v", got)
	}
}
