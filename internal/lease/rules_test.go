package lease

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// This file tests fleets whose processes set different rules for one budget, as during a roll-out.

// rulePairs returns two rules for one budget, the stricter one first.
func rulePairs() (all [][2]store.Budget) {
	pair := func(strict, loose store.Budget) { all = append(all, [2]store.Budget{strict, loose}) }
	pair(bucket(99, time.Second, 10), bucket(100, time.Second, 10))
	pair(bucket(100, time.Second, 9), bucket(100, time.Second, 10))
	pair(bucket(100, time.Second, 10), bucket(200, time.Second, 20))
	pair(bucket(100, time.Second, 20), bucket(200, time.Second, 1))
	pair(bucket(5, time.Second, 1), bucket(6000, time.Minute, 1))
	pair(kindOf(store.Pace, 99), kindOf(store.Pace, 100))
	pair(kindOf(store.Pace, 20), kindOf(store.Pace, 100))
	for _, kind := range []store.Kind{store.Sliding, store.Fixed} {
		pair(kindOf(kind, 99), kindOf(kind, 100))
		pair(kindOf(kind, 100), kindOf(kind, 200))
		pair(kindOf(kind, 40), store.Budget{Kind: kind, Limit: "l", N: 200, Per: 2 * time.Second})
	}
	return all
}

// used records when each process of a fleet used its tokens.
func (f *fleet) record() [][]int64 {
	used := make([][]int64, len(f.processes))
	for i, p := range f.processes {
		p.served = func() { used[i] = append(used[i], f.now) }
	}
	return used
}

// requireEvenShares fails if a process had less than half of an even share in any 5 s from an instant to another, or in four windows of the looser
// rule, or the time in which a share is two tokens, if that is longer. A process that has used its window by the old rule does not know of the new
// one until it ends. All have used less than the rule allows where they had used more by another one before.
func requireEvenShares(t *testing.T, used [][]int64, b, looser store.Budget, from, to func(process int) int64, what string) {
	t.Helper()
	perSecond := float64(b.N) / b.Per.Seconds()
	span := max(5*second, int64(2*float64(len(used))/perSecond*float64(second)))
	if b.Kind == store.Sliding || b.Kind == store.Fixed {
		span = max(span, 4*int64(looser.Per))
	}
	all := slices.Concat(used...)
	slices.Sort(all)
	for i := range used {
		for at := from(i); at+span <= to(i); at += 50 * ms {
			even := min(perSecond*time.Duration(span).Seconds(), float64(within(all, at, span))) / float64(len(used))
			require.GreaterOrEqual(t, float64(within(used[i], at, span)), even/2, "process %d of %v in %v from %v: %s", i, even, time.Duration(span), time.Duration(at), what)
		}
	}
}

// within returns how many instants are in a span from another one on.
func within(all []int64, from, span int64) int {
	first, _ := slices.BinarySearch(all, from)
	last, _ := slices.BinarySearch(all, from+span)
	return last - first
}

func always(at int64) func(int) int64 { return func(int) int64 { return at } }

func TestRulesThatDifferStarveNoProcess(t *testing.T) {
	seeds, some := uint64(1), []int{1, 4, 7}
	if !testing.Short() {
		seeds, some = 4, []int{1, 2, 3, 4, 5, 6, 7}
	}
	for _, pair := range rulePairs() {
		strict := pair[0]
		for _, loose := range some {
			for seed := range seeds {
				what := fmt.Sprintf("%d of 8 processes have %d in %v, burst %d, of a %s of %d in %v, burst %d, seed %d",
					loose, pair[1].N, pair[1].Per, pair[1].Burst, strict.Kind, strict.N, strict.Per, strict.Burst, seed)
				f := newFleet(seed, strict, 8, 8)
				for _, p := range f.processes[:loose] {
					p.meter = newLeased(pair[1], Config{Ahead: 10 * time.Millisecond, Seed: f.Uint64()})
				}
				used := f.record()
				f.run(25 * time.Second)
				requireEvenShares(t, used, strict, pair[1], always(5*second), always(f.now), what)
				all := slices.Concat(used...)
				slices.Sort(all)
				perSecond := float64(strict.N) / strict.Per.Seconds()
				require.InDelta(t, 20*perSecond, within(all, 5*second, 20*second), max(.02*20*perSecond, float64(max(strict.Burst, 3))+.1*perSecond), what)
				if strict.Kind == store.Bucket || strict.Kind == store.Pace {
					for _, span := range []int64{10 * ms, second, 5 * second} {
						most := float64(max(1, strict.Burst)) + perSecond*float64(span+3*ms)/float64(second) // a response may take 3 ms
						require.LessOrEqual(t, float64(mostWithin(all, 5*second, span)), most, "in %v: %s", time.Duration(span), what)
					}
				}
			}
		}
	}
}

// In a roll-out, processes restart one by one with the new rule. The stricter of the old and the new one counts until no process has it.
func TestARollOutStarvesNoProcess(t *testing.T) {
	seeds := uint64(1)
	if !testing.Short() {
		seeds = 4
	}
	for _, pair := range rulePairs() {
		for way, rules := range map[string][2]store.Budget{"up": pair, "down": {pair[1], pair[0]}} {
			for seed := range seeds {
				what := fmt.Sprintf("%s: from %d in %v, burst %d, to %d in %v, burst %d, of a %s, seed %d",
					way, rules[0].N, rules[0].Per, rules[0].Burst, rules[1].N, rules[1].Per, rules[1].Burst, rules[0].Kind, seed)
				f := newFleet(seed, rules[0], 8, 8)
				used := f.record()
				f.run(5 * time.Second)
				for _, p := range f.processes {
					p.meter = newLeased(rules[1], Config{Ahead: 10 * time.Millisecond, Seed: f.Uint64()})
					p.question, p.wakes = p.question+1, meter.Never
					f.step(p)
					f.run(3 * time.Second)
				}
				f.run(30 * time.Second)
				restart := func(i int) int64 { return 5*second + int64(i)*3*second }
				requireEvenShares(t, used, pair[0], pair[1], always(2*second), restart, what)
				requireEvenShares(t, used, pair[0], pair[1], restart, always(f.now), what)
				requireEvenShares(t, used, rules[1], pair[1], always(f.now-15*second), always(f.now), what)
				all := slices.Concat(used...)
				slices.Sort(all)
				require.GreaterOrEqual(t, float64(within(all, f.now-15*second, 15*second)), .92*15*float64(rules[1].N)/rules[1].Per.Seconds()-1, what)
			}
		}
	}
}
