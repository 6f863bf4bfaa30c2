package main

import (
	"fmt"
	"strings"
)

// render writes RESULTS.md, and returns what it found no reason for.
func render(m *measurements) (text string, unexplained []string) {
	var b strings.Builder
	b.WriteString("# Results\n\nWritten by `make bench`; no figure is typed by hand. Medians of " + m.config["m-run"] + ", in which the\n" +
		"implementations took turns. Where somebody else is better, the reason stands below the table.\n\n")
	renderMachine(m, &b)
	b.WriteString("## Targets\n\n")
	renderTargets(m, &b)
	put := func(tables ...table) {
		for _, t := range tables {
			unexplained = append(unexplained, t.render(m, &b)...)
		}
	}
	b.WriteString("## The cost of a request\n\nThat need not wait.\n\n![ns per request](request.svg)\n\n")
	put(requestTable(), loopbackTable("http1", "HTTP/1.1 over a loopback socket"), loopbackTable("http2", "HTTP/2 over a loopback socket"))
	b.WriteString("## The cost of the limiter alone\n\nOn 2 CPUs; in brackets the ratio to x/time/rate.\n\n")
	put(floorTable(), limiterTable("try", "Granted", "Asked without waiting."), limiterTable("wait", "Granted to who would wait", "Wait, where there are tokens."),
		limiterTable("denied", "Denied", "Asked without waiting, where there are none."))
	b.WriteString("## Waiting\n\n")
	put(waiterTables()...)
	put(latenessTable(), hammerTable(), lineTable())
	b.WriteString("![Lines that change](line.svg)\n\n## Keys\n\n")
	put(keysTable())
	shared, missing := sharedSection(m)
	b.WriteString(shared)
	unexplained = append(unexplained, missing...)
	b.WriteString("## Adapting\n\nThe real code of everybody against the same servers, in bubbles of `testing/synctest`: 50 callers who always have a next request, unless\n" +
		"the name of the scene says otherwise. The fixed rates stand for somebody who knows the limit, or has guessed half or double of it.\n" +
		"Where there are hundreds of callers, others play once.\n\n" +
		"![Requests per second over time](adapting.svg)\n\n")
	unexplained = append(unexplained, adapting(m, &b)...)
	return b.String(), unexplained
}

func renderMachine(m *measurements, b *strings.Builder) {
	fmt.Fprintf(b, "| | |\n|---|---|\n| CPU | %s × %s |\n| system | %s |\n| Go | %s |\n| commit | %s |\n| date | %s |\n| compared with | %s |\n",
		m.config["m-cpus"], m.config["cpu"], m.config["m-os"], m.config["m-go"], m.config["m-commit"], m.config["m-date"],
		strings.ReplaceAll(m.config["m-modules"], "; ", "<br>"))
	if missing := m.config["m-missing"]; missing != "" {
		fmt.Fprintf(b, "| missing | %s |\n", strings.ReplaceAll(missing, "; ", "<br>"))
	}
	b.WriteString("\n")
}
