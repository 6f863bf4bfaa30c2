package throttle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

// A judged is a Limiter whose waiters are to be judged.
type judged struct {
	l       *Limiter
	waiters []*waiter
}

// newJudged lines up requests at random: of several costs, patiences, priorities, callers and gates.
func newJudged(t *testing.T, seed uint64) *judged {
	r := metertest.Seeded(t, seed)
	x := &judged{l: limiterOf(t, WithLimit(judgedLimits(r)...))}
	families := 1 + r.IntN(4)*r.IntN(2)
	gated := r.IntN(2) == 0
	for range 150 {
		p := &pending{ask: ask{priority: r.IntN(3), caller: string(rune('a' + r.IntN(5))), weight: 1, maxWait: -1, by: &x.l.direct.counts}}
		if r.IntN(3) > 0 {
			p.ask.maxWait = time.Duration(r.Int64N(int64(200 * time.Second)))
		}
		for _, li := range x.l.limits {
			p.charges = charged(slices.Grow(p.charges, 1), li, "", 1+r.Int64N(5))
		}
		if gated {
			p.gate, p.late = &gateKey{host: "h", family: uint64(r.IntN(families))}, true
		}
		ctx, cancel := t.Context(), context.CancelFunc(func() {})
		if r.IntN(4) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(1+r.Int64N(int64(200*time.Second))))
		}
		if w, verdict := x.l.decide(ctx, p); verdict == waiting {
			x.waiters = append(x.waiters, w)
		}
		cancel()
	}
	return x
}

// judgedLimits returns one to three limits, none of which grants much.
func judgedLimits(r *rand.Rand) (limits []Limit) {
	for i := range 1 + r.IntN(3) {
		opts := []LimitOption{Name(fmt.Sprint(i))}
		if i == 0 && r.IntN(3) == 0 {
			opts = append(opts, FairBy(ByHost))
		}
		n, per := 5+r.Int64N(5), time.Duration(1+r.Int64N(int64(4*time.Second)))
		kind := r.IntN(5)
		if kind != 1 && r.IntN(4) == 0 {
			opts = append(opts, Reserve(0.2, 2))
		}
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
func (x *judged) change(r *rand.Rand, now instant) []*bucket {
	li := x.l.limits[r.IntN(len(x.l.limits))]
	b := li.single
	switch r.IntN(4) {
	case 0:
		b.meter.Resize(now, 1+r.Int64N(10))
	case 1:
		b.meter.Retune(now, rate{N: 3 + r.Int64N(7), Per: time.Duration(1 + r.Int64N(int64(8*time.Second)))})
	case 2:
		if gate := x.l.gates[gateKey{host: "h", family: uint64(r.IntN(4))}]; gate != nil {
			li, b = x.l.gate, gate
		}
		fallthrough
	default:
		b.held = now + r.Int64N(int64(100*time.Second))
		li.heldMost = max(li.heldMost, b.held)
	}
	return []*bucket{b}
}

// rejectFirst rejects the first request that is too late, as found by planning one by one, and reports whether there is one.
func (x *judged) rejectFirst(now instant) bool {
	for _, below := range []bool{false, true} {
		var all []*waiter
		for _, w := range x.waiters {
			if w.verdict == waiting && w.below == below {
				all = append(all, w)
			}
		}
		slices.SortFunc(all, func(a, b *waiter) int {
			if a.before(&b.place) {
				return -1
			}
			return 1
		})
		for _, w := range all {
			due, s := x.l.planAgainLocked(w, now)
			if reason := w.judge(due, now, s.bucket); reason != 0 {
				x.l.rejectLocked(w, s, reason, due, now)
				return true
			}
		}
	}
	return false
}

// Of all that wait, the same are rejected, in the same way, as if every request were planned after every rejection.
func TestJudgingSkipsNoRequestThatIsTooLate(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 100
	}
	rejected, lines := 0, 0
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			x, brute := newJudged(t, seed), newJudged(t, seed)
			require.Len(t, brute.waiters, len(x.waiters))
			lines = max(lines, len(x.l.lines))
			x.l.atOnce = 1 + int(seed%50)
			for op := range uint64(4) {
				time.Sleep(time.Duration(op) * time.Second)
				synctest.Wait()
				x.l.mu.Lock()
				now := x.l.nowLocked()
				buckets := x.change(rand.New(rand.NewPCG(seed, op)), now)
				x.l.replanLocked(now, buckets...)
				x.l.serveLocked(now)
				x.l.unlockJudged()

				brute.l.mu.Lock()
				buckets = brute.change(rand.New(rand.NewPCG(seed, op)), now)
				for brute.rejectFirst(now) {
				}
				for _, b := range buckets {
					brute.l.markLocked(b)
				}
				brute.l.serveLocked(now)
				brute.l.mu.Unlock()
				x.l.mu.Lock() // timers may have granted
				brute.l.mu.Lock()
				for i, w := range x.waiters {
					other := brute.waiters[i]
					require.Equal(t, other.verdict, w.verdict, "seed %d, op %d: request %d", seed, op, i)
					if w.verdict == refused {
						rejected++
						require.Equal(t, other.refusal.limit.name, w.refusal.limit.name)
						want, got := *other.refusal, *w.refusal
						want.limit, got.limit = nil, nil
						require.Equal(t, want, got, "seed %d, op %d: request %d", seed, op, i)
					}
				}
				brute.l.mu.Unlock()
				x.l.mu.Unlock()
				checkInvariants(t, x.l)
			}
			for _, x := range []*judged{x, brute} {
				for _, w := range x.waiters {
					_ = x.l.abandon(t.Context(), w)
				}
			}
		})
	}
	require.Greater(t, rejected, 1000)
	require.Greater(t, lines, 4)
}
