package queue

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

// testWaiter returns one that is in no line yet.
func testWaiter(rank Instant, seq uint64, costs ...int64) *Waiter {
	w := &Waiter{Bounds: Bounds{Place: Place{Rank: rank, seq: seq}, Expiry: Never, Deadline: Never}}
	charges := make([]Charge, len(costs))
	for i, cost := range costs {
		charges[i].cost = cost
	}
	w.take(charges)
	return w
}

// aheadIn returns what ahead should, by a sorted slice.
func aheadIn(sorted []*Waiter, rank Instant, seq uint64, stop int) (sum int64) {
	for _, w := range sorted {
		if w.Before(&Place{Rank: rank, seq: seq}) {
			sum += w.costs[stop]
		}
	}
	return sum
}

func TestLineAgreesWithASortedSlice(t *testing.T) {
	seeds := uint64(30)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		r, ln, sorted := metertest.Seeded(t, seed), new(Line), []*Waiter(nil)
		stops := 1 + r.IntN(3)
		ln.pacer = r.IntN(stops)
		for op := range 400 {
			if r.IntN(20) == 0 {
				ln.slope = []int64{0, 1, 2, 3, 1 << 40, 1 << 51, 1 << 60}[r.IntN(7)]
			}
			if len(sorted) == 0 || r.IntN(5) > r.IntN(4) {
				costs := make([]int64, stops)
				for i := range costs {
					costs[i] = 1 + r.Int64N(1+100*r.Int64N(2)) // many cost the same
				}
				w := testWaiter(r.Int64N(50), uint64(op), costs...)
				if r.IntN(2) == 0 {
					w.Expiry = r.Int64N(20)
				}
				ln.insert(w)
				i, _ := slices.BinarySearchFunc(sorted, w, func(a, b *Waiter) int {
					if a.Before(&b.Place) {
						return -1
					}
					return 1
				})
				sorted = slices.Insert(sorted, i, w)
			} else {
				i := r.IntN(len(sorted)) * r.IntN(2) // the first, every other time
				ln.remove(sorted[i])
				sorted = slices.Delete(sorted, i, i+1)
			}
			inOrder, _, err := ln.check()
			require.NoError(t, err)
			require.True(t, slices.Equal(sorted, inOrder), "seed %d, op %d", seed, op)
			rank, seq, stop := r.Int64N(52)-1, uint64(r.IntN(400)), r.IntN(stops)
			if r.IntN(2) == 0 {
				seq = math.MaxUint64
			}
			require.Equal(t, aheadIn(sorted, rank, seq, stop), ln.ahead(&Place{Rank: rank, seq: seq}, stop), "seed %d, op %d", seed, op)
		}
	}
}

// In order, no request makes a bound earlier than it need be.
func TestBoundsAreExactInOrder(t *testing.T) {
	r, ln := metertest.Seeded(t, 3), &Line{Stops: make([]Stop, 1)}
	m := meter.NewTokenBucket(0, Rate{N: 1, Per: 7}, 1, 1)
	ln.Stops[0].Bucket = &Bucket{Meter: m}
	ln.choosePacer([]Charge{{bucket: ln.Stops[0].Bucket}})
	for seq := range uint64(2000) {
		w := testWaiter(0, seq, 1+r.Int64N(9))
		w.Expiry = r.Int64N(100_000)
		ln.insert(w)
		if r.IntN(3) == 0 {
			ln.remove(ln.First)
		}
		if seq%50 < 49 {
			continue
		}
		ln.pace()
		tightest, upTo := Never, int64(0)
		for w := ln.First; w != nil; w = w.Next() {
			upTo += w.costs[0]
			tightest = min(tightest, w.Expiry-7*upTo)
		}
		require.Equal(t, tightest, ln.root.bound)
	}
}

func TestLineSaturates(t *testing.T) {
	r := metertest.Seeded(t, 9)
	huge := []int64{MaxCount - 1, MaxCount, MaxCount + 1, math.MaxInt64 - 1, math.MaxInt64}
	ln, first := new(Line), testWaiter(-1, 0, 1)
	ln.insert(first)
	for seq := range uint64(200) {
		ln.insert(testWaiter(r.Int64N(50), 1+seq, huge[r.IntN(len(huge))]))
		last := int64(0)
		for w := first; w != nil; w = w.Next() {
			ahead := ln.ahead(&w.Place, 0)
			require.GreaterOrEqual(t, ahead, min(last, MaxCount-1), "less is ahead of a later one")
			require.LessOrEqual(t, ahead, 2*MaxCount)
			require.Positive(t, w.sums()[0])
			last = ahead
		}
		require.GreaterOrEqual(t, ln.ahead(&Place{Rank: 100}, 0), MaxCount-1)
	}
}

func TestLineStaysShallow(t *testing.T) {
	const n = 20_000
	r := rand.New(rand.NewPCG(6, 6))
	for name, rank := range map[string]func(i int) Instant{
		"in order": func(i int) Instant { return Instant(i) }, "reversed": func(i int) Instant { return -Instant(i) },
		"all at once": func(int) Instant { return 0 }, "at random": func(int) Instant { return r.Int64() },
	} {
		ln := new(Line)
		for i := range n {
			ln.insert(testWaiter(rank(i), uint64(i), 1))
		}
		_, depth, err := ln.check()
		require.NoError(t, err)
		require.Less(t, depth, 80, "%s: %d deep", name, depth)
		require.GreaterOrEqual(t, depth, 15, "no tree of so many is flatter")
		for i := range n {
			require.Equal(t, int64(n-i), ln.root.sums()[0])
			ln.remove(ln.First)
		}
		require.Nil(t, ln.root)
	}
}

func TestHeapOfStopsKnowsItsFirst(t *testing.T) {
	r := metertest.Seeded(t, 7)
	b := &Bucket{Limit: new(Limit), Extra: new(Extra)}
	lines := make([]*Line, 40)
	for i := range lines {
		ln := &Line{Stops: make([]Stop, 1)}
		ln.Stops[0] = Stop{Line: ln, Bucket: b, pos: -1}
		ln.insert(testWaiter(r.Int64N(20), uint64(i), 1))
		lines[i] = ln
	}
	for range 7_000 {
		ln := lines[r.IntN(len(lines))]
		s := &ln.Stops[0]
		if r.IntN(3) > 0 {
			s.set(r.IntN(2) == 0)
		} else {
			ln.First.Rank = r.Int64N(20) // as if another were first
			if s.pos >= 0 {
				heap.Fix(&b.Stopped, s.pos)
			}
		}
		var top *Line
		n := 0
		for _, ln := range lines {
			s := &ln.Stops[0]
			if s.pos < 0 {
				continue
			}
			n++
			require.Same(t, s, b.Stopped[s.pos])
			if top == nil || b.before(ln, top) {
				top = ln
			}
		}
		require.Len(t, b.Stopped, n)
		if n > 0 {
			require.Same(t, top, b.Stopped[0].Line)
		}
		for _, ln := range lines {
			require.Equal(t, top != nil && top != ln && b.before(top, ln), ln.Stops[0].barred())
		}
	}
}

func TestHeapOfBucketsKnowsItsFirst(t *testing.T) {
	r := metertest.Seeded(t, 8)
	var h BucketHeap
	for range 6_000 {
		switch {
		case len(h) < 10 || r.IntN(3) == 0 && len(h) < 200:
			heap.Push(&h, &Bucket{lookAt: r.Int64N(100), Place: -1})
		case r.IntN(2) == 0:
			b := h[r.IntN(len(h))]
			b.lookAt = r.Int64N(100)
			heap.Fix(&h, int(b.Place))
		default:
			b := h[r.IntN(len(h))]
			heap.Remove(&h, int(b.Place))
			require.EqualValues(t, -1, b.Place)
		}
		for i, b := range h {
			require.EqualValues(t, i, b.Place)
			require.LessOrEqual(t, h[0].lookAt, b.lookAt)
		}
	}
}

// BenchmarkLine takes a request out of a long line, and puts it back elsewhere.
func BenchmarkLine(b *testing.B) {
	const n = 100_000
	r, ln, all := rand.New(rand.NewPCG(1, 2)), new(Line), make([]*Waiter, n)
	for i := range all {
		all[i] = testWaiter(r.Int64(), uint64(i), 1)
		ln.insert(all[i])
	}
	for b.Loop() {
		w := all[r.IntN(n)]
		ln.remove(w)
		w.Rank = r.Int64()
		ln.insert(w)
	}
}
