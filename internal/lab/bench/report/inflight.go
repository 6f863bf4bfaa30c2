package main

import (
	"fmt"
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

const (
	flightHead = "## In flight\n"
	flightNote = "Servers that work on a number of requests at a time, and queue or refuse the others, in bubbles of `testing/synctest`: 16 workers of 50 ms, " +
		"10 ms away, and 64 callers that always have another request, for 120 s, unless the name of the scene says otherwise. Each cell has the " +
		"goodput from 5 s on in percent of that of the best fixed number in flight / the 99th percentile of the server's latency as a multiple / the share that was refused " +
		"in percent. All clients begin with their defaults; failsafe-go's begins with 20 requests in flight, which is nearly the best number for 16 workers."
)

var flightImpls = []string{"throttle", "throttle-both", "throttle-rate", "failsafe-adaptive", "aws"}

// A flown is what a client reached in a scene.
type flown struct{ goodput, p99, refused float64 }

func flightOf(m *measurements, scene, impl string) (f flown, ok bool) {
	ok = playedMedians(m, "InFlight", scene, impl, map[string]*float64{"%goodput": &f.goodput, "times-p99": &f.p99, "%refused": &f.refused})
	return f, ok
}

func (f flown) String() string {
	p99 := fmt.Sprintf("%.2f", f.p99)
	if f.p99 >= 9.95 {
		p99 = fmt.Sprintf("%.0f", f.p99)
	}
	return fmt.Sprintf("%.0f / %s / %s", f.goodput, p99, ofAll(f.refused))
}

// beats reports whether f is better in goodput or latency, and pays for it neither with the other nor with refusals.
func (f flown) beats(ours flown) bool {
	return f.refused <= ours.refused+1 &&
		(f.goodput > ours.goodput+2 && f.p99 <= 1.1*ours.p99 || f.p99 < ours.p99/1.1 && f.goodput >= ours.goodput-2)
}

// flightSection is the section about servers that limit requests in flight; "": none was measured.
func flightSection(m *measurements) string {
	scenes := m.order["InFlight/scene"]
	if len(scenes) == 0 {
		return ""
	}
	names := labelsOf(flightImpls)
	names[0] = label("throttle-flight") // of which the rate is not what is meant here
	return fmt.Sprintf(flightHead+"\n%s Medians of %s, %s.\n\n![Goodput through a deploy](deploy-goodput.svg)\n\n![Latency through a deploy](deploy-latency.svg)\n\n",
		flightNote, m.config["m-scenes"], m.config["m-date"]) +
		playedTable(scenes, flightImpls, names, "Others are better here by 2 points of goodput or a tenth of the latency, without more refusals:",
			func(scene, impl string) (reached, reason string) {
				f, ok := flightOf(m, scene, impl)
				if !ok {
					return "", ""
				}
				if ours, _ := flightOf(m, scene, flightImpls[0]); !isOurs(impl) && f.beats(ours) {
					reason = fmt.Sprintf("%s %v, ours %v. %s", label(impl), f, ours, why("in-flight", spaced(scene)))
				}
				return f.String(), reason
			})
}

// deployPlot returns a plot of what happens while a server is three times slower.
func deployPlot(unit, title, axis string, most float64) func(*measurements) (*plot.Plot, vg.Length, error) {
	return func(m *measurements) (*plot.Plot, vg.Length, error) {
		if len(m.order["InFlightTime/second"]) == 0 {
			return nil, 0, nil
		}
		p := newPlot(title)
		p.X.Label.Text, p.Y.Label.Text = "seconds", axis
		p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(twenties), grouped{}
		p.Y.Min, p.Y.Max = 0, most
		p.Legend.YOffs = vg.Points(4)
		for _, c := range []struct {
			impl, name string
			color      color.Color
		}{{"fixed-best", "the best fixed number", grey}, {"failsafe-adaptive", "failsafe-go, adaptive limiter", purple}, {"throttle", "throttle, AdaptiveInFlight", blue}} {
			xy := flightOverTime(m, c.impl, unit)
			line, err := plotter.NewLine(xy)
			if err != nil {
				return nil, 0, err
			}
			line.Color, line.Width = c.color, vg.Points(1.5)
			if c.impl == "fixed-best" {
				line.Dashes, line.Width = []vg.Length{vg.Points(5), vg.Points(3)}, vg.Points(2)
			}
			p.Add(line)
			p.Legend.Add(c.name, line)
		}
		return p, 3 * vg.Inch, nil
	}
}

func flightOverTime(m *measurements, impl, unit string) (xy plotter.XYs) {
	for _, s := range m.order["InFlightTime/second"] {
		t, err := strconv.ParseFloat(s, 64)
		v, ok := m.median("InFlightTime", unit, "second="+s, "impl="+impl, "cpu=1")
		if err == nil && ok {
			xy = append(xy, plotter.XY{X: t + 1, Y: v})
		}
	}
	return xy
}

// elasticityPlot is the latency of a server over the number in flight. In logarithms, its slope is the elasticity.
func elasticityPlot(m *measurements) (*plot.Plot, vg.Length, error) {
	at := make(map[float64]float64)
	var xy plotter.XYs
	for _, s := range m.order["InFlightLatency/n"] {
		n, err := strconv.ParseFloat(s, 64)
		v, ok := m.median("InFlightLatency", "mean-ms", "n="+s, "cpu=1")
		if err == nil && ok {
			xy, at[n] = append(xy, plotter.XY{X: n, Y: v}), v
		}
	}
	if len(xy) == 0 {
		return nil, 0, nil
	}
	p := newPlot("Mean latency of a server with 16 workers: the slope is e")
	p.X.Label.Text, p.Y.Label.Text = "requests in flight", "milliseconds"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = ticksAt(1, 2, 4, 8, 16, 32, 64), ticksAt(50, 100, 200)
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 1, 66, 40, 260
	line, err := plotter.NewLine(xy)
	if err != nil {
		return nil, 0, err
	}
	line.Color, line.Width = blue, vg.Points(2)
	p.Add(line)
	marks := plotter.XYLabels{
		XYs:    plotter.XYs{{X: 2.2, Y: 66}, {X: 36, Y: 84}, {X: 5, Y: 43}},
		Labels: []string{"e = 0: the server works on all of them", "e = 1: the others wait", "compared: n, and a third less"},
	}
	labels, err := plotter.NewLabels(marks)
	if err != nil {
		return nil, 0, err
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Color = grey
		labels.TextStyle[i].Font.Typeface, labels.TextStyle[i].Font.Variant, labels.TextStyle[i].Font.Size = sans.Typeface, sans.Variant, vg.Points(11)
	}
	p.Add(labels)
	for _, n := range []float64{18, 28} {
		if at[n] == 0 {
			continue
		}
		down, err := plotter.NewLine(plotter.XYs{{X: n, Y: 40}, {X: n, Y: at[n]}})
		if err != nil {
			return nil, 0, err
		}
		down.Color, down.Width, down.Dashes = orange, vg.Points(1.5), []vg.Length{vg.Points(4), vg.Points(3)}
		p.Add(down)
	}
	return p, 3 * vg.Inch, nil
}

func ticksAt(at ...float64) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for _, x := range at {
		ticks = append(ticks, plot.Tick{Value: x, Label: number(x)})
	}
	return ticks
}

func twenties(low, high float64) (ticks []plot.Tick) {
	for x := math.Ceil(low/20) * 20; x <= high+1; x += 20 {
		ticks = append(ticks, plot.Tick{Value: x, Label: number(x)})
	}
	return ticks
}
