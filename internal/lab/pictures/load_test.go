package pictures

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/scene/overload"
)

// A contender is how a program limits its requests, to a server of which it knows nothing.
type contender struct {
	name, class string
	opts        []throttle.Option
}

var contenders = []contender{
	{"no limit", "no", nil},
	{"a rate", "ok", []throttle.Option{throttle.WithAdaptive()}},
	{"a number", "mark", []throttle.Option{throttle.WithAdaptiveInFlight()}},
	{"both", "code", []throttle.Option{throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()}},
}

var loads = []int{10, 20, 40, 80, 160, 320} // callers

// underLoad has callers send one request after the other to a server with twenty workers, which take 100 ms in the mean. If more than sixty
// requests are there, it fails the others with 500.
func underLoad(t *testing.T, c contender, callers int, length float64) (f overload.Figures) {
	synctest.Test(t, func(t *testing.T) {
		s := overload.Scene{
			Capacity: 200, Callers: callers, Length: length,
			New: func() overload.Server { return overload.NewWorkers(20, overload.Half(0.1), 60, 0) },
		}
		f = s.Play(1, func(base http.RoundTripper) http.RoundTripper {
			return throttle.Must(throttle.New(base, append(c.opts, throttle.WithoutServerHints())...))
		})
	})
	return f
}

// What the picture says holds in each run.
func TestLoadIsDrawnFromRuns(t *testing.T) {
	const many = 80
	for _, c := range contenders {
		f := underLoad(t, c, many, 60)
		t.Logf("%s: %.2f used, %.0f ms, %.1f %% failed", c.name, f.Use, 1000*f.P50, 100*f.Errors)
		if c.opts == nil {
			assert.Greater(t, f.Errors, 0.5, c.name)
			assert.Greater(t, f.P50, 0.25, c.name)
			continue
		}
		assert.Greater(t, f.Use, 0.85, c.name)
		assert.Less(t, f.P50, 0.2, c.name)
		assert.Less(t, f.Errors, 0.05, c.name)
	}
	if *update {
		require.NoError(t, os.WriteFile(docs+"load.svg", []byte(drawLoad(t)), 0o644))
	}
}

// A panel is one figure against the load.
type panel struct {
	title string
	most  float64
	of    func(overload.Figures) float64
}

func drawLoad(t *testing.T) string {
	figures := make([][]overload.Figures, len(contenders))
	for i, c := range contenders {
		for _, callers := range loads {
			figures[i] = append(figures[i], underLoad(t, c, callers, 180))
		}
	}
	const width, height, apart, top = 200.0, 120.0, 250.0, 64.0
	c := &canvas{width: 752, height: 252,
		label: "Use, median latency and failures of a server with 20 workers against the number of callers, without a limit, with a learned rate, with a learned number in flight, and with both. Without a limit, most requests fail."}
	c.text(0, 16, "b", "start", "A server with 20 workers of 100 ms, which fails what comes beyond 60 requests")
	for i, of := range contenders {
		at := float64(i) * 104
		c.rect(of.class, at, 27, 10, 10)
		c.text(at+15, 36, "", "start", of.name)
	}
	for p, panel := range []panel{
		{"used, % of its capacity", 100, func(f overload.Figures) float64 { return 100 * f.Use }},
		{"median latency, ms", 320, func(f overload.Figures) float64 { return 1000 * f.P50 }},
		{"failed, %", 100, func(f overload.Figures) float64 { return 100 * f.Errors }},
	} {
		left := 34 + float64(p)*apart
		x := func(i int) float64 { return left + float64(i)/float64(len(loads)-1)*width }
		y := func(v float64) float64 { return top + 22 + height*(1-min(v/panel.most, 1.05)) }
		c.text(left, top+8, "b", "start", panel.title)
		for _, v := range []float64{0, panel.most / 2, panel.most} {
			c.path("line", fmt.Sprintf("M%.1f %.1fH%.1f", left, y(v), left-4))
			c.text(left-6, y(v)+4, "", "end", fmt.Sprintf("%.0f", v))
		}
		c.path("line", fmt.Sprintf("M%.1f %.1fV%.1fH%.1f", left, y(panel.most), y(0), left+width))
		for i, callers := range loads {
			c.text(x(i), y(0)+18, "", "middle", fmt.Sprint(callers))
		}
		for i, of := range contenders {
			var d strings.Builder
			for k := range loads {
				fmt.Fprintf(&d, "%c%.1f %.1f", "ML"[min(k, 1)], x(k), y(panel.of(figures[i][k])))
			}
			c.path("curve "+of.class, d.String())
		}
	}
	c.text(34, 246, "", "start", "callers that always have a next request")
	return c.String()
}
