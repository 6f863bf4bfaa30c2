package keep

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/heap"
	"github.com/httpthrottle/throttle/internal/meter"
)

// A thing must be kept until must, and is as good as new at full.
type thing struct {
	Entry
	id         int
	must, full Instant
}

func newKeeper() *Keeper[*thing] {
	return &Keeper[*thing]{Matters: func(x *thing, _ Instant) (must, full Instant) { return x.must, max(x.must, x.full) }}
}

// check checks that things are where they say.
func (k *Keeper[T]) check(t *testing.T) {
	t.Helper()
	for _, h := range []heap.Heap[T, instant]{k.idle, k.busy} {
		for i, x := range h {
			require.True(t, h.Has(x))
			require.LessOrEqual(t, h[max(0, i-1)/2].lookAt(), x.lookAt(), "not a heap")
		}
	}
}

func none(*thing) bool { return false }

// If all must be kept, the one that yields and must be kept the longest is removed, however few are looked at each time.
func TestEvictRemovesWhatYieldsIfThereIsNoOther(t *testing.T) {
	k := newKeeper()
	k.Yields = func(x *thing, now Instant) (Instant, bool) { return x.must, x.id%2 == 0 && x.must > now }
	var all []*thing
	for id := range 10 {
		x := &thing{id: id, must: Instant(1000 + id)}
		all = append(all, x)
		k.Add(x, 0)
	}
	idle := &thing{id: 11, full: 5000}
	k.Add(idle, 0)
	evict := func(most int, spare func(*thing) bool) int {
		x, ok := k.Evict(1, most, spare)
		k.check(t)
		if !ok {
			return -1
		}
		require.False(t, x.IsKept())
		return x.id
	}
	require.Equal(t, 11, evict(100, none), "one that need not be kept comes first")
	require.Equal(t, 8, evict(100, none))
	require.Equal(t, 4, evict(100, func(x *thing) bool { return x.id == 6 }))
	found := 0
	for range 10 * len(all) {
		if evict(1, none) >= 0 {
			found++
		}
	}
	require.Equal(t, 3, found, "0, 2 and 6")
	require.Equal(t, -1, evict(100, none))
	require.Equal(t, 5, k.Len())
}

func TestSweepForgetsWhatIsAsGoodAsNewAndNothingElse(t *testing.T) {
	k := newKeeper()
	var all []*thing
	for id := range 100 {
		x := &thing{id: id, full: Instant(id)}
		all = append(all, x)
		k.Add(x, 0)
	}
	k.check(t)
	require.Equal(t, 100, k.Len())
	for now := range Instant(120) {
		var forgotten []int
		more := k.Sweep(now, 1000, func(x *thing) {
			require.False(t, x.IsKept())
			forgotten = append(forgotten, x.id)
		})
		require.False(t, more)
		k.check(t)
		if now < 100 {
			require.Equal(t, []int{int(now)}, forgotten)
			require.True(t, now == 99 || all[now+1].IsKept())
		}
	}
	require.Zero(t, k.Len())
	require.Equal(t, meter.Never, k.First())
}

func TestSweepLooksAtMostSoMany(t *testing.T) {
	k := newKeeper()
	for id := range 100 {
		k.Add(&thing{id: id}, 0)
	}
	forgotten := 0
	for _, left := range []int{70, 40, 10, 0} {
		more := k.Sweep(0, 30, func(*thing) { forgotten++ })
		require.Equal(t, left, k.Len())
		require.Equal(t, left > 0, more)
	}
	require.Equal(t, 100, forgotten)
}

// Use moves the instant at which a thing may be forgotten, without a word to the Keeper.
func TestAThingThatWasUsedIsLookedAtAgain(t *testing.T) {
	k, x := newKeeper(), &thing{full: 10}
	k.Add(x, 0)
	require.EqualValues(t, 0, k.First(), "it is not known yet when it is as good as new")
	require.False(t, k.Sweep(0, 10, func(*thing) { t.Fatal("it is not") }))
	require.EqualValues(t, 10, k.First())
	x.full = 20
	require.False(t, k.Sweep(10, 10, func(*thing) { t.Fatal("it is not") }))
	require.EqualValues(t, 20, k.First())
	require.False(t, k.Sweep(19, 10, func(*thing) { t.Fatal("it is not") }))
	k.Sweep(20, 10, func(*thing) {})
	require.False(t, x.IsKept())
}

func TestFreeHasABusyThingLookedAtAgain(t *testing.T) {
	k, x := newKeeper(), &thing{must: meter.Never}
	require.False(t, k.Free(x, 0), "it is not kept")
	k.Add(x, 0)
	require.False(t, k.Free(x, 0), "it is not known to be busy")
	k.Sweep(0, 10, func(*thing) { t.Fatal("it must be kept") })
	require.EqualValues(t, lookAgain, k.First(), "nothing says when it may be forgotten")
	x.must = 0
	require.True(t, k.Free(x, 7))
	require.False(t, k.Free(x, 7), "no earlier than before")
	require.EqualValues(t, 7, k.First())
	k.Sweep(7, 10, func(*thing) {})
	require.Zero(t, k.Len())
}

func TestAThingThatIsNeverAsGoodAsNewStays(t *testing.T) {
	k, x := newKeeper(), &thing{full: meter.Never}
	k.Add(x, 0)
	for now := Instant(0); now < 10*lookAgain; now += lookAgain {
		require.False(t, k.Sweep(now, 10, func(*thing) { t.Fatal("it is not") }))
		require.Equal(t, now+lookAgain, k.First())
	}
	evicted, ok := k.Evict(10*lookAgain, 1000, none)
	require.True(t, ok, "but it makes room")
	require.Same(t, x, evicted)
}

func TestTheThingThatIsAsGoodAsNewFirstMakesRoom(t *testing.T) {
	k := newKeeper()
	var all []*thing
	for id, full := range []Instant{50, 20, 40, 10, 30} {
		x := &thing{id: id, full: full}
		all = append(all, x)
		k.Add(x, 0)
	}
	all[3].must = 100
	var order []int
	for range 5 {
		if x, ok := k.Evict(1, 1000, func(x *thing) bool { return x.id == 2 }); ok {
			order = append(order, x.id)
		}
		k.check(t)
	}
	require.Equal(t, []int{1, 4, 0}, order)
	require.Equal(t, 2, k.Len(), "one must be kept, and one is spared")
	x, ok := k.Evict(1, 1000, none)
	require.True(t, ok, "it is spared no more")
	require.Equal(t, 2, x.id)
	_, ok = k.Evict(99, 1000, none)
	require.False(t, ok)
	_, ok = k.Evict(100, 1000, none)
	require.True(t, ok)
	_, ok = k.Evict(100, 1000, none)
	require.False(t, ok, "nothing is left")
}

func TestSettleDoesTheWorkOfEvictInPieces(t *testing.T) {
	k := newKeeper()
	require.True(t, k.Prepare(0, 1), "there is none")
	for id := range 100 {
		k.Add(&thing{id: id, must: 1000}, 0)
	}
	free := &thing{id: 100}
	k.Add(free, 1)
	pieces := 1
	for !k.Prepare(0, 10) {
		pieces++
	}
	require.Equal(t, 11, pieces)
	x, ok := k.Evict(0, 1, none)
	require.True(t, ok)
	require.Same(t, free, x)
}

// Things are used, freed, swept and evicted at random. None that must be kept is ever lost, and none is kept for much longer than
// it matters.
func TestNothingThatMattersIsForgotten(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 0))
		k := newKeeper()
		kept := make(map[*thing]bool)
		forget := func(now Instant) func(*thing) {
			return func(x *thing) {
				require.True(t, kept[x])
				require.LessOrEqual(t, max(x.must, x.full), now, "seed %d", seed)
				delete(kept, x)
			}
		}
		now := Instant(0)
		for id := range 500 {
			now += r.Int64N(10)
			if r.IntN(2) == 0 {
				x := &thing{id: id, full: now + r.Int64N(100)}
				kept[x] = true
				k.Add(x, now)
			}
			all := make([]*thing, 0, len(kept))
			for x := range kept {
				all = append(all, x)
			}
			if len(all) == 0 {
				continue
			}
			slices.SortFunc(all, func(a, b *thing) int { return cmp.Compare(a.id, b.id) })
			switch x := all[r.IntN(len(all))]; r.IntN(6) {
			case 0:
				x.must = max(x.must, now+r.Int64N(50))
			case 1:
				x.full = max(x.full, now+r.Int64N(50))
			case 2:
				x.must = min(x.must, now)
				k.Free(x, now)
			case 3:
				k.Sweep(now, 1+r.IntN(20), forget(now))
			case 4:
				if y, ok := k.Evict(now, 100, func(y *thing) bool { return y == x }); ok {
					require.NotSame(t, x, y)
					require.LessOrEqual(t, y.must, now)
					delete(kept, y)
				}
			default:
				k.Remove(x)
				delete(kept, x)
			}
			k.check(t)
			require.Equal(t, len(kept), k.Len())
		}
		for x := range kept {
			now = max(now, x.must, x.full)
		}
		now += lookAgain
		k.Sweep(now, 10_000, forget(now))
		require.Empty(t, kept)
	}
}

func TestRoomIsGivenBack(t *testing.T) {
	for _, c := range []struct{ size, peak, room int }{
		{2000, 100_000, 100_000}, {1000, 2000, 2000}, {200, ShrinkAbove, ShrinkAbove}, {1000, 4000, 1000}, {ShrinkAbove, 100_000, ShrinkAbove},
	} {
		m, peak := make(map[int]bool), c.peak
		for i := range c.size {
			m[i] = true
		}
		require.Len(t, Shrunk(m, &peak), c.size)
		require.Equal(t, c.room, peak)
	}
	k := newKeeper()
	var all []*thing
	for id := range 10_000 {
		all = append(all, &thing{id: id})
		k.Add(all[id], 0)
	}
	for _, x := range all[100:] {
		k.Remove(x)
	}
	k.check(t)
	require.Less(t, cap(k.idle), 2*ShrinkAbove)
}

// A search for room that ends without a result leaves those that were spared where they can be found again.
func TestWhatWasSparedIsFoundAgain(t *testing.T) {
	k := newKeeper()
	for id := range 3 {
		k.Add(&thing{id: id}, 0)
	}
	_, ok := k.Evict(5, 100, func(*thing) bool { return true })
	require.False(t, ok)
	k.check(t)
	require.Equal(t, 3, k.Len())
	require.EqualValues(t, 5, k.First())
	left := 3
	for range 3 {
		require.False(t, k.Sweep(5, 100, func(*thing) { left-- }))
	}
	require.Zero(t, left)
}

// A thing whose instant moves again and again does not keep another one from making room, nor the search from ending.
func TestASearchForRoomEnds(t *testing.T) {
	looked := 0
	k := &Keeper[*thing]{Matters: func(x *thing, now Instant) (must, full Instant) {
		looked++
		return 0, now + Instant(looked)
	}}
	for id := range 1000 {
		k.Add(&thing{id: id}, 0)
	}
	_, ok := k.Evict(0, 1000, none)
	require.True(t, ok)
	require.Equal(t, evictLook+1, looked)
	k.check(t)
}
