package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

// A forgetful is a store 1 to 3 ms away that may be out of reach, and may lose its state.
type forgetful struct {
	mu     sync.Mutex
	isAway bool
	store  store.Store
	rand   *rand.Rand
}

var errAway = errors.New("connection refused")

func (s *forgetful) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	s.mu.Lock()
	there, back, in, isAway := s.rand.Int64N(int64(time.Millisecond)), s.rand.Int64N(int64(time.Millisecond)), s.store, s.isAway
	s.mu.Unlock()
	time.Sleep(500*time.Microsecond + time.Duration(there))
	if isAway {
		return nil, errAway
	}
	leases, err := in.Lease(ctx, asks)
	time.Sleep(500*time.Microsecond + time.Duration(back))
	return leases, err
}

func (s *forgetful) set(isAway, loses bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isAway = isAway; loses {
		s.store = store.NewMemory()
	}
}

// A lostWorld is a fleet whose store is away for some time, and may have lost its state then.
type lostWorld struct {
	processes, callers int // callers of each process
	n                  int64
	takes              time.Duration // each request
	away               time.Duration // 0: the store is reachable all the time
	loses              bool
	without            supply.Without
}

func drawLost(r *rand.Rand) lostWorld {
	w := lostWorld{
		processes: []int{2, 3, 8, 50}[r.IntN(4)],
		callers:   1 + r.IntN(8),
		takes:     []time.Duration{5 * ms, 50 * ms, time.Second, 30 * time.Second}[r.IntN(4)],
		away:      []time.Duration{0, time.Second, 4 * time.Second, 13 * time.Second, time.Minute, 10 * time.Minute}[r.IntN(6)],
		loses:     r.IntN(3) > 0,
		without:   []supply.Without{supply.Nothing, supply.ButLocally, supply.Limit}[r.IntN(3)],
	}
	w.n = 1 + r.Int64N(int64(w.processes*w.callers)) // so that some callers wait
	if w.away == 0 {
		w.loses = true
	}
	if w.processes == 50 && w.takes < time.Second {
		w.takes = time.Second // fewer steps
	}
	return w
}

// Requests that were in flight when the store came back, with another state or the old one, do not count: they may last as long as they
// like.
func TestSlotsOfALostStateAreNotGrantedTwice(t *testing.T) { // slow: minutes of fleets, in 15 worlds
	worlds := uint64(15)
	if testing.Short() {
		worlds = 5
	}
	for seed := range worlds {
		r := rand.New(rand.NewPCG(seed, 5))
		w := drawLost(r)
		within(t, fmt.Sprintf("%d: %+v", seed, w), func(t *testing.T) { w.play(t, r) })
	}
}

func (w *lostWorld) play(t *testing.T, r *rand.Rand) {
	phase := time.Duration(r.Int64N(int64(3 * time.Second))) // renewals are at any time
	s := &forgetful{store: store.NewMemory(), rand: r}
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var wg sync.WaitGroup
	var epoch, inFlight, most int64 // of requests that began in this epoch
	used := time.Duration(0)        // by them, after ten seconds
	began := time.Now()
	for range w.processes {
		l := sharedSlots(t, w.n, s, withoutStore(w.without), expectProcesses(w.processes))
		for range w.callers {
			wg.Go(func() {
				for ctx.Err() == nil {
					g, err := l.acquire(ctx, ask{})
					if err != nil {
						time.Sleep(100 * ms)
						continue
					}
					mu.Lock()
					mine, from := epoch, time.Now()
					inFlight++
					most = max(most, inFlight)
					mu.Unlock()
					time.Sleep(w.takes)
					mu.Lock()
					if mine == epoch {
						inFlight--
						used += max(0, time.Since(began)-max(10*time.Second, from.Sub(began)))
					}
					mu.Unlock()
					g.done()
				}
			})
		}
	}
	begin := func() {
		mu.Lock()
		defer mu.Unlock()
		epoch, inFlight, most, used, began = epoch+1, 0, 0, 0, time.Now()
	}
	measured := func() (int64, float64) {
		mu.Lock()
		defer mu.Unlock()
		return most, used.Seconds() / (time.Since(began).Seconds() - 10) / float64(w.n)
	}
	begin()
	time.Sleep(20*time.Second + phase)
	before, usual := measured()
	if w.away > 0 {
		s.set(true, false)
		time.Sleep(w.away)
	}
	s.set(false, w.loses)
	if w.without == supply.Limit || w.without == supply.ButLocally && w.n < int64(w.processes) {
		time.Sleep(2 * time.Second) // by these terms, more than n are in flight until each process has reached the store
	}
	begin()
	time.Sleep(40 * time.Second)
	after, share := measured()
	cancel()
	wg.Wait()
	time.Sleep(store.SlotLease + time.Second)
	synctest.Wait()
	t.Logf("%d of %d in flight at most, %.2f used after 10 s; usually %.2f", after, w.n, share, usual)
	require.LessOrEqual(t, before, w.n)
	require.LessOrEqual(t, after, w.n)
	if w.takes < 30*time.Second {
		require.Greater(t, share, 0.9*usual)
	}
}
