package throttle

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

// testWaiter returns one that is in no line yet.
func testWaiter(rank instant, seq uint64, costs ...int64) *waiter {
	w := &waiter{bounds: bounds{place: place{rank: rank, seq: seq}, expiry: never, deadline: never}}
	charges := make([]charge, len(costs))
	for i, cost := range costs {
		charges[i].cost = cost
	}
	w.take(charges)
	return w
}

// aheadIn returns what ahead should, by a sorted slice.
func aheadIn(sorted []*waiter, rank instant, seq uint64, stop int) (sum int64) {
	for _, w := range sorted {
		if w.before(&place{rank: rank, seq: seq}) {
			sum += w.costs[stop]
		}
	}
	return sum
}

// checkTree walks a line from its root, and returns those in it in order, and how deep it is.
func checkTree(t *testing.T, ln *line) (inOrder []*waiter, depth int) {
	t.Helper()
	var walk func(w, parent *waiter, level int)
	walk = func(w, parent *waiter, level int) {
		if w == nil {
			return
		}
		depth = max(depth, level)
		holds(t, parent == w.parent && ln == w.line, "not a tree")
		holds(t, parent == nil || parent.weight >= w.weight, "not a heap by weight")
		walk(w.left, w, level+1)
		inOrder = append(inOrder, w)
		walk(w.right, w, level+1)
		tightest := w.tight()
		for i, sum := range w.costs {
			most := sum
			for _, below := range []*waiter{w.left, w.right} {
				if below != nil {
					sum += below.sums()[i]
					most, tightest = max(most, below.mosts()[i]), min(tightest, below.tightest)
				}
			}
			holds(t, sum == w.sums()[i], "a sum of costs is wrong")
			holds(t, most == w.mosts()[i], "a largest cost is wrong")
		}
		holds(t, tightest == w.tightest, "the tightest is wrong")
	}
	walk(ln.root, nil, 1)
	require.Len(t, inOrder, ln.size)
	for i, w := range inOrder {
		if i == 0 {
			holds(t, ln.first == w, "another is the first")
		} else {
			holds(t, inOrder[i-1].before(&w.place), "out of order")
			holds(t, w == inOrder[i-1].next(), "another is the next")
		}
	}
	if ln.size == 0 {
		require.Nil(t, ln.first)
	} else {
		require.Nil(t, inOrder[ln.size-1].next())
	}
	return inOrder, depth
}

func TestLineAgreesWithASortedSlice(t *testing.T) {
	for seed := range 6 * seeds(5) {
		r, ln, sorted := metertest.Seeded(t, seed), new(line), []*waiter(nil)
		stops := 1 + r.IntN(3)
		for op := range 400 {
			if len(sorted) == 0 || r.IntN(5) > r.IntN(4) {
				costs := make([]int64, stops)
				for i := range costs {
					costs[i] = 1 + r.Int64N(100)
				}
				w := testWaiter(r.Int64N(50), uint64(op), costs...)
				ln.insert(w)
				i, _ := slices.BinarySearchFunc(sorted, w, func(a, b *waiter) int {
					if a.before(&b.place) {
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
			inOrder, _ := checkTree(t, ln)
			require.True(t, slices.Equal(sorted, inOrder), "seed %d, op %d", seed, op)
			rank, seq, stop := r.Int64N(52)-1, uint64(r.IntN(400)), r.IntN(stops)
			if r.IntN(2) == 0 {
				seq = math.MaxUint64
			}
			require.Equal(t, aheadIn(sorted, rank, seq, stop), ln.ahead(&place{rank: rank, seq: seq}, stop), "seed %d, op %d", seed, op)
		}
	}
}

func TestLineSaturates(t *testing.T) {
	r := metertest.Seeded(t, 9)
	huge := []int64{maxCount - 1, maxCount, maxCount + 1, math.MaxInt64 - 1, math.MaxInt64}
	ln, first := new(line), testWaiter(-1, 0, 1)
	ln.insert(first)
	for seq := range uint64(200) {
		ln.insert(testWaiter(r.Int64N(50), 1+seq, huge[r.IntN(len(huge))]))
		last := int64(0)
		for w := first; w != nil; w = w.next() {
			ahead := ln.ahead(&w.place, 0)
			require.GreaterOrEqual(t, ahead, min(last, maxCount-1), "less is ahead of a later one")
			require.LessOrEqual(t, ahead, 2*maxCount)
			require.Positive(t, w.sums()[0])
			last = ahead
		}
		require.GreaterOrEqual(t, ln.ahead(&place{rank: 100}, 0), maxCount-1)
	}
}

func TestLineStaysShallow(t *testing.T) {
	const n = 20_000
	r := rand.New(rand.NewPCG(6, 6))
	for name, rank := range map[string]func(i int) instant{
		"in order": func(i int) instant { return instant(i) }, "reversed": func(i int) instant { return -instant(i) },
		"all at once": func(int) instant { return 0 }, "at random": func(int) instant { return r.Int64() },
	} {
		ln := new(line)
		for i := range n {
			ln.insert(testWaiter(rank(i), uint64(i), 1))
		}
		_, depth := checkTree(t, ln)
		require.Less(t, depth, 80, "%s: %d deep", name, depth)
		for i := range n {
			require.Equal(t, int64(n-i), ln.root.sums()[0])
			ln.remove(ln.first)
		}
		require.Nil(t, ln.root)
	}
}

func TestHeapOfStopsKnowsItsFirst(t *testing.T) {
	r := metertest.Seeded(t, 7)
	b := &bucket{limit: new(limit), extra: new(extra)}
	lines := make([]*line, 40)
	for i := range lines {
		ln := &line{stops: make([]stop, 1)}
		ln.stops[0] = stop{line: ln, bucket: b, pos: -1}
		ln.insert(testWaiter(r.Int64N(20), uint64(i), 1))
		lines[i] = ln
	}
	for range 7_000 {
		ln := lines[r.IntN(len(lines))]
		s := &ln.stops[0]
		if r.IntN(3) > 0 {
			s.set(r.IntN(2) == 0)
		} else {
			ln.first.rank = r.Int64N(20) // as if another were first
			if s.pos >= 0 {
				heap.Fix(&b.stopped, s.pos)
			}
		}
		var top *line
		n := 0
		for _, ln := range lines {
			s := &ln.stops[0]
			if s.pos < 0 {
				continue
			}
			n++
			require.Same(t, s, b.stopped[s.pos])
			if top == nil || b.before(ln, top) {
				top = ln
			}
		}
		require.Len(t, b.stopped, n)
		if n > 0 {
			require.Same(t, top, b.stopped[0].line)
		}
		for _, ln := range lines {
			require.Equal(t, top != nil && top != ln && b.before(top, ln), ln.stops[0].barred())
		}
	}
}

func TestHeapOfBucketsKnowsItsFirst(t *testing.T) {
	r := metertest.Seeded(t, 8)
	var h bucketHeap
	for range 6_000 {
		switch {
		case len(h) < 10 || r.IntN(3) == 0 && len(h) < 200:
			heap.Push(&h, &bucket{lookAt: r.Int64N(100), place: -1})
		case r.IntN(2) == 0:
			b := h[r.IntN(len(h))]
			b.lookAt = r.Int64N(100)
			heap.Fix(&h, int(b.place))
		default:
			b := h[r.IntN(len(h))]
			heap.Remove(&h, int(b.place))
			require.EqualValues(t, -1, b.place)
		}
		for i, b := range h {
			require.EqualValues(t, i, b.place)
			require.LessOrEqual(t, h[0].lookAt, b.lookAt)
		}
	}
}
