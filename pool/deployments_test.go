package pool_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/pool"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// load has 64 callers send requests of 100 to 2,000 tokens for ten minutes. It returns the tokens that were sent, and the time that
// 99 of 100 calls take at most.
func load(t *testing.T, base func(t *testing.T) http.RoundTripper) (tokens int64, p99 time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		rt := base(t)
		end := time.Now().Add(10 * time.Minute)
		var mu sync.Mutex
		var took []time.Duration
		var all sync.WaitGroup
		for i := range 64 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				for time.Now().Before(end) {
					cost, start := 100+r.Int64N(1900), time.Now()
					req, _ := http.NewRequestWithContext(throttle.ContextWithCost(t.Context(), cost), http.MethodGet, "http://api.example.com/", nil)
					req.Header.Set("Cost", fmt.Sprint(cost))
					resp, err := rt.RoundTrip(req)
					if !assert.NoError(t, err) {
						return
					}
					assert.Equal(t, 200, resp.StatusCode)
					mu.Lock()
					if took = append(took, time.Since(start)); !time.Now().After(end) {
						tokens += cost
					}
					mu.Unlock()
				}
			})
		}
		all.Wait()
		slices.Sort(took)
		p99 = took[len(took)*99/100]
	})
	return tokens, p99
}

// A deployment is a server with a bucket of its own, of n tokens a minute. It refuses what that cannot pay.
type deployment struct {
	server
	n     int64
	mu    sync.Mutex
	start time.Time
	full  int64 // when the bucket is full, in minutes divided by 60e9·n
}

func (d *deployment) RoundTrip(req *http.Request) (*http.Response, error) {
	cost, _ := strconv.ParseInt(req.Header.Get("Cost"), 10, 64)
	d.mu.Lock()
	now := int64(time.Since(d.start)) * d.n
	full := max(d.full, now) + cost*int64(time.Minute)
	refused := full-now > d.n/10*int64(time.Minute)
	if !refused {
		d.full = full
	}
	d.mu.Unlock()
	if refused {
		return &http.Response{StatusCode: http.StatusTooManyRequests, Body: http.NoBody, Request: req}, nil
	}
	return d.server.RoundTrip(req)
}

// Three deployments of 30,000, 90,000 and 240,000 tokens a minute are worth as much as one of the sum, calls take as long, and none refuses
// a request. That holds if one takes three times as long to respond, too.
func TestDeploymentsAreWorthTheirSum(t *testing.T) { // slow: minutes of a server
	withBudget := func(t *testing.T, n int64, takes time.Duration) pool.Member {
		d := &deployment{server: server{takes: takes}, n: n, start: time.Now()}
		tr, err := throttle.New(d, limit(throttle.TokenBucket(n, time.Minute, throttle.Burst(n/10))))
		require.NoError(t, err)
		return pool.Member{Name: fmt.Sprint(n), Transport: tr}
	}
	const quick, slow = 500 * time.Millisecond, 1500 * time.Millisecond
	sum, p99One := load(t, func(t *testing.T) http.RoundTripper { return withBudget(t, 360_000, quick).Transport })
	for _, takes := range [][3]time.Duration{{quick, quick, quick}, {slow, quick, quick}, {quick, quick, slow}} {
		tokens, p99 := load(t, func(t *testing.T) http.RoundTripper {
			return of(t, []pool.Member{withBudget(t, 30_000, takes[0]), withBudget(t, 90_000, takes[1]), withBudget(t, 240_000, takes[2])})
		})
		t.Logf("%v: %.1f %% of what one budget sends; p99 %v, %v with one", takes, 100*float64(tokens)/float64(sum), p99, p99One)
		require.GreaterOrEqual(t, float64(tokens), .99*float64(sum))
		require.LessOrEqual(t, float64(p99), 1.2*float64(p99One))
	}
}

// The choice among 16 members does not allocate when one can send now.
func TestTheChoiceDoesNotAllocate(t *testing.T) {
	p, one, req := sixteen(t)
	base := testing.AllocsPerRun(100, func() { _, _ = one.RoundTrip(req) })
	require.Equal(t, base, testing.AllocsPerRun(100, func() { _, _ = p.RoundTrip(req) })) //nolint:testifylint
}

// sixteen returns a Pool of which only the last member can send.
func sixteen(t testing.TB) (p *pool.Pool, one *throttle.Transport, req *http.Request) {
	var members []pool.Member
	for i := range 16 {
		members = append(members, member(t, fmt.Sprint(i), &server{}, limit(throttle.TokenBucket(1<<40, time.Second))))
		if i < 15 {
			members[i].Transport.Limiter().HoldAll(time.Hour)
		}
	}
	req, err := http.NewRequest(http.MethodGet, "http://api.example.com/", nil)
	require.NoError(t, err)
	return of(t, members), members[15].Transport, req
}

func BenchmarkChoice(b *testing.B) {
	p, one, req := sixteen(b)
	free, _, _ := sixteen(b)
	for _, m := range free.Members() {
		m.Transport.Limiter().ReleaseAll()
	}
	for name, rt := range map[string]http.RoundTripper{"one": one, "any of 16": free, "last of 16": p} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = rt.RoundTrip(req)
			}
		})
	}
}
