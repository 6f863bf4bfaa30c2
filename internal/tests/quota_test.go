//go:build !race

package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"

	"github.com/stretchr/testify/require"
)

// A counter is how a server counts n requests per period.
type counter interface{ accepts(now int64) bool }

// countsLog counts in any stretch of a period.
type countsLog struct {
	n, per int64
	log    []int64
}

func (c *countsLog) accepts(now int64) bool {
	for len(c.log) > 0 && c.log[0]+c.per <= now {
		c.log = c.log[1:]
	}
	if int64(len(c.log)) == c.n {
		return false
	}
	c.log = append(c.log, now)
	return true
}

// countsClock counts in windows, one of which begins at phase. If sliding, it adds what it counted in the last window, weighted by what
// is left of that in a sliding one.
type countsClock struct {
	n, per, phase    int64
	sliding          bool
	index, last, now int64
}

func (c *countsClock) accepts(now int64) bool {
	at := now - c.phase + c.per
	if i := at / c.per; i != c.index {
		if c.last = 0; i == c.index+1 {
			c.last = c.now
		}
		c.index, c.now = i, 0
	}
	count := c.now * c.per
	if c.sliding {
		count += c.last * (c.per - at%c.per)
	}
	if count+c.per > c.n*c.per {
		return false
	}
	c.now++
	return true
}

// countsBucket is a bucket of n, which GCRA with a tolerance of n-1 intervals is, too.
type countsBucket struct{ n, per, level, last int64 } // level in 1/per of a token

func (c *countsBucket) accepts(now int64) bool {
	c.level, c.last = min(c.n*c.per, c.level+(now-c.last)*c.n), now
	if c.level < c.per {
		return false
	}
	c.level -= c.per
	return true
}

// counters are the ways in which servers count n per period.
var counters = map[string]func(n int64, per time.Duration, phase int64) counter{
	"log": func(n int64, per time.Duration, _ int64) counter { return &countsLog{n: n, per: int64(per)} },
	"clock": func(n int64, per time.Duration, phase int64) counter {
		return &countsClock{n: n, per: int64(per), phase: phase}
	},
	"sliding": func(n int64, per time.Duration, phase int64) counter {
		return &countsClock{n: n, per: int64(per), phase: phase, sliding: true}
	},
	"bucket": func(n int64, per time.Duration, _ int64) counter {
		return &countsBucket{n: n, per: int64(per), level: n * int64(per)}
	},
}

// A saturation is a number of callers that always have another request, and the way to their server.
type saturation struct {
	r        *rand.Rand
	n        int64
	per, rtt time.Duration
	jitter   float64 // by how much of it a request may be late
	cold     bool    // connections are opened by the first requests
	callers  int
	periods  int
}

// A tally is how many requests a server got and refused in the first period, and after it.
type tally struct{ first, firstRefused, later, refused int }

// play has all callers send through their transports, which share the connections and the server.
func (s saturation) play(t *testing.T, server counter, transports func(base http.RoundTripper) []*throttle.Transport) (got tally) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		start, idle := time.Now(), 0
		all := transports(roundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			opens := s.cold && idle == 0
			if !opens {
				idle--
			}
			late := time.Duration(s.r.Float64() * s.jitter * float64(s.rtt))
			mu.Unlock()
			if opens {
				time.Sleep(2 * s.rtt) // TCP and TLS 1.3
			}
			time.Sleep(s.rtt/2 + late)
			mu.Lock()
			now := time.Since(start)
			ok := server.accepts(int64(now))
			switch {
			case now < s.per:
				got.first++
				if !ok {
					got.firstRefused++
				}
			case now < time.Duration(s.periods)*s.per:
				got.later++
				if !ok {
					got.refused++
				}
			}
			mu.Unlock()
			time.Sleep(s.rtt - s.rtt/2)
			mu.Lock()
			idle++
			mu.Unlock()
			status := http.StatusOK
			if !ok {
				status = http.StatusTooManyRequests
			}
			return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(s.periods)*s.per)
		defer cancel()
		var wg sync.WaitGroup
		for i := range s.callers {
			wg.Go(func() {
				for {
					req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example/", nil)
					if err != nil {
						panic(err)
					}
					resp, err := all[i%len(all)].RoundTrip(req)
					if err != nil {
						return
					}
					resp.Body.Close()
				}
			})
		}
		wg.Wait()
	})
	return got
}

// seeds returns how many worlds are played of each kind.
func seeds(long uint64) uint64 {
	if testing.Short() {
		return long / 4
	}
	return long
}

// A Quota is refused by no server that counts n per period, however it counts, and loses at most a twentieth to it.
func TestAQuotaFitsEveryWayOfCounting(t *testing.T) { // slow: 20 phases of every way
	for name, counter := range counters {
		for _, cold := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, cold %v", name, cold), func(t *testing.T) {
				for seed := range seeds(20) {
					r := rand.New(rand.NewPCG(seed, 1))
					per := []time.Duration{time.Second, 10 * time.Second, time.Minute, time.Hour}[r.IntN(4)]
					s := saturation{r: r, n: 20 + r.Int64N(180), per: per, cold: cold, periods: 12}
					s.rtt = time.Duration(r.Float64() / 20 * float64(per))
					s.callers = int(s.n/2) + r.IntN(int(s.n))
					got := s.play(t, counter(s.n, per, r.Int64N(int64(per))), func(base http.RoundTripper) []*throttle.Transport {
						return []*throttle.Transport{throttle.Must(throttle.New(base, throttle.WithLimit(throttle.Quota(s.n, per))))}
					})
					require.Zero(t, got.firstRefused, "%+v: %+v", s, got)
					require.Zero(t, got.refused, "%+v: %+v", s, got)
					require.GreaterOrEqual(t, got.later, int(s.n)*(s.periods-1)*94/100, "%+v: %+v", s, got)
				}
			})
		}
	}
}

// If round trips differ by half, a few requests may be refused.
func TestAQuotaFitsServersWhoseWayVaries(t *testing.T) {
	for name, counter := range counters {
		t.Run(name, func(t *testing.T) {
			refused, sent := 0, 0
			for seed := range seeds(20) {
				r := rand.New(rand.NewPCG(seed, 2))
				s := saturation{r: r, n: 20 + r.Int64N(180), per: time.Second, rtt: time.Duration(r.Int64N(int64(33 * time.Millisecond))), jitter: 0.5, cold: true, periods: 12}
				s.callers = int(s.n/2) + r.IntN(int(s.n))
				got := s.play(t, counter(s.n, s.per, r.Int64N(int64(s.per))), func(base http.RoundTripper) []*throttle.Transport {
					return []*throttle.Transport{throttle.Must(throttle.New(base, throttle.WithLimit(throttle.Quota(s.n, s.per))))}
				})
				require.GreaterOrEqual(t, got.later, int(s.n)*(s.periods-1)*94/100, "%+v: %+v", s, got)
				refused, sent = refused+got.refused+got.firstRefused, sent+got.later+got.first
			}
			t.Logf("%d of %d refused", refused, sent)
			require.Less(t, float64(refused), 0.005*float64(sent), "of %d", sent)
		})
	}
}

// A fleet that shares a Quota is not refused either.
func TestASharedQuotaFitsEveryWayOfCounting(t *testing.T) {
	for name, counter := range counters {
		t.Run(name, func(t *testing.T) {
			for seed := range seeds(12) {
				r := rand.New(rand.NewPCG(seed, 3))
				s := saturation{r: r, n: 20 + r.Int64N(180), per: []time.Duration{time.Second, 10 * time.Second, time.Minute}[r.IntN(3)], cold: true, jitter: 0.5, periods: 12}
				s.rtt = time.Duration(r.Float64() / 33 * float64(s.per))
				processes := 1 + r.IntN(8)
				s.callers = processes * (int(s.n)/processes + 4)
				got := s.play(t, counter(s.n, s.per, r.Int64N(int64(s.per))), func(base http.RoundTripper) (all []*throttle.Transport) {
					budgets := store.NewMemory()
					for range processes {
						all = append(all, throttle.Must(throttle.New(base,
							throttle.WithLimit(throttle.Quota(s.n, s.per, throttle.Shared(budgets))))))
					}
					return all
				})
				t.Logf("%d processes: %+v: %+v", processes, s, got)
				require.GreaterOrEqual(t, got.later, int(s.n)*(s.periods-1)*93/100, "%+v: %+v", s, got)
				require.LessOrEqual(t, float64(got.refused+got.firstRefused), 0.005*float64(got.later+got.first), "%+v: %+v", s, got)
			}
		})
	}
}
