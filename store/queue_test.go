package store

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// line is a window of 2 tokens a minute that has none left for half a minute. Asks may queue for its tokens.
func line(t *testing.T, kind Kind) (l *lessor, queue func(need int64) Part) {
	l = newLessor(t)
	l.now -= l.now % time.Minute.Microseconds()
	b := Budget{Kind: kind, N: 2, Per: time.Minute}
	require.EqualValues(t, 2, l.ask(Part{Budget: b, Need: 2}).Tokens)
	l.later(30 * time.Second)
	return l, func(need int64) Part { return Part{Budget: b, Need: need, Within: time.Hour, Queue: true} }
}

var windows = []Kind{Sliding, Fixed}

// Each ask gets the instant at which its tokens come in behind those of the asks before.
func TestAsksGetTheirTurnOneByOne(t *testing.T) {
	for _, kind := range windows {
		l, queue := line(t, kind)
		for _, c := range []struct {
			need int64
			turn time.Duration
		}{{1, 30 * time.Second}, {1, 30 * time.Second}, {2, 90 * time.Second}, {1, 150 * time.Second}, {1, 150 * time.Second}, {1, 210 * time.Second}} {
			got := l.ask(queue(c.need))
			assert.Equal(t, c.turn, got.Turn, kind)
			assert.Equal(t, 30*time.Second, got.Wait, "%s: nothing is reserved", kind)
			assert.Zero(t, got.Tokens)
		}
		assert.Zero(t, l.ask(Part{Budget: queue(1).Budget, Need: 1, Within: time.Hour}).Turn, "without Queue")
		l.later(30*time.Second - time.Microsecond)
		assert.Zero(t, l.ask(Part{Budget: queue(1).Budget, Need: 1}).Tokens, kind)
		l.later(time.Microsecond)
		assert.EqualValues(t, 2, l.ask(Part{Budget: queue(1).Budget, Need: 2}).Tokens, kind)
		assert.Equal(t, 180*time.Second, l.ask(queue(1)).Turn, "%s: two tokens have come in, and 7 asks wait for 6", kind)
	}
}

// An ask whose turn comes too late or may have a turn already gives no later turn to the next one.
func TestAsksThatDoNotWaitDelayNoOthers(t *testing.T) {
	for _, kind := range windows {
		l, queue := line(t, kind)
		late := queue(1)
		late.Within = 30*time.Second - time.Microsecond
		assert.Equal(t, 30*time.Second, l.ask(late).Turn, kind)
		late.Within++
		held := queue(1)
		held.Hold = time.Second
		assert.Zero(t, l.ask(held).Turn, kind)
		held.Hold = -1
		assert.Equal(t, 30*time.Second, l.ask(held).Turn, kind)
		assert.Equal(t, 30*time.Second, l.ask(queue(1)).Turn, kind)
		again := queue(1)
		again.Queued = true
		assert.Equal(t, 30*time.Second, l.ask(again).Turn, "%s: the last turn is its own", kind)
		assert.Equal(t, 90*time.Second, l.ask(queue(1)).Turn, kind)
		assert.Equal(t, 90*time.Second, l.ask(again).Turn, kind)
	}
	l := newLessor(t)
	p := Part{Budget: Budget{Kind: Calendar, N: 1, Per: time.Hour}, Need: 1, Within: time.Hour, Queue: true}
	for i := range p.Budget.Windows {
		p.Budget.Windows[i] = time.UnixMicro(l.now).Add(time.Duration(i-1) * time.Hour)
	}
	l.ask(p)
	assert.Zero(t, l.ask(p).Turn)
	p.Budget = bucket(1, time.Hour, 1)
	p.Within = 0
	l.ask(p)
	assert.Zero(t, l.ask(p).Turn)
}

// An ask for several windows waits in the queue in which its turn comes last, and no other ask waits for its tokens of the others.
func TestAnAskForSeveralWindowsHasOneTurn(t *testing.T) {
	for _, kind := range windows {
		l, queue := line(t, kind)
		slow := Part{Budget: Budget{Kind: kind, Limit: "slow", N: 1, Per: 10 * time.Minute}, Need: 1, Within: time.Hour, Queue: true}
		l.ask(slow)
		first := l.ask(Part{Budget: slow.Budget, Need: 1}).Wait
		both := func(other Part) []LeasedPart { return l.book.decide(l.now, 0, []Ask{{[]Part{other, slow}}})[0].Parts }
		for i := range 3 {
			for _, p := range both(queue(1)) {
				assert.Equal(t, first+time.Duration(i)*10*time.Minute, p.Turn, kind)
				assert.Zero(t, p.Tokens)
			}
		}
		assert.Equal(t, 30*time.Second, l.ask(queue(2)).Turn, kind)
		parts := both(Part{Budget: bucket(1, time.Second, 1), Need: 1})
		assert.Zero(t, parts[0].Turn, "a bucket has no queue")
		assert.Equal(t, first+30*time.Minute, parts[1].Turn, kind)
	}
}

// Tokens for which no process came are not waited for any more: the processes have ended.
func TestProcessesThatDoNotComeAreForgotten(t *testing.T) {
	l, queue := line(t, Sliding)
	for range 3 {
		l.ask(queue(2))
	}
	l.later(45*time.Second - time.Microsecond) // since 15 s, there are two tokens
	require.EqualValues(t, 2, l.ask(queue(2)).Tokens)
	assert.Equal(t, 3*time.Minute, l.ask(queue(2)).Turn, "two asks wait")
	l.later(75 * time.Second)
	require.EqualValues(t, 2, l.ask(queue(2)).Tokens)
	assert.Equal(t, 2*time.Minute, l.ask(queue(2)).Turn, "one of three did not come")
}

// A state that was saved has the same turns.
func TestAQueueIsSaved(t *testing.T) {
	for _, kind := range windows {
		l, queue := line(t, kind)
		p := queue(2)
		l.ask(p)
		saved := NewBook()
		require.NoError(t, saved.SetState(&p.Budget, l.book.State(&p.Budget)))
		l.book = saved
		assert.Equal(t, 90*time.Second, l.ask(p).Turn, kind)
	}
}

// Tokens that are given back come in for those that wait, and so do those of windows in which no process asks.
func TestWhatComesInShortensTheQueue(t *testing.T) {
	for _, kind := range windows {
		l := newLessor(t)
		l.now -= l.now % time.Minute.Microseconds()
		p := Part{Budget: Budget{Kind: kind, N: 2, Per: time.Minute}, Need: 2, Within: time.Hour, Queue: true}
		lease := l.ask(p)
		for i := range 5 {
			assert.Equal(t, time.Duration(i+1)*time.Minute, l.ask(p).Turn, kind)
		}
		one := p
		one.Need, one.Back = 0, []Return{{2, lease.ID}}
		assert.EqualValues(t, 2, l.ask(one).Left, kind)
		require.EqualValues(t, 2, l.ask(p).Tokens)
		assert.Equal(t, 5*time.Minute, l.ask(p).Turn, kind)
	}
	l, queue := line(t, Fixed)
	for range 9 {
		l.ask(queue(2))
	}
	l.later(3 * time.Minute) // three windows
	require.EqualValues(t, 2, l.ask(queue(2)).Tokens)
	assert.Equal(t, 390*time.Second, l.ask(queue(2)).Turn, "no process came for the tokens of two windows")
}

func TestTheLongestTurnIsAYear(t *testing.T) {
	for _, kind := range windows {
		l := newLessor(t)
		p := Part{Budget: Budget{Kind: kind, N: 2, Per: 1000 * time.Hour}, Need: 2, Within: math.MaxInt64, Queue: true}
		l.ask(p)
		var last LeasedPart
		for range 20 {
			last = l.ask(p)
		}
		assert.LessOrEqual(t, last.Turn, mostAhead+p.Budget.Per, kind)
		assert.Equal(t, last.Turn, l.ask(p).Turn, kind)
	}
}
