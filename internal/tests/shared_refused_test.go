package tests

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// A refusingServer is a token bucket of a server, 10 ms away. It refuses with 429.
type refusingServer struct {
	rate, burst float64
	retryAfter  bool

	mu      sync.Mutex
	level   float64
	at      time.Time
	counts  bool
	ok      []int // by process
	refused int
}

func (s *refusingServer) admits(process int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.level, s.at = min(s.burst, s.level+s.rate*now.Sub(s.at).Seconds()), now
	admits := s.level >= 1
	switch {
	case admits:
		s.level--
		if s.counts {
			s.ok[process]++
		}
	case s.counts:
		s.refused++
	}
	return admits
}

func (s *refusingServer) of(process int) roundTripper {
	return func(r *http.Request) (*http.Response, error) {
		time.Sleep(10 * time.Millisecond)
		resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}
		if !s.admits(process) {
			resp.StatusCode = http.StatusTooManyRequests
			if s.retryAfter {
				resp.Header.Set("Retry-After", "1")
			}
		}
		time.Sleep(10*time.Millisecond + rand.N(5*time.Millisecond))
		return resp, nil
	}
}

// An unevenStore takes 1 ms there and back, and a random time more.
type unevenStore struct {
	store.Store
	more time.Duration
}

func (s unevenStore) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	time.Sleep(time.Millisecond + rand.N(s.more+1))
	leases, err := s.Store.Lease(ctx, asks)
	time.Sleep(time.Millisecond + rand.N(s.more+1))
	return leases, err
}

// A refusedFleet is processes that share exactly the limit of a server, with 4 callers each.
type refusedFleet struct {
	processes   int
	rate, burst int64
	retryAfter  bool
	more        time.Duration // of the store
	warm        time.Duration // before what counts
}

// play returns what is used of the rate in 20 s, the part of the requests that is refused, and what the process with the least requests has
// of an even share.
func (f refusedFleet) play(t *testing.T) (used, refused, least float64) {
	synctest.Test(t, func(t *testing.T) {
		const lasts = 20 * time.Second
		s := &refusingServer{
			rate: float64(f.rate), burst: float64(f.burst), retryAfter: f.retryAfter, level: float64(f.burst), at: time.Now(), ok: make([]int, f.processes),
		}
		ctx, cancel := context.WithTimeout(t.Context(), f.warm+lasts)
		defer cancel()
		st := unevenStore{store.NewMemory(), f.more}
		var all sync.WaitGroup
		for i := range f.processes {
			tr, err := throttle.New(s.of(i), throttle.WithLimit(throttle.TokenBucket(f.rate, time.Second, throttle.Burst(f.burst), throttle.Shared(st))))
			require.NoError(t, err)
			for range 4 {
				all.Go(func() {
					time.Sleep(rand.N(time.Second))
					for ctx.Err() == nil {
						r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://example.com/", nil)
						assert.NoError(t, err)
						resp, err := tr.RoundTrip(r)
						if err != nil { // it would have to wait for longer than the test takes
							return
						}
						resp.Body.Close()
					}
				})
			}
		}
		time.Sleep(f.warm)
		s.mu.Lock()
		s.counts = true
		s.mu.Unlock()
		all.Wait()
		time.Sleep(time.Second) // calls of the store end
		sum, few := 0, s.ok[0]
		for _, n := range s.ok {
			sum, few = sum+n, min(few, n)
		}
		used = float64(sum) / (float64(f.rate) * lasts.Seconds())
		refused = float64(s.refused) / float64(sum+s.refused)
		least = float64(few) * float64(f.processes) / float64(sum)
	})
	return used, refused, least
}

// Processes that share exactly the limit of a server use it as one process does, from a cold start and later, whatever the store's round
// trips are. Where the server admits no two requests together, round trips are equal here: requests that come early by what they differ
// are refused, as those of any client are.
func TestAFleetIsAsGoodAsOneProcessAtTheLimitOfAServer(t *testing.T) { // slow: minutes of a server
	for _, f := range []refusedFleet{
		{2, 5, 1, false, 0, time.Second},
		{8, 5, 1, false, 0, time.Second},
		{8, 5, 1, true, 0, time.Second},
		{32, 5, 1, true, 0, 10 * time.Second},
		{8, 5, 1, true, 0, 10 * time.Minute},
		{8, 100, 1, true, 0, time.Second},
		{8, 20, 3, false, time.Millisecond, 3 * time.Second},
		{8, 20, 3, true, time.Millisecond, 3 * time.Second},
		{2, 20, 3, true, time.Millisecond, 3 * time.Second},
		{32, 100, 10, true, time.Millisecond, 3 * time.Second},
		{8, 20, 3, true, time.Millisecond, 10 * time.Minute},
	} {
		t.Run(fmt.Sprintf("%+v", f), func(t *testing.T) {
			used, refused, least := f.play(t)
			assert.Greater(t, used, .9, "used")
			assert.Less(t, refused, .02, "refused")
			assert.Greater(t, least, .5, "the least of an even share")
		})
	}
}
