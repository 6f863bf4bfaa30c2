package main

import (
	"fmt"
	"strings"
)

var adapterImpls = []string{"throttle", "aws", "failsafe-adaptive", "rule", "fixed-half", "fixed-exact", "fixed-double"}

// A sceneTable has a scene in each row, and an implementation in each column.
type sceneTable struct {
	id, title, note string
	units           []string
	better          func(ours, theirs result) bool // among those that did not know the limit either
}

var sceneTables = []sceneTable{
	{"goodput", "Goodput and refusals", "The requests that the server accepted, in percent of those of a client that knows the limit / the requests that it refused, in percent of those sent.",
		[]string{"%goodput", "%refused"}, acceptedMore},
	{"latency", "Latency", "Median / 99th percentile of the server's responses, in ms. A round trip takes 40 ms, and the service 10 ms.",
		[]string{"p50-ms", "p99-ms"}, lowerBy(5)},
	{"convergence", "Convergence", "Seconds until 90 % of the limit were accepted within one second, with at most a tenth refused / until 80 % were, after each change. " +
		"If that never happened, it is the rest of the scene.", []string{"s-found", "s-back-1", "s-back-2"}, lowerBy(0.5)},
	{"fairness", "Fairness", "Jain's index of ten clients that share a limit and do not know of each other. 1 means equal shares.", []string{"jain"}, fairer},
	{"outages", "Outages", "The number of requests sent during an outage of 30 s.", []string{"inOutage"}, lowerBy(1)},
	{"half", "Half load", "Median time from the caller's request to the response, in ms, of requests that arrive at random at half of the limit rate.", []string{"ms-random"}, lowerBy(1)},
}

func (t sceneTable) render(m *measurements, r *report) {
	if len(m.order["Adapting/scene"]) == 0 {
		return
	}
	b := &r.tables
	fmt.Fprintf(b, "### %s\n\n%s\n\n| |", t.title, t.note)
	for _, impl := range adapterImpls {
		fmt.Fprintf(b, " %s |", label(impl))
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(adapterImpls)) + "\n")
	for _, scene := range m.order["Adapting/scene"] {
		var cells []string
		for _, impl := range adapterImpls {
			cells = append(cells, t.cell(m, scene, impl))
		}
		if strings.Join(cells, "") != strings.Repeat("–", len(cells)) {
			fmt.Fprintf(b, "| %s | %s |\n", spaced(scene), strings.Join(cells, " | "))
		}
	}
	b.WriteString("\n")
	t.losses(m, r)
}

func (t sceneTable) cell(m *measurements, scene, impl string) string {
	var values []string
	for i, unit := range t.units {
		x, ok := inScene(m, scene, impl, unit)
		if !ok && i == 0 {
			return "–"
		}
		if ok {
			values = append(values, number(rounded(x)))
		}
	}
	return strings.Join(values, " / ")
}

// losses reports in which scenes other implementations are better than ours, and why.
func (t sceneTable) losses(m *measurements, r *report) {
	for _, scene := range m.order["Adapting/scene"] {
		ours := t.result(m, scene, "throttle")
		var who []string
		for _, impl := range []string{"aws", "failsafe-adaptive", "rule"} {
			theirs := t.result(m, scene, impl)
			if len(theirs.values) > 0 && t.better(ours, theirs) {
				who = append(who, label(impl)+" "+t.cell(m, scene, impl))
			}
		}
		if len(who) == 0 {
			continue
		}
		reason := why(t.id, spaced(scene))
		if reason == "" {
			r.unexplained = append(r.unexplained, t.id+"/"+spaced(scene))
			reason = "No reason is known yet."
		}
		r.lose(t.title, fmt.Sprintf("**%s**, ours %s: %s", spaced(scene), t.cell(m, scene, "throttle"), strings.Join(who, ", ")), reason)
	}
}

// A result is what an implementation reached in a scene.
type result struct {
	goodput, refused float64
	values           []float64 // of the table's units
}

func (t sceneTable) result(m *measurements, scene, impl string) (r result) {
	r.goodput, _ = inScene(m, scene, impl, "%goodput")
	r.refused, _ = inScene(m, scene, impl, "%refused")
	for _, unit := range t.units {
		if x, ok := inScene(m, scene, impl, unit); ok {
			r.values = append(r.values, x)
		}
	}
	return r
}

// acceptedMore reports whether more requests were accepted with less than a tenth refused, or as many with fewer refused.
func acceptedMore(ours, theirs result) bool {
	return theirs.goodput > ours.goodput+0.5 && theirs.refused < 10 ||
		theirs.goodput >= ours.goodput && theirs.refused < ours.refused-0.1
}

// alike leaves out implementations that send next to nothing, or everything: these have the best latencies and shares.
func alike(ours, theirs result) bool {
	return theirs.goodput >= 0.8*ours.goodput && theirs.refused <= 10
}

// lowerBy reports whether any value is lower, by more than a tenth and more than an amount.
func lowerBy(amount float64) func(ours, theirs result) bool {
	return func(ours, theirs result) bool {
		for i, x := range theirs.values {
			if i < len(ours.values) && x < 0.9*ours.values[i] && x < ours.values[i]-amount {
				return alike(ours, theirs)
			}
		}
		return false
	}
}

func fairer(ours, theirs result) bool {
	return alike(ours, theirs) && theirs.values[0] > ours.values[0]+0.01
}

// rounded drops what differs between runs anyway.
func rounded(x float64) float64 {
	switch {
	case x >= 100:
		return float64(int(x + 0.5))
	case x >= 10:
		return float64(int(x*10+0.5)) / 10
	}
	return float64(int(x*100+0.5)) / 100
}

func inScene(m *measurements, scene, impl, unit string) (float64, bool) {
	return m.median("Adapting", unit, "scene="+scene, "impl="+impl, "cpu=1")
}

func spaced(scene string) string { return strings.ReplaceAll(scene, "_", " ") }
