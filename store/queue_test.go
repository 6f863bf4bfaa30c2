package store

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// line is a budget of 2 tokens a minute that has none left for half a minute; a bucket and a pace have the next one then. Asks may queue for its
// tokens.
func line(t *testing.T, kind Kind) (l *lessor, queue func(need int64) Part) {
	l = newLessor(t)
	l.now -= l.now % time.Minute.Microseconds()
	b := Budget{Kind: kind, N: 2, Per: time.Minute}
	if kind == Bucket {
		b.Burst, b.Initial = 2, 2
	}
	p := Part{Budget: b, Need: 2}
	if kind == Pace {
		p.Need = 1
	}
	require.EqualValues(t, p.Need, l.ask(p).Tokens)
	if windows := kind == Sliding || kind == Fixed; windows {
		l.later(30 * time.Second)
	}
	return l, func(need int64) Part { return Part{Budget: b, Need: need, Within: time.Hour, Queue: true} }
}

func (l *lessor) waiting(p Part) queue { return *l.book.accounts[p.Budget.account()].(hasQueue).line() }

var queued = []Kind{Sliding, Fixed, Bucket, Pace}

// Each ask gets the instant at which its tokens come in behind those of the asks before.
func TestAsksGetTheirTurnOneByOne(t *testing.T) {
	for _, kind := range queued {
		l, queue := line(t, kind)
		turns := []time.Duration{30 * time.Second, 30 * time.Second, 90 * time.Second, 90 * time.Second, 150 * time.Second}
		if kind == Bucket || kind == Pace { // tokens come in one by one
			turns = []time.Duration{30 * time.Second, 60 * time.Second, 90 * time.Second, 120 * time.Second, 150 * time.Second}
		}
		var places []int64
		for _, turn := range turns {
			got := l.ask(queue(1))
			assert.Equal(t, turn, got.Turn, kind)
			assert.Equal(t, 30*time.Second, got.Wait, "%s: nothing is reserved", kind)
			assert.Zero(t, got.Tokens)
			places = append(places, got.ID)
		}
		assert.IsIncreasing(t, places)
		assert.Zero(t, l.ask(Part{Budget: queue(1).Budget, Need: 1, Within: time.Millisecond}).Turn, "without Queue")

		// One that comes too early, or after others were faster, keeps its place.
		l.later(30*time.Second - time.Microsecond)
		p := queue(1)
		p.Queued = places[0]
		early := l.ask(p)
		assert.Equal(t, time.Microsecond, early.Turn, kind)
		assert.Equal(t, places[0], early.ID)
		l.later(time.Microsecond)
		p.Queued = places[2]
		require.EqualValues(t, 1, l.ask(p).Tokens, "%s: nothing is reserved", kind)
		p.Queued = places[1]
		if got := l.ask(p); kind == Bucket || kind == Pace {
			assert.Equal(t, 60*time.Second, got.Turn, "%s: one is before it", kind)
		}
		p.Queued = places[4]
		assert.Equal(t, 120*time.Second, l.ask(p).Turn, "%s: those that got their tokens are not before it", kind)
	}
}

// An ask whose turn comes too late has no place, and gives no later turn to the next one.
func TestAsksThatDoNotWaitDelayNoOthers(t *testing.T) {
	for _, kind := range queued {
		l, queue := line(t, kind)
		late := queue(1)
		late.Within = 30*time.Second - time.Microsecond
		got := l.ask(late)
		assert.Equal(t, 30*time.Second, got.Turn, kind)
		assert.Zero(t, got.ID, kind)
		held := queue(1)
		held.Hold = time.Microsecond
		assert.Zero(t, l.ask(held).Turn, kind)
		held.Hold = -1
		assert.Equal(t, 30*time.Second, l.ask(held).Turn, kind)
	}
	l := newLessor(t)
	p := Part{Budget: Budget{Kind: Calendar, N: 1, Per: time.Hour}, Need: 1, Within: time.Hour, Queue: true}
	for i := range p.Budget.Windows {
		p.Budget.Windows[i] = time.UnixMicro(l.now).Add(time.Duration(i-1) * time.Hour)
	}
	l.ask(p)
	got := l.ask(p)
	assert.Zero(t, got.Turn)
	assert.Zero(t, got.ID)
}

// With Queue, tokens are promised up to the horizon, however long a request may wait, and an ask comes so early that half of that is left.
func TestTokensOfAQueueArePromisedUpToTheHorizon(t *testing.T) {
	for _, kind := range []Kind{Bucket, Pace} {
		l, queue := line(t, kind)
		p := queue(1)
		p.Horizon = 10 * time.Second
		got := l.ask(p)
		assert.Zero(t, got.Tokens, kind)
		assert.Equal(t, 20*time.Second, got.Wait, kind)
		assert.Equal(t, 25*time.Second, got.Turn, kind)
		l.later(20 * time.Second)
		p.Queued = got.ID
		got = l.ask(p)
		assert.EqualValues(t, 1, got.Tokens, kind)
		assert.Equal(t, 10*time.Second, got.Next, kind)
	}
}

// An ask for several budgets has one place. It waits where its turn comes last, and no other ask waits for its tokens of the others for long.
func TestAnAskForSeveralBudgetsHasOnePlace(t *testing.T) {
	for _, kind := range queued {
		l, queue := line(t, kind)
		slow := Part{Budget: Budget{Kind: kind, Limit: "slow", N: 1, Per: 10 * time.Minute, Burst: 1, Initial: 1}, Need: 1, Within: time.Hour, Queue: true}
		l.ask(slow)
		first := l.ask(Part{Budget: slow.Budget, Need: 1}).Wait
		both := func(place int64) []LeasedPart {
			p, other := slow, queue(1)
			p.Queued = place
			return l.book.decide(l.now, 0, []Ask{{[]Part{other, p}}})[0].Parts
		}
		var places []int64
		for i := range 3 {
			parts := both(0)
			assert.Equal(t, first+time.Duration(i)*10*time.Minute, parts[1].Turn, kind)
			assert.Equal(t, 30*time.Second, parts[0].Turn, "%s: one part has its own turn", kind)
			assert.Equal(t, parts[0].ID, parts[1].ID, kind)
			places = append(places, parts[0].ID)
		}
		assert.Equal(t, 30*time.Second, l.ask(queue(1)).Turn, kind)
		l.later(time.Duration(l.ask(Part{Budget: slow.Budget, Need: 1}).Wait))
		parts := both(places[1])
		assert.EqualValues(t, 1, parts[1].Tokens, kind)
		assert.Equal(t, 20*time.Minute, both(places[2])[1].Turn.Round(time.Minute), "%s: the first one comes before it", kind)
	}
}

// What two fixed windows have at the same time decides when an ask for both comes. One that needs only one of them does not wait for those that
// come in a later window.
func TestAnAskForTwoFixedWindowsComesWhenBothHaveTokens(t *testing.T) {
	l, queue := line(t, Fixed)
	minute, short := queue(1), Part{Budget: Budget{Kind: Fixed, Limit: "short", N: 1, Per: 10 * time.Second}, Need: 1, Within: time.Hour, Queue: true}
	l.ask(Part{Budget: minute.Budget, Need: 1})
	l.ask(short)
	both := func() []LeasedPart { return l.book.decide(l.now, 0, []Ask{{[]Part{minute, short}}})[0].Parts }
	for _, turn := range []time.Duration{30, 40, 90, 100} {
		assert.Equal(t, turn*time.Second, both()[0].Turn)
	}
	for _, turn := range []time.Duration{10, 20, 50, 60} {
		assert.Equal(t, turn*time.Second, l.ask(short).Turn, "the others come in between")
	}
	assert.Equal(t, 150*time.Second, l.ask(minute).Turn)
}

// By the rule of another process, a fixed window may be smaller than what an ask needs.
func TestAnAskForMoreThanAWindowHasNoPlace(t *testing.T) {
	l, queue := line(t, Fixed)
	large := queue(5)
	large.Budget.N = 10
	assert.Equal(t, 30*time.Second, l.ask(queue(1)).Turn)
	got := l.ask(large)
	assert.Equal(t, 150*time.Second, got.Turn)
	assert.Zero(t, got.ID, "it has no place")
}

// An ask that does not come at its turn loses its place a second later: the process has ended.
func TestProcessesThatDoNotComeAreForgotten(t *testing.T) {
	for _, kind := range queued {
		l, queue := line(t, kind)
		gone := l.ask(queue(1))
		alive := queue(1)
		alive.Queued = l.ask(queue(1)).ID
		l.later(gone.Turn + time.Second)
		for range 2 {
			l.ask(Part{Budget: alive.Budget, Need: 1}) // what has come in
		}
		with := l.ask(alive).Turn
		l.later(time.Microsecond)
		without := l.ask(alive).Turn
		if kind == Bucket || kind == Pace {
			assert.Equal(t, with-30*time.Second-time.Microsecond, without, kind)
		}
		assert.Len(t, l.waiting(alive), 1, kind)
	}
}

// Places of a time to which the clock was set back are none.
func TestAQueueWhoseClockWasSetBackIsEmpty(t *testing.T) {
	for _, kind := range queued {
		l, queue := line(t, kind)
		for range 5 {
			l.ask(queue(1))
		}
		l.now -= time.Hour.Microseconds()
		l.ask(Part{Budget: queue(1).Budget})
		assert.Empty(t, l.waiting(queue(1)), kind)
	}
}

// No more than mostWaiting asks have places. Others have a turn behind all of them.
func TestAQueueIsBounded(t *testing.T) {
	for _, kind := range queued {
		l, queue := line(t, kind)
		for range mostWaiting {
			l.ask(queue(1))
		}
		l.ask(queue(1))
		assert.Len(t, l.waiting(queue(1)), mostWaiting, kind)
		saved := NewBook()
		b := queue(1).Budget
		require.NoError(t, saved.SetState(&b, l.book.State(&b)))
		assert.Equal(t, l.ask(queue(1)), saved.decide(l.now, 0, []Ask{{[]Part{queue(1)}}})[0].Parts[0], kind)
	}
}

// A state that was saved has the same turns.
func TestAQueueIsSaved(t *testing.T) {
	for _, kind := range queued {
		l, queue := line(t, kind)
		p := queue(1)
		for range 2 {
			l.ask(p)
		}
		saved := NewBook()
		require.NoError(t, saved.SetState(&p.Budget, l.book.State(&p.Budget)))
		l.book = saved
		assert.Equal(t, 90*time.Second, l.ask(p).Turn, kind)
	}
}

func TestTheLongestTurnIsAYear(t *testing.T) {
	for _, kind := range queued {
		l := newLessor(t)
		p := Part{Budget: Budget{Kind: kind, N: 2, Per: 1000 * time.Hour, Burst: 2, Initial: 2}, Need: 2, Within: math.MaxInt64, Queue: true}
		l.ask(p)
		var last LeasedPart
		for range 20 {
			last = l.ask(p)
		}
		assert.LessOrEqual(t, last.Turn, mostAhead+p.Budget.Per, kind)
		assert.Equal(t, last.Turn, l.ask(p).Turn, kind)
	}
}
