package main

import (
	"fmt"
	"image/color"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// stallOf is how long another caller waited for the lock during an operation over so many keys or waiters.
func stallOf(of, n, op string) query {
	return query{"Scale", "µs-stall", []string{"of=" + of, "n=" + n, "op=" + op, "cpu=2"}}
}

// rejectedFor is the CPU time of an operation for each request that it rejects.
func rejectedFor(n, op string) query {
	q := stallOf("waiters", n, op)
	q.unit = "ns-cpu/rejected"
	return q
}

// A scaleTable has an operation in each row, and a number of keys or waiters in each column.
type scaleTable struct{ of, title, note string }

var scaleTables = []scaleTable{
	{"keys", "Operations over many keys", "The buckets of all keys are empty."},
	{"waiters", "Operations over many waiting requests", "Requests that wait for one key. The last rows are of a slower rate that rejects one in a hundred, all over the " +
		"queue: either one in a hundred has a MaxWait, so that a search finds them, or the queue is full, so that the MaxWait of each request is just enough and " +
		"each request is visited. Behind them is the CPU time for each rejected request."},
}

// sizes returns the numbers of keys or waiters that were measured, in order.
func (t scaleTable) sizes(m *measurements) (sizes []int) {
	for _, s := range m.order["Scale/n"] {
		n, err := strconv.Atoi(s)
		if err == nil && slices.ContainsFunc(m.order["Scale/op"], func(op string) bool { _, ok := stallOf(t.of, s, op).of(m); return ok }) {
			sizes = append(sizes, n)
		}
	}
	slices.Sort(sizes)
	return sizes
}

// stall returns what was measured for an operation over n.
func (t scaleTable) stall(m *measurements, n int, op string) (float64, bool) {
	return stallOf(t.of, strconv.Itoa(n), op).of(m)
}

func (t scaleTable) render(m *measurements, r *report) {
	b := &r.tables
	sizes := t.sizes(m)
	if len(sizes) == 0 {
		return
	}
	fmt.Fprintf(b, "### %s\n\n%s The longest that another caller waited for the lock "+
		"meanwhile, in µs; that caller shares two processors with the operation and the garbage collector / the time of the whole operation, in ms. "+
		"Each is the median of its runs.\n\n| |", t.title, t.note)
	for _, n := range sizes {
		fmt.Fprintf(b, " %s |", number(float64(n)))
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(sizes)) + "\n")
	for _, op := range m.order["Scale/op"] {
		var cells []string
		measured := false
		for _, n := range sizes {
			cell := "–"
			if stall, ok := t.stall(m, n, op); ok {
				q := stallOf(t.of, strconv.Itoa(n), op)
				q.unit = "ns/op"
				whole, _ := q.of(m)
				cell, measured = number(stall)+" / "+number(whole/1e6), true
				if each, ok := rejectedFor(strconv.Itoa(n), op).of(m); ok && t.of == "waiters" {
					cell += ", " + number(each/1e3) + " µs each"
				}
			}
			cells = append(cells, cell)
		}
		if measured {
			fmt.Fprintf(b, "| %s | %s |\n", spaced(op), strings.Join(cells, " | "))
		}
	}
	b.WriteString("\n")
}

// scalePlot shows how long other callers wait for the lock, over the number of keys and waiters.
func scalePlot(m *measurements) (*plot.Plot, vg.Length, error) {
	p := newPlot("How long an operation keeps other callers waiting")
	p.X.Label.Text, p.Y.Label.Text = "keys (solid) or waiting requests (dashed)", "µs"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	const most = 1_000_000
	p.X.Tick.Marker = plot.TickerFunc(func(from, _ float64) []plot.Tick { return decades(from, most) })
	p.Y.Tick.Marker = plot.TickerFunc(decades)
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 1000, 100*most, 1, 10_000 // the legend stands beside the lines
	colors, lines := []color.Color{blue, orange, green, purple, grey, red, teal, brown}, 0
	for _, t := range scaleTables {
		of := 0 // lines of this table
		for _, op := range m.order["Scale/op"] {
			var xy plotter.XYs
			for _, n := range t.sizes(m) {
				if stall, ok := t.stall(m, n, op); ok {
					xy = append(xy, plotter.XY{X: float64(n), Y: max(1, stall)})
					p.Y.Max = max(p.Y.Max, stall)
				}
			}
			if len(xy) == 0 {
				continue
			}
			l, err := plotter.NewLine(xy)
			if err != nil {
				return nil, 0, err
			}
			l.Color, l.Width = colors[of%len(colors)], vg.Points(1.5)
			if t.of == "waiters" {
				l.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
			}
			p.Add(l)
			p.Legend.Add(t.of+": "+spaced(op), l)
			of++
			lines++
		}
	}
	if lines == 0 {
		return nil, 0, nil
	}
	return p, 6 * vg.Inch, nil
}
