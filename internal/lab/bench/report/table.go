package main

import (
	"fmt"
	"math"
	"strings"
)

// A table has an implementation in each row, and a measurement in each column.
type table struct {
	id, title, note string
	rows            []string // implementations; those without measurements are left out
	columns         []column
}

type column struct {
	id, head    string
	bench, unit string
	dims        []string // except the implementation
	better      better
	ratioTo     string // implementation; "": no ratio is shown
}

// A better says which values are better.
type better int

const (
	lower   better = iota
	hundred        // those nearer to 100
	neither        // it is only shown
)

func (c column) value(m *measurements, impl string) (float64, bool) {
	return m.median(c.bench, c.unit, append([]string{"impl=" + impl}, c.dims...)...)
}

func (t table) render(m *measurements, r *report) {
	b := &r.tables
	fmt.Fprintf(b, "### %s\n\n", t.title)
	if t.note != "" {
		fmt.Fprintf(b, "%s\n\n", t.note)
	}
	b.WriteString("| |")
	for _, c := range t.columns {
		fmt.Fprintf(b, " %s |", c.head)
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(t.columns)) + "\n")
	for _, impl := range t.rows {
		t.row(m, b, impl)
	}
	b.WriteString("\n")
	t.losses(m, r)
}

func (t table) row(m *measurements, b *strings.Builder, impl string) {
	var cells strings.Builder
	any := false
	for _, c := range t.columns {
		x, ok := c.value(m, impl)
		any = any || ok
		cells.WriteString(" " + c.cell(m, x, ok) + " |")
	}
	if any {
		fmt.Fprintf(b, "| %s |%s\n", label(impl), cells.String())
	}
}

func (c column) cell(m *measurements, x float64, ok bool) string {
	if !ok {
		return "–"
	}
	s := number(x)
	if base, ok := c.value(m, c.ratioTo); ok && c.ratioTo != "" {
		s += fmt.Sprintf(" (%s)", ratio(x/base))
	}
	return s
}

// losses reports in which columns other implementations are better than ours, and why.
func (t table) losses(m *measurements, r *report) {
	var order []string
	lost := make(map[string][]string) // by reason
	for _, c := range t.columns {
		l := t.lost(m, c)
		if l == "" {
			continue
		}
		reason := why(t.id, c.id)
		if reason == "" {
			r.unexplained = append(r.unexplained, t.id+"/"+c.id)
			reason = "No reason is known yet."
		}
		if lost[reason] == nil {
			order = append(order, reason)
		}
		lost[reason] = append(lost[reason], l)
	}
	for _, reason := range order {
		r.lose(t.title, strings.Join(lost[reason], "; "), reason)
	}
}

// lost returns which implementations are better in a column.
func (t table) lost(m *measurements, c column) string {
	ours, ok := c.value(m, "throttle")
	if !ok || c.better == neither {
		return ""
	}
	noise := 0.0
	if bare, ok := c.value(m, "bare"); ok && c.unit == "%ofBare" {
		noise = 1 + math.Abs(bare-100) // of which it is known what it should be
	}
	var who []string
	for _, impl := range t.rows {
		if x, ok := c.value(m, impl); ok && isPeer(impl) && c.better.than(x+noise, ours) {
			who = append(who, fmt.Sprintf("%s %s", label(impl), number(x)))
		}
	}
	if who == nil {
		return ""
	}
	return fmt.Sprintf("**%s**, ours %s: %s", plain(c.head), number(ours), strings.Join(who, ", "))
}

// than reports whether x is better than ours by more than noise.
func (k better) than(x, ours float64) bool {
	if k == hundred {
		return math.Abs(x-100) < math.Abs(ours-100)-1
	}
	return x < 0.97*ours && ours-x > 0.5
}

// number writes three digits or more, and groups of thousands.
func number(x float64) string {
	switch a := math.Abs(x); {
	case a == math.Trunc(a) && a < 1000:
		return fmt.Sprintf("%.0f", x)
	case a < 0.095:
		return fmt.Sprintf("%.2g", x)
	case a < 10:
		return fmt.Sprintf("%.2f", x)
	case a < 100:
		return fmt.Sprintf("%.1f", x)
	case a < 1000:
		return fmt.Sprintf("%.0f", x)
	}
	s := fmt.Sprintf("%.0f", x)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func ratio(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f×", x)
	case x >= 10:
		return fmt.Sprintf("%.1f×", x)
	}
	return fmt.Sprintf("%.2f×", x)
}

// plain is a heading without its line breaks.
func plain(head string) string { return strings.ReplaceAll(head, "<br>", " ") }
