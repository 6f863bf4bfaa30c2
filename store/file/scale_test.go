//go:build unix

package file

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// A load is what a process of a load test did.
type load struct {
	Tokens, Failed int
	Calls          []time.Duration // the longest
}

// timed measures the calls of a Store.
type timed struct {
	store.Store
	mu      sync.Mutex
	longest []time.Duration
}

func (s *timed) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	began := time.Now()
	leases, err := s.Store.Lease(ctx, asks)
	took := time.Since(began)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.longest = append(s.longest, took)
	return leases, err
}

// cold has 16 callers, each of which needs tokens of other and other keys of a number of keys, and writes a load.
func cold(name, keys, lasts string) error {
	n, err := strconv.Atoi(keys)
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(lasts)
	if err != nil {
		return err
	}
	f, err := Open(name)
	if err != nil {
		return err
	}
	s := &timed{Store: f}
	l, err := throttle.NewLimiter(throttle.WithMaxKeys(2_000_000), throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Burst(1_000_000), throttle.Name("cold"), throttle.Shared(s))))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var all load
	var callers sync.WaitGroup
	for end := time.Now().Add(d); len(all.Calls) < 16; all.Calls = append(all.Calls, 0) {
		callers.Go(func() {
			tokens, failed := 0, 0
			for time.Now().Before(end) {
				if err := l.Wait(context.Background(), throttle.Ask{Key: strconv.Itoa(rand.IntN(n))}); err != nil {
					failed++
					continue
				}
				tokens++
			}
			mu.Lock()
			defer mu.Unlock()
			all.Tokens += tokens
			all.Failed += failed
		})
	}
	callers.Wait()
	st := l.Stores()[0]
	all.Failed += int(st.Failed + st.Setup)
	all.Calls = s.longest
	if err := f.Close(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}

// BenchmarkColdKeys has 8 and 32 processes of 16 callers each, without and with 100,000 budgets in the file.
func BenchmarkColdKeys(b *testing.B) {
	for _, processes := range []int{1, 8} {
		for _, keys := range []int{1 << 40, 100_000} {
			b.Run(fmt.Sprintf("processes=%d/keys=%d", processes, keys), func(b *testing.B) {
				tokens, failed, calls := runCold(b, processes, keys, 5*time.Second)
				for b.Loop() {
				}
				b.ReportMetric(float64(tokens)/5, "tokens/s")
				b.ReportMetric(float64(failed), "failed")
				slow := 0
				for _, c := range calls {
					if c > 50*time.Millisecond {
						slow++
					}
				}
				b.ReportMetric(float64(slow), "slow")
				b.ReportMetric(float64(len(calls)), "calls")
			})
		}
	}
}

func runCold(t testing.TB, processes, keys int, lasts time.Duration) (tokens, failed int, calls []time.Duration) {
	name := filepath.Join(t.TempDir(), "limits")
	if keys < 1<<30 {
		fillKeys(t, name, keys)
	}
	out := make([]bytes.Buffer, processes)
	var all sync.WaitGroup
	for i := range out {
		c := process(t.Context(), "cold", name, strconv.Itoa(keys), lasts.String())
		c.Stdout, c.Stderr = &out[i], os.Stderr
		all.Go(func() { assert.NoError(t, c.Run()) })
	}
	all.Wait()
	for i := range out {
		var one load
		require.NoError(t, json.Unmarshal(out[i].Bytes(), &one))
		tokens += one.Tokens
		failed += one.Failed
		calls = append(calls, one.Calls...)
	}
	return tokens, failed, calls
}

// fillKeys makes a file with a number of budgets.
func fillKeys(t testing.TB, name string, keys int) {
	s, err := Open(name)
	require.NoError(t, err)
	for i := 0; i < keys; i += 100 {
		var asks []store.Ask
		for k := range 100 {
			asks = append(asks, store.Ask{Parts: []store.Part{{Budget: store.Budget{Kind: store.Bucket, Limit: "cold", Key: strconv.Itoa(i + k), N: 1, Per: time.Hour, Burst: 1_000_000, Initial: 1_000_000}, Want: 1}}})
		}
		_, err := s.Lease(t.Context(), asks)
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
}
