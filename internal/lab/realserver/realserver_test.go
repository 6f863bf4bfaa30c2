package realserver_test

import (
	"flag"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/lab/realserver"
)

var (
	goals = flag.Bool("goals", false, "test the goals also where they are known to be missed")
	every = flag.Bool("every", false, "test every bar, and not only those of clients that learn, where they learn by different things")
)

// How many run at the same time is decided by inLane, and tests that wait for a lane take none.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "1000"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// installed reports whether a server is there. With THROTTLE_REAL_SERVERS=1 in the environment, all must be.
func installed(t *testing.T, spec realserver.Spec) bool {
	t.Helper()
	if spec.Installed() {
		return true
	}
	require.NotEqual(t, "1", os.Getenv("THROTTLE_REAL_SERVERS"), "%s is not installed", spec.Name)
	return false
}

// What is missing is printed in one line.
func TestServersThatAreNotInstalledAreNamed(t *testing.T) {
	var missing []string
	for _, spec := range realserver.Specs() {
		if !installed(t, spec) {
			missing = append(missing, spec.Name)
		}
	}
	if len(missing) > 0 {
		t.Logf("not installed, so not tested: %s", strings.Join(missing, "; "))
	}
}

// Bursts of three times the limit are refused as the specification says. A busy machine may need several to exceed it.
func TestServersRefuseWhatExceedsTheirLimit(t *testing.T) {
	if testing.Short() {
		return
	}
	for _, spec := range realserver.Specs() {
		if !installed(t, spec) {
			continue
		}
		t.Run(spec.Name, func(t *testing.T) {
			t.Parallel()
			srv, err := spec.Start()
			require.NoError(t, err)
			defer srv.Close()
			seen := make(map[int]int)
			for range 10 {
				burst(srv.URL+"/burst", int(3*spec.N), seen)
				delete(seen, 0) // connections that a busy machine did not accept
				if len(seen) > 1 || spec.Refuses == 0 {
					break
				}
			}
			assert.Positive(t, seen[http.StatusOK])
			if spec.Refuses == 0 {
				assert.Len(t, seen, 1, "%v", seen)
				return
			}
			assert.Positive(t, seen[spec.Refuses], "%v", seen)
			assert.Len(t, seen, 2, "%v", seen)
		})
	}
}

// burst sends n requests at the same time and counts the responses by status.
func burst(url string, n int, seen map[int]int) {
	got := make(chan int)
	for range n {
		go func() { got <- status(url) }()
	}
	for range n {
		seen[<-got]++
	}
}

func status(url string) int {
	resp, err := http.Get(url)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// margin is by how many points a busy machine may miss a bar.
const margin = 5

func TestBarsAreReached(t *testing.T) { // slow: bars are measured in real time
	if testing.Short() {
		return
	}
	t.Parallel()
	bars := slices.DeleteFunc(realserver.Bars(), func(b realserver.Bar) bool {
		return !*every && (b.Length > 0 || !slices.Contains([]string{"hints", "adaptive", "in flight"}, b.Client) ||
			b.Client == "adaptive" && realserver.ReportsRemaining(b.Spec)) // as hints
	})
	slices.SortStableFunc(bars, func(a, b realserver.Bar) int { return int(b.Length - a.Length) }) // the longest first
	for _, bar := range bars {
		least, _ := bar.Least()
		if *goals {
			least = bar
		}
		if !installed(t, realserver.Named(bar.Spec)) {
			continue
		}
		t.Run(bar.String(), func(t *testing.T) {
			inThree(t, func() string {
				r, err := bar.Measure()
				require.NoError(t, err)
				t.Logf("%+v", r)
				if least.Reached(r, margin) || r.Stalled > 60*time.Millisecond {
					return ""
				}
				return fmt.Sprintf("%.1f / %.2f, want %.0f / %.1f", r.Share, r.Refused, least.Share, least.Refused)
			})
		})
	}
}

var (
	lanes  = make(chan struct{}, 16) // runs wait most of the time, so many are beside each other, however few processors there are
	beside sync.WaitGroup            // the tests that may still run beside others
	alone  sync.Mutex
)

// inThree is a parallel test that fails if each of three runs misses its aim. Two are beside those of other tests, which share the
// processors with them. The last is alone, after those of all others. A run returns what it missed, or "".
func inThree(t *testing.T, run func() (missed string)) {
	t.Helper()
	beside.Add(1)
	t.Parallel()
	if inTwo(t, run) {
		return
	}
	beside.Wait()
	alone.Lock()
	defer alone.Unlock()
	assert.Empty(t, run(), "missed in three of three runs")
}

func inTwo(t *testing.T, run func() (missed string)) bool {
	defer beside.Done()
	for range 2 {
		missed := inLane(run)
		if missed == "" {
			return true
		}
		t.Log("missed:", missed)
	}
	return false
}

func inLane(run func() string) string {
	lanes <- struct{}{}
	defer func() { <-lanes }()
	return run()
}

func rounded(d time.Duration) string {
	if d == math.MaxInt64 {
		return "never"
	}
	return d.Round(10 * time.Millisecond).String()
}
