package limiter_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

func TestOneRequestPassesThousandsOfAnotherCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 10_000
		if testing.Short() {
			n = 2_000
		}
		l := drive(t, fairly(10))
		ctx, cancel := context.WithCancel(t.Context())
		for range n {
			go func() { _, _ = l.acquire(ctx, ask{Caller: "greedy"}) }()
		}
		sleep(time.Minute + 50*time.Millisecond)
		require.EqualValues(t, 600, l.counts().Granted)
		require.Equal(t, 1, l.counts().Callers)
		one := l.send(ask{Caller: "one"})
		plan := requireRejected(t, l.send(ask{Caller: "another", MaxWait: ptr(time.Duration(0))}), l.now(), bucket.ReasonNoTokens)
		require.Equal(t, 150*time.Millisecond, plan.Wait)
		sleep(50*time.Millisecond - 1)
		require.False(t, one.done)
		sleep(1)
		requireGranted(t, one, time.Minute+100*time.Millisecond)
		two := l.sendMany(2, ask{Caller: "two"})
		sleep(time.Second)
		requireGranted(t, two[0], time.Minute+200*time.Millisecond)
		requireGranted(t, two[1], time.Minute+400*time.Millisecond)
		l.check()
		cancel()
		synctest.Wait()
		l.check()
	})
}

// A share is a request of one of several callers that was granted.
type share struct {
	caller int
	cost   int64
}

// shareOut has three callers with these weights ask for more than there is, each for larger costs than the one before.
func shareOut(t *testing.T, weights []int) (grants []share) {
	r := metertest.Seeded(t, 1)
	l := drive(t, fairly(1000, withBurst(20), withWeights(func(caller string) int { return weights[caller[0]-'a'] })))
	ctx, cancel := context.WithCancel(t.Context())
	for i := range weights {
		for range 3000 {
			cost := 1 + r.Int64N(int64(1+6*i))
			go func() {
				if _, err := l.acquire(ctx, ask{Caller: string(rune('a' + i)), Cost: cost}); err == nil {
					deciding.Lock()
					defer deciding.Unlock()
					grants = append(grants, share{i, cost})
				}
			}()
		}
		synctest.Wait()
	}
	sleep(5 * time.Second)
	cancel()
	synctest.Wait()
	return grants[20:] // which did not wait
}

// The shares are within the bound of start-time fair queueing (theorem 1 of the paper) over all stretches of
// time, and Jain's index over 100 turns: a turn is one request of each caller, as the costs of single requests differ.
func TestCallersShareByCostAndWeight(t *testing.T) { // slow: thousands of grants among callers
	for name, weights := range map[string][]int{"equal": {1, 1, 1}, "weights": {3, 1, 2}} {
		within(t, name, func(t *testing.T) {
			grants := shareOut(t, weights)
			require.Greater(t, len(grants), 1000)
			bound := func(i int) float64 { return float64(1+6*i) / float64(weights[i]) }
			// What two callers got differs over a stretch as much as between its ends, so the extremes over all stretches decide.
			var got [3]float64
			var least, most [3][3]float64
			for to, g := range grants {
				got[g.caller] += float64(g.cost) / float64(weights[g.caller])
				for i := range got {
					for j := range i {
						ahead := got[i] - got[j]
						least[i][j], most[i][j] = min(least[i][j], ahead), max(most[i][j], ahead)
						// Tags are rounded, by a thousandth of a token.
						require.LessOrEqual(t, most[i][j]-least[i][j], bound(i)+bound(j)+1, "grant %d", to)
					}
				}
			}
			stretches := 0
			for from := range grants {
				var got [3]float64
				var turns [3]int
				for to := from; to < len(grants); to++ {
					g := grants[to]
					got[g.caller] += float64(g.cost) / float64(weights[g.caller])
					if turns[g.caller]++; min(turns[0], turns[1], turns[2]) == 100 {
						sum, squares := got[0]+got[1]+got[2], got[0]*got[0]+got[1]*got[1]+got[2]*got[2]
						require.GreaterOrEqual(t, sum*sum/squares/3, .99, "grants %d to %d: %v", from, to, got)
						stretches++
						break
					}
				}
			}
			require.Greater(t, stretches, 100)
		})
	}
}

// Whatever is cancelled, each of three callers has one of any three grants, also where more requests wait than are moved under one lock.
func TestTurnsStayExactWhateverIsCancelled(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			r := metertest.Seeded(t, seed)
			l := drive(t, fairly(1))
			const n = 100
			var all [3][]*request
			for i := range all {
				all[i] = l.sendMany(n, ask{Caller: string(rune('a' + i))})
			}
			granted := func(i int) (n int) {
				for _, r := range all[i] {
					if r.done && r.err == nil {
						n++
					}
				}
				return n
			}
			for turn := 1; turn <= 25; turn++ {
				for range r.IntN(4) {
					caller := all[r.IntN(len(all))]
					if w := caller[r.IntN(n)]; !w.done {
						w.cancel(nil)
						synctest.Wait()
					}
				}
				sleep(3 * time.Second)
				for i := range all {
					require.Equal(t, turn, granted(i), "seed %d, turn %d: caller %d", seed, turn, i)
				}
				l.check()
			}
			for i := range all {
				last := time.Duration(0)
				for _, r := range all[i] {
					if r.done && r.err == nil {
						require.Greater(t, r.at, last, "not in order of arrival")
						last = r.at
					}
					r.cancel(nil)
				}
			}
			synctest.Wait()
		})
	}
}

func TestIdleCallerSavesNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, fairly(1))
		greedy := l.sendMany(100, ask{Caller: "greedy"})
		sleep(30*time.Second + time.Second/2)
		require.True(t, greedy[29].done && !greedy[30].done)
		late := l.sendMany(10, ask{Caller: "late"})
		sleep(20 * time.Second)
		for i, r := range late { // one each, and not ten for the half minute
			requireGranted(t, r, time.Duration(31+2*i)*time.Second)
		}
		requireGranted(t, greedy[30], 32*time.Second)
		l.check()
	})
}

// The second request comes one nanosecond less than ten seconds after the first, the third one nanosecond more.
func TestPriorityCountsBetweenFirstRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, fairly(1))
		l.hold("", time.Minute)
		greedy := l.sendMany(3, ask{Caller: "greedy", Priority: 0})
		sleep(time.Second)
		first := l.send(ask{Caller: "first"})
		sleep(10*time.Second - 1)
		sooner := l.send(ask{Caller: "sooner", Priority: 1})
		sleep(2)
		later := l.send(ask{Caller: "later", Priority: 1})
		sleep(2 * time.Minute)
		for i, r := range []*request{greedy[0], sooner, first, later, greedy[1], greedy[2]} {
			requireGranted(t, r, time.Minute+time.Duration(i)*time.Second)
		}
	})
}

func TestCancelledRequestLeavesItsTurnToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, fairly(1))
		const n = 300 // more than are corrected at a time
		a, b := l.sendMany(n, ask{Caller: "a"}), l.sendMany(n, ask{Caller: "b"})
		for i, r := range a[:n-2] {
			r.cancel(nil)
			synctest.Wait()
			if i%10 == 0 {
				l.check()
			}
		}
		sleep(4 * time.Second)
		requireGranted(t, a[n-2], time.Second)
		requireGranted(t, b[0], 2*time.Second)
		requireGranted(t, a[n-1], 3*time.Second)
		requireGranted(t, b[1], 4*time.Second)
		for _, r := range b {
			r.cancel(nil)
		}
		synctest.Wait()
		l.check()
		require.Zero(t, l.counts().Callers)
	})
}

func TestRefundReturnsTheWholeTurnAfterTheLimitShrank(t *testing.T) {
	for name, refund := range map[string]func(*driven, *grant){
		"cancelled": func(_ *driven, g *grant) { g.cancel() },
		"unsent":    func(l *driven, g *grant) { g.answer(&limiter.Answer{Unsent: true}) },
	} {
		within(t, name, func(t *testing.T) {
			l := drive(t, inFlight(6, fair()))
			slots := func(n int64) map[string]int64 { return map[string]int64{"in-flight": n} }
			running := l.send(ask{Costs: slots(6)})
			large, next := l.send(ask{Caller: "a", Costs: slots(6)}), l.send(ask{Caller: "a"})
			others := l.sendMany(4, ask{Caller: "b"})
			running.grant.done()
			synctest.Wait()
			requireGranted(t, large, 0)
			l.setInFlight("in-flight", 2)
			refund(l, large.grant)
			synctest.Wait()
			requireGranted(t, next, 0) // its caller has had nothing
			requireGranted(t, others[0], 0)
			require.False(t, others[1].done)
			for _, r := range others {
				r.cancel(nil)
			}
			synctest.Wait()
		})
	}
}

func TestTurnsGoByTrueCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, fairly(1, withBurst(10)))
		a, b := l.sendMany(3, ask{Caller: "a"}), l.sendMany(9, ask{Caller: "b"})
		sleep(time.Second)
		requireGranted(t, a[0], time.Second)
		require.NoError(t, a[0].grant.settle("bucket", 4)) // three more, which are owed as well
		l.check()
		sleep(time.Minute)
		for i, r := range []*request{b[0], b[1], b[2], b[3], a[1], b[4], a[2], b[5]} {
			requireGranted(t, r, time.Duration(5+i)*time.Second)
		}
	})
}

// New callers come faster than they can be served.
func TestNoCallerIsStarvedByNewOnes(t *testing.T) {
	for _, priority := range []int{0, 2} {
		within(t, fmt.Sprint("priority ", priority), func(t *testing.T) {
			l := drive(t, fairly(10))
			greedy := l.sendMany(20, ask{Caller: "greedy"})
			ctx, cancel := context.WithCancel(t.Context())
			most := 0
			for i := range 1500 {
				go func() { _, _ = l.acquire(ctx, ask{Caller: fmt.Sprint(i), Priority: priority}) }()
				sleep(time.Second / 11)
				l.Lock()
				most = max(most, bucket.PointOf(l.Limits[0].Single).Known())
				l.Unlock()
			}
			l.check()
			require.True(t, greedy[3].done, "starved")
			require.Less(t, most, 700, "callers are not forgotten")
			cancel()
			synctest.Wait()
		})
	}
}

func TestCallersAreForgottenWithTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, fairly(10, keyed()))
		for i := range 500 {
			l.send(ask{Caller: fmt.Sprint(i % 60), Key: fmt.Sprint(i % 3)})
		}
		require.Equal(t, 60, l.counts().Callers)
		for _, b := range l.views() {
			require.True(t, b.Callers == 20 || b.Key == "")
		}
		sleep(time.Minute)
		require.Zero(t, l.counts().Callers)
		for b := range l.bucketsLocked(l.Limits[0]) {
			require.Zero(t, bucket.PointOf(b).Known())
		}
		l.check()
	})
}

// Requests are charged in a bucket where callers take turns, and in others.
func TestTurnsOverSeveralLimits(t *testing.T) {
	for seed := range seeds(6) {
		synctest.Test(t, func(t *testing.T) {
			r := metertest.Seeded(t, seed)
			l := drive(t, tokenBucket(8, time.Second, withBurst(5), named("key")), inFlight(6, named("slots")), tokenBucket(20, time.Second, withBurst(10), named("all"), fair()))
			all := make([]*request, 0, 200+400*(seeds(2)-1))
			for range cap(all) {
				costs := map[string]int64{"all": r.Int64N(8), "key": r.Int64N(5), "slots": r.Int64N(2)}
				asked := ask{Keys: map[string]string{"key": fmt.Sprint(r.IntN(4))}, Costs: costs, Priority: r.IntN(4) - 1, Caller: fmt.Sprint(r.IntN(5))}
				if r.IntN(3) == 0 {
					asked.MaxWait = ptr(time.Duration(r.Int64N(int64(20 * time.Second))))
				}
				all = append(all, l.send(asked))
				some := all[r.IntN(len(all))]
				switch r.IntN(12) {
				case 0, 1, 2, 3:
					sleep(time.Duration(r.Int64N(int64(time.Second))))
				case 4:
					l.hold(fmt.Sprint(r.IntN(4)), time.Duration(r.Int64N(int64(12*time.Second))))
				case 5:
					some.cancel(nil)
				case 6:
					l.setRate("all", 10+r.Int64N(20), time.Second)
				case 7, 8:
					if some.grant != nil {
						_ = some.grant.settle("all", r.Int64N(20)) // which may be settled, or not charged
					}
				}
				finish(all)
				l.check()
			}
			for range 60 {
				sleep(time.Minute)
				finish(all)
			}
			for i, r := range all {
				require.True(t, r.done, "request %d waits forever", i)
			}
			require.Zero(t, l.LineCount())
		})
	}
}

// forgetOld forgets requests that were decided long ago: they agree with the model, and never change.
func (x *modelRun) forgetOld() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id := range x.m.fates {
		if w := x.waiters[id]; !slices.Contains(x.m.grants, w) {
			delete(x.m.fates, id)
			delete(x.fates, id)
		}
	}
}

func TestALongRunAgreesWithItsModel(t *testing.T) { // slow: two runs of 10,000 operations
	ops, seeds := 10_000, uint64(2)
	if testing.Short() {
		ops, seeds = 2000, 1
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			x := &modelRun{T: t, r: metertest.Seeded(t, seed), fates: make(map[int]fate), waiters: make(map[int]*modelWaiter)}
			x.make()
			for op := range ops {
				x.step()
				if op%10 == 0 {
					x.compare()
					x.m.grants = x.m.grants[max(0, len(x.m.grants)-64):]
					x.forgetOld()
				}
			}
			for _, w := range x.m.line {
				w.cancel()
			}
			synctest.Wait()
			x.l.check()
		})
	}
}
