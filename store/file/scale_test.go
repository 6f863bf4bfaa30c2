//go:build unix

package file

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
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
	Calls, Slow    int // calls of the store, and those that took longer than slow
}

// timed counts the calls of a Store.
type timed struct {
	*Store
	calls, slow atomic.Int64
}

func (s *timed) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	began := time.Now()
	leases, err := s.Store.Lease(ctx, asks)
	s.calls.Add(1)
	if time.Since(began) > slow {
		s.slow.Add(1)
	}
	return leases, err
}

var forever = store.Budget{Kind: store.Bucket, Limit: "cold", N: 1, Per: time.Hour, Burst: 1_000_000, Initial: 1_000_000}

// cold has 16 callers, each of which needs a token of one of a number of keys and then pauses, and writes a load.
func cold(name, keys, lasts, pause string) error {
	n, err := strconv.Atoi(keys)
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(lasts)
	if err != nil {
		return err
	}
	paused, err := time.ParseDuration(pause)
	if err != nil {
		return err
	}
	f, err := Open(name)
	if err != nil {
		return err
	}
	s := &timed{Store: f}
	l, err := throttle.NewLimiter(throttle.WithMaxKeys(2_000_000), throttle.WithLimit(
		throttle.TokenBucket(forever.N, forever.Per, throttle.Burst(forever.Burst), throttle.Name(forever.Limit), throttle.Shared(s))))
	if err != nil {
		return err
	}
	var callers sync.WaitGroup
	var tokens, failed atomic.Int64
	for range 16 {
		callers.Go(func() {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(paused) {
				if l.Wait(context.Background(), throttle.Ask{Key: strconv.Itoa(rand.IntN(n))}) == nil {
					tokens.Add(1)
				} else {
					failed.Add(1)
				}
			}
		})
	}
	callers.Wait()
	st := l.Stores()[0]
	all := load{int(tokens.Load()), int(failed.Load()) + int(st.Failed+st.Setup), int(s.calls.Load()), int(s.slow.Load())}
	return errors.Join(f.Close(), json.NewEncoder(os.Stdout).Encode(all))
}

// runCold has processes use a file that has a number of budgets, or a new key for each request.
func runCold(t testing.TB, processes, budgets int, lasts, pause time.Duration) (all load) {
	name, keys := filepath.Join(t.TempDir(), "limits"), budgets
	if fill(t, name, budgets); budgets == 0 {
		keys = 1 << 30
	}
	out := make([]bytes.Buffer, processes)
	var running sync.WaitGroup
	for i := range out {
		c := process(t.Context(), "cold", name, strconv.Itoa(keys), lasts.String(), pause.String())
		c.Stdout, c.Stderr = &out[i], os.Stderr
		running.Go(func() { assert.NoError(t, c.Run()) })
	}
	running.Wait()
	for i := range out {
		var one load
		require.NoError(t, json.Unmarshal(out[i].Bytes(), &one))
		all = load{all.Tokens + one.Tokens, all.Failed + one.Failed, all.Calls + one.Calls, all.Slow + one.Slow}
	}
	return all
}

// fill makes a file with a number of budgets.
func fill(t testing.TB, name string, budgets int) {
	s, err := Open(name)
	require.NoError(t, err)
	for i := 0; i < budgets; i += 100 {
		asks := make([]store.Ask, 100)
		for k := range asks {
			b := forever
			b.Key = strconv.Itoa(i + k)
			asks[k].Parts = []store.Part{{Budget: b, Want: 1}}
		}
		_, err := s.Lease(t.Context(), asks)
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
}

// The size that the documentation of the package states, with a margin for a machine that is three times slower. How many calls are slow
// depends on what else the machine does, so only the benchmark says it.
func TestEightProcessesOnColdKeys(t *testing.T) { // slow: twice five seconds of real time
	if testing.Short() {
		return // it takes seconds of real time
	}
	for _, budgets := range []int{0, mostBudgets} {
		all := runCold(t, 8, budgets, 5*time.Second, 15*time.Millisecond)
		t.Logf("%d budgets: %+v", budgets, all)
		assert.Zero(t, all.Failed)
		assert.Greater(t, all.Tokens, 5*5000/3)
	}
}

// BenchmarkColdKeys has processes of 16 callers that do not pause, with a new key for each request, and with 100,000 budgets in the file.
func BenchmarkColdKeys(b *testing.B) {
	for _, processes := range []int{1, 8, 32} {
		for _, budgets := range []int{0, mostBudgets} {
			b.Run(fmt.Sprintf("processes=%d/budgets=%d", processes, budgets), func(b *testing.B) {
				var all load
				for b.Loop() {
					all = runCold(b, processes, budgets, 5*time.Second, 0)
				}
				b.ReportMetric(float64(all.Tokens)/5, "tokens/s")
				b.ReportMetric(float64(all.Failed), "failed")
				b.ReportMetric(float64(all.Calls), "calls")
				b.ReportMetric(float64(all.Slow), "slow")
			})
		}
	}
}
