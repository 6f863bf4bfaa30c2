package limiter_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// ties is how often what happens at one instant is tried: the runtime starts timers and goroutines in any order.
const ties = 50

// slotsOf returns a Limiter with n slots, and an Ask of a number of them.
func slotsOf(t *testing.T, n int64, opts ...throttle.LimitOption) (*throttle.Limiter, func(n int64, maxWait time.Duration) throttle.Ask) {
	l := limiterOf(t, throttle.WithLimit(throttle.InFlight(n, append(opts, throttle.Name("slots"))...)))
	return l, func(n int64, maxWait time.Duration) throttle.Ask {
		return throttle.Ask{Costs: map[string]int64{"slots": n}, MaxWait: &maxWait}
	}
}

func TestOfRequestsWhoseMaxWaitEndsAtOneInstantTheOneInFrontIsRejectedFirst(t *testing.T) {
	for range ties {
		synctest.Test(t, func(t *testing.T) {
			l, ask := slotsOf(t, 3)
			requireGranted(t, send(t, l, ask(2, time.Hour)), 0)
			large := send(t, l, ask(2, time.Second))
			larger := send(t, l, ask(3, time.Second))
			small := send(t, l, ask(1, time.Second))
			none := send(t, l, ask(1, time.Second))
			sleep(time.Second - 1)
			require.Equal(t, 4, l.Stats().Waiting)
			sleep(1)
			requireRefused(t, large, time.Second, throttle.ReasonMaxWait)
			requireRefused(t, larger, time.Second, throttle.ReasonMaxWait)
			requireGranted(t, small, time.Second)
			requireRefused(t, none, time.Second, throttle.ReasonMaxWait)
			checkInvariants(t, l)
		})
	}
}

// The last to come is the first in turn, and bars the others.
func TestOfRequestsWhoseMaxWaitEndsAtOneInstantTheOneInTurnIsRejectedFirst(t *testing.T) {
	for range ties {
		synctest.Test(t, func(t *testing.T) {
			l, ask := slotsOf(t, 3, throttle.FairBy(throttle.ByHost))
			by := func(caller string, n int64, maxWait time.Duration) throttle.Ask {
				a := ask(n, maxWait)
				a.Caller = caller
				return a
			}
			requireGranted(t, send(t, l, by("a", 2, time.Hour)), 0)
			freed := send(t, l, by("z", 1, time.Hour))
			requireGranted(t, freed, 0)
			freed.grant.Done()
			bars := send(t, l, by("b", 3, 3*time.Second))
			sleep(time.Second)
			a := send(t, l, by("c", 1, 2*time.Second))
			urgent := by("b", 2, 2*time.Second)
			urgent.Priority = 1
			last := send(t, l, urgent)
			sleep(2 * time.Second)
			requireRefused(t, bars, 3*time.Second, throttle.ReasonMaxWait)
			requireRefused(t, last, 3*time.Second, throttle.ReasonMaxWait)
			requireGranted(t, a, 3*time.Second)
			checkInvariants(t, l)
		})
	}
}

// Time goes first: a slot that is freed at the instant at which a MaxWait ends is too late for it, and does for the next request.
func TestWhatHappensAtTheEndOfAMaxWaitIsTooLateForIt(t *testing.T) {
	for name, change := range map[string]func(l *throttle.Limiter, holder *throttle.Grant){
		"a slot is freed":   func(_ *throttle.Limiter, holder *throttle.Grant) { holder.Done() },
		"there is one more": func(l *throttle.Limiter, _ *throttle.Grant) { _ = l.SetInFlight("slots", 2) },
		"a grant is undone": func(_ *throttle.Limiter, holder *throttle.Grant) { holder.Cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			for range ties {
				synctest.Test(t, func(t *testing.T) {
					l, ask := slotsOf(t, 1)
					holder := send(t, l, ask(1, time.Hour))
					ends := send(t, l, ask(1, time.Second))
					next := send(t, l, ask(1, time.Second+1))
					go func() {
						time.Sleep(time.Second)
						change(l, holder.grant)
					}()
					sleep(time.Second)
					requireRefused(t, ends, time.Second, throttle.ReasonMaxWait)
					requireGranted(t, next, time.Second)
				})
			}
		})
	}
}

// A request that comes at the instant at which those before it are rejected, or have gone, finds them gone.
func TestARequestFindsGoneWhatEndsWhenItComes(t *testing.T) {
	for range ties {
		synctest.Test(t, func(t *testing.T) {
			l := limiterOf(t, throttle.WithLimit(
				throttle.TokenBucket(2, 2*time.Second, throttle.Burst(2), throttle.Initial(0)), throttle.FixedWindow(2, time.Second, throttle.Name("w"))))
			first := send(t, l, throttle.Ask{Costs: map[string]int64{"bucket": 1, "w": 1}, MaxWait: new(time.Second)})
			var wait [3]time.Duration
			var ok [3]bool
			var all sync.WaitGroup
			for i := range ok {
				all.Go(func() {
					time.Sleep(time.Second)
					wait[i], ok[i] = l.Try(throttle.Ask{Costs: map[string]int64{"bucket": 0}})
				})
			}
			all.Wait()
			synctest.Wait()
			requireGranted(t, first, time.Second)
			granted := 0
			for i := range ok {
				if ok[i] {
					granted++
				} else {
					require.Equal(t, time.Second, wait[i])
				}
			}
			require.Equal(t, 1, granted)
		})
	}
}

func TestARequestThatIsGrantedAtItsDeadlineIsNot(t *testing.T) {
	for range ties {
		synctest.Test(t, func(t *testing.T) {
			l, ask := slotsOf(t, 2)
			requireGranted(t, send(t, l, ask(1, time.Hour)), 0)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			both := sendUnder(ctx, l, ask(2, time.Hour))
			one := sendUnder(ctx, l, ask(1, time.Hour))
			next := send(t, l, ask(1, time.Hour))
			sleep(time.Second)
			for _, r := range []*request{both, one} {
				require.ErrorIs(t, r.err, context.DeadlineExceeded)
				require.NotErrorIs(t, r.err, throttle.ErrThrottled)
			}
			requireGranted(t, next, time.Second)
			checkInvariants(t, l)
		})
	}
}

// Many programs of random requests whose MaxWaits end in whole seconds come out the same each time.
func TestEndsAtOneInstantHaveOneOutcome(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		outcomes := make(map[string]bool)
		for range 8 {
			synctest.Test(t, func(t *testing.T) { outcomes[endsOf(t, seed)] = true })
		}
		require.Len(t, outcomes, 1, "seed %d", seed)
	}
}

// endsOf returns what becomes of random requests.
func endsOf(t *testing.T, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 41))
	opts := []throttle.LimitOption{throttle.Name("slots")}
	if r.IntN(2) == 0 {
		opts = append(opts, throttle.FairBy(throttle.ByHost))
	}
	l := limiterOf(t, throttle.WithLimit(throttle.InFlight(4, opts...),
		throttle.InFlight(2, throttle.Name("key"), throttle.Key(throttle.ByHost)), throttle.TokenBucket(2, time.Second, throttle.Burst(3))))
	fates := make([]string, 40)
	var all sync.WaitGroup
	for i := range fates {
		ask := throttle.Ask{
			Caller: strconv.Itoa(r.IntN(3)), Keys: map[string]string{"key": strconv.Itoa(r.IntN(2))}, Priority: r.IntN(2),
			Costs: map[string]int64{"slots": 1 + r.Int64N(3), "key": r.Int64N(3), "bucket": r.Int64N(2)}, MaxWait: new(time.Duration(1+r.IntN(3)) * time.Second),
		}
		lasts := time.Duration(1+r.IntN(4))*time.Second + time.Duration(r.IntN(1_000_000))
		all.Go(func() {
			began := time.Now()
			g, err := l.Acquire(t.Context(), ask)
			fates[i] = fmt.Sprint(time.Since(began), err)
			if err == nil {
				time.Sleep(lasts)
				g.Done()
			}
		})
		synctest.Wait()
		time.Sleep(time.Duration(r.IntN(2)) * time.Second)
	}
	all.Wait()
	checkInvariants(t, l)
	return strings.Join(fates, "\n")
}
