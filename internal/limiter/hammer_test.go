package limiter_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// Grants are counted in real time. The time is read after the last of them, so that a slow
// machine only makes the test easier.
func TestManyGoroutinesGetNoMoreThanTheLimit(t *testing.T) {
	for _, perSecond := range []int64{10_000, 1_000_000} {
		for kind, limit := range map[string]rule{
			"bucket": tokenBucket(perSecond, time.Second, withBurst(100)), "pace": pace(perSecond, time.Second),
			"sliding window": slidingWindow(perSecond/100, 10*time.Millisecond),
		} {
			for _, by := range []string{"Try", "Wait"} {
				t.Run(fmt.Sprint(kind, perSecond, by), func(t *testing.T) {
					l := drive(t, limit)
					ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
					defer cancel()
					var granted atomic.Int64
					var all sync.WaitGroup
					for range 64 {
						all.Go(func() {
							for ctx.Err() == nil {
								if by == "Wait" {
									if l.wait(ctx, ask{}) == nil {
										granted.Add(1)
									}
								} else if _, ok := l.try(ask{}); ok {
									granted.Add(1)
								}
							}
						})
					}
					all.Wait()
					elapsed := l.now()
					most := int64(float64(perSecond)*elapsed.Seconds()) + 1
					switch kind {
					case "bucket":
						most += 100
					case "pace":
						most++
					case "sliding window":
						most = perSecond / 100 * (int64(elapsed/(10*time.Millisecond)) + 1)
					}
					require.LessOrEqual(t, granted.Load(), most, "in %v", elapsed)
					s := l.counts()
					require.Equal(t, uint64(granted.Load()), s.Granted-s.Undone)
					require.Positive(t, granted.Load())
					l.check()
				})
			}
		}
	}
}

// Everything is done at once, with servers that send hints. Afterwards nothing is left of it.
func TestTheInvariantsHoldAfterEverythingAtOnce(t *testing.T) {
	l := drive(t, maxKeys(20), maxQueue(50),
		tokenBucket(20_000, time.Second, named("all"), withBurst(50)), slidingWindow(300, 20*ms), fixedWindow(1000, 50*ms, clamped()), inFlight(40),
		pace(5000, time.Second, withRates(func(key string) (int64, time.Duration) { return int64(1+len(key)) * 1000, time.Second })))
	ctx, cancel := context.WithTimeout(t.Context(), 300*ms)
	defer cancel()
	var all sync.WaitGroup
	for i := range uint64(16) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(i, 2))
			for ctx.Err() == nil {
				disturb(ctx, l, r)
			}
		})
	}
	all.Go(func() {
		for w := (watch{}); ctx.Err() == nil; time.Sleep(ms) {
			w.look(l)
		}
	})
	all.Wait()
	l.ReleaseAll()
	require.Zero(t, l.counts().Waiting)
	l.check()
	l.Lock()
	defer l.Unlock()
	require.Zero(t, l.LineCount())
	require.Zero(t, l.limit("in-flight").InFlight())
}

// disturb does one thing.
func disturb(ctx context.Context, l *driven, r *rand.Rand) {
	a := ask{Key: strconv.Itoa(r.IntN(40)), Cost: 1 + r.Int64N(10), Priority: r.IntN(3) - 1}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(int(20*ms))))
	defer cancel()
	switch r.IntN(12) {
	case 0:
		a.Costs = map[string]int64{"in-flight": 0}
		l.try(a)
	case 1:
		l.setRate("all", 10_000+r.Int64N(20_000), time.Second)
	case 2:
		l.setBurst("all", 10+r.Int64N(90))
	case 3:
		l.hold(a.Key, time.Duration(1+r.IntN(int(ms))))
	case 4:
		l.Release(a.Key)
		l.views()
	case 5:
		_ = l.refresh("pace", a.Key)
	case 6, 7:
		a.MaxWait = ptr(time.Duration(r.IntN(int(10 * ms))))
		if g, err := l.acquire(ctx, a); err == nil {
			switch r.IntN(3) {
			case 0:
				go g.cancel()
				g.cancel()
			case 1:
				_ = g.settle("all", r.Int64N(20))
			}
			g.done()
		}
	case 8:
		time.AfterFunc(time.Duration(r.IntN(int(ms))), cancel)
		a.Costs = map[string]int64{"in-flight": 0}
		_ = l.wait(ctx, a)
	default:
		l.exchange(ctx, &quota.Key{Host: a.Key, Family: r.Uint64N(3)}, a, &limiter.Answer{
			Outcome: []aimd.Outcome{aimd.OK, aimd.OK, aimd.Throttled, aimd.Error}[r.IntN(4)], Unsent: r.IntN(8) == 0, Hints: hintsAt(r),
		})
	}
}

// hintsAt returns what a server reports: nothing, a quota, or that it refuses for a while.
func hintsAt(r *rand.Rand) *quota.Hints {
	switch r.IntN(3) {
	case 0:
		return &quota.Hints{Quotas: []quota.QuotaHint{{Limit: 100, Left: r.Int64N(50), Known: true, Ends: true, Reset: time.Duration(r.IntN(int(10 * ms)))}}}
	case 1:
		return &quota.Hints{Limited: true, Asked: true, Wait: time.Duration(r.IntN(int(5 * ms)))}
	}
	return nil
}
