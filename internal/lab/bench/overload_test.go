package bench

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/failsafehttp"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/scene/overload"
)

var overloadsTo = flag.String("overloads", "", "play all scenes of servers that respond late or with 5xx, and write what came of them to this file")

// overloadAdapters are clients that know nothing of a server.
var overloadAdapters = []struct {
	name string
	make func(base http.RoundTripper) http.RoundTripper
}{
	{"bare", func(base http.RoundTripper) http.RoundTripper { return base }},
	{"throttle-rate", learning(throttle.WithAdaptive())},
	{"throttle-flight", learning(throttle.WithAdaptiveInFlight())},
	{"throttle-both", learning(throttle.WithAdaptive(), throttle.WithAdaptiveInFlight())},
	{"throttle-thresholds", learning(throttle.WithAdaptive(throttle.AIMD{LatencyThreshold: 500 * time.Millisecond, ErrorThreshold: 0.2}))},
	{"throttle-unavailable", learning(throttle.WithLimit(throttle.Adaptive(throttle.AIMD{ErrorThreshold: 0.05}, throttle.Classify(unavailable))))},
	{"failsafe-adaptive", func(base http.RoundTripper) http.RoundTripper {
		return failsafehttp.NewRoundTripper(base, adaptivelimiter.NewBuilder[*http.Response]().WithMaxWaitTime(time.Hour).Build())
	}},
	{"gradient2", func(base http.RoundTripper) http.RoundTripper { return &netflix{base: base, law: &gradient2{n: 20}} }},
	{"vegas", func(base http.RoundTripper) http.RoundTripper {
		return &netflix{base: base, law: &vegas{n: 20}, window: time.Second}
	}},
}

func learning(opts ...throttle.Option) func(http.RoundTripper) http.RoundTripper {
	return func(base http.RoundTripper) http.RoundTripper { return throttle.Must(throttle.New(base, opts...)) }
}

// unavailable takes each 5xx for a sign of overload.
func unavailable(resp *http.Response, err error) throttle.Outcome {
	if err == nil && resp.StatusCode >= http.StatusInternalServerError {
		return throttle.OutcomeUnavailable
	}
	return 0
}

// TestOverload plays scenes with all clients. With -overloads it writes what came of them as benchmarks do, and else it plays ten seconds of
// the first scene, to see that it does.
func TestOverload(t *testing.T) {
	scenes, runs := overload.Scenes(), *seeds
	if *overloadsTo == "" {
		scenes, runs = scenes[:1], 1
		scenes[0].Length = 10
	}
	var lines []*string // in order, whichever is done first
	t.Cleanup(func() {  // after the parallel ones
		var text strings.Builder
		for _, l := range lines {
			text.WriteString(*l)
		}
		if *overloadsTo == "" {
			return
		}
		if err := os.WriteFile(*overloadsTo, []byte(text.String()), 0o644); err != nil {
			t.Error(err)
		}
	})
	for _, s := range scenes {
		for _, a := range overloadAdapters {
			if !strings.Contains(s.Name+"/"+a.name, *only) {
				continue
			}
			for seed := range runs {
				line := new(string)
				lines = append(lines, line)
				t.Run(fmt.Sprint(s.Name, "/", a.name, "/", seed), func(t *testing.T) {
					t.Parallel()
					var f overload.Figures
					synctest.Test(t, func(*testing.T) { f = s.Play(seed+1, a.make) })
					if *overloadsTo == "" && (f.Use < 0.3 || f.Use > 1.05) {
						t.Errorf("%+v", f)
					}
					*line = fmt.Sprintf("BenchmarkOverload/scene=%s/impl=%s 1 %g %%use %g p50-ms %g %%failed\n",
						strings.ReplaceAll(s.Name, " ", "_"), a.name, 100*f.Use, 1000*f.P50, 100*f.Errors)
				})
			}
		}
	}
}
