package queue_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/queue"
	"github.com/stretchr/testify/require"
)

// A judged is a Limiter with waiters to be judged.
type judged struct {
	l       *Limiter
	waiters []*queue.Waiter
}

// newJudged lines up requests at random: of several costs, patiences, priorities, callers and gates.
func newJudged(t *testing.T, seed uint64) *judged {
	r := metertest.Seeded(t, seed)
	x := &judged{l: limiterOf(t, WithLimit(judgedLimits(r)...))}
	families := 1 + r.IntN(4)*r.IntN(2)
	gated, same := r.IntN(2) == 0, time.Duration(-1)
	if r.IntN(3) == 0 { // so that the queue is full because of it
		same = time.Duration(r.Int64N(int64(100 * time.Second)))
	}
	for range 150 {
		p := &queue.Pending{Ask: queue.Ask{Priority: r.IntN(3), Caller: string(rune('a' + r.IntN(5))), Weight: 1, MaxWait: -1, By: countsOf(x.l)}}
		if p.Ask.MaxWait = same; same < 0 && r.IntN(3) > 0 {
			p.Ask.MaxWait = time.Duration(r.Int64N(int64(200 * time.Second)))
		}
		for _, li := range coreOf(x.l).Limits {
			p.Charges = slices.Grow(p.Charges, 1)
			p.Add(li, "", 1+r.Int64N(5))
		}
		if gated {
			p.Gate, p.Late = &queue.GateKey{Host: "h", Family: uint64(r.IntN(families))}, true
		}
		ctx, cancel := t.Context(), context.CancelFunc(func() {})
		if same < 0 && r.IntN(4) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(1+r.Int64N(int64(200*time.Second))))
		}
		if w, verdict := coreOf(x.l).Decide(ctx, p); verdict == queue.Waiting {
			x.waiters = append(x.waiters, w)
		}
		cancel()
	}
	return x
}

// judgedLimits returns one to three limits. None grants much.
func judgedLimits(r *rand.Rand) (limits []Limit) {
	for i := range 1 + r.IntN(3) {
		opts := []LimitOption{Name(fmt.Sprint(i))}
		if i == 0 && r.IntN(3) == 0 {
			opts = append(opts, FairBy(ByHost))
		}
		n, per := 5+r.Int64N(5), time.Duration(1+r.Int64N(int64(4*time.Second)))
		kind := r.IntN(5)
		switch kind {
		case 0:
			limits = append(limits, TokenBucket(n, per, append(opts, Burst(10), Initial(0))...))
		case 1:
			limits = append(limits, Pace(n, per, opts...))
		case 2:
			limits = append(limits, SlidingWindow(n+5, per, opts...))
		case 3:
			limits = append(limits, FixedWindow(n+5, per, opts...))
		default:
			limits = append(limits, Adaptive(AIMD{Initial: 2, Max: 4}, opts...))
		}
	}
	return limits
}

// change holds a limit, or changes its terms.
func (x *judged) change(r *rand.Rand, now meter.Instant) []*queue.Bucket {
	li := coreOf(x.l).Limits[r.IntN(len(coreOf(x.l).Limits))]
	b := li.Single
	switch r.IntN(4) {
	case 0:
		b.Meter.Resize(now, 1+r.Int64N(10))
	case 1:
		b.Meter.Retune(now, meter.Rate{N: 3 + r.Int64N(7), Per: time.Duration(1 + r.Int64N(int64(8*time.Second)))})
	case 2:
		if gate := coreOf(x.l).Gates[queue.GateKey{Host: "h", Family: uint64(r.IntN(4))}]; gate != nil {
			li, b = coreOf(x.l).Gate, gate
			if p := gate.Meter.(*queue.GateBucket).Party; !p.Vocal { // as if the server had told it
				p.Vocal = true
				for _, lined := range p.Lists[queue.LinedGates] {
					for _, s := range lined.Lines {
						s.Line.Vocal = true
						s.Line.Queue.Vocal++
					}
				}
			}
		}
		fallthrough
	default:
		b.Held = now + r.Int64N(int64(100*time.Second))
		li.HeldMost = max(li.HeldMost, b.Held)
	}
	return []*queue.Bucket{b}
}

// exact reports whether it makes no difference to waiters when those ahead of them are granted: their plans are exact, and their order
// is fixed.
func (x *judged) exact() bool {
	li := coreOf(x.l).Limits[0]
	return len(coreOf(x.l).Limits) == 1 && !li.Windowed && !li.Learns && !li.Fair
}

// rejectFirst rejects the first request that is too late, as found by planning one by one, and reports whether there is one.
func (x *judged) rejectFirst(now meter.Instant) bool {
	var all []*queue.Waiter
	for _, w := range x.waiters {
		if w.Verdict == queue.Waiting {
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b *queue.Waiter) int {
		if a.Before(&b.Place) {
			return -1
		}
		return 1
	})
	for _, w := range all {
		due, s := coreOf(x.l).PlanAgainLocked(w, now)
		if reason := w.Judge(due, now, s.Bucket); reason != 0 {
			coreOf(x.l).RejectLocked(w, s, reason, due, now)
			return true
		}
	}
	return false
}

// Of all that wait, the same are rejected, in the same way, as if every request were planned after every rejection.
func TestJudgingSkipsNoRequestThatIsTooLate(t *testing.T) {
	seeds := uint64(2_000)
	if testing.Short() {
		seeds = 100
	}
	rejected, lines := 0, 0
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			x, brute := newJudged(t, seed), newJudged(t, seed)
			require.Len(t, brute.waiters, len(x.waiters))
			lines = max(lines, len(coreOf(x.l).Lines))
			if x.exact() { // else grants between two pieces may make plans later, which are lower bounds
				coreOf(x.l).AtOnce = 1 + int(seed%50)
			} else {
				coreOf(x.l).AtOnce = math.MaxInt
			}
			for op := range uint64(4) {
				time.Sleep(time.Duration(op) * time.Second)
				synctest.Wait()
				coreOf(x.l).Mu.Lock()
				now := coreOf(x.l).NowLocked()
				coreOf(x.l).DueLocked(now)
				buckets := x.change(rand.New(rand.NewPCG(seed, op)), now)
				coreOf(x.l).ReplanLocked(now, buckets...)
				coreOf(x.l).ServeLocked(now)
				coreOf(x.l).UnlockJudged()

				coreOf(brute.l).Mu.Lock()
				coreOf(brute.l).DueLocked(now)
				buckets = brute.change(rand.New(rand.NewPCG(seed, op)), now)
				if buckets[0].HasLines() { // else the change is not about them
					for brute.rejectFirst(now) {
					}
				}
				for _, b := range buckets {
					coreOf(brute.l).MarkLocked(b)
				}
				coreOf(brute.l).ServeLocked(now)
				coreOf(brute.l).Mu.Unlock()
				coreOf(x.l).Mu.Lock() // timers may have granted
				coreOf(brute.l).Mu.Lock()
				for i, w := range x.waiters {
					other := brute.waiters[i]
					require.Equal(t, other.Verdict, w.Verdict, "seed %d, op %d: request %d", seed, op, i)
					if w.Verdict == queue.Refused {
						rejected++
						require.Equal(t, other.Refusal.Limit.Name, w.Refusal.Limit.Name)
						want, got := *other.Refusal, *w.Refusal
						want.Limit, got.Limit = nil, nil
						require.Equal(t, want, got, "seed %d, op %d: request %d", seed, op, i)
					}
				}
				coreOf(brute.l).Mu.Unlock()
				coreOf(x.l).Mu.Unlock()
				checkInvariants(t, x.l)
			}
			for _, x := range []*judged{x, brute} {
				for _, w := range x.waiters {
					_ = coreOf(x.l).Abandon(t.Context(), w)
				}
			}
		})
	}
	require.Greater(t, rejected, 1000)
	require.Greater(t, lines, 3)
}

// Of many requests, those that a change rejects are found by a search.
func TestFewRequestsAreJudgedToRejectAFew(t *testing.T) {
	const n = 4096
	rate := func(per time.Duration) func(*testing.T, *Limiter, *Grant) {
		return func(t *testing.T, l *Limiter, _ *Grant) { require.NoError(t, l.SetRate("limit", 100, per)) }
	}
	full := func(due, cost time.Duration) time.Duration { return due + cost/2 } // as if all had the same MaxWait
	for name, c := range map[string]struct {
		maxWait  func(due, cost time.Duration) time.Duration // of a request that would be granted after due
		costs    int64
		change   func(*testing.T, *Limiter, *Grant)
		rejected int
		most     int // requests judged
	}{
		"a slower rate, one in 64 has a MaxWait": {func(due, _ time.Duration) time.Duration {
			if due/time.Second%64 != 32 {
				return -1
			}
			return due * 3 / 2
		}, 1, rate(200 * time.Second), n / 64, n / 64 * 12},
		"a slower rate, all could go 256 later":      {func(due, _ time.Duration) time.Duration { return due + 256*time.Second }, 1, rate(105 * time.Second), 0, 20},
		"a slower rate, a full queue":                {full, 1, rate(101 * time.Second), n/101 + 1, n / 101 * 12},
		"a slower rate, a full queue, unequal costs": {full, 9, rate(101 * time.Second), 203, 203 * 12},
		"a settlement, a full queue":                 {full, 1, func(t *testing.T, _ *Limiter, g *Grant) { require.NoError(t, g.Settle("limit", 101)) }, 1, 20},
		"a settlement, a full queue, unequal costs":  {full, 9, func(t *testing.T, _ *Limiter, g *Grant) { require.NoError(t, g.Settle("limit", 102)) }, 2, 40},
		"a hold, a full queue":                       {full, 1, func(_ *testing.T, l *Limiter, _ *Grant) { l.Hold("", 2*time.Second) }, 1, 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := limiterOf(t, WithLimit(TokenBucket(100, 100*time.Second, Name("limit"))))
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				grant, err := l.Acquire(ctx, Ask{Cost: 100})
				require.NoError(t, err)
				due := time.Duration(0)
				for i := range int64(n) {
					cost := 1 + i*7919%c.costs
					due += time.Duration(cost) * time.Second
					p := &queue.Pending{Ask: queue.Ask{MaxWait: c.maxWait(due, time.Duration(cost)*time.Second), Weight: 1, By: countsOf(l)}}
					p.Charges = make([]queue.Charge, 0, 1)
					p.Add(coreOf(l).Limits[0], "", cost)
					_, verdict := coreOf(l).Decide(ctx, p)
					require.Equal(t, queue.Waiting, verdict)
				}
				judged := 0
				coreOf(l).AtOnce, coreOf(l).Pause = 1, func() { judged++ } // after each
				c.change(t, l, grant)
				require.Equal(t, n-c.rejected, l.Stats().Waiting)
				require.LessOrEqual(t, judged, c.most)
			})
		})
	}
}

// A change of the rate rejects the requests that it moves to their deadline or past their MaxWait, and no others.
func TestAChangeRejectsAtTheExactBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1))
		late, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		just, stop := context.WithTimeout(t.Context(), 4*time.Second+1)
		defer stop()
		first, second := sendUnder(late, l, Ask{}), sendUnder(just, l, Ask{})
		third := send(t, l, Ask{MaxWait: new(4 * time.Second)})
		fourth := send(t, l, Ask{MaxWait: new(6*time.Second - 1)})
		require.NoError(t, l.SetRate("bucket", 1, 2*time.Second))
		synctest.Wait()
		requireRefused(t, first, 0, ReasonDeadline)
		requireRefused(t, fourth, 0, ReasonMaxWait)
		sleep(4 * time.Second)
		requireGranted(t, second, 2*time.Second)
		requireGranted(t, third, 4*time.Second)
	})
}

func TestJudgingFreesTheLockBetweenPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, WithLimit(SlidingWindow(1, time.Second, Name("window"))))
		for i := range 100 {
			send(t, l, Ask{MaxWait: new(time.Duration(i) * time.Second)})
		}
		pauses := 0
		coreOf(l).AtOnce, coreOf(l).Pause = 10, func() { pauses++ }
		require.NoError(t, l.SetRate("window", 1, time.Second))
		require.GreaterOrEqual(t, pauses, 9)
		sleep(100 * time.Second)
		require.EqualValues(t, 100, l.Stats().Granted)
	})
}
