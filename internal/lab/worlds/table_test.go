//go:build !race

package worlds

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// One process and many that share a bucket use it alike: all of it, in even shares, with few calls. Requests wait for at most two round
// trips more than for a bucket without a store, that of a call that was under way when they came and that of their own, and for one trip more
// than those of one process alone. Processes take turns, so requests of several are not served in the order of all arrivals, which moves some
// by two tokens.
func TestFleetsOfEachSizeUseABucketAlike(t *testing.T) {
	if testing.Short() {
		return // it takes seconds
	}
	t.Log("round trip, per s, processes: used, Jain's index, calls per request; waits at a load of .8, p50, p99 and p99 with a local bucket")
	for _, trip := range []time.Duration{2 * time.Millisecond, 50 * time.Millisecond} {
		for _, rate := range []struct {
			n     int64
			lasts time.Duration
		}{{5, 5 * time.Minute}, {100, 30 * time.Second}, {10_000, 3 * time.Second}} {
			more := 2 * trip
			for _, size := range []int{1, 8, 32} {
				callers := int(max(2, rate.n/5/int64(size)))
				w := &world{
					seed: 1, lasts: rate.lasts, keys: 1, jitter: time.Millisecond / 2, // of a way: a trip takes up to half of one more or less
					limits: []limit{{kind: "bucket", n: rate.n, per: time.Second, burst: max(1, rate.n/10), shared: true}},
					crews:  []crew{{size: size, callers: callers, costs: 1, maxWait: -1, away: trip/2 - time.Millisecond/4, percent: 100, to: rate.lasts}},
				}
				used, jain, calls := play(t, w).shared(rate.lasts / 5)
				load := .8 * float64(rate.n)
				w.crews[0].callers = int(min(4000, load*rate.lasts.Seconds())) / size // they begin at random, and have few requests each
				w.crews[0].every = time.Duration(float64(w.crews[0].callers*size) / load * float64(time.Second))
				p50, p99, local := play(t, w).waits(rate.lasts / 5)
				t.Logf("%v, %6d, %2d: %.3f, %.3f, %.2f; %v, %v, %v", trip, rate.n, size, used, jain, calls, p50, p99, local)
				assert.InDelta(t, 1, used, .02)
				assert.GreaterOrEqual(t, jain, .98)
				assert.LessOrEqual(t, p99, local+more+time.Millisecond)
				if size == 1 {
					more = min(more, p99-local+trip) + 2*time.Second/time.Duration(rate.n)
				}
			}
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

// waits returns how long requests waited that came after an instant, and how long they would have waited for a bucket without a store.
func (f *fleet) waits(from time.Duration) (p50, p99, local time.Duration) {
	slices.SortFunc(f.sent, func(a, b sent) int { return cmp.Compare(a.asked, b.asked) })
	var all, locals []time.Duration
	each := f.limits[0].per / time.Duration(f.limits[0].n)
	full := time.Duration(0) // when the bucket is full again
	for _, s := range f.sent {
		at := max(s.asked, full-each*time.Duration(f.limits[0].burst-1))
		full = max(full, at) + each
		if s.asked >= from {
			all = append(all, s.at-s.asked)
			locals = append(locals, at-s.asked)
		}
	}
	slices.Sort(all)
	slices.Sort(locals)
	return all[len(all)/2], all[len(all)*99/100], locals[len(locals)*99/100]
}
