package main

import "fmt"

// An observeTable has a kind of observation in each row.
type observeTable struct{}

func (observeTable) render(m *measurements, r *report) {
	b := &r.tables
	fmt.Fprintf(b, "### Reading 100,000 keys\n\nThe time of one reading, and the 99.9th percentile of a `Try` by another goroutine meanwhile. "+
		"The row *nothing* is the machine's own.\n\n| | ms | Try, p99.9, µs |\n|---|---:|---:|\n")
	for _, read := range m.order["Observe/read"] {
		dims := []string{"read=" + read, "cpu=2"}
		took, ok1 := query{"Observe", "ns/op", dims}.of(m)
		stalled, ok2 := query{"Observe", "p99.9-µs", dims}.of(m)
		if ok1 && ok2 {
			fmt.Fprintf(b, "| %s | %s | %s |\n", read, number(took/1e6), number(stalled))
		}
	}
	fmt.Fprintf(b, "\n### Attached\n\nA grant by `Try`, in ns.\n\n| | nothing attached | attached, read 100 times a second |\n|---|---:|---:|\n")
	for _, row := range []struct{ name, bench, attached string }{
		{"Prometheus collector, three limits", "GrantProm", "scraped"}, {"OpenTelemetry instruments and producer", "GrantOtel", "read"},
	} {
		without, ok1 := query{row.bench, "ns/op", []string{"attached=nothing", "cpu=1"}}.of(m)
		with, ok2 := query{row.bench, "ns/op", []string{"attached=" + row.attached, "cpu=1"}}.of(m)
		if ok1 && ok2 {
			fmt.Fprintf(b, "| %s | %s | %s |\n", row.name, number(without), number(with))
		}
	}
	b.WriteString("\n")
}
