package bench

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/httpthrottle/throttle/internal/scene"
)

var (
	scenesTo = flag.String("scenes", "", "play all scenes, and write what came of them to this file")
	only     = flag.String("only", "", "-scenes and -flights play only what contains it: the scene, a slash, the client")
	seeds    = flag.Uint64("seeds", 3, "how often each scene is played for -scenes")
)

// TestAdapting plays the scenes with all adapters. It is no benchmark, since a bubble needs a *testing.T; with -scenes it
// writes what came of them as benchmarks do, and else it plays a minute of the first scene, to see that it does.
func TestAdapting(t *testing.T) {
	if *scenesTo == "" {
		s := scene.Scenes()[0]
		s.Seconds = 60
		for _, a := range adapters {
			t.Run(a.name, func(t *testing.T) {
				t.Parallel()
				sane(t, a.name, playOnce(t, s, a, 1))
			})
		}
		return
	}
	var lines []*string // in order, whichever is done first
	t.Cleanup(func() {  // after the parallel ones
		var text strings.Builder
		for _, l := range lines {
			text.WriteString(*l)
		}
		if err := os.WriteFile(*scenesTo, []byte(text.String()), 0o644); err != nil {
			t.Error(err)
		}
	})
	for _, s := range scene.Scenes() {
		for _, a := range adapters {
			if !strings.Contains(s.Name+"/"+a.name, *only) {
				continue
			}
			for seed := range seedsFor(s, a) {
				line := new(string)
				lines = append(lines, line)
				t.Run(fmt.Sprint(s.Name, "/", a.name, "/", seed), func(t *testing.T) {
					t.Parallel()
					*line = benchLines(playOnce(t, s, a, seed+1), s, a)
				})
			}
		}
	}
}

// seedsFor is how often a scene is played: once by callers that press without end, where there are hundreds of callers.
func seedsFor(s scene.Scene, a adapter) uint64 {
	if s = s.WithDefaults(); a.name != "throttle" && s.Clients*s.Callers >= 250 {
		return min(1, *seeds)
	}
	return *seeds
}

func playOnce(t *testing.T, s scene.Scene, a adapter, seed uint64) (o scene.Outcome) {
	synctest.Test(t, func(t *testing.T) {
		s := s.WithDefaults()
		o = s.Play(t, seed, func(base http.RoundTripper) http.RoundTripper { return a.make(t, base, s) })
	})
	return o
}

// sane checks that all were let through to the server, and did what they are known for.
func sane(t *testing.T, name string, o scene.Outcome) {
	least, most := 0.5, 105.0
	switch name {
	case "throttle":
		least = 80
	case "fixed-half":
		least, most = 49, 51
	case "fixed-exact":
		least = 99
	}
	if o.Goodput < least || o.Goodput > most || o.Refused > 99.9 {
		t.Errorf("goodput %.1f %%, not from %v to %v; refused %.1f %%", o.Goodput, least, most, o.Refused)
	}
}

// benchLines returns an outcome in the format of Go benchmarks.
func benchLines(o scene.Outcome, s scene.Scene, a adapter) string {
	var b strings.Builder
	name := strings.ReplaceAll(s.Name, " ", "_")
	fmt.Fprintf(&b, "BenchmarkAdapting/scene=%s/impl=%s 1 %g %%goodput %g %%refused %g p50-ms %g p99-ms",
		name, a.name, o.Goodput, o.Refused, o.P50, o.P99)
	if s.Clients > 1 {
		fmt.Fprintf(&b, " %g jain", o.Jain)
	}
	if s.Callers == 0 && s.Load != nil {
		fmt.Fprintf(&b, " %g ms-random", o.Took)
	} else {
		fmt.Fprintf(&b, " %g s-found", o.Found)
	}
	if s.Outage[1] > 0 {
		fmt.Fprintf(&b, " %g inOutage", o.InOutage)
	}
	for i, back := range o.Back {
		fmt.Fprintf(&b, " %g s-back-%d", back, i+1)
	}
	b.WriteByte('\n')
	if s.Name != scene.Drops {
		return b.String()
	}
	for i, n := range o.Sent {
		fmt.Fprintf(&b, "BenchmarkAdaptingTime/second=%d/impl=%s 1 %d sent %g limit\n", i, a.name, n, s.Limit(float64(i)))
	}
	return b.String()
}
