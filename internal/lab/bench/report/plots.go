package main

import (
	"bytes"
	"fmt"
	"html"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// Colours that are readable on white and on black, as is grey for text and axes.
var (
	grey   = color.NRGBA{0x85, 0x8d, 0x97, 0xff}
	blue   = color.NRGBA{0x3b, 0x82, 0xf6, 0xff}
	orange = color.NRGBA{0xe0, 0x7b, 0x16, 0xff}
	green  = color.NRGBA{0x1f, 0xa3, 0x63, 0xff}
	purple = color.NRGBA{0xa1, 0x6a, 0xe8, 0xff}
	red    = color.NRGBA{0xe5, 0x4d, 0x5b, 0xff}
	teal   = color.NRGBA{0x17, 0x9b, 0xa6, 0xff}
	brown  = color.NRGBA{0xa5, 0x7a, 0x45, 0xff}
)

// draw writes the plots.
func draw(m *measurements, dir string) error {
	for name, draw := range map[string]func(*measurements) (*plot.Plot, vg.Length, error){
		"request.svg": requestPlot, "line.svg": linePlot, "adapting.svg": adaptingPlot, "scale.svg": scalePlot,
		"deploy-goodput.svg": deployPlot("goodput", "Goodput while a deploy makes the server three times slower, 45 to 85 s", "requests per second", 1400),
		"deploy-latency.svg": deployPlot("p99-ms", "99th percentile of its latency", "milliseconds", 800),
		"elasticity.svg":     elasticityPlot,
	} {
		p, height, err := draw(m)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if p == nil { // nothing was measured for it
			continue
		}
		if err := save(p, height, filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// save writes a plot as SVG. The fonts are those of the viewer, as wide as the one that it was drawn for.
func save(p *plot.Plot, height vg.Length, file string) error {
	w, err := p.WriterTo(8*vg.Inch, height, "svg")
	if err != nil {
		return err
	}
	var svg bytes.Buffer
	if _, err := w.WriteTo(&svg); err != nil {
		return err
	}
	text := strings.ReplaceAll(svg.String(), "font-family:Liberation Sans", "font-family:Liberation Sans,Helvetica,Arial,sans-serif")
	return os.WriteFile(file, []byte(widths(text)), 0o644)
}

var svgText = regexp.MustCompile(`<text ([^>]*font-size:(\d+)px[^>]*)>([^<]*)</text>`)

// widths sets the width of each text.
func widths(svg string) string {
	return svgText.ReplaceAllStringFunc(svg, func(text string) string {
		part := svgText.FindStringSubmatch(text)
		size, err := strconv.Atoi(part[2])
		if err != nil {
			return text
		}
		face := font.DefaultCache.Lookup(sans, vg.Points(float64(size)))
		width := face.Width(html.UnescapeString(part[3]))
		return fmt.Sprintf(`<text textLength="%.4g" lengthAdjust="spacingAndGlyphs" %s>%s</text>`, width.Points(), part[1], part[3])
	})
}

var sans = font.Font{Typeface: "Liberation", Variant: "Sans"}

// newPlot is grey on nothing.
func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil
	p.Title.Text = title
	p.Title.Padding = vg.Points(8)
	sized := func(f *font.Font, size vg.Length) { f.Typeface, f.Variant, f.Size = sans.Typeface, sans.Variant, size }
	sized(&p.Title.TextStyle.Font, vg.Points(13))
	p.Title.TextStyle.Color = grey
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle.Color, a.Tick.LineStyle.Color, a.Tick.Label.Color, a.Label.TextStyle.Color = grey, grey, grey, grey
		sized(&a.Tick.Label.Font, vg.Points(11))
		sized(&a.Label.TextStyle.Font, vg.Points(11))
	}
	sized(&p.Legend.TextStyle.Font, vg.Points(11))
	p.Legend.TextStyle.Color = grey
	p.Legend.Top, p.Legend.Padding = true, vg.Points(1)
	return p
}

// A bar is one in a chart of bars.
type bar struct {
	name  string
	value float64
	ours  bool
}

// bars draws horizontal bars with their values, ours in another colour than the others', the first on top.
func bars(title, unit string, all []bar) (*plot.Plot, vg.Length, error) {
	if len(all) == 0 {
		return nil, 0, nil
	}
	slices.Reverse(all)
	p := newPlot(title)
	var names []string
	var values []float64
	for i, each := range all {
		chart, err := plotter.NewBarChart(plotter.Values{each.value}, vg.Points(13))
		if err != nil {
			return nil, 0, err
		}
		chart.Horizontal, chart.XMin, chart.LineStyle.Width, chart.Color = true, float64(i), 0, grey
		if each.ours {
			chart.Color = blue
		}
		p.Add(chart)
		names, values = append(names, each.name), append(values, each.value)
	}
	most := slices.Max(values)
	if err := writeValues(p, values, most); err != nil {
		return nil, 0, err
	}
	p.NominalY(names...)
	p.X.Label.Text, p.X.Min, p.X.Max = unit, 0, most*1.12
	p.X.Tick.Marker = grouped{}
	return p, vg.Points(70 + 22*float64(len(all))), nil
}

// grouped are the usual ticks, with digits in groups.
type grouped struct{}

func (grouped) Ticks(low, high float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(low, high)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = number(ticks[i].Value)
		}
	}
	return ticks
}

func writeValues(p *plot.Plot, values []float64, most float64) error {
	var xy plotter.XYLabels
	for i, v := range values {
		xy.XYs = append(xy.XYs, plotter.XY{X: v + most/100, Y: float64(i) - 0.2})
		xy.Labels = append(xy.Labels, number(v))
	}
	l, err := plotter.NewLabels(xy)
	if err != nil {
		return err
	}
	for i := range l.TextStyle {
		l.TextStyle[i].Color = grey
		l.TextStyle[i].Font.Typeface, l.TextStyle[i].Font.Variant, l.TextStyle[i].Font.Size = sans.Typeface, sans.Variant, vg.Points(11)
	}
	p.Add(l)
	return nil
}

// requestPlot leaves out the client that does more than the others.
func requestPlot(m *measurements) (*plot.Plot, vg.Length, error) {
	var all []bar
	for _, impl := range clientImpls {
		if v, ok := requestOf(impl, 1, 1).of(m); ok && impl != "resty-client" {
			all = append(all, bar{plainLabel(impl), v, isOurs(impl)})
		}
	}
	return bars("What a request costs that need not wait", "ns", all)
}

// linePlot is of what happens to a queue; a limiter that is missing there cannot do it.
func linePlot(m *measurements) (*plot.Plot, vg.Length, error) {
	var all []bar
	for i, c := range lineTable().columns[:2] {
		for _, impl := range []string{"throttle", "xtime", "failsafe", "resty"} {
			if v, ok := c.value(m, impl); ok {
				all = append(all, bar{[]string{"half cancelled: ", "rate × 100: "}[i] + plainLabel(impl), v, isOurs(impl)})
			}
		}
	}
	return bars("Served after half of a line was cancelled, or its rate raised a hundredfold", "% of what could be served at best", all)
}

// adaptingPlot shows what each sends while the limit drops and returns.
func adaptingPlot(m *measurements) (*plot.Plot, vg.Length, error) {
	if len(m.order["AdaptingTime/second"]) == 0 {
		return nil, 0, nil
	}
	p := newPlot("What each sends while the limit drops tenfold and returns")
	p.X.Label.Text, p.Y.Label.Text = "seconds", "requests per second"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.TickerFunc(decades)
	p.Y.Min, p.Y.Max = 1, 3000
	p.X.Tick.Marker = plot.TickerFunc(minutes)
	p.Legend.YOffs = vg.Points(4)
	for _, c := range []struct {
		impl  string
		unit  string
		color color.Color
	}{
		{"failsafe-adaptive", "sent", purple}, {"rule", "sent", green}, {"aws", "sent", orange}, {"throttle", "limit", grey}, {"throttle", "sent", blue},
	} {
		line, err := plotter.NewLine(overTime(m, c.impl, c.unit))
		if err != nil {
			return nil, 0, err
		}
		line.Color, line.Width = c.color, vg.Points(1.5)
		name := plainLabel(c.impl)
		if c.unit == "limit" {
			line.Dashes, line.Width = []vg.Length{vg.Points(5), vg.Points(3)}, vg.Points(2)
			name = "the limit"
		}
		p.Add(line)
		p.Legend.Add(name, line)
	}
	return p, 4 * vg.Inch, nil
}

func overTime(m *measurements, impl, unit string) (xy plotter.XYs) {
	for _, s := range m.order["AdaptingTime/second"] {
		t, err := strconv.ParseFloat(s, 64)
		v, ok := m.median("AdaptingTime", unit, "second="+s, "impl="+impl, "cpu=1")
		if err == nil && ok {
			xy = append(xy, plotter.XY{X: t, Y: max(1, v)}) // a logarithm has no zero
		}
	}
	slices.SortFunc(xy, func(a, b plotter.XY) int { return int(math.Copysign(1, a.X-b.X)) })
	return xy
}

func minutes(low, high float64) (ticks []plot.Tick) {
	for x := math.Ceil(low/60) * 60; x <= high+1; x += 60 {
		ticks = append(ticks, plot.Tick{Value: x, Label: number(x)})
	}
	return ticks
}

func decades(low, high float64) (ticks []plot.Tick) {
	for x := 1.0; x <= high; x *= 10 {
		if x >= low {
			ticks = append(ticks, plot.Tick{Value: x, Label: number(x)})
		}
		for i := 2.0; i < 10; i++ {
			ticks = append(ticks, plot.Tick{Value: x * i})
		}
	}
	return ticks
}
