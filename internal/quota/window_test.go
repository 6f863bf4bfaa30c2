package quota

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

func TestAWindowEndsAtTheEarliestTimeThatWasReported(t *testing.T) {
	a, g, _ := newFamilies()
	q := func() meter.Instant { return only(t, a).reset }
	asks(t, g, 0, core(10, 9, 60*second))
	asks(t, g, 1, core(10, 8, 61*second))
	require.Equal(t, 60*second, q())
	asks(t, g, 2, core(10, 7, 60*second-1))
	require.Equal(t, 60*second-1, q())
	asks(t, g, 3, core(10, 6, meter.Never))
	require.Equal(t, 60*second-1, q())
	sent := 60*second - 2
	asks(t, g, sent, core(10, 5, 99*second))
	require.Equal(t, 60*second-1, q(), "the window has not ended yet")
	asks(t, g, 60*second-1, core(10, 4, 99*second))
	require.Equal(t, 99*second, q(), "it was not the end, as it seems")
}

func TestWhileNothingIsLeftNoNewWindowIsBelieved(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(10, 0, 10*second))
	passes(g, 10*second, core(10, 0, 20*second))
	require.Equal(t, 10*second, only(t, a).reset, "accepted, but nothing is left")
	answer(g, g.Take(10*second+1, 10*second+1, 1, false), 10*second+1, 10*second+1, false, core(10, 1, 20*second))
	require.Equal(t, 10*second, only(t, a).reset, "refused")
	passes(g, 10*second+2, core(10, 1, 20*second))
	require.Equal(t, 20*second, only(t, a).reset)
}

// A quota stops requests until exactly the end of its window, and what it had left is in flight then.
func TestWhatIsInFlightWaitsForTheEnd(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(3, 2, 60*second))
	sends(t, g, 59*second, 2)
	require.Equal(t, meter.Never, g.Ready(59*second, 0, 1), "both responses may report that more is left")
	require.Equal(t, 60*second, g.Plan(59*second, 0, 1))
	require.Equal(t, 60*second, g.Plan(59*second, 7, 1), "nor later for more of them")
	require.False(t, g.Payable(60*second-1, 1))
	only(t, a).lates[0], only(t, a).seen = 3, 1
	require.Equal(t, 60*second+3, g.Plan(59*second, 0, 1))
}

// A window has ended when half of what was used has come back.
func TestAWindowTurnsWhenHalfOfWhatWasUsedComesBack(t *testing.T) {
	for _, c := range []struct {
		limit, before, left int64
		turned              bool
	}{
		{100, 20, 59, true}, {100, 20, 58, false}, // 40 of 80 come back with this request
		{100, 21, 59, true}, {100, 21, 58, false}, // 39 of 79
		{100, 98, 99, true}, {100, 99, 99, false}, {100, 98, 98, false}, // one may have been counted in another order
		{100, 97, 98, true}, {100, 97, 97, false},
		{4, 2, 3, true}, {4, 2, 2, false},
		{3, 1, 2, true}, {3, 1, 1, false}, {2, 0, 1, true}, {1, 0, 0, false},
		{-1, 20, 60, true}, {-1, 40, 79, true}, {-1, 40, 59, true}, {-1, 40, 58, false}, // most is 80 then
	} {
		a, g, _ := newFamilies()
		if c.limit < 0 {
			asks(t, g, 0, core(-1, 80, 10*second))
		} else {
			asks(t, g, 0, core(c.limit, c.before+1, 10*second))
		}
		passes(g, second, core(c.limit, c.before, 10*second))
		passes(g, 2*second, core(c.limit, c.left, 20*second))
		require.Equal(t, map[bool]meter.Instant{true: 20 * second, false: 10 * second}[c.turned], only(t, a).reset, "%+v", c)
		require.Equal(t, map[bool]int64{true: c.left, false: min(c.before, c.left)}[c.turned], only(t, a).low, "%+v", c)
	}
}

func TestOnlyAnAcceptedRequestThatLeftAfterTheLastReportTurnsAWindow(t *testing.T) {
	for name, c := range map[string]struct {
		sent     meter.Instant
		accepted bool
		turned   bool
	}{
		"later":            {second + 1, true, true},
		"at that instant":  {second, true, false},
		"one that refused": {second + 1, false, false},
	} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(10, 3, 10*second))
		first := sends(t, g, second/2, 1)
		n := sends(t, g, c.sent, 1)
		answer(g, first, second/2, second, true, core(10, 2, 10*second))
		answer(g, n, c.sent, 2*second, c.accepted, core(10, 9, 20*second))
		require.Equal(t, map[bool]meter.Instant{true: 20 * second, false: 10 * second}[c.turned], only(t, a).reset, name)
	}
}

// Of two requests between which a window ended, the first shows that it ended later, and the second that it ended earlier.
func TestHowMuchLaterAWindowEndsThanReportedIsLearned(t *testing.T) {
	const end = 10 * second
	for _, c := range []struct {
		last, first meter.Instant // the last request of the window, and the first of the next
		late        int64
	}{
		{end - 100*milli, end + 200*milli, 0},
		{end + 300*milli, end + 600*milli, 300 * milli},
		{end - 800*milli, end - 200*milli, -200 * milli},
		{end - 1, end, 0}, {end - 2, end - 1, -1}, {end + 1, end + 2, 1},
		{end + second - 1, end + second + 1, second - 1}, {end + 2*second, end + 2*second + 1, second},
		{end - 2*second - 2, end - 2*second + 1, -2*second + 1}, {end - 3*second, end - 3*second + 1, -3*second + 1},
		{end - 1100*milli, end - 100*milli - 1, -100*milli - 1}, {end - 1100*milli, end - 100*milli, 0}, // not so close
		{end + 1, end + 5*second, 0}, // nor these
	} {
		a, g, _ := newFamilies()
		asks(t, g, second, core(10, 1, end))
		passes(g, c.last, core(10, 0, end))
		passes(g, c.first, core(10, 9, 2*end))
		q := only(t, a)
		require.Equal(t, c.first-c.last < second, q.seen == 1, "%+v", c)
		if q.seen == 1 {
			require.Equal(t, c.late, q.lates[0], "%+v", c)
		}
		require.Equal(t, max(c.late, -second), q.late(), "%+v: one window is not enough for more than a second", c)
		require.Equal(t, 2*end+q.late(), q.end())
	}
}

// A refusal past the reported end shows that it was late, however long the client waits after it. But one that leaves more than a second
// later is of another window, which others have used up.
func TestARefusalPastTheEndShowsThatItWasLate(t *testing.T) {
	for after, late := range map[int64]int64{0: second / 2, 300 * milli: second / 2, 700 * milli: 700 * milli, second: second, second + 1: 0} {
		a, g, _ := newFamilies()
		asks(t, g, 0, core(10, 0, 10*second))
		refuses(t, g, 10*second+after, empty(10, 10*second))
		passes(g, 15*second, core(10, 9, 20*second))
		require.Equal(t, late, only(t, a).late(), "after %d ns", after)
		require.Equal(t, late > 0, only(t, a).seen == 1, "after %d ns", after)
	}
}

func TestOfTheLastThreeWindowsTheLatestEndCounts(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, second, core(2, 1, 10*second))
	for i, c := range []struct{ last, first, late int64 }{
		{250, 300, 250}, {50, 100, 250}, {40, 90, 250}, {30, 80, 100}, {20, 70, 90}, {10, 60, 80}, {-400, -300, 70},
		{-400, -300, 60}, {-400, -300, -300}, {-400, -350, -300},
	} {
		end := 10 * second * meter.Instant(i+1)
		passes(g, end+c.last*milli, core(2, 0, end))
		passes(g, end+c.first*milli, core(2, 1, end+10*second))
		require.Equal(t, c.late*milli, only(t, a).late(), "window %d", i)
		require.Equal(t, end+10*second+c.late*milli, only(t, a).end())
	}
}

// What was left may be there only because it was spread over too long a time.
func TestAWindowIsNotScarceAfterOneThatHadPlentyLeftAtItsEnd(t *testing.T) {
	const end = 20 * second
	for _, c := range []struct {
		limit, reserve, low, others int64
		last, first                 meter.Instant
		scarce                      bool
	}{
		{80, 0, 10, 0, 11 * second, end, true}, {80, 0, 11, 0, 11 * second, end, false}, {80, 0, 11, 0, 11 * second, end - 1, true},
		{80, 5, 15, 0, 11 * second, end, true}, {80, 5, 16, 0, 11 * second, end, false},
		{7, 0, 1, 0, 11 * second, end, true}, {7, 0, 2, 0, 11 * second, end, false},
		// others may have used the rest after the last response, unless little time was left
		{80, 0, 79, 1, 11 * second, end, true}, {80, 0, 11, 1, end - 10*second/8, end, true}, {80, 0, 11, 1, end - 10*second/8 + 1, end, false},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			a, g, _ := newFamilies()
			figures := func(left int64, reset meter.Instant) Figures {
				c0 := core(c.limit, left, reset)
				c0.Reserve = c.reserve
				return c0
			}
			asks(t, g, second, figures(0, 10*second))
			require.True(t, only(t, a).scarce)
			passes(g, 10*second, figures(c.limit-1, end))
			require.True(t, only(t, a).scarce, "the window before ran dry")
			passes(g, c.last, figures(c.low, end))
			only(t, a).flow.back = float64(-8 * c.others)
			passes(g, c.first, figures(c.limit-1, end+10*second))
			require.Equal(t, c.scarce, only(t, a).scarce)
		})
	}
}

// A request that was counted before others that left before it is not the first of a window.
func TestAWindowHasNotBegunWhileLessAndLessIsLeft(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(10, 6, 10*second))
	sends(t, g, second, 3)
	answer(g, 4, second, second, true, core(10, 5, 11*second))
	require.Equal(t, 10*second, only(t, a).reset)
}

// A response after which nothing is used was counted in the window before, unless it is the first.
func TestWhereNothingIsUsedTheEndIsThatOfTheWindowBefore(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(10, 10, 10*second))
	require.Equal(t, 10*second, only(t, a).reset)
	passes(g, second, core(10, 2, 10*second))
	passes(g, 9*second, core(10, 10, 10*second))
	require.Equal(t, meter.Never, only(t, a).reset)
	passes(g, 9*second+1, core(10, 9, 19*second))
	require.Equal(t, 19*second, only(t, a).reset)
}

// Windows have ended a second earlier than reported. That requests are accepted from then on does not contradict what was reported.
func TestARequestAtTheExpectedEndContradictsNothing(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(50, 0, 10*second))
	q := only(t, a)
	q.lates[0], q.seen = -second, 1
	for _, at := range []meter.Instant{9 * second, 9*second + 1} {
		passes(g, at, core(50, 0, 20*second))
		require.Zero(t, q.doubt.row)
	}
	passes(g, 9*second-1, core(50, 0, 20*second))
	require.EqualValues(t, 0, q.doubt.row, "an older one")

	a, g, _ = newFamilies()
	asks(t, g, 0, core(50, 0, 10*second))
	q = only(t, a)
	q.lates[0], q.seen = -second, 1
	passes(g, 9*second-1, core(50, 0, 10*second))
	require.EqualValues(t, 1, q.doubt.row)
}
