package quota

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// Of many requests only some times are remembered; the times between which one was sent are right all the same.
func TestTheNthLastRequestIsBetweenTwoTimes(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		limit := 1 + r.Int64N(500)
		a := newAges(limit)
		var sent []meter.Instant
		now := meter.Instant(0)
		for range r.Int64N(3*limit) + 1 {
			now += r.Int64N(second)
			a.add(now)
			sent = append(sent, now)
		}
		for n := range 2*limit + 1 {
			from, to, ok := a.nth(n)
			if n == 0 || n > int64(len(sent)) {
				require.False(t, ok, "seed %d, %d", seed, n)
				continue
			}
			require.True(t, ok || n > limit, "seed %d: as many as the limit are remembered", seed)
			if ok {
				at := sent[int64(len(sent))-n]
				require.True(t, from <= at && at <= to, "seed %d, %d: %d, not between %d and %d", seed, n, at, from, to)
				require.True(t, limit > agesMarks-8 || from == to, "all of a few are remembered")
			}
		}
	}
}

// In a log of four requests in ten seconds, each one may be sent as soon as the fourth last is ten seconds old.
func TestAgesShowHowLongALogCountsARequest(t *testing.T) {
	a := newAges(4)
	for i := range int64(4) {
		a.add(i * second)
		a.shows(i*second, i+1, 0, false)
	}
	require.False(t, a.known())
	a.shows(9*second, 4, 0, true)
	require.False(t, a.known(), "no request has left the log")
	for i := range int64(agesSure) {
		require.False(t, a.known())
		now := (10 + i) * second
		a.add(now)
		a.shows(now, 4, 0, false)
		a.returned(false)
	}
	require.True(t, a.known())
	require.EqualValues(t, 10*second, a.age())
	at, ok := a.gone(4)
	require.True(t, ok)
	require.EqualValues(t, 12*second, at)
	at, ok = a.gone(0)
	require.True(t, ok)
	require.EqualValues(t, 21*second, at, "that of a request without a response")
	_, ok = a.gone(9)
	require.False(t, ok, "so many were not sent")
	a.shows(at, 4, 0, true)
	require.Greater(t, a.age(), 19*second, "it is refused at the age of 19 s, so it takes longer")
	require.False(t, a.known(), "that contradicts the responses before")
}

// In a log of one request in ten seconds, the first ages were wrong twice.
func TestAgesThatWereContradictedAreKnownAgainOnceResponsesAgree(t *testing.T) {
	a := newAges(1)
	next := func(n int64) {
		now := n * 10 * second
		a.shows(now-second, 1, 0, true)
		a.add(now)
		a.shows(now, 1, 0, false)
		a.returned(false)
	}
	next(0)
	for range agesWrong {
		a.contradicted()
	}
	for n := range int64(agesAgain) {
		require.False(t, a.known(), "%d", n)
		next(n + 1)
	}
	require.True(t, a.known())
	require.EqualValues(t, 10*second, a.age())
	a.contradicted()
	require.False(t, a.known())
}

// In a bucket of which little is used, the last requests are not counted any more, however young they are.
func TestAgesOfABucketThatIsNotEmptyContradictEachOther(t *testing.T) {
	a := newAges(20)
	for i := range int64(40) {
		now := i * second
		a.add(now)
		a.shows(now, 1+i%3*4, 0, false)
		a.returned(false)
		require.False(t, a.known())
	}
}

func TestWindowsOfWhichAllIsCountedAgainAreNotCountedByAge(t *testing.T) {
	a := newAges(2)
	for i := range int64(30) {
		now := i * 5 * second
		for n := range int64(2) {
			a.add(now + n)
			a.shows(now+n, n+1, 0, false)
			a.returned(n == 0)
		}
	}
	require.False(t, a.known())
	(*ages)(nil).returned(false)
	require.False(t, (*ages)(nil).known())
	require.Zero(t, (*ages)(nil).size())
}
