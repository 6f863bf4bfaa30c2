package limiter_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/httpthrottle/throttle/store"
)

// far is a Store. Its calls take 2 ± 1 ms, and a part of its responses is lost. It records what it leases of its
// only budget.
type far struct {
	store.Store
	began time.Time
	lost  float64

	mu     sync.Mutex
	dice   *rand.Rand
	n      int                       // calls
	open   int                       // calls that have not returned
	leased map[int64][]time.Duration // by lease: when its tokens are due, after began
	wasted []time.Duration           // those of lost responses
}

func newFar(lost float64) *far {
	return &far{
		Store: store.NewMemory(), began: time.Now(), lost: lost, dice: rand.New(rand.NewPCG(1, 2)),
		leased: make(map[int64][]time.Duration),
	}
}

func (s *far) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	s.mu.Lock()
	s.n++
	s.open++
	defer s.returned()
	there, back, lost := ms/2+time.Duration(s.dice.Int64N(int64(ms))), ms/2+time.Duration(s.dice.Int64N(int64(ms))), s.dice.Float64() < s.lost
	s.mu.Unlock()
	time.Sleep(there)
	s.mu.Lock()
	leases, err := s.Store.Lease(ctx, asks)
	if err == nil {
		s.record(asks, leases, lost)
	}
	s.mu.Unlock()
	time.Sleep(back)
	if lost {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return leases, err
}

func (s *far) returned() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
}

// rest waits until all calls have returned.
func (s *far) rest() {
	time.Sleep(time.Minute)
	for s.underWay() > 0 {
		sleep(ms)
	}
}

func (s *far) underWay() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

func (s *far) record(asks []store.Ask, leases []store.Lease, lost bool) {
	now := time.Since(s.began).Truncate(time.Microsecond) // as the store counts
	for i, asked := range asks {
		for _, r := range asked.Parts[0].Back { // the tokens that are due last were not used
			due := s.leased[r.Lease]
			s.leased[r.Lease] = due[:max(0, len(due)-int(r.Tokens))]
		}
		p, b := leases[i].Parts[0], &asked.Parts[0].Budget
		for k := range p.Tokens {
			due := now
			if k >= p.AtOnce {
				due += p.Next + time.Duration(k-p.AtOnce)*b.Per/time.Duration(b.N)
			}
			if lost {
				s.wasted = append(s.wasted, due)
			} else {
				s.leased[p.ID] = append(s.leased[p.ID], due)
			}
		}
	}
}

// due returns when the tokens that were leased and not returned were due, in order.
func (s *far) due() (all []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, due := range s.leased {
		all = append(all, due...)
	}
	slices.Sort(all)
	return all
}
