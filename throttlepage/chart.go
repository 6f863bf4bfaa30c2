package throttlepage

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// A chart is the line of one figure over the time that the page remembers.
type chart struct {
	Path     string // of an SVG, in a box of 240 by 40; "": no chart
	Title    string
	Most     float64 // value at the upper edge
	Top      string  // Most, for people
	Unit     string
	From, To int64 // of the box, in milliseconds of Unix time
	Start    string
	End      string
	flat     bool // all values are the same
}

const (
	chartWidth, chartHeight = 240.0, 40.0
	chartBins               = 120
	chartShortest           = time.Minute
)

// chartOf returns the chart of a figure. It becomes denser as the memory fills: each of its at most 120 points is the highest
// value of a few successive ones. Where nothing is known, the line has a gap.
func (m *memory) chartOf(title, unit string, value func(*point) float64) chart {
	c := chart{Title: title, Unit: unit, flat: true}
	if len(m.ring) < 2 {
		return c
	}
	c.To = m.at(len(m.ring) - 1).at
	c.From = min(m.at(0).at, c.To-chartShortest.Milliseconds())
	c.Start, c.End = clock(c.From), clock(c.To)
	highest, lowest := 0.0, math.Inf(1)
	for i := range m.ring {
		y := value(m.at(i))
		highest, lowest = max(highest, y), min(lowest, y)
	}
	c.flat, c.Most = highest == lowest, ceiling(highest)
	c.Top = number(c.Most)
	c.Title = title + ": at most " + number(highest) + unit + ", now " + number(value(m.at(len(m.ring)-1))) + unit
	c.Path = m.path(&c, value)
	return c
}

// path returns the line. Of a stretch of one height only the ends are written.
func (m *memory) path(c *chart, value func(*point) float64) string {
	var b strings.Builder
	size := (kept - 1 + chartBins) / chartBins
	if len(m.ring) <= chartBins {
		size = 1
	}
	var lastY, heldX string
	pen, alone := false, false // the line has a point since the last gap, and no other
	put := func(x, y string) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(x + "," + y)
		alone = false
	}
	lift := func() {
		switch {
		case heldX != "":
			put(heldX, lastY)
		case alone:
			b.WriteString("h.1") // a point alone is a dot
		}
		pen, alone, heldX = false, false, ""
	}
	first := m.n - len(m.ring) // bins are counted from the first point that was ever taken, so that they do not flicker
	for i := 0; i < len(m.ring); {
		high, gap, at := 0.0, m.at(i).gap, int64(0)
		for bin := (first + i) / size; i < len(m.ring) && (first+i)/size == bin; i++ {
			high, at = max(high, value(m.at(i))), m.at(i).at
			gap = gap || m.at(i).gap
		}
		x := decimals(chartWidth*float64(at-c.From)/float64(c.To-c.From), 10)
		y := decimals(chartHeight-chartHeight*high/max(c.Most, 1e-9), 100)
		switch {
		case gap || !pen:
			lift()
			if b.Len() > 0 {
				b.WriteByte(' ')
			}
			b.WriteString("M" + x + "," + y)
			pen, alone = true, true
		case y == lastY:
			heldX = x
			continue
		default:
			if heldX != "" {
				put(heldX, lastY)
			}
			put(x, y)
		}
		lastY, heldX = y, ""
	}
	lift()
	return b.String()
}

// ceiling returns the next round figure: 1, 2 or 5, and zeros.
func ceiling(x float64) float64 {
	if x <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(x)))
	for _, step := range []float64{1, 2, 5} {
		if x <= step*power*1.0001 {
			return step * power
		}
	}
	return 10 * power
}

// clock returns an instant as hours and minutes.
func clock(ms int64) string { return time.UnixMilli(ms).UTC().Format("15:04") }

// A gauge is what is left of something.
type gauge struct {
	Text  string
	Level string
	Width string // of the bar, as a percentage; "": no bar
}

func gaugeOf(left, full float64) gauge {
	switch {
	case math.IsInf(left, 0) || left >= math.MaxInt64:
		return gauge{Text: none}
	case full <= 0:
		return gauge{Text: number(left)}
	}
	part := min(1, max(0, left/full))
	return gauge{
		Text:  number(left) + " / " + number(full),
		Level: level(part < 0.1, "low"),
		Width: strconv.FormatFloat(100*part, 'f', 1, 64) + "%",
	}
}
