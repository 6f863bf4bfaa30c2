package heap

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

type rank int

func (r rank) Before(other rank) bool { return r < other }

type thing struct {
	Entry[rank]
	id int
}

// check compares a heap with the things that it ought to hold.
func check(t *testing.T, h Heap[*thing, rank], all map[*thing]rank) {
	t.Helper()
	require.Len(t, h, len(all))
	for i, x := range h {
		require.True(t, h.Has(x))
		require.True(t, x.IsIn())
		require.Equal(t, all[x], x.Key())
		require.False(t, x.Key().Before(h[max(0, i-1)/2].Key()), "a thing comes before the one above it")
	}
	if len(all) == 0 {
		require.Nil(t, h.Top())
		return
	}
	first := slices.MinFunc(h, func(a, b *thing) int { return cmp.Compare(a.Key(), b.Key()) })
	require.Equal(t, first.Key(), h.Top().Key())
}

func TestAHeapDoesAsAListOfKeysWould(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		var h Heap[*thing, rank]
		things, all := make([]*thing, 60), make(map[*thing]rank)
		for i := range things {
			things[i] = &thing{id: i}
		}
		for range 300 {
			x, k := things[r.IntN(len(things))], rank(r.IntN(20))
			switch r.IntN(12) {
			case 0, 1, 2, 3, 4, 5:
				h.Put(x, k)
				all[x] = k
			case 6, 7:
				h.Remove(x)
				delete(all, x)
			case 8, 9, 10:
				x = h.Top()
				if x != nil {
					h.Remove(x)
					delete(all, x)
				}
			default:
				if r.IntN(20) == 0 {
					h.Clear()
					clear(all)
				}
			}
			for _, x := range things {
				_, in := all[x]
				require.Equal(t, in, h.Has(x))
				require.Equal(t, in, x.IsIn())
			}
			check(t, h, all)
		}
	}
}

func TestThingsComeOutInOrder(t *testing.T) {
	var h Heap[*thing, rank]
	for i := range 1_000 {
		h.Put(&thing{id: i}, rank(i*7919%1_000))
	}
	for i := range 1_000 {
		x := h.Top()
		require.Equal(t, rank(i), x.Key())
		h.Remove(x)
		require.False(t, x.IsIn())
	}
	require.Nil(t, h.Top())
}

func TestAThingOfAnotherHeapIsNotInThisOne(t *testing.T) {
	var one, other Heap[*thing, rank]
	x, y := new(thing), new(thing)
	require.False(t, one.Has(x))
	one.Put(x, 1)
	other.Put(y, 1)
	require.False(t, one.Has(y))
	require.True(t, other.Has(y))
	one.Remove(x)
	one.Remove(x) // without effect
	require.False(t, one.Has(x))
	require.Equal(t, rank(1), x.Key(), "the key stays")
}

func TestAHeapGivesRoomBack(t *testing.T) {
	var h Heap[*thing, rank]
	for i := range 100_000 {
		h.Put(&thing{id: i}, rank(i))
	}
	for len(h) > 100 {
		h.Remove(h.Top())
	}
	require.LessOrEqual(t, cap(h), 4*shrinkAbove)
	require.Equal(t, rank(99_900), h.Top().Key())
}
