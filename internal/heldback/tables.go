package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/realserver"
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
	met, runs := make([]int, len(columns)), make([]int, len(columns))
	var stalls []time.Duration
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s |", row.Name)
		for i, c := range columns {
			all := results[cell{row.Name, c.client}]
			text, k := c.summary(all)
			fmt.Fprintf(&b, " %s |", text)
			met[i] += k
			runs[i] += len(all)
			for _, r := range all {
				stalls = append(stalls, r.Stalled)
			}
		}
		b.WriteString("\n")
	}
	b.WriteString("| **runs that meet the goal** |")
	for i := range columns {
		fmt.Fprintf(&b, " %d of %d |", met[i], runs[i])
	}
	slices.Sort(stalls)
	fmt.Fprintf(&b, "\n\nThe longest time for which the machine did not let the clients' process run was %v in the median of the runs, and %v at most.\n",
		stalls[len(stalls)/2].Round(time.Millisecond), stalls[len(stalls)-1].Round(time.Millisecond))
	return b.String()
}

// summary returns the text of a cell, and how many runs meet the goal.
func (g goal) summary(all []realserver.Result) (text string, met int) {
	var share, refused float64
	for _, r := range all {
		share += r.Share / float64(len(all))
		refused += r.Refused / float64(len(all))
		if g.met(r) {
			met++
		}
	}
	text = fmt.Sprintf("%.1f / %.1f", share, refused)
	if met < len(all) {
		text += fmt.Sprintf(" (%d)", met)
	}
	return text, met
}
