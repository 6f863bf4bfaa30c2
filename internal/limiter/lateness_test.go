package limiter_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A change grants no more than the limits can pay at that instant. Timers are exact here, so nothing is late.
func TestAChangeGrantsNothingAsOfEarlier(t *testing.T) {
	paced := throttle.Pace(1000, time.Second, throttle.Name("paced"))
	for name, c := range map[string]struct {
		beside throttle.Limit
		change func(t *testing.T, l *throttle.Limiter, first *throttle.Grant)
	}{
		"more slots": {throttle.InFlight(1, throttle.Name("beside")), func(t *testing.T, l *throttle.Limiter, _ *throttle.Grant) {
			require.NoError(t, l.SetInFlight("beside", 1000))
		}},
		"the rate of a window": {throttle.SlidingWindow(1, time.Hour, throttle.Name("beside")), func(t *testing.T, l *throttle.Limiter, _ *throttle.Grant) {
			require.NoError(t, l.SetRate("beside", 1000, time.Hour))
		}},
		"a settlement": {throttle.TokenBucket(1000, 1000*time.Hour, throttle.Name("beside")), func(t *testing.T, _ *throttle.Limiter, g *throttle.Grant) {
			require.NoError(t, g.Settle("beside", 0))
		}},
		"a cancellation": {throttle.TokenBucket(1000, 1000*time.Hour, throttle.Name("beside")), func(_ *testing.T, _ *throttle.Limiter, g *throttle.Grant) {
			g.Cancel()
		}},
		"slots that are given back": {throttle.InFlight(1000, throttle.Name("beside")), func(_ *testing.T, _ *throttle.Limiter, g *throttle.Grant) {
			g.Done()
		}},
		"a hold that ends": {throttle.InFlight(2000, throttle.Name("beside")), func(_ *testing.T, l *throttle.Limiter, _ *throttle.Grant) {
			l.Release("k")
		}},
		"all holds that end": {throttle.InFlight(2000, throttle.Name("beside")), func(_ *testing.T, l *throttle.Limiter, _ *throttle.Grant) {
			l.ReleaseAll()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := throttle.NewLimiter(throttle.WithLimit(paced, c.beside))
				require.NoError(t, err)
				first, err := l.Acquire(t.Context(), throttle.Ask{Key: "k", Costs: map[string]int64{"paced": 1, "beside": takesAll(name)}})
				require.NoError(t, err)
				if name == "a hold that ends" || name == "all holds that end" {
					l.Hold("k", time.Hour)
				}
				var granted atomic.Int64
				for range 100 {
					go func() {
						if _, err := l.Acquire(t.Context(), throttle.Ask{Key: "k"}); err == nil {
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

// Forgetting what a server reported does not open the client's own limit further than it is.
func TestForgettingAServerGrantsNothingAsOfEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent atomic.Int64
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			resp := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}
			if sent.Add(1) == 1 {
				resp.StatusCode = http.StatusTooManyRequests
				resp.Header.Set("RateLimit", `"a";r=0;t=3600`)
			}
			return resp, nil
		})
		tr, err := throttle.New(base, throttle.WithLimit(throttle.Pace(1000, time.Second)))
		require.NoError(t, err)
		for range 101 {
			go func() {
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://host/", nil)
				_, _ = tr.RoundTrip(req)
			}()
			synctest.Wait()
		}
		time.Sleep(time.Second)
		require.EqualValues(t, 1, sent.Load())
		tr.Limiter().ForgetServer("host")
		synctest.Wait()
		require.EqualValues(t, 2, sent.Load())
		time.Sleep(time.Millisecond - 1)
		synctest.Wait()
		require.EqualValues(t, 2, sent.Load())
		time.Sleep(99 * time.Millisecond)
		synctest.Wait()
		require.EqualValues(t, 101, sent.Load())
	})
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
	var opts []throttle.LimitOption
	if seed%2 == 0 {
		opts = append(opts, throttle.FairBy(throttle.ByHost))
	}
	l, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.TokenBucket(1, per, append(opts, throttle.Name("bucket"), throttle.Burst(burst))...),
		throttle.InFlight(2, throttle.Name("slots")),
		throttle.SlidingWindow(20, time.Second, throttle.Name("window"))))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	type taken struct {
		at   time.Duration
		cost int64
	}
	start, events, grants := time.Now(), make(chan taken, 10_000), make(chan *throttle.Grant, 10_000)
	for range 300 {
		switch op := r.IntN(20); {
		case op < 10:
			ask := throttle.Ask{Caller: strconv.Itoa(r.IntN(4)), Priority: r.IntN(2),
				Costs: map[string]int64{"bucket": 1 + r.Int64N(burst), "slots": r.Int64N(2), "window": r.Int64N(2)}}
			go func() {
				if g, err := l.Acquire(ctx, ask); err == nil {
					events <- taken{time.Since(start), ask.Costs["bucket"]}
					grants <- g
				}
			}()
		case op < 15:
			if len(grants) > 0 {
				(<-grants).Done()
			}
		case op < 16:
			require.NoError(t, l.SetInFlight("slots", 1+r.Int64N(5)))
		case op < 17:
			require.NoError(t, l.SetRate("window", 1+r.Int64N(40), time.Second))
		case op < 18:
			l.Hold("", time.Duration(r.Int64N(int64(100*time.Millisecond))))
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
				l, err := throttle.NewLimiter(throttle.WithLimit(
					throttle.InFlight(size[names[0]], throttle.Name(names[0])), throttle.InFlight(size[names[1]], throttle.Name(names[1]))))
				require.NoError(t, err)
				granted := make(chan string, 4)
				acquire := func(host string) (g *throttle.Grant) {
					go func() {
						got, err := l.Acquire(t.Context(), throttle.Ask{Keys: map[string]string{"host": host}})
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
				first.Done()
				synctest.Wait()
				require.Equal(t, "a", <-granted)
				require.Empty(t, granted)
			})
		})
	}
}
