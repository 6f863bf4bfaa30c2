package meter

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDoubtsReturnTheStateBeforeOnceAllAreExcused(t *testing.T) {
	var d Doubts[string]
	a, b := d.Open(0, "before"), d.Open(1, "after a")
	require.Nil(t, b(2, true), "a may still stand")
	require.Equal(t, "before", *a(3, true))
	require.Nil(t, a(3, true), "only once")

	a, b = d.Open(4, "again"), d.Open(5, "")
	require.Nil(t, a(6, false))
	require.Nil(t, b(7, true), "a stands")

	a = d.Open(8, "")
	d.Stand()
	require.Nil(t, a(9, true))

	a = d.Open(10, "old")
	require.Equal(t, "old", *a(10+doubtFor, true))
	a = d.Open(10, "old")
	require.Nil(t, a(11+doubtFor, true), "too late")

	a = d.Open(0, "old") // its body is never read
	b = d.Open(1+doubtFor, "new")
	require.Nil(t, a(2+doubtFor, true))
	require.Equal(t, "new", *b(3+doubtFor, true))
}
