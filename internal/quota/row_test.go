package quota

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/record"
)

// A server counts in windows of ten seconds. It reports neither their end nor what is left.
func TestAServerIsExpectedToBeClosedUntilItsWindowEnds(t *testing.T) {
	const s = second
	lately := record.Sum{N: 10, From: s}
	r := new(row)
	refused := func(at, backoff, want meter.Instant) {
		t.Helper()
		r.add(at, lately)
		require.Equal(t, want, r.wait(at, backoff), "refused at %d ms", at/milli)
	}
	refused(5*s, 1*s, 1*s)
	refused(7*s, 2*s, 2*s)
	accepted := func(at meter.Instant, n int) {
		for range n {
			r.accepted(at, at)
		}
	}
	accepted(11*s, 10)
	require.Equal(t, 10*s, r.closures.window.open, "since what was accepted lately began")
	require.Equal(t, 6*s, r.closures.closed)

	refused(12*s, 1*s, 1*s) // by chance, perhaps
	refused(13*s, 2*s, 6*s) // halfway between 17 and 21 s
	refused(19*s, 4*s, 1*s)
	refused(20*s, 8*s, s/2)
	refused(20*s+s/2, 16*s, s/2) // no window has lasted longer than until 21 s
	accepted(21*s, 9)
	require.Equal(t, 10*s, r.closures.window.open)
	require.Equal(t, 9*s, r.closures.closed)

	refused(22*s, 1*s, 1*s)
	r.accepted(23*s, 23*s)
	require.Equal(t, 9*s, r.closures.closed, "a lone refusal does not show that it was closed")
}

// An outage is followed by a shorter one. If the first was expected to return, four clients of a free server would lose a minute.
func TestAServerIsExpectedToBeClosedForAsLongAfterAsManyRequests(t *testing.T) {
	const s = second
	for n, wait := range map[int]int64{14: s / 2, 15: 2 * s, 17: 2 * s, 18: s / 2} {
		r := new(row)
		r.add(100*s, record.Sum{N: 16, From: 20 * s})
		r.add(101*s, record.Sum{})
		for range n {
			r.accepted(102*s, 102*s)
		}
		require.Equal(t, 82*s, r.closures.window.open)
		r.add(110*s, record.Sum{})
		require.Equal(t, s/2, r.wait(110*s, s/2), "it may be by chance")
		r.add(110*s+s/4, record.Sum{})
		require.Equal(t, wait, r.wait(110*s+s/4, s/2), "after %d: closed for two seconds the last time, after 16", n)
		require.Equal(t, 4*s, r.wait(112*s+s/4, 4*s), "longer than that: waits double")
	}
}

// A server that was closed for an hour may be open earlier the next time. It is asked as often as without that.
func TestAServerIsNotExpectedToBeClosedForLongerThanTheLongestBackoff(t *testing.T) {
	const s = second
	for closed, wait := range map[int64]int64{63 * s: 63 * s, 64 * s: 64 * s, 65 * s: 64 * s, 3600 * s: 64 * s} {
		r := new(row)
		r.add(100*s, record.Sum{N: 16, From: 1 * s})
		r.add(101*s, record.Sum{})
		open := 100*s + closed
		for range 16 {
			r.accepted(open, open)
		}
		r.add(open+2*s, record.Sum{})
		r.add(open+3*s, record.Sum{})
		require.Equal(t, wait, r.wait(open+3*s, s), "closed for %d s the last time", closed/s)
	}
}

// The pace was so slow that the server was not closed for a while, or requests paused.
func TestARowInALaterWindowShowsNothingOfItsLength(t *testing.T) {
	const s = second
	r := new(row)
	window := func(refused, closed, accepted meter.Instant) {
		r.add(refused, record.Sum{N: 1, From: s})
		r.add(closed, record.Sum{N: 1, From: s})
		r.accepted(accepted, accepted)
	}
	window(5*s, 7*s, 11*s)
	window(21*s, 40*s, 45*s)
	require.Equal(t, 10*s, r.closures.window.open)
	require.Equal(t, 45*s, r.closures.window.begun)
	require.Equal(t, 24*s, r.closures.closed)

	r.add(66*s, record.Sum{})
	r.add(67*s, record.Sum{})
	require.Equal(t, 2*s, r.wait(67*s, 2*s), "nothing is expected")
	r.accepted(69*s, 69*s)

	r.add(79*s-1, record.Sum{N: 1, From: s})
	r.add(79*s, record.Sum{})
	require.Zero(t, r.closures.window.open, "a window is longer than those before")
	require.Equal(t, 2*s, r.wait(79*s, 2*s))
	r.accepted(89*s, 89*s)
	require.Equal(t, 20*s, r.closures.window.open)
}

// A body may say that a refusal is none, long after it has changed the row.
func TestACopiedRowStaysAsItIs(t *testing.T) {
	r := new(row)
	require.Equal(t, row{}, r.copied())
	r.add(5*second, record.Sum{N: 1, From: second})
	was := r.copied()
	require.Equal(t, *r, was)
	r.add(7*second, record.Sum{})
	require.Zero(t, was.closures.window.shut)
	require.Equal(t, 6*second, r.closures.window.shut)
}

func TestARowIsOverWhenARequestIsAccepted(t *testing.T) {
	r := new(row)
	r.accepted(second, 0)
	require.Nil(t, r.closures)
	r.add(2*second, record.Sum{})
	require.False(t, r.asking)
	r.add(3*second, record.Sum{})
	require.True(t, r.asking)
	require.EqualValues(t, 2, r.refusals)
	r.accepted(4*second, 3*second)
	require.Zero(t, r.refusals)
	for at := range int64(1000) {
		r.add(5*second+at, record.Sum{})
	}
	require.EqualValues(t, mostRow, r.refusals)
}
