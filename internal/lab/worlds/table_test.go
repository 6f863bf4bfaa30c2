//go:build !race

package worlds

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// One process and many that share a bucket use it alike: all of it, in even shares, with few calls, and without longer waits.
func TestFleetsOfEachSizeUseABucketAlike(t *testing.T) {
	if testing.Short() {
		return // it takes seconds
	}
	t.Log("per s, processes: used, Jain's index, calls per request; waits at a load of .8, p50 and p99")
	for _, rate := range []struct {
		n     int64
		lasts time.Duration
	}{{5, 5 * time.Minute}, {100, 30 * time.Second}, {10_000, 5 * time.Second}} {
		var alone time.Duration
		for _, size := range []int{1, 8, 32} {
			callers := int(max(2, rate.n/20/int64(size)))
			w := &world{
				seed: 1, lasts: rate.lasts, keys: 1, jitter: time.Millisecond / 2,
				limits: []limit{{kind: "bucket", n: rate.n, per: time.Second, burst: max(1, rate.n/10), shared: true}},
				crews:  []crew{{size: size, callers: callers, costs: 1, maxWait: -1, away: 3 * time.Millisecond / 4, percent: 100, to: rate.lasts}},
			}
			used, jain, calls := play(t, w).shared(rate.lasts / 5)
			load := .8 * float64(rate.n)
			w.crews[0].callers = int(min(4000, load*rate.lasts.Seconds())) / size // they begin at random, and have few requests each
			w.crews[0].every = time.Duration(float64(w.crews[0].callers*size) / load * float64(time.Second))
			p50, p99 := play(t, w).waits(rate.lasts / 5)
			t.Logf("%6d, %2d: %.3f, %.3f, %.2f; %v, %v", rate.n, size, used, jain, calls, p50, p99)
			assert.InDelta(t, 1, used, .02)
			assert.GreaterOrEqual(t, jain, .98)
			if size == 1 {
				alone = p99
			}
			assert.LessOrEqual(t, p99, alone+3*time.Millisecond, "a round trip is 2.5 ms at most")
		}
	}
}

// shared returns which part of the first limit was used after an instant, Jain's index of the shares, and the calls of the store per request.
func (f *fleet) shared(from time.Duration) (used, jain, calls float64) {
	got := f.tokens(span{from, f.lasts}, f.processes...)
	all, squares := float64(sum(got)), 0.
	for _, n := range got {
		squares += float64(n) * float64(n)
	}
	used = all / float64(f.limits[0].n) / (f.lasts - from).Seconds()
	return used, all * all / squares / float64(len(got)), float64(f.link.calls) / float64(len(f.sent))
}

// waits returns how long requests waited that came after an instant.
func (f *fleet) waits(from time.Duration) (p50, p99 time.Duration) {
	var all []time.Duration
	for _, s := range f.sent {
		if s.asked >= from {
			all = append(all, s.at-s.asked)
		}
	}
	slices.Sort(all)
	return all[len(all)/2], all[len(all)*99/100]
}
