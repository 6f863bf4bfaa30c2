package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/lab/realserver"
)

// A goal is the least share of the limit, and the largest share of what is sent that is refused, in percent.
type goal struct{ accepted, refused float64 }

func (g goal) met(r realserver.Result) bool { return r.Share >= g.accepted && r.Refused <= g.refused }

// The clients that are measured, by their names in realserver.
var columns = []struct {
	client string
	goal
}{
	{"known", goal{90, 1}},
	{"window", goal{85, 5}},
	{"hints", goal{85, 5}},
	{"adaptive", goal{85, 5}},
	{"adaptive from 10/s", goal{85, 5}},
	{"both", goal{85, 5}},
}

const title = "\n## Measured\n"

// replaceTables returns the page with other tables.
func replaceTables(page, with string) string {
	before, _, _ := strings.Cut(page, title)
	return before + title + with
}

// tables shows the results.
func tables(rows []setting, results map[cell][]realserver.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nAccepted, in percent of the limit / refused, in percent of what was sent: means of %d runs, %s. "+
		"Where not all runs meet the client's goal, the cell says how many do.\n\n| server |", len(phases), time.Now().Format("2 January 2006"))
	for _, c := range columns {
		fmt.Fprintf(&b, " %s |", c.client)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
	every, undisturbed := make([]count, len(columns)), make([]count, len(columns))
	var stalls []time.Duration
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |", row.Name)
		for i, c := range columns {
			all := results[cell{row.Name, c.client}]
			fmt.Fprintf(&b, " %s |", c.summary(all))
			for _, r := range all {
				every[i].add(c.met(r))
				if r.Stalled <= disturbed {
					undisturbed[i].add(c.met(r))
				}
				stalls = append(stalls, r.Stalled)
			}
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "| **runs that meet the goal** | %s |\n| **the same, of runs without a pause of more than %v** | %s |\n", joined(every), disturbed, joined(undisturbed))
	slices.Sort(stalls)
	fmt.Fprintf(&b, "\nThe longest time for which the machine did not let the clients' process run was %v in the median of the runs, and %v at most.\n",
		stalls[len(stalls)/2].Round(time.Millisecond), stalls[len(stalls)-1].Round(time.Millisecond))
	return b.String()
}

// disturbed is the pause of the clients' process above which a run shows the machine as well.
const disturbed = 200 * time.Millisecond

// A count is how many of some runs met their goal.
type count struct{ met, runs int }

func (c *count) add(met bool) {
	c.runs++
	if met {
		c.met++
	}
}

func joined(counts []count) string {
	texts := make([]string, len(counts))
	for i, c := range counts {
		texts[i] = fmt.Sprintf("%d of %d", c.met, c.runs)
	}
	return strings.Join(texts, " | ")
}

// summary returns the text of a cell.
func (g goal) summary(all []realserver.Result) string {
	var share, refused float64
	var met count
	for _, r := range all {
		share += r.Share / float64(len(all))
		refused += r.Refused / float64(len(all))
		met.add(g.met(r))
	}
	text := fmt.Sprintf("%.1f / %.1f", share, refused)
	if met.met < met.runs {
		text += fmt.Sprintf(" (%d)", met.met)
	}
	return text
}
