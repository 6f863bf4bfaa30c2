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

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// ties is how often what happens at one instant is tried: the runtime starts timers and goroutines in any order.
const ties = 50

// slotsOf returns a Limiter with n slots, and an Ask of a number of them.
func slotsOf(t *testing.T, n int64, opts ...ruleOption) (*driven, func(n int64, maxWait time.Duration) ask) {
	l := drive(t, inFlight(n, append(opts, named("slots"))...))
	return l, func(n int64, maxWait time.Duration) ask {
		return ask{Costs: map[string]int64{"slots": n}, MaxWait: &maxWait}
	}
}

func TestOfRequestsWhoseMaxWaitEndsAtOneInstantTheOneInFrontIsRejectedFirst(t *testing.T) {
	for range ties {
		synctest.Test(t, func(t *testing.T) {
			l, asked := slotsOf(t, 3)
			requireGranted(t, l.send(asked(2, time.Hour)), 0)
			large := l.send(asked(2, time.Second))
			larger := l.send(asked(3, time.Second))
			small := l.send(asked(1, time.Second))
			none := l.send(asked(1, time.Second))
			sleep(time.Second - 1)
			require.Equal(t, 4, l.counts().Waiting)
			sleep(1)
			requireRejected(t, large, time.Second, bucket.ReasonMaxWait)
			requireRejected(t, larger, time.Second, bucket.ReasonMaxWait)
			requireGranted(t, small, time.Second)
			requireRejected(t, none, time.Second, bucket.ReasonMaxWait)
			l.check()
		})
	}
}

// The last to come is the first in turn, and bars the others.
func TestOfRequestsWhoseMaxWaitEndsAtOneInstantTheOneInTurnIsRejectedFirst(t *testing.T) {
	for range ties {
		synctest.Test(t, func(t *testing.T) {
			l, asked := slotsOf(t, 3, fair())
			by := func(caller string, n int64, maxWait time.Duration) ask {
				a := asked(n, maxWait)
				a.Caller = caller
				return a
			}
			requireGranted(t, l.send(by("a", 2, time.Hour)), 0)
			freed := l.send(by("z", 1, time.Hour))
			requireGranted(t, freed, 0)
			freed.grant.done()
			bars := l.send(by("b", 3, 3*time.Second))
			sleep(time.Second)
			a := l.send(by("c", 1, 2*time.Second))
			urgent := by("b", 2, 2*time.Second)
			urgent.Priority = 1
			last := l.send(urgent)
			sleep(2 * time.Second)
			requireRejected(t, bars, 3*time.Second, bucket.ReasonMaxWait)
			requireRejected(t, last, 3*time.Second, bucket.ReasonMaxWait)
			requireGranted(t, a, 3*time.Second)
			l.check()
		})
	}
}

// Time goes first: a slot that is freed at the instant at which a MaxWait ends is too late for it, and does for the next request.
func TestWhatHappensAtTheEndOfAMaxWaitIsTooLateForIt(t *testing.T) {
	for name, change := range map[string]func(l *driven, holder *grant){
		"a slot is freed":   func(_ *driven, holder *grant) { holder.done() },
		"there is one more": func(l *driven, _ *grant) { l.setInFlight("slots", 2) },
		"a grant is undone": func(_ *driven, holder *grant) { holder.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			for range ties {
				synctest.Test(t, func(t *testing.T) {
					l, asked := slotsOf(t, 1)
					holder := l.send(asked(1, time.Hour))
					ends := l.send(asked(1, time.Second))
					next := l.send(asked(1, time.Second+1))
					go func() {
						time.Sleep(time.Second)
						change(l, holder.grant)
					}()
					sleep(time.Second)
					requireRejected(t, ends, time.Second, bucket.ReasonMaxWait)
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
			l := drive(t, tokenBucket(2, 2*time.Second, withBurst(2), withInitial(0)), fixedWindow(2, time.Second, named("w")))
			first := l.send(ask{Costs: map[string]int64{"bucket": 1, "w": 1}, MaxWait: ptr(time.Second)})
			var wait [3]time.Duration
			var ok [3]bool
			var all sync.WaitGroup
			for i := range ok {
				all.Go(func() {
					time.Sleep(time.Second)
					wait[i], ok[i] = l.try(ask{Costs: map[string]int64{"bucket": 0}})
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
			l, asked := slotsOf(t, 2)
			requireGranted(t, l.send(asked(1, time.Hour)), 0)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			both := l.sendUnder(ctx, asked(2, time.Hour))
			one := l.sendUnder(ctx, asked(1, time.Hour))
			next := l.send(asked(1, time.Hour))
			sleep(time.Second)
			for _, r := range []*request{both, one} {
				require.ErrorIs(t, r.err, context.DeadlineExceeded)
				require.NotErrorIs(t, r.err, errRejected)
			}
			requireGranted(t, next, time.Second)
			l.check()
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
	opts := []ruleOption{named("slots")}
	if r.IntN(2) == 0 {
		opts = append(opts, fair())
	}
	l := drive(t, inFlight(4, opts...), inFlight(2, named("key"), keyed()), tokenBucket(2, time.Second, withBurst(3)))
	fates := make([]string, 40)
	var all sync.WaitGroup
	for i := range fates {
		asked := ask{
			Caller: strconv.Itoa(r.IntN(3)), Keys: map[string]string{"key": strconv.Itoa(r.IntN(2))}, Priority: r.IntN(2),
			Costs: map[string]int64{"slots": 1 + r.Int64N(3), "key": r.Int64N(3), "bucket": r.Int64N(2)}, MaxWait: ptr(time.Duration(1+r.IntN(3)) * time.Second),
		}
		lasts := time.Duration(1+r.IntN(4))*time.Second + time.Duration(r.IntN(1_000_000))
		all.Go(func() {
			began := time.Now()
			g, err := l.acquire(t.Context(), asked)
			fates[i] = fmt.Sprint(time.Since(began), err)
			if err == nil {
				time.Sleep(lasts)
				g.done()
			}
		})
		synctest.Wait()
		time.Sleep(time.Duration(r.IntN(2)) * time.Second)
	}
	all.Wait()
	l.check()
	return strings.Join(fates, "\n")
}

// MaxWait counts from the arrival of a request, not from when the observer returns.
func TestMaxWaitStartsOnArrival(t *testing.T) {
	for name, takes := range map[string]time.Duration{"while the observer runs": 6 * time.Second, "afterwards": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := drive(t, inFlight(1))
				l.onWait = func(limiter.Place, int64, time.Duration) { time.Sleep(takes) }
				_, err := l.acquire(t.Context(), ask{})
				require.NoError(t, err)
				start := time.Now()
				_, err = l.acquire(t.Context(), ask{MaxWait: ptr(5 * time.Second)})
				require.Equal(t, bucket.ReasonMaxWait, requireRejection(t, err).Reason)
				require.Equal(t, max(takes, 5*time.Second), time.Since(start))
			})
		})
	}
}

func TestARequestThatExpiresLetsTheNextGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, inFlight(2, named("slots")))
		asked := func(n int64) ask { return ask{Costs: map[string]int64{"slots": n}} }
		requireGranted(t, l.send(asked(1)), 0)
		both := asked(2)
		both.MaxWait = ptr(time.Second)
		expires, next := l.send(both), l.send(asked(1))
		require.False(t, next.done)
		sleep(time.Second)
		requireRejected(t, expires, time.Second, bucket.ReasonMaxWait)
		requireGranted(t, next, time.Second)
		l.check()
	})
}

// ptr returns a pointer to a copy of v. (Go 1.26 has new for it.)
func ptr[T any](v T) *T { return &v }
