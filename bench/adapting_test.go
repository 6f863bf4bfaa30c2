package bench

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
)

var (
	scenesTo = flag.String("scenes", "", "play all scenes, and write what came of them to this file")
	seeds    = flag.Uint64("seeds", 3, "how often each scene is played for -scenes")
)

// TestAdapting plays the scenes with all adapters. It is no benchmark, since a bubble needs a *testing.T; with -scenes it
// writes what came of them as benchmarks do, and else it plays a minute of the first scene, to see that it does.
func TestAdapting(t *testing.T) {
	if *scenesTo == "" {
		s := scenes[0]
		s.seconds = 60
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
	for _, s := range scenes {
		for _, a := range adapters {
			for seed := range s.seedsFor(a) {
				line := new(string)
				lines = append(lines, line)
				t.Run(fmt.Sprint(s.name, "/", a.name, "/", seed), func(t *testing.T) {
					t.Parallel()
					*line = playOnce(t, s, a, seed+1).lines(s, a)
				})
			}
		}
	}
}

// seedsFor is how often a scene is played: once by callers that press without end, where there are hundreds of callers.
func (s scene) seedsFor(a adapter) uint64 {
	if s = s.withDefaults(); a.name != "throttle" && s.clients*s.callers >= 250 {
		return min(1, *seeds)
	}
	return *seeds
}

func playOnce(t *testing.T, s scene, a adapter, seed uint64) (o outcome) {
	synctest.Test(t, func(t *testing.T) { o = s.play(t, seed, a) })
	return o
}

// sane checks that all were let through to the server, and did what they are known for.
func sane(t *testing.T, name string, o outcome) {
	least, most := 0.5, 105.0
	switch name {
	case "throttle":
		least = 80
	case "fixed-half":
		least, most = 49, 51
	case "fixed-exact":
		least = 99
	}
	if o.goodput < least || o.goodput > most || o.refused > 99.9 {
		t.Errorf("goodput %.1f %%, not from %v to %v; refused %.1f %%", o.goodput, least, most, o.refused)
	}
}

// lines are in the format of Go benchmarks.
func (o outcome) lines(s scene, a adapter) string {
	var b strings.Builder
	name := strings.ReplaceAll(s.name, " ", "_")
	fmt.Fprintf(&b, "BenchmarkAdapting/scene=%s/impl=%s 1 %g %%goodput %g %%refused %g p50-ms %g p99-ms",
		name, a.name, o.goodput, o.refused, o.p50, o.p99)
	if s.clients > 1 {
		fmt.Fprintf(&b, " %g jain", o.jain)
	}
	if s.callers == 0 && s.load != nil {
		fmt.Fprintf(&b, " %g ms-random", o.wait)
	} else {
		fmt.Fprintf(&b, " %g s-found", o.found)
	}
	if s.outage[1] > 0 {
		fmt.Fprintf(&b, " %g inOutage", o.inOutage)
	}
	for i, back := range o.back {
		fmt.Fprintf(&b, " %g s-back-%d", back, i+1)
	}
	b.WriteByte('\n')
	if s.name != drops {
		return b.String()
	}
	for i, n := range o.sent {
		fmt.Fprintf(&b, "BenchmarkAdaptingTime/second=%d/impl=%s 1 %d sent %g limit\n", i, a.name, n, s.limit(float64(i)))
	}
	return b.String()
}
