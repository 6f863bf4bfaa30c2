package adversary

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

const (
	fleetBurst = 8
	fleetSlots = 5
	fleetRate  = 40 // tokens per second at most
	fleetTrip  = 23 // half a round trip takes up to 2 to the power of this, in ns

	// The store's clock has whole microseconds, so with each change of the rate, up to 40 millionths of a token may be counted at the other
	// rate. There are some tens of changes.
	fleetRounded = .003
)

// A fleet is some processes that share limits over a Store in memory, and do anything that can be done to them. Their rates change all
// the time.
type fleet struct {
	*testing.T
	store.Store
	r    *rand.Rand
	all  []*throttle.Limiter
	open atomic.Int64 // calls of the store that have not returned
	rate atomic.Int64 // that processes ask by, of each key, for each second

	mu      sync.Mutex
	trips   *rand.Rand // how long calls take; nil: no time
	flying  int64
	charged map[string]float64 // by key, what was charged and not given back
	asked   map[string]*asked
}

// An asked is what processes have asked the store for a key.
type asked struct {
	rate int64 // of the last call: a rate that was set counts from the next call on
	at   time.Time
	may  float64 // have been charged
}

// on moves on to an instant.
func (a *asked) on(now time.Time) float64 {
	a.may += now.Sub(a.at).Seconds() * float64(a.rate)
	a.at = now
	return a.may
}

// Lease implements store.Store.
func (f *fleet) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	f.open.Add(1)
	defer f.open.Add(-1)
	time.Sleep(f.takes())
	f.mu.Lock()
	for _, a := range asks {
		for _, p := range a.Parts {
			if p.Budget.Limit == "rate" {
				of := f.asked[p.Budget.Key]
				if of == nil {
					of = &asked{may: fleetBurst, at: time.Now()}
					f.asked[p.Budget.Key] = of
				}
				of.on(time.Now())
				if n := p.Budget.N; n >= of.rate || n == f.rate.Load() { // a call of before the rate rose does not lower it again: all know the new one
					of.rate = n
				}
			}
		}
	}
	leases, err := f.Store.Lease(ctx, asks)
	f.mu.Unlock()
	time.Sleep(f.takes())
	return leases, err
}

func (f *fleet) takes() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.trips == nil {
		return 0
	}
	return time.Duration(f.trips.Int64N(1 << f.trips.IntN(fleetTrip+1)))
}

// Whatever processes do that share limits, while rates change and the store takes its time, they send no more than one alone might,
// no request waits forever, and everything comes back. What was promised by a higher rate before it fell is not used.
func TestAFleetSendsNoMoreThanOneAlone(t *testing.T) { // slow: 300 seeds
	seeds := uint64(300)
	if testing.Short() {
		seeds = 15
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("seed %d", seed)
				}
			}()
			newFleet(t, seed).run()
		})
		if t.Failed() {
			return
		}
	}
}

func newFleet(t *testing.T, seed uint64) *fleet {
	f := &fleet{
		T: t, Store: store.NewMemory(), r: rand.New(rand.NewPCG(seed, 9)), charged: make(map[string]float64), asked: make(map[string]*asked),
	}
	if seed%3 > 0 {
		f.trips = rand.New(rand.NewPCG(seed, 10))
	}
	f.rate.Store(20)
	for range 1 + f.r.IntN(4) {
		f.all = append(f.all, f.process())
	}
	return f
}

// process returns the limits of another process.
func (f *fleet) process() *throttle.Limiter {
	l, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.TokenBucket(20, time.Second, throttle.Burst(fleetBurst), throttle.Name("rate"), throttle.Shared(f),
			throttle.RateFor(func(string) (int64, time.Duration) { return f.rate.Load(), time.Second })),
		throttle.InFlight(fleetSlots, throttle.Name("slots"), throttle.Shared(f)),
		throttle.SlidingWindow(50, time.Second, throttle.Name("own")),
	))
	require.NoError(f, err)
	return l
}

func (f *fleet) run() {
	var group sync.WaitGroup
	for range 120 {
		switch f.r.IntN(8) {
		case 0:
			time.Sleep(time.Duration(f.r.Int64N(1 << f.r.IntN(31))))
		case 1:
			f.retune()
		default:
			f.enter(&group)
		}
		synctest.Wait()
	}
	group.Wait()
	time.Sleep(2 * time.Minute)
	require.Zero(f, f.flying)
	for _, l := range f.all {
		require.Zero(f, l.Stats().Waiting)
	}
	// All that was leased has come back.
	last := f.all[f.r.IntN(len(f.all))]
	var grants []*throttle.Grant
	for range fleetSlots {
		g, err := last.Acquire(f.Context(), throttle.Ask{Costs: map[string]int64{"rate": 0}, MaxWait: new(time.Second)})
		require.NoError(f, err)
		grants = append(grants, g)
	}
	g, err := last.Acquire(f.Context(), throttle.Ask{Key: "a", MaxWait: new(100 * time.Millisecond), Costs: map[string]int64{"rate": fleetBurst, "slots": 0}})
	require.NoError(f, err)
	for _, g := range append(grants, g) {
		g.Done()
	}
	for time.Sleep(time.Minute); f.open.Load() > 0; synctest.Wait() {
		time.Sleep(time.Millisecond) // until the last call is over
	}
}

func (f *fleet) retune() {
	f.rate.Store(1 + f.r.Int64N(fleetRate))
	for _, l := range f.all {
		require.NoError(f, l.Refresh("rate"))
	}
}

// charge notes that a request has been charged, or was given back.
func (f *fleet) charge(key string, cost, slots int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.charged[key] += float64(cost)
	f.flying += slots
	require.LessOrEqual(f, f.flying, int64(fleetSlots))
	require.LessOrEqual(f, f.charged[key], f.asked[key].on(time.Now())+fleetRounded, "key %s", key)
}

// enter has one process make a request.
func (f *fleet) enter(group *sync.WaitGroup) {
	l, key, cost, slots := f.all[f.r.IntN(len(f.all))], string(rune('a'+f.r.IntN(2))), 1+f.r.Int64N(4), f.r.Int64N(3)
	ask := throttle.Ask{Key: key, Keys: map[string]string{"slots": ""}, Cost: cost, Costs: map[string]int64{"slots": slots, "own": 1}, Priority: f.r.IntN(2)}
	ctx, cancel := context.WithCancel(f.Context())
	if f.r.IntN(3) == 0 {
		ask.MaxWait = new(time.Duration(f.r.Int64N(int64(5 * time.Second))))
	}
	if f.r.IntN(4) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(f.r.Int64N(int64(5*time.Second))))
	}
	holds, ends := time.Duration(f.r.Int64N(1<<f.r.IntN(31))), f.r.IntN(4)
	group.Go(func() {
		defer cancel()
		g, err := l.Acquire(ctx, ask)
		if err != nil {
			return
		}
		f.charge(key, cost, slots)
		time.Sleep(holds)
		f.mu.Lock()
		f.flying -= slots
		f.mu.Unlock()
		switch ends {
		case 0:
			f.mu.Lock()
			f.charged[key] -= float64(cost)
			f.mu.Unlock()
			g.Cancel()
		case 1:
			f.mu.Lock()
			f.charged[key]--
			f.mu.Unlock()
			require.NoError(f, g.Settle("rate", cost-1))
			g.Done()
		default:
			g.Done()
		}
	})
}
