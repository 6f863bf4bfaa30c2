package limiter_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

// fairly is a bucket of n per second that starts empty, whose callers take turns.
func fairly(n int64, opts ...throttle.LimitOption) throttle.Option {
	return empty(n, append(opts, throttle.FairBy(throttle.ByHost))...)
}

func TestOneRequestPassesThousandsOfAnotherCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 10_000
		if testing.Short() {
			n = 2_000
		}
		l := limiterOf(t, fairly(10))
		ctx, cancel := context.WithCancel(t.Context())
		for range n {
			go func() { _, _ = l.Acquire(ctx, throttle.Ask{Caller: "greedy"}) }()
		}
		sleep(time.Minute + 50*time.Millisecond)
		require.EqualValues(t, 600, l.Stats().Granted)
		require.Equal(t, 1, l.Stats().Callers)
		one := send(t, l, throttle.Ask{Caller: "one"})
		plan := requireRefused(t, send(t, l, throttle.Ask{Caller: "another", MaxWait: new(time.Duration(0))}), time.Since(coreOf(l).Start), throttle.ReasonNoTokens)
		require.Equal(t, 150*time.Millisecond, plan.Wait)
		sleep(50*time.Millisecond - 1)
		require.False(t, one.done)
		sleep(1)
		requireGranted(t, one, time.Minute+100*time.Millisecond)
		two := sendMany(t, l, 2, throttle.Ask{Caller: "two"})
		sleep(time.Second)
		requireGranted(t, two[0], time.Minute+200*time.Millisecond)
		requireGranted(t, two[1], time.Minute+400*time.Millisecond)
		checkInvariants(t, l)
		cancel()
		synctest.Wait()
		checkInvariants(t, l)
	})
}

// A shared is a request of one of several callers that was granted.
type shared struct {
	caller int
	cost   int64
}

// shareOut has three callers with these weights ask for more than there is, each for larger costs than the one before.
func shareOut(t *testing.T, weights []int) (grants []shared) {
	r := metertest.Seeded(t, 1)
	l := limiterOf(t, fairly(1000, throttle.Burst(20), throttle.FairWeights(func(caller string) int { return weights[caller[0]-'a'] })))
	ctx, cancel := context.WithCancel(t.Context())
	for i := range weights {
		for range 3000 {
			cost := 1 + r.Int64N(int64(1+6*i))
			go func() {
				if _, err := l.Acquire(ctx, throttle.Ask{Caller: string(rune('a' + i)), Cost: cost}); err == nil {
					deciding.Lock()
					defer deciding.Unlock()
					grants = append(grants, shared{i, cost})
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

// TestCallersShareByCostAndWeight checks the bound of start-time fair queueing (theorem 1 of the paper) over all stretches of
// time, and Jain's index over 100 turns: a turn is one request of each caller, as the costs of single requests differ.
func TestCallersShareByCostAndWeight(t *testing.T) {
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

// Whatever is cancelled, each of three callers has one of any three grants, also where more requests wait than are moved at once.
func TestTurnsStayExactWhateverIsCancelled(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			r := metertest.Seeded(t, seed)
			l := limiterOf(t, fairly(1))
			const n = 100
			var all [3][]*request
			for i := range all {
				all[i] = sendMany(t, l, n, throttle.Ask{Caller: string(rune('a' + i))})
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
				checkInvariants(t, l)
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
		l := limiterOf(t, fairly(1))
		greedy := sendMany(t, l, 100, throttle.Ask{Caller: "greedy"})
		sleep(30*time.Second + time.Second/2)
		require.True(t, greedy[29].done && !greedy[30].done)
		late := sendMany(t, l, 10, throttle.Ask{Caller: "late"})
		sleep(20 * time.Second)
		for i, r := range late { // one each, and not ten for the half minute
			requireGranted(t, r, time.Duration(31+2*i)*time.Second)
		}
		requireGranted(t, greedy[30], 32*time.Second)
		checkInvariants(t, l)
	})
}

// TestPriorityCountsBetweenFirstRequests is at one nanosecond more and less than ten seconds.
func TestPriorityCountsBetweenFirstRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, fairly(1))
		l.Hold("", time.Minute)
		greedy := sendMany(t, l, 3, throttle.Ask{Caller: "greedy", Priority: 0})
		sleep(time.Second)
		first := send(t, l, throttle.Ask{Caller: "first"})
		sleep(10*time.Second - 1)
		sooner := send(t, l, throttle.Ask{Caller: "sooner", Priority: 1})
		sleep(2)
		later := send(t, l, throttle.Ask{Caller: "later", Priority: 1})
		sleep(2 * time.Minute)
		for i, r := range []*request{greedy[0], sooner, first, later, greedy[1], greedy[2]} {
			requireGranted(t, r, time.Minute+time.Duration(i)*time.Second)
		}
	})
}

func TestCancelledRequestLeavesItsTurnToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, fairly(1))
		const n = 300 // more than are corrected at once
		a, b := sendMany(t, l, n, throttle.Ask{Caller: "a"}), sendMany(t, l, n, throttle.Ask{Caller: "b"})
		for i, r := range a[:n-2] {
			r.cancel(nil)
			synctest.Wait()
			if i%10 == 0 {
				checkInvariants(t, l)
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
		checkInvariants(t, l)
		require.Zero(t, l.Stats().Callers)
	})
}

func TestRefundReturnsTheWholeTurnAfterTheLimitShrank(t *testing.T) {
	for name, refund := range map[string]func(*throttle.Limiter, *throttle.Grant){
		"cancelled": func(_ *throttle.Limiter, g *throttle.Grant) { g.Cancel() },
		"unsent":    func(l *throttle.Limiter, g *throttle.Grant) { report(l, g, &limiter.Answer{Unsent: true}) },
	} {
		within(t, name, func(t *testing.T) {
			l := limiterOf(t, throttle.WithLimit(throttle.InFlight(6, throttle.FairBy(throttle.ByHost))))
			slots := func(n int64) map[string]int64 { return map[string]int64{"in-flight": n} }
			running := send(t, l, throttle.Ask{Costs: slots(6)})
			large, next := send(t, l, throttle.Ask{Caller: "a", Costs: slots(6)}), send(t, l, throttle.Ask{Caller: "a"})
			others := sendMany(t, l, 4, throttle.Ask{Caller: "b"})
			running.grant.Done()
			synctest.Wait()
			requireGranted(t, large, 0)
			require.NoError(t, l.SetInFlight("in-flight", 2))
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
		l := limiterOf(t, fairly(1, throttle.Burst(10)))
		a, b := sendMany(t, l, 3, throttle.Ask{Caller: "a"}), sendMany(t, l, 9, throttle.Ask{Caller: "b"})
		sleep(time.Second)
		requireGranted(t, a[0], time.Second)
		require.NoError(t, a[0].grant.Settle("bucket", 4)) // three more, which are owed as well
		checkInvariants(t, l)
		sleep(time.Minute)
		for i, r := range []*request{b[0], b[1], b[2], b[3], a[1], b[4], a[2], b[5]} {
			requireGranted(t, r, time.Duration(5+i)*time.Second)
		}
	})
}

// TestNoCallerIsStarvedByNewOnes has callers come that never came before, faster than they can be served.
func TestNoCallerIsStarvedByNewOnes(t *testing.T) {
	for _, priority := range []int{0, 2} {
		within(t, fmt.Sprint("priority ", priority), func(t *testing.T) {
			l := limiterOf(t, fairly(10))
			greedy := sendMany(t, l, 20, throttle.Ask{Caller: "greedy"})
			ctx, cancel := context.WithCancel(t.Context())
			most := 0
			for i := range 1500 {
				go func() { _, _ = l.Acquire(ctx, throttle.Ask{Caller: fmt.Sprint(i), Priority: priority}) }()
				sleep(time.Second / 11)
				coreOf(l).Lock()
				most = max(most, limiter.PointOf(coreOf(l).Limits[0].Single).Known())
				coreOf(l).Unlock()
			}
			checkInvariants(t, l)
			require.True(t, greedy[3].done, "starved")
			require.Less(t, most, 700, "callers are not forgotten")
			cancel()
			synctest.Wait()
		})
	}
}

func TestCallersAreForgottenWithTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, fairly(10, throttle.Key(throttle.ByHost)))
		for i := range 500 {
			send(t, l, throttle.Ask{Caller: fmt.Sprint(i % 60), Key: fmt.Sprint(i % 3)})
		}
		require.Equal(t, 60, l.Stats().Callers)
		for b := range l.Buckets() {
			require.True(t, b.Callers == 20 || b.Key == "")
		}
		sleep(time.Minute)
		require.Zero(t, l.Stats().Callers)
		for _, b := range everyBucket(coreOf(l).Limits[0]) {
			require.Zero(t, limiter.PointOf(b).Known())
		}
		checkInvariants(t, l)
	})
}

// finish gives the slots back of all requests that were granted.
func finish(all []*request) {
	var grants []*throttle.Grant
	deciding.Lock()
	for _, r := range all {
		if r.grant != nil {
			grants = append(grants, r.grant)
		}
	}
	deciding.Unlock()
	for _, g := range grants {
		g.Done()
	}
	synctest.Wait()
}

// TestTurnsOverSeveralLimits does anything to a Limiter whose requests fall under a bucket with turns and under others.
func TestTurnsOverSeveralLimits(t *testing.T) {
	for seed := range seeds(6) {
		synctest.Test(t, func(t *testing.T) {
			r := metertest.Seeded(t, seed)
			l := limiterOf(t, throttle.WithLimit(
				throttle.TokenBucket(8, time.Second, throttle.Burst(5), throttle.Name("key")), throttle.InFlight(6, throttle.Name("slots")),
				throttle.TokenBucket(20, time.Second, throttle.Burst(10), throttle.Name("all"), throttle.FairBy(throttle.ByHost))))
			all := make([]*request, 0, 200+400*(seeds(2)-1))
			for range cap(all) {
				costs := map[string]int64{"all": r.Int64N(8), "key": r.Int64N(5), "slots": r.Int64N(2)}
				ask := throttle.Ask{Keys: map[string]string{"key": fmt.Sprint(r.IntN(4))}, Costs: costs, Priority: r.IntN(4) - 1, Caller: fmt.Sprint(r.IntN(5))}
				if r.IntN(3) == 0 {
					ask.MaxWait = new(time.Duration(r.Int64N(int64(20 * time.Second))))
				}
				all = append(all, send(t, l, ask))
				some := all[r.IntN(len(all))]
				switch r.IntN(12) {
				case 0, 1, 2, 3:
					sleep(time.Duration(r.Int64N(int64(time.Second))))
				case 4:
					l.Hold(fmt.Sprint(r.IntN(4)), time.Duration(r.Int64N(int64(12*time.Second))))
				case 5:
					some.cancel(nil)
				case 6:
					require.NoError(t, l.SetRate("all", 10+r.Int64N(20), time.Second))
				case 7, 8:
					if some.grant != nil {
						_ = some.grant.Settle("all", r.Int64N(20)) // which may be settled, or not charged
					}
				}
				finish(all)
				checkInvariants(t, l)
			}
			for range 60 {
				sleep(time.Minute)
				finish(all)
			}
			for i, r := range all {
				require.True(t, r.done, "request %d waits forever", i)
			}
			require.Zero(t, coreOf(l).LineCount())
		})
	}
}

func TestCallerOfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(rt(func(*http.Request) (*http.Response, error) { return reply(200) }),
			throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0), throttle.FairBy(func(r *http.Request) string { return r.Header.Get("Tenant") }))))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		goes := func(ctx context.Context, tenant string) {
			req := get(ctx, "http://a.com/")
			req.Header.Set("Tenant", tenant)
			go func() { _, _ = tr.RoundTrip(req) }()
			synctest.Wait()
		}
		goes(ctx, "one")
		goes(ctx, "")
		goes(throttle.ContextWithCaller(ctx, "three"), "one")
		goes(throttle.ContextWithCaller(ctx, ""), "one")
		go func() { _ = tr.Limiter().Wait(throttle.ContextWithCaller(ctx, "five"), throttle.Ask{}) }()
		go func() { _ = tr.Limiter().Wait(ctx, throttle.Ask{}) }()
		synctest.Wait()
		l := tr.Limiter()
		coreOf(l).Lock()
		waiting := map[string]int{}
		for w := range limiter.PointOf(coreOf(l).Limits[0].Single).Waiters {
			waiting[w.Caller]++
		}
		coreOf(l).Unlock()
		require.Equal(t, map[string]int{"one": 1, "": 3, "three": 1, "five": 1}, waiting)
		cancel()
		synctest.Wait()
	})
}

func TestTurnsThatCannotBeTakenAreAnError(t *testing.T) {
	for text, limits := range map[string][]throttle.Limit{
		`FairBy in limits "a" and "b": a request has one place in the queue`: {throttle.Pace(1, 1, throttle.Name("a"), throttle.FairBy(throttle.ByHost)), throttle.Pace(1, 1, throttle.Name("b"), throttle.FairBy(throttle.ByHost))},
		`limit "a": FairWeights has no effect without FairBy`:                {throttle.Pace(1, 1, throttle.Name("a"), throttle.FairWeights(func(string) int { return 1 }))},
		"FairBy(nil): a function is needed":                                  {throttle.Pace(1, 1, throttle.FairBy(nil))},
		"FairWeights(nil): a function is needed":                             {throttle.Pace(1, 1, throttle.FairBy(throttle.ByHost), throttle.FairWeights(nil))},
	} {
		_, err := throttle.NewLimiter(throttle.WithLimit(limits...))
		require.ErrorContains(t, err, text)
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

func TestALongRunAgreesWithItsModel(t *testing.T) {
	ops, seeds := 10_000, uint64(4)
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
			checkInvariants(t, x.l)
		})
	}
}
