package tests

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/httpthrottle/throttle/throttletest"

	"github.com/stretchr/testify/require"
)

// A forecastWorld is a client and a server, whose forecasts are compared with what then happens.
type forecastWorld struct {
	limits []throttle.Limit
	server []throttletest.Option
	n      int
	off    float64 // by how much a forecast may be off, as a share of the time that is left
}

// forecastWorlds are worlds of each kind of which responses decide.
var forecastWorlds = map[string]func(r *rand.Rand) forecastWorld{
	"a bucket of the server": func(r *rand.Rand) forecastWorld {
		perMinute := 20_000 + r.Int64N(200_000)
		cost := perMinute / (20 + r.Int64N(60))
		return forecastWorld{
			limits: []throttle.Limit{throttle.ServerQuota("tokens", throttle.Cost(costing(cost)))},
			server: []throttletest.Option{throttletest.WithLimits(throttletest.TokenBucket(perMinute, time.Minute, throttletest.Name("tokens"), throttletest.Cost(costing(cost)))),
				throttletest.WithFields(throttletest.OpenAI), throttletest.WithFullResets(), throttletest.WithServiceTime(throttletest.Uniform(time.Second/4, 2*time.Second))},
			n:   int(4*perMinute/cost) + r.IntN(300),
			off: 1, // what the server counts is being learned
		}
	},
	"a window of the server": func(r *rand.Rand) forecastWorld {
		n, per := 20_000+r.Int64N(200_000), time.Duration(1+r.IntN(4))*time.Minute
		cost := n / (5 + r.Int64N(60))
		return forecastWorld{
			limits: []throttle.Limit{throttle.ServerQuota("tokens", throttle.Cost(costing(cost)))},
			server: []throttletest.Option{throttletest.WithLimits(throttletest.FixedWindow(n, per, throttletest.Name("tokens"), throttletest.Cost(costing(cost)))),
				throttletest.WithFields(throttletest.Anthropic), throttletest.WithServiceTime(throttletest.Uniform(time.Second/4, 2*time.Second))},
			n:   int(4*n/cost) + r.IntN(200),
			off: 0.6, // in most windows, something is left
		}
	},
	"settled costs": func(r *rand.Rand) forecastWorld {
		used := 100 + r.Int64N(900)
		opts := []throttle.LimitOption{throttle.Cost(costing(used * (2 + r.Int64N(30)))), throttle.SettleJSON("usage")}
		if r.IntN(2) == 0 {
			opts = append(opts, throttle.LearnCost())
		}
		return forecastWorld{
			limits: []throttle.Limit{throttle.TokenBucket(used*(20+r.Int64N(200)), time.Minute, append(opts, throttle.ClampCost())...)},
			server: []throttletest.Option{throttletest.WithServiceTime(throttletest.Uniform(time.Second/4, 2*time.Second)), usesEach(used)},
			n:      200 + r.IntN(1000),
			off:    0.3,
		}
	},
	"in flight": func(r *rand.Rand) forecastWorld {
		return forecastWorld{
			limits: []throttle.Limit{throttle.InFlight(1 + r.Int64N(30))},
			server: []throttletest.Option{throttletest.WithServiceTime(throttletest.Uniform(time.Second/4, 3*time.Second))},
			n:      50 + r.IntN(300),
			off:    0.25,
		}
	},
	"adaptive": func(r *rand.Rand) forecastWorld {
		return forecastWorld{
			limits: []throttle.Limit{throttle.Adaptive(throttle.AIMD{})},
			server: []throttletest.Option{throttletest.WithLimits(throttletest.TokenBucket(2+r.Int64N(40), time.Second)), throttletest.WithServiceTime(throttletest.Uniform(time.Second/20, time.Second/5))},
			n:      1000 + r.IntN(1000),
			off:    0.6, // the limit is being learned
		}
	},
	"adaptive in flight": func(r *rand.Rand) forecastWorld {
		return forecastWorld{
			limits: []throttle.Limit{throttle.AdaptiveInFlight(throttle.Concurrency{})},
			server: []throttletest.Option{throttletest.WithWorkers(1+r.IntN(10), 1000), throttletest.WithServiceTime(throttletest.Uniform(time.Second/20, time.Second/5))},
			n:      1000 + r.IntN(1000),
			off:    0.6, // the limit is being learned
		}
	},
	"a reported quota": func(r *rand.Rand) forecastWorld {
		return forecastWorld{
			server: []throttletest.Option{throttletest.WithLimits(throttletest.FixedWindow(10+r.Int64N(100), time.Duration(1+r.IntN(5))*time.Minute)),
				throttletest.WithFields(throttletest.XDelta), throttletest.WithServiceTime(throttletest.Uniform(time.Second/20, time.Second/5))},
			n:   200 + r.IntN(300),
			off: 0.25,
		}
	},
	"a reported bucket": func(r *rand.Rand) forecastWorld {
		return forecastWorld{
			server: []throttletest.Option{throttletest.WithLimits(throttletest.TokenBucket(10+r.Int64N(100), time.Duration(1+r.IntN(5))*time.Minute)),
				throttletest.WithFields(throttletest.XDelta), throttletest.WithServiceTime(throttletest.Uniform(time.Second/20, time.Second/5))},
			n:   200 + r.IntN(300),
			off: 0.25,
		}
	},
}

// usesEach has responses say what requests cost.
func usesEach(n int64) throttletest.Option {
	return throttletest.WithHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"usage":%s}`, strconv.FormatInt(n, 10))
	}))
}

// A forecast is a lower bound, close to what then happens, or not known.
func TestForecastsSayWhatThenHappens(t *testing.T) { // slow: worlds with each kind of limit
	for name, draw := range forecastWorlds {
		t.Run(name, func(t *testing.T) {
			r := metertest.Seeded(t, 7)
			known, asked := 0, 0
			for i := range 6 {
				w := draw(r)
				synctest.Test(t, func(t *testing.T) {
					api, err := throttletest.NewHandler(append(w.server, throttletest.WithSeed(uint64(i+1)))...)
					require.NoError(t, err)
					tr := transportTo(t, api.Direct(), throttle.WithLimit(w.limits...))
					start := time.Now()
					var wg sync.WaitGroup
					for range w.n {
						wg.Go(func() {
							for {
								resp, err := tr.RoundTrip(get(t, t.Context(), "http://api.test/"))
								require.NoError(t, err)
								_, _ = io.Copy(io.Discard, resp.Body)
								resp.Body.Close()
								if resp.StatusCode == 200 {
									return
								}
							}
						})
					}
					ended := make(chan time.Time, 1)
					go func() {
						time.Sleep(time.Millisecond)
						for tr.Stats().Waiting > 0 {
							time.Sleep(time.Second / 10)
						}
						ended <- time.Now()
					}()
					type said struct {
						at time.Time
						f  throttle.Forecast
					}
					var all []said
					var line strings.Builder
					for _, after := range []time.Duration{time.Millisecond, 5 * time.Second, 15 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute} {
						time.Sleep(after)
						synctest.Wait()
						if tr.Stats().Waiting == 0 {
							break
						}
						f, err := tr.Limiter().Forecast(throttle.Ask{}, 0)
						require.NoError(t, err)
						all = append(all, said{time.Now(), f})
					}
					wg.Wait()
					end := <-ended
					for _, s := range all {
						asked++
						left := end.Sub(s.at)
						fmt.Fprintf(&line, " after %v said %v left %v;", s.at.Sub(start).Round(time.Second), s.f.Done().Round(time.Second), left.Round(time.Second))
						if s.f.Done() == math.MaxInt64 {
							continue
						}
						known++
						if off := math.Abs(float64(s.f.Done()-left)) / float64(left+time.Second); off > w.off {
							t.Errorf("world %d: after %v: said %v, and took %v", i, s.at.Sub(start), s.f.Done(), left)
						}
					}
					t.Log(i, line.String())
				})
			}
			t.Log(known, "of", asked, "known")
		})
	}
}
