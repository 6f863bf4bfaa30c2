package throttle_test

import (
	"io"
	"math"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// An inFlightScene is a server and a load for the real Transport. internal/concurrency simulates many more.
type inFlightScene struct {
	workers int
	best    int64 // the least fixed n that gives 99 % of what any n gives
	clients int
	refuses bool
	callers int
	streams bool // headers come after a tenth of the time
	during  func(*backend)

	goodput, p99 float64
}

// A measured transport notes the responses of a server, from 5 s on.
type measured struct {
	*backend
	start time.Time

	mu   sync.Mutex
	good int
	took []time.Duration
}

func (m *measured) RoundTrip(req *http.Request) (*http.Response, error) {
	sent := time.Now()
	resp, err := m.backend.RoundTrip(req)
	if err == nil && resp.StatusCode == 200 && time.Since(m.start) > 5*time.Second {
		m.mu.Lock()
		m.good++
		m.took = append(m.took, time.Since(sent))
		m.mu.Unlock()
	}
	return resp, err
}

func (s inFlightScene) play(t *testing.T, limit func() throttle.Limit) (good int, p99 time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		m := &measured{backend: newBackend(s.workers, s.refuses), start: time.Now()}
		m.stream = s.streams
		var all sync.WaitGroup
		if s.during != nil {
			all.Go(func() { s.during(m.backend) })
		}
		for i := range max(1, s.clients) {
			tr, err := throttle.New(m, throttle.WithLimit(limit()))
			require.NoError(t, err)
			all.Go(func() {
				time.Sleep(time.Duration(i) * 8 * time.Second)
				press(t, tr, s.callers, 120*time.Second-time.Since(m.start), "http://example.com/")
			})
		}
		all.Wait()
		slices.Sort(m.took)
		good, p99 = m.good, m.took[len(m.took)*99/100]
	})
	return good, p99
}

func TestLearnedNumberIsAsGoodAsTheBestFixedOne(t *testing.T) {
	if testing.Short() {
		return
	}
	slowly := func(from, to time.Duration, factor float64) func(*backend) {
		return func(b *backend) {
			for i, f := range []float64{factor, 1 / factor} {
				time.Sleep([]time.Duration{from, to - from}[i])
				b.mu.Lock()
				b.service = time.Duration(float64(b.service) * f)
				b.mu.Unlock()
			}
		}
	}
	for name, s := range map[string]inFlightScene{
		"16 workers":                           {workers: 16, best: 20, callers: 64},
		"200 workers":                          {workers: 200, best: 245, callers: 500},
		"4 connections":                        {workers: 4, best: 4, callers: 64, refuses: true, goodput: 92},
		"a CPU three times slower for 40 s":    {workers: 16, best: 20, callers: 64, during: slowly(45*time.Second, 85*time.Second, 3)},
		"a downstream three times slower":      {workers: 1000, best: 48, callers: 48, during: slowly(45*time.Second, 85*time.Second, 3)},
		"a third of the workers for 40 s":      {workers: 16, best: 20, callers: 64, during: func(b *backend) { b.occupy(11, 45*time.Second, 40*time.Second) }},
		"four clients that start 8 s apart":    {workers: 16, best: 6, clients: 4, callers: 16, p99: 2.5}, // 1.95 to 2.10; the goal of 2 is not safe
		"streams with headers after a tenth":   {workers: 16, best: 20, callers: 64, streams: true},
		"a worker that is 10 ms away":          {workers: 1, best: 2, callers: 64, p99: 2.5},
		"more requests than workers in bursts": {workers: 16, best: 20, callers: 64, during: func(b *backend) { b.occupy(8, 20*time.Second, 20*time.Second) }},
	} {
		t.Run(name, func(t *testing.T) {
			fixed, fixedP99 := s.play(t, func() throttle.Limit { return throttle.InFlight(s.best) })
			good, p99 := s.play(t, func() throttle.Limit { return throttle.AdaptiveInFlight(throttle.Concurrency{}) })
			share, times := 100*float64(good)/float64(fixed), p99.Seconds()/fixedP99.Seconds()
			t.Logf("%.1f %%, p99 × %.2f", share, times)
			assert.GreaterOrEqual(t, share, math.Max(s.goodput, 92))
			if s.goodput == 0 {
				assert.GreaterOrEqual(t, share, 95.0)
			}
			assert.LessOrEqual(t, times, math.Max(s.p99, 2))
		})
	}
}

// occupy takes workers away for a while.
func (b *backend) occupy(n int, after, d time.Duration) {
	time.Sleep(after)
	for range n {
		b.workers <- struct{}{}
	}
	time.Sleep(d)
	for range n {
		<-b.workers
	}
}

// A streamed body takes its time, and then frees its worker.
type streamed struct {
	d    time.Duration
	once sync.Once
	free func()
}

func (s *streamed) Read([]byte) (int, error) {
	s.once.Do(func() {
		time.Sleep(s.d)
		s.free()
	})
	return 0, io.EOF
}

func (s *streamed) Close() error {
	s.once.Do(s.free)
	return nil
}
