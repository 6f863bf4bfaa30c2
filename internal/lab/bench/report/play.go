package main

import (
	"fmt"
	"strings"
)

// playedMedians sets the figures of a client in a scene, by their units. It reports false if one of them was not measured.
func playedMedians(m *measurements, benchmark, scene, impl string, figures map[string]*float64) (ok bool) {
	for unit, x := range figures {
		if *x, ok = m.median(benchmark, unit, "scene="+scene, "impl="+impl, "cpu=1"); !ok {
			return false
		}
	}
	return true
}

// playedTable returns a table with a row for each scene and a column for each client. A cell is what the client reached, and why it is better
// than ours; "": it was not measured, or is not better. The reasons are listed below the table, after what better means.
func playedTable(scenes, impls, names []string, better string, cell func(scene, impl string) (reached, reason string)) string {
	var b strings.Builder
	b.WriteString("| |")
	for _, name := range names {
		fmt.Fprintf(&b, " %s |", name)
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(impls)) + "\n")
	var reasons []string
	for _, scene := range scenes {
		fmt.Fprintf(&b, "| %s |", spaced(scene))
		for _, impl := range impls {
			reached, reason := cell(scene, impl)
			if reached == "" {
				reached = "–"
			}
			if fmt.Fprintf(&b, " %s |", reached); reason != "" {
				reasons = append(reasons, fmt.Sprintf("- **%s**: %s\n", spaced(scene), reason))
			}
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	if len(reasons) > 0 {
		fmt.Fprintf(&b, "%s\n\n%s\n", better, strings.Join(reasons, ""))
	}
	return b.String()
}

// labelsOf returns the labels of clients.
func labelsOf(impls []string) (all []string) {
	for _, impl := range impls {
		all = append(all, label(impl))
	}
	return all
}

// ofAll returns a share in percent for a cell; "0": next to none.
func ofAll(percent float64) string {
	if percent < 0.05 {
		return "0"
	}
	return fmt.Sprintf("%.1f", percent)
}
