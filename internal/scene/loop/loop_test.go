package loop

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEventsHappenInOrder(t *testing.T) {
	var l Loop
	var got []string
	at := func(d int64, name string) { l.After(d, func() { got = append(got, name) }) }
	at(20, "late")
	at(10, "first of two")
	at(10, "second of two")
	l.After(10, func() {
		require.Equal(t, int64(10), l.Now())
		at(-5, "in the past")
		at(10, "made later for the same instant")
	})
	at(21, "after the end")
	l.Run(20)
	require.Equal(t, []string{"first of two", "second of two", "in the past", "late", "made later for the same instant"}, got)
	l.Run(21)
	require.Equal(t, "after the end", got[len(got)-1])
}

func TestManyEventsHappenInOrder(t *testing.T) {
	var l Loop
	r := rand.New(rand.NewPCG(1, 2))
	var want, got []int64
	for range 5000 {
		d := r.Int64N(1000)
		want = append(want, d)
		l.After(d, func() { got = append(got, l.Now()) })
	}
	slices.Sort(want)
	l.Run(1000)
	require.Equal(t, want, got)
}
