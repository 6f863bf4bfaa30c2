package bench

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/failsafehttp"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/scene/flight"
)

var (
	flightsTo = flag.String("flights", "", "play all scenes of servers that limit requests in flight, and write what came of them to this file")
	latencyTo = flag.String("latency", "", "write the latencies of a server at several numbers in flight to this file")
)

// A flightAdapter is a client that does not know how many requests a server works on at a time. The first does.
type flightAdapter struct {
	name string
	make func(base http.RoundTripper, best int64) http.RoundTripper
}

var flightAdapters = []flightAdapter{
	{"fixed-best", func(base http.RoundTripper, best int64) http.RoundTripper {
		return throttle.Must(throttle.New(base, throttle.WithLimit(throttle.InFlight(best))))
	}},
	{"throttle", func(base http.RoundTripper, _ int64) http.RoundTripper {
		return throttle.Must(throttle.New(base, throttle.WithAdaptiveInFlight()))
	}},
	{"throttle-both", func(base http.RoundTripper, _ int64) http.RoundTripper {
		return throttle.Must(throttle.New(base, throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()))
	}},
	{"throttle-rate", func(base http.RoundTripper, _ int64) http.RoundTripper {
		return throttle.Must(throttle.New(base, throttle.WithAdaptive()))
	}},
	{"failsafe-adaptive", func(base http.RoundTripper, _ int64) http.RoundTripper {
		return failsafehttp.NewRoundTripper(base, adaptivelimiter.NewBuilder[*http.Response]().WithMaxWaitTime(time.Hour).Build())
	}},
	{"aws", func(base http.RoundTripper, _ int64) http.RoundTripper { return newAWS(base) }},
}

// flightScenes returns the scenes of the table.
func flightScenes() []flight.Scene { return append(flight.Scenes(), flight.Unseen()...) }

// TestInFlight plays scenes with all clients. With -flights it writes what came of them as benchmarks do, and else it plays half a
// minute of the second scene, to see that it does.
func TestInFlight(t *testing.T) {
	if *flightsTo == "" {
		s := flight.Scenes()[1]
		s.Length = 30
		fixed := fly(t, s, flightAdapters[0], 1)
		for _, a := range flightAdapters[1:] {
			t.Run(a.name, func(t *testing.T) {
				f := flight.Compare([]*flight.Tally{fly(t, s, a, 1)}, []*flight.Tally{fixed})
				if f.Goodput < 50 || f.Goodput > 105 || f.Refused > 0 {
					t.Errorf("%v", f)
				}
			})
		}
		return
	}
	var text strings.Builder
	for _, s := range flightScenes() {
		asked := func(a flightAdapter) bool { return strings.Contains(s.Name+"/"+a.name, *only) }
		if !slices.ContainsFunc(flightAdapters, asked) {
			continue
		}
		tallies := make([][]*flight.Tally, len(flightAdapters))
		t.Run(s.Name, func(t *testing.T) {
			for i, a := range flightAdapters {
				if i > 0 && !asked(a) {
					continue
				}
				for seed := range *seeds {
					tally := new(flight.Tally)
					tallies[i] = append(tallies[i], tally)
					t.Run(fmt.Sprint(a.name, "/", seed), func(t *testing.T) {
						t.Parallel()
						*tally = *fly(t, s, a, seed)
					})
				}
			}
		})
		for i, a := range flightAdapters {
			if len(tallies[i]) == 0 {
				continue
			}
			f := flight.Compare(tallies[i], tallies[0])
			fmt.Fprintf(&text, "BenchmarkInFlight/scene=%s/impl=%s 1 %g %%goodput %g times-p99 %g %%refused %g jain\n",
				strings.ReplaceAll(s.Name, " ", "_"), a.name, f.Goodput, f.P99, f.Refused, f.Jain)
			t.Logf("%-32s %-18s %v", s.Name, a.name, f)
			if s.Name == flight.Deploy {
				text.WriteString(overTime(tallies[i], a.name))
			}
		}
	}
	if err := os.WriteFile(*flightsTo, []byte(text.String()), 0o644); err != nil {
		t.Error(err)
	}
}

// TestLatency measures what the elasticity is about: the mean latency of a server with 16 workers at a fixed number in flight.
func TestLatency(t *testing.T) {
	s := flight.Scenes()[1]
	if *latencyTo == "" {
		s.Length = 20
	}
	var text strings.Builder
	last := 0.0
	for n := int64(1); n <= 64; n += max(1, n/6) {
		tally := s.Play(1, func() flight.Limiter { return flight.Fixed(n) })
		mean := 0.0
		for _, a := range tally.Answers {
			mean += 1000 * a.Took / tally.OK
		}
		fmt.Fprintf(&text, "BenchmarkInFlightLatency/n=%d 1 %g mean-ms\n", n, mean)
		if mean < 0.9*last {
			t.Errorf("%v ms at %d in flight, and %v ms at fewer", mean, n, last)
		}
		last = mean
	}
	if *latencyTo == "" {
		return
	}
	if err := os.WriteFile(*latencyTo, []byte(text.String()), 0o644); err != nil {
		t.Error(err)
	}
}

func fly(t *testing.T, s flight.Scene, a flightAdapter, seed uint64) (tally *flight.Tally) {
	synctest.Test(t, func(*testing.T) {
		tally = s.PlayHTTP(seed, func(base http.RoundTripper) http.RoundTripper { return a.make(base, s.Best) })
	})
	return tally
}

const step = 2 // seconds

// overTime returns the goodput and the 99th percentile of each two seconds, means of the runs.
func overTime(tallies []*flight.Tally, impl string) string {
	goodput, p99 := map[int]float64{}, map[int]float64{}
	for _, t := range tallies {
		by := map[int][]flight.Answer{}
		for _, a := range t.Answers {
			by[int(a.At)/step] = append(by[int(a.At)/step], a)
		}
		for i, answers := range by {
			goodput[i] += float64(len(answers)) / step / float64(len(tallies))
			p99[i] += 1000 * flight.P99(answers) / float64(len(tallies))
		}
	}
	var seconds []int
	for i := range goodput {
		seconds = append(seconds, i)
	}
	slices.Sort(seconds)
	var b strings.Builder
	for _, i := range seconds[1:max(1, len(seconds)-1)] { // the first and the last are cut off
		fmt.Fprintf(&b, "BenchmarkInFlightTime/second=%d/impl=%s 1 %g goodput %g p99-ms\n", step*i, impl, goodput[i], p99[i])
	}
	return b.String()
}
