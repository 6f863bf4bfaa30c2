package quota

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What a server needed to accept requests again is what it needs at most the next time.
func TestABackoffEndsNoLaterInACycleThanAnEarlierOneDid(t *testing.T) {
	const s = second
	r := new(row)
	rows := func(from, to int64) { // refused once a second, and then accepted
		for at := from; at < to; at += s {
			r.add(at)
		}
		r.accepted(to)
	}
	require.Equal(t, 64*s, r.atMost(0, 64*s), "nothing is known")
	rows(s, 5*s)
	require.Equal(t, 64*s, r.atMost(6*s, 64*s), "the first cycle lasts still")
	rows(8*s, 15*s)
	require.Equal(t, 4*s, r.atMost(21*s, 64*s), "until 25 s")
	require.Equal(t, 3*s, r.atMost(21*s, 3*s), "a shorter one stays")
	r.accepted(24 * s)
	require.Equal(t, 1*s, r.atMost(24*s, 64*s), "no request was refused, so no cycle ends")
	require.Equal(t, 64*s, r.atMost(25*s, 64*s), "the cycle has ended")
	rows(19*s, 22*s)
	require.Equal(t, 5*s, r.atMost(24*s, 64*s), "that one was shorter: it ends at 29 s")
	r.add(29*s - 1)
	require.Equal(t, 1*s, r.atMost(28*s, 64*s))
	r.add(29 * s)
	require.Equal(t, 64*s, r.atMost(28*s, 64*s), "it is longer")
	r.accepted(40 * s)
	require.Equal(t, 18*s, r.atMost(40*s, 64*s))
}

func TestARowIsOverWhenARequestIsAccepted(t *testing.T) {
	r := new(row)
	r.accepted(second)
	r.add(2 * second)
	require.False(t, r.asking)
	r.add(3 * second)
	require.True(t, r.asking)
	require.EqualValues(t, 2, r.refusals)
	r.accepted(4 * second)
	require.Zero(t, r.refusals)
	for at := range int64(1000) {
		r.add(5*second + at)
	}
	require.EqualValues(t, mostRow, r.refusals)
}
