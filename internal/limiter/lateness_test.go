package limiter_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A change grants no more than the limits can pay at that instant. Timers are exact here, so nothing is late.
func TestAChangeGrantsNothingAsOfEarlier(t *testing.T) {
	paced := pace(1000, time.Second, named("paced"))
	for name, c := range map[string]struct {
		beside rule
		change func(t *testing.T, l *driven, first *grant)
	}{
		"more slots": {inFlight(1, named("beside")), func(t *testing.T, l *driven, _ *grant) {
			l.setInFlight("beside", 1000)
		}},
		"the rate of a window": {slidingWindow(1, time.Hour, named("beside")), func(t *testing.T, l *driven, _ *grant) {
			l.setRate("beside", 1000, time.Hour)
		}},
		"a settlement": {tokenBucket(1000, 1000*time.Hour, named("beside")), func(t *testing.T, _ *driven, g *grant) {
			require.NoError(t, g.settle("beside", 0))
		}},
		"a cancellation": {tokenBucket(1000, 1000*time.Hour, named("beside")), func(_ *testing.T, _ *driven, g *grant) {
			g.cancel()
		}},
		"slots that are given back": {inFlight(1000, named("beside")), func(_ *testing.T, _ *driven, g *grant) {
			g.done()
		}},
		"a hold that ends": {inFlight(2000, named("beside")), func(_ *testing.T, l *driven, _ *grant) {
			l.Release("k")
		}},
		"all holds that end": {inFlight(2000, named("beside")), func(_ *testing.T, l *driven, _ *grant) {
			l.ReleaseAll()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := drive(t, paced, c.beside)
				first, err := l.acquire(t.Context(), ask{Key: "k", Costs: map[string]int64{"paced": 1, "beside": takesAll(name)}})
				require.NoError(t, err)
				if name == "a hold that ends" || name == "all holds that end" {
					l.hold("k", time.Hour)
				}
				var granted atomic.Int64
				for range 100 {
					go func() {
						if _, err := l.acquire(t.Context(), ask{Key: "k"}); err == nil {
							granted.Add(1)
						}
					}()
				}
				time.Sleep(time.Second)
				synctest.Wait()
				require.Zero(t, granted.Load())
				c.change(t, l, first)
				synctest.Wait()
				require.EqualValues(t, 1, granted.Load())
				time.Sleep(time.Millisecond - 1)
				synctest.Wait()
				require.EqualValues(t, 1, granted.Load())
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.EqualValues(t, 2, granted.Load())
				time.Sleep(98 * time.Millisecond)
				synctest.Wait()
				require.EqualValues(t, 100, granted.Load())
			})
		})
	}
}

// takesAll returns what the first request takes of the limit beside the paced one.
func takesAll(name string) int64 {
	switch name {
	case "a settlement", "a cancellation", "slots that are given back":
		return 1000
	}
	return 1
}

// Whatever is changed meanwhile, a bucket grants no more than it has, counted exactly: timers are never late here.
func TestNoBucketIsOverdrawnWithoutALateTimer(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { overdraw(t, seed) })
	}
}

func overdraw(t *testing.T, seed uint64) {
	const burst, per = 10, 10 * time.Millisecond // a token comes in every 10 ms
	r := rand.New(rand.NewPCG(seed, 1))
	var opts []ruleOption
	if seed%2 == 0 {
		opts = append(opts, fair())
	}
	l := drive(t, tokenBucket(1, per, append(opts, named("bucket"), withBurst(burst))...), inFlight(2, named("slots")), slidingWindow(20, time.Second, named("window")))
	ctx, cancel := context.WithCancel(t.Context())
	type taken struct {
		at   time.Duration
		cost int64
	}
	start, events, grants := time.Now(), make(chan taken, 10_000), make(chan *grant, 10_000)
	for range 300 {
		switch op := r.IntN(20); {
		case op < 10:
			asked := ask{Caller: strconv.Itoa(r.IntN(4)), Priority: r.IntN(2),
				Costs: map[string]int64{"bucket": 1 + r.Int64N(burst), "slots": r.Int64N(2), "window": r.Int64N(2)}}
			go func() {
				if g, err := l.acquire(ctx, asked); err == nil {
					events <- taken{time.Since(start), asked.Costs["bucket"]}
					grants <- g
				}
			}()
		case op < 15:
			if len(grants) > 0 {
				(<-grants).done()
			}
		case op < 16:
			l.setInFlight("slots", 1+r.Int64N(5))
		case op < 17:
			l.setRate("window", 1+r.Int64N(40), time.Second)
		case op < 18:
			l.hold("", time.Duration(r.Int64N(int64(100*time.Millisecond))))
		case op < 19:
			l.Release("")
		default:
			time.Sleep(time.Duration(r.Int64N(int64(200 * time.Millisecond))))
		}
		synctest.Wait()
		time.Sleep(time.Duration(r.Int64N(int64(10 * time.Millisecond))))
	}
	cancel()
	synctest.Wait()
	close(events)
	level, at := time.Duration(burst*per), time.Duration(0)
	for e := range events {
		level = min(burst*per, level+e.at-at) - time.Duration(e.cost)*per
		at = e.at
		require.GreaterOrEqual(t, level, time.Duration(0), "seed %d at %v", seed, at)
	}
}

// Slots of two limits that are freed together go to the request that came first, whichever of the limits stopped it.
func TestRequestsAreGrantedInOrderAtOneInstant(t *testing.T) {
	for _, names := range [][2]string{{"host", "all"}, {"all", "host"}} {
		t.Run(names[0], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				size := map[string]int64{"host": 1, "all": 2}
				l := drive(t, inFlight(size[names[0]], named(names[0])), inFlight(size[names[1]], named(names[1])))
				granted := make(chan string, 4)
				acquire := func(host string) (g *grant) {
					go func() {
						got, err := l.acquire(t.Context(), ask{Keys: map[string]string{"host": host}})
						if err == nil {
							g = got
							granted <- host
						}
					}()
					synctest.Wait()
					return g
				}
				first := acquire("a")
				acquire("a") // waits for its host
				acquire("b")
				acquire("c") // waits for a slot of all
				require.Equal(t, []string{"a", "b"}, []string{<-granted, <-granted})
				first.done()
				synctest.Wait()
				require.Equal(t, "a", <-granted)
				require.Empty(t, granted)
			})
		})
	}
}
