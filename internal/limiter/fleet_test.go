//go:build !race

package limiter_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A fleet is processes that share one limit, each with callers that always want more.
type fleet struct {
	limit              func(...ruleOption) rule
	processes, callers int
	lost               float64       // the part of the store's responses
	warm, over         time.Duration // what is measured begins after warm
}

// A measured fleet has run.
type measured struct {
	used  []float64 // tokens of each process
	sum   float64
	calls int // of the store
	late  []time.Duration
	due   []time.Duration
}

func (f *fleet) run(t *testing.T) measured {
	s := newFar(f.lost)
	limit := f.limit(shared(s), named("calls"))
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var wg sync.WaitGroup
	var sent []time.Duration
	m := measured{used: make([]float64, f.processes)}
	var processes []*driven
	for i := range f.processes {
		l := drive(t, limit)
		processes = append(processes, l)
		for range f.callers {
			wg.Go(func() {
				for l.wait(ctx, ask{}) == nil {
					mu.Lock()
					at := time.Since(s.began)
					sent = append(sent, at)
					if at >= f.warm {
						m.used[i]++
						m.sum++
					}
					mu.Unlock()
					time.Sleep(time.Microsecond)
				}
			})
		}
	}
	time.Sleep(f.warm)
	s.mu.Lock()
	before := s.n
	s.mu.Unlock()
	time.Sleep(f.over)
	s.mu.Lock()
	m.calls = s.n - before
	s.mu.Unlock()
	cancel()
	wg.Wait()
	synctest.Wait()
	for _, l := range processes {
		l.check()
	}
	s.rest()
	m.due = s.due()
	for i := range min(len(sent), len(m.due)) {
		if sent[i] >= f.warm {
			m.late = append(m.late, sent[i]-m.due[i])
		}
	}
	slices.Sort(m.late)
	m.due = append(m.due, s.wasted...)
	slices.Sort(m.due)
	return m
}

// shares returns the least and the largest use of a process as parts of the mean, and Jain's index: 1 if all are the same.
func (m *measured) shares() (least, most, jain float64) {
	squares, n := 0.0, float64(len(m.used))
	for _, u := range m.used {
		squares += u * u
	}
	return slices.Min(m.used) * n / m.sum, slices.Max(m.used) * n / m.sum, m.sum * m.sum / squares / n
}

func (m *measured) lateness(part float64) time.Duration {
	return m.late[int(part*float64(len(m.late)-1))]
}

// overBucket returns how many tokens were due beyond burst + rate·t, by the store's clock.
func (m *measured) overBucket(burst, perSecond float64) (over float64) {
	for i, due := range m.due {
		over = max(over, float64(i+1)-burst-perSecond*(due-m.due[0]).Seconds())
	}
	return over
}

// mostWithin returns the most tokens that were due within a period of that length.
func (m *measured) mostWithin(per time.Duration) (most int) {
	first := 0
	for i, due := range m.due {
		for m.due[first] <= due-per {
			first++
		}
		most = max(most, i+1-first)
	}
	return most
}

// mostInWindow is the same for windows that are aligned with began, the clock of a bubble begins on a whole second.
func (m *measured) mostInWindow(per time.Duration) (most int) {
	count := make(map[time.Duration]int)
	for _, due := range m.due {
		count[due/per]++
		most = max(most, count[due/per])
	}
	return most
}

// The shares are those of 30 s.
func TestEightProcessesShareABudgetEvenly(t *testing.T) {
	for name, c := range map[string]struct {
		limit   func(...ruleOption) rule
		perSec  float64
		callers int
		over    func(*measured) float64 // tokens beyond the limit
	}{
		"bucket": {func(opts ...ruleOption) rule {
			return tokenBucket(500, time.Second, append(opts, withBurst(100))...)
		}, 500, 16,
			func(m *measured) float64 { return m.overBucket(100, 500) }},
		"slow bucket": {func(opts ...ruleOption) rule {
			return tokenBucket(20, time.Second, append(opts, withBurst(5))...)
		}, 20, 4,
			func(m *measured) float64 { return m.overBucket(5, 20) }},
		"pace": {func(opts ...ruleOption) rule { return pace(500, time.Second, opts...) }, 500, 16,
			func(m *measured) float64 { return m.overBucket(1, 500) }},
		"sliding window": {func(opts ...ruleOption) rule {
			return slidingWindow(500, time.Second, opts...)
		}, 500, 16,
			func(m *measured) float64 { return float64(m.mostWithin(time.Second)) - 500 }},
		"fixed window": {func(opts ...ruleOption) rule {
			return fixedWindow(500, time.Second, opts...)
		}, 500, 16,
			func(m *measured) float64 { return float64(m.mostInWindow(time.Second)) - 500 }},
	} {
		within(t, name, func(t *testing.T) {
			f := fleet{limit: c.limit, processes: 8, callers: c.callers, warm: 2 * time.Second, over: 30 * time.Second}
			m := f.run(t)
			part := m.sum / (c.perSec * f.over.Seconds())
			least, most, _ := m.shares()
			t.Logf("%.3f of the budget, shares of %.2f to %.2f, %.2f calls a token, over %.3f, late by %v, %v", part, least, most,
				float64(m.calls)/m.sum, c.over(&m), m.lateness(0.5), m.lateness(0.99))
			require.LessOrEqual(t, c.over(&m), 1e-3*c.perSec) // promised instants are rounded to µs
			require.GreaterOrEqual(t, part, 0.97)
			require.LessOrEqual(t, part, 1.01)
			require.LessOrEqual(t, m.lateness(0.99), 3*ms) // the longest round trip
			require.GreaterOrEqual(t, least, 0.75)
			require.LessOrEqual(t, most, 1.25)
		})
	}
}

// There are 1,000 processes of 10 callers each. Of the store's responses, 1 % are lost.
func TestAFleetOfAThousandProcessesUsesItsBudgetEvenly(t *testing.T) {
	for name, c := range map[string]struct {
		perSec     int64
		warm, over time.Duration
		used, jain float64
		long       bool
	}{
		"1,000/s":          {1000, time.Second, 2 * time.Second, 0.95, 0.95, false},
		"20,000/s":         {20_000, 200 * ms, 600 * ms, 0.95, 0.85, false}, // twelve tokens each
		"1,000/s, 20 s":    {1000, 10 * time.Second, 20 * time.Second, 0.95, 0.95, true},
		"20,000/s, 5 s":    {20_000, 5 * time.Second, 5 * time.Second, 0.95, 0.95, true},
		"1/s, eight hours": {1, time.Hour, 8 * time.Hour, 0.9, 0.9, true},
	} {
		if c.long && testing.Short() {
			continue
		}
		f := fleet{
			limit: func(opts ...ruleOption) rule {
				return tokenBucket(c.perSec, time.Second, opts...)
			},
			processes: 1000, callers: 10, lost: 0.01, warm: c.warm, over: c.over,
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var m measured
			synctest.Test(t, func(t *testing.T) { m = f.run(t) })
			part := m.sum / (float64(c.perSec) * f.over.Seconds())
			_, _, jain := m.shares()
			over := m.overBucket(float64(c.perSec), float64(c.perSec))
			t.Logf("%.3f of the budget, Jain's index %.3f, %.0f calls a second, %.2f a token, over %.3f, late by %v, %v", part, jain,
				float64(m.calls)/f.over.Seconds(), float64(m.calls)/m.sum, over, m.lateness(0.5), m.lateness(0.99))
			require.LessOrEqual(t, over, 1.0)
			require.GreaterOrEqual(t, part, c.used)
			require.GreaterOrEqual(t, jain, c.jain)
		})
	}
}
