package main_test

import (
	"encoding/json"
	"flag"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/scene"
	"github.com/httpthrottle/throttle/throttletest"
)

var (
	after = flag.Uint64("after", 0, "the first seed")
	seeds = flag.Uint64("seeds", 2, "how many seeds")
	only  = flag.String("clients", "known,hints,adaptive", "the clients")
	into  = flag.String("into", "", "the file for the results")
)

// A result is what a client got from the server of a seed.
type result struct {
	Client        string
	Seed          uint64
	Used, Refused float64 // percent of the limit, and of what was sent
}

// clients are the clients by name, of a server with a limit of n per period.
var clients = map[string]func(n int64, per time.Duration) []throttle.Option{
	"known": func(n int64, per time.Duration) []throttle.Option {
		return []throttle.Option{throttle.WithLimit(throttle.TokenBucket(95*n, 100*per, throttle.Burst(1)))}
	},
	"hints": func(int64, time.Duration) []throttle.Option { return nil },
	"adaptive": func(n int64, per time.Duration) []throttle.Option {
		return []throttle.Option{throttle.WithAdaptive(throttle.AIMD{Initial: 2 * float64(n) / per.Seconds()})}
	},
	"default": func(int64, time.Duration) []throttle.Option { return []throttle.Option{throttle.WithAdaptive()} },
	"deaf": func(int64, time.Duration) []throttle.Option {
		return []throttle.Option{throttle.WithAdaptive(), throttle.WithoutServerHints()}
	},
	"flight": func(int64, time.Duration) []throttle.Option {
		return []throttle.Option{throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()}
	},
}

func pick[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }

// draw returns the server of a seed with its load, and its limit.
func draw(seed uint64) (s scene.Scene, n int64, per time.Duration) {
	r := rand.New(rand.NewPCG(seed, 58))
	per = pick(r, time.Second, 3*time.Second, 10*time.Second, 30*time.Second, time.Minute)
	rate := 2 * math.Pow(250, r.Float64())
	n = max(2, int64(rate*per.Seconds()))
	burst := throttletest.Burst(2 + int64(2*r.Float64()*rate))
	limit := pick(r, throttletest.FixedWindow(n, per), throttletest.FixedWindow(n, per, throttletest.FromFirstRequest()),
		throttletest.SlidingWindow(n, per), throttletest.TokenBucket(n, per, burst), throttletest.LeakyBucket(n, per, burst))
	opts := []throttletest.Option{
		throttletest.WithLimits(limit), throttletest.WithStatus(pick(r, 429, 429, 429, 429, 503)),
		throttletest.WithRounding(pick(r, throttletest.RoundUp, throttletest.RoundUp, throttletest.RoundDown)),
		throttletest.WithRetryAfter(pick(r, throttletest.RetryAfterSeconds, throttletest.RetryAfterDate, throttletest.NoRetryAfter)),
		throttletest.WithServiceTime(throttletest.LogNormal(time.Duration(1e6*math.Pow(150, r.Float64())), 0.3)),
	}
	if r.Float64() < 0.6 {
		opts = append(opts, throttletest.WithFields(pick(r, throttletest.Draft, throttletest.XEpoch, throttletest.XDelta, throttletest.Draft6, throttletest.Draft7)))
		if r.Float64() < 0.4 {
			opts = append(opts, throttletest.WithFullResets())
		}
		if r.Float64() < 0.1 {
			opts = append(opts, throttletest.WithLateResets(time.Duration(r.Int64N(int64(time.Second)))))
		}
	}
	rate = float64(n) / per.Seconds()
	return scene.Scene{
		Server: opts, RoundTrip: time.Duration(2e6 * math.Pow(30, r.Float64())), Limit: scene.Constantly(rate), Callers: max(16, int(rate)),
		Seconds: min(max(20, 8*per.Seconds()), 240),
	}, n, per
}

// play returns what a client gets from the server of a seed.
func play(t *testing.T, client string, seed uint64) (got result) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(26*365*24*time.Hour + time.Duration(seed%1000)*time.Millisecond) // bubbles begin in 2000, whose epoch seconds nothing reads as such
		s, n, per := draw(seed)
		o := s.Play(t, seed, func(base http.RoundTripper) http.RoundTripper {
			return throttle.Must(throttle.New(base, clients[client](n, per)...))
		})
		got = result{client, seed, min(100, o.Goodput), o.Refused}
	})
	return got
}

// A client that knows the limit uses most of it, and is refused rarely.
func TestPlay(t *testing.T) {
	var all []result
	for seed := *after; seed < *after+*seeds; seed++ {
		for client := range strings.SplitSeq(*only, ",") {
			r := play(t, client, seed)
			if all = append(all, r); client == "known" && (r.Used < 80 || r.Refused > 10) {
				t.Errorf("%+v", r)
			}
		}
	}
	if *into == "" {
		return
	}
	text, err := json.Marshal(all)
	if err == nil {
		err = os.WriteFile(*into, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
