package store

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// This file tests a Book at the exact bounds of its rules.

func TestPeaksOfABookAreBounded(t *testing.T) {
	s := &bucketState{level: 1 << 40}
	s.full = 1 << 40
	for i := range int64(100) {
		s.remember(0, 0)
		require.LessOrEqual(t, len(s.peaks), maxPeaks)
		if i > maxPeaks {
			require.Len(t, s.peaks, maxPeaks)
			require.EqualValues(t, 10, s.peaks[0].room, "the least of all")
			require.Equal(t, s.seq, s.peaks[len(s.peaks)-1].seq, "the last stands for the latest")
		}
		s.level -= 10
	}
}

func TestASlidingWindowOfABookIsHalfOpen(t *testing.T) {
	l := newLessor(t)
	p := Part{Budget: Budget{Kind: Sliding, N: 5, Per: time.Minute}, Want: 2}
	first := l.ask(p)
	l.later(10 * time.Second)
	p.Want = 5
	require.EqualValues(t, 3, l.ask(p).Tokens)
	l.later(10 * time.Second)
	for need, wait := range map[int64]time.Duration{1: 40 * time.Second, 2: 40 * time.Second, 3: 50 * time.Second} {
		require.Equal(t, wait, l.ask(Part{Budget: p.Budget, Need: need, Want: need}).Wait)
	}
	l.later(40*time.Second - time.Microsecond)
	require.Zero(t, l.ask(Part{Budget: p.Budget}).Left)
	l.later(time.Microsecond)
	require.EqualValues(t, 2, l.ask(Part{Budget: p.Budget, Back: []Return{{2, first.ID}}}).Left, "it no longer counts, and gives nothing back")
	require.EqualValues(t, 2, l.ask(p).Tokens)
}

func TestASlidingWindowWithoutTokensReportsWhenTheNextComesIn(t *testing.T) {
	l := newLessor(t)
	p := Part{Budget: Budget{Kind: Sliding, N: 5, Per: time.Minute}, Need: 1, Want: 4}
	require.Zero(t, l.ask(p).Wait)
	l.later(time.Second)
	require.Equal(t, 59*time.Second, l.ask(p).Wait, "it granted the last")
	require.Equal(t, 59*time.Second, l.ask(Part{Budget: p.Budget}).Wait)
	require.Equal(t, time.Minute, l.ask(Part{Budget: p.Budget, Owe: 4}).Wait, "four are owed")
}

func TestAFixedWindowOfABookBeginsWithItsFirstInstant(t *testing.T) {
	l := newLessor(t)
	l.now -= l.now % time.Hour.Microseconds()
	p := Part{Budget: Budget{Kind: Fixed, N: 5, Per: time.Hour}, Need: 5, Want: 5}
	got := l.ask(p)
	require.EqualValues(t, 5, got.Tokens)
	require.Equal(t, time.Hour, l.ask(p).Wait, "it was leased in this window")
	require.EqualValues(t, 2, l.ask(Part{Budget: p.Budget, Back: []Return{{2, got.ID}}}).Left)
	require.EqualValues(t, 1, l.ask(Part{Budget: p.Budget, Owe: 1}).Left)
	require.EqualValues(t, -3, l.ask(Part{Budget: p.Budget, Owe: 4}).Left)
	l.later(time.Hour - time.Microsecond)
	require.Equal(t, time.Microsecond+time.Hour, l.ask(p).Wait, "the next window pays first")
	l.later(time.Microsecond)
	require.EqualValues(t, 2, l.ask(Part{Budget: p.Budget}).Left)
	require.EqualValues(t, -20, l.ask(Part{Budget: p.Budget, Owe: 100}).Left)
	require.EqualValues(t, -20, l.ask(Part{Budget: p.Budget, Owe: 100}).Left)
	l.later(4 * time.Hour)
	require.Equal(t, time.Hour, l.ask(p).Wait)
	l.later(time.Hour)
	require.EqualValues(t, 5, l.ask(p).Tokens)
}

// A quarter of the rest, and no more, is leased ahead.
func TestAQuarterIsLeasedAhead(t *testing.T) {
	for _, b := range []Budget{
		bucket(100, time.Hour, 100), {Kind: Sliding, N: 100, Per: time.Hour}, {Kind: Fixed, N: 100, Per: time.Hour}, {Kind: Slots, N: 100},
	} {
		l := newLessor(t)
		l.ask(Part{Budget: b, Want: 20, Holder: "other"})
		got := l.ask(Part{Budget: b, Want: 40, Ahead: 100, Holder: "this"})
		require.EqualValues(t, 50, got.Tokens, b.Kind)
	}
}

// A part of an ask gets no more than the scarcest part lets the requests use.
func TestPartsAreGrantedInProportion(t *testing.T) {
	for _, bursts := range [][]int64{{5, 8, 9}, {8, 5, 9}, {9, 8, 5}} {
		ask := Ask{}
		for i, burst := range bursts {
			b := bucket(1, time.Hour, burst)
			b.Key = string(rune('a' + i))
			ask.Parts = append(ask.Parts, Part{Budget: b, Want: 10 * int64(1+i%2)})
		}
		got := NewBook().decide(someTime, 0, []Ask{ask})[0]
		require.NoError(t, got.Err)
		least := math.Inf(1)
		for i, p := range ask.Parts {
			least = min(least, float64(bursts[i])/float64(p.Want))
		}
		for i, p := range got.Parts {
			require.EqualValues(t, math.Floor(least*float64(ask.Parts[i].Want)), p.Tokens, "%v: part %d", bursts, i)
		}
	}
}

func TestSlotsAreFreeWhenTheirLeaseEnds(t *testing.T) {
	l := newLessor(t)
	b := Budget{Kind: Slots, N: 5}
	l.ask(Part{Budget: b, Want: 5, Holder: "gone"})
	l.later(SlotLease - time.Microsecond)
	require.Zero(t, l.ask(Part{Budget: b, Want: 5, Holder: "next"}).Tokens)
	l.later(time.Microsecond)
	require.EqualValues(t, 5, l.ask(Part{Budget: b, Want: 5, Holder: "next"}).Tokens)
}

func TestProcessesAreCountedOverTwoEpochs(t *testing.T) {
	h := header{seen: 7*epoch + epoch/4, before: 4 * epoch, busy: epoch}
	require.EqualValues(t, 4, h.processes(), "three quarters of the epoch before, and this one")
	require.EqualValues(t, 1, (&header{}).processes())
	require.Equal(t, time.Duration(math.MaxInt64/1000*1000), micros(math.MaxInt64/1000))
	require.Equal(t, time.Duration(math.MaxInt64), micros(math.MaxInt64/1000+1))
}

// Processes count as so many from their first ask on, whenever in an epoch that is, and do not count twice later.
func TestProcessesAreCountedFromTheirFirstAskOn(t *testing.T) {
	for _, offset := range []time.Duration{0, time.Second, 5 * time.Second, 9999 * time.Millisecond} {
		l := newLessor(t)
		l.now -= l.now % epoch
		l.later(offset)
		b := bucket(100, time.Second, 10)
		var got LeasedPart
		for range 8 {
			got = l.ask(Part{Budget: b, Since: MaxSince})
		}
		require.Equal(t, 8, got.Processes, "at first, %v into an epoch", offset)
		for range 300 {
			l.later(100 * time.Millisecond)
			for range 8 {
				got = l.ask(Part{Budget: b, Since: 100 * time.Millisecond})
			}
			require.InDelta(t, 8, got.Processes, 0, "later")
		}
		for range 300 { // seven have gone
			l.later(100 * time.Millisecond)
			got = l.ask(Part{Budget: b, Since: 100 * time.Millisecond})
		}
		require.Equal(t, 1, got.Processes)
	}
}

// Slow and large buckets are counted in ms or s instead of µs. A rate that needs other ticks keeps the balance.
func TestBalancesSurviveAChangeOfTicks(t *testing.T) {
	fine, coarse := bucket(10, time.Second, 1_000_000), bucket(999_983, 24*time.Hour, 1_000_000)
	u, err := coarse.units()
	require.NoError(t, err)
	require.Greater(t, u.Tick, int64(1))
	l := newLessor(t)
	lease := l.ask(Part{Budget: fine, Want: 999_000})
	for range 3 {
		require.InDelta(t, 1000, l.ask(Part{Budget: coarse, Replace: true}).Left, 1e-3)
		require.InDelta(t, 1000, l.ask(Part{Budget: fine, Replace: true, Back: []Return{{1000, lease.ID}}}).Left, 1e-3, "leases of another rate give nothing back")
	}
	l.ask(Part{Budget: coarse, Want: 1000, Replace: true})
	l.later(10 * time.Second)
	each := 24 * time.Hour / 999_983
	require.InDelta(t, 10*time.Second/each, l.ask(Part{Budget: coarse}).Left, 1)
	l.ask(Part{Budget: coarse, Want: 1000})
	got := l.ask(Part{Budget: coarse, Need: 1, Want: 1, Within: time.Second})
	require.EqualValues(t, 1, got.Tokens)
	require.Zero(t, got.AtOnce)
	require.InDelta(t, each/2, got.Next, float64(each), "promised when the next comes in")
	require.Positive(t, got.Next)
}

func TestTheLastLeaseOfAnotherRateGivesNothingBack(t *testing.T) {
	l := newLessor(t)
	last := l.ask(Part{Budget: bucket(1, time.Hour, 10), Want: 5})
	l.ask(Part{Budget: bucket(2, time.Hour, 10), Replace: true})
	require.EqualValues(t, 5, l.ask(Part{Budget: bucket(2, time.Hour, 10), Back: []Return{{5, last.ID}}}).Left)
}

// What a process owes by its own rule is much more in the units of a stricter one, and does not overflow there.
func TestADebtUnderAStricterRuleIsNotForgiven(t *testing.T) {
	for _, owed := range []int64{5, 1 << 20, 1 << 30, 1 << 40, mostUnits} {
		l := newLessor(t)
		strict := Part{Budget: bucket(1, 365*24*time.Hour, 1), Need: 1, Want: 1}
		require.EqualValues(t, 1, l.ask(strict).Tokens)
		require.Less(t, l.ask(Part{Budget: bucket(1_000_000, time.Second, 1), Owe: owed}).Left, -4.0, owed)
	}
}
