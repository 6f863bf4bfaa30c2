package main

import (
	"fmt"
	"slices"
	"strings"
)

// A report is RESULTS.md while it is written.
type report struct {
	tables      strings.Builder
	titles      []string            // of the tables in which others are better somewhere
	lost        map[string][]string // what is lost, by title
	unexplained []string            // columns and scenes that are lost without a reason in why.go
}

func newReport() *report { return &report{lost: make(map[string][]string)} }

// lose notes that others are better in a table.
func (r *report) lose(title, what, reason string) {
	if !slices.Contains(r.titles, title) {
		r.titles = append(r.titles, title)
	}
	r.lost[title] = append(r.lost[title], what+". "+reason)
}

// render returns RESULTS.md, TARGETS.md, and what has no reason.
func render(m *measurements) (results, targets string, unexplained []string) {
	r := newReport()
	for _, s := range sections() {
		if s.title == adapting {
			text, unexplained := sharedSection(m)
			r.tables.WriteString(text)
			r.unexplained = append(r.unexplained, unexplained...)
			r.tables.WriteString(flightSection(m))
			r.tables.WriteString(overloadSection(m))
		}
		fmt.Fprintf(&r.tables, "## %s\n\n%s\n\n", s.title, s.note)
		for _, part := range s.parts {
			part.render(m, r)
		}
	}
	var b strings.Builder
	b.WriteString("# Results\n\n`make bench` writes this page; no figure is typed by hand. Figures are medians of " + m.config["m-run"] + ". The implementations took turns.\n\n")
	renderGains(m, &b)
	if len(r.titles) > 0 {
		b.WriteString("## Where others are better\n\nEach row in which another implementation is better than ours, and why.\n\n")
		r.renderLost(&b)
	}
	b.WriteString(r.tables.String())
	renderMachine(m, &b)
	return b.String(), renderTargets(m), r.unexplained
}

func (r *report) renderLost(b *strings.Builder) {
	for _, title := range r.titles {
		fmt.Fprintf(b, "**%s**\n\n", title)
		for _, what := range r.lost[title] {
			fmt.Fprintf(b, "- %s\n", what)
		}
		b.WriteString("\n")
	}
}

func renderMachine(m *measurements, b *strings.Builder) {
	b.WriteString("## The machine\n\n")
	fmt.Fprintf(b, "| | |\n|---|---|\n| CPU | %s × %s |\n| system | %s |\n| Go | %s |\n| commit | %s |\n| date | %s |\n| compared with | %s |\n",
		m.config["m-cpus"], m.config["cpu"], m.config["m-os"], m.config["m-go"], m.config["m-commit"], m.config["m-date"],
		strings.ReplaceAll(m.config["m-modules"], "; ", "<br>"))
	if missing := m.config["m-missing"]; missing != "" {
		fmt.Fprintf(b, "| missing | %s |\n", strings.ReplaceAll(missing, "; ", "<br>"))
	}
}
