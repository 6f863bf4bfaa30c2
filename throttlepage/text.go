package throttlepage

import (
	"fmt"
	"strings"
	"text/tabwriter"
)

// textOf returns what the page shows as plain text, for a ticket or a chat: of one Limiter, or of all if id is "".
func textOf(v view, id string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "throttle, %s\n", v.At)
	if v.Filter != "" {
		fmt.Fprintf(&b, "keys and hosts that contain %q\n", v.Filter)
	}
	for i := range v.Limiters {
		if l := &v.Limiters[i]; id == "" || id == l.ID {
			b.WriteString("\n")
			l.writeText(&b)
		}
	}
	return strings.ReplaceAll(b.String(), "\u00a0", " ")
}

func (l *limiterView) writeText(b *strings.Builder) {
	fmt.Fprintf(b, "%s: %s. %s\n", l.Name, l.Word, l.Says)
	if l.DryRun {
		b.WriteString("  dry run: nothing is delayed or rejected\n")
	}
	for _, t := range l.Tiles {
		fmt.Fprintf(b, "  %s: %s (%s)\n", t.Label, t.Value, t.Note)
	}
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	if len(l.Members) > 0 {
		fmt.Fprintf(table, "\n  member\tstate\tafter\tsent\twaiting\tin flight\trefused\tlatency\t\n")
	}
	for _, x := range l.Members {
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Name, x.State, x.After, x.Sent, x.Waiting, x.InFlight, x.Refused, x.Latency, x.Why)
	}
	if len(l.Limits) > 0 {
		fmt.Fprintf(table, "\n  limit\trate\tleft\twaiting\tin flight\tp50\tp90\trejected\t\n")
	}
	for _, x := range l.Limits {
		left := x.Left.Text
		if x.Keys != "" {
			left = x.Keys
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Name, x.Rate, left, x.Waiting, x.InFlight, x.P50, x.P90, x.Rejected,
			joined(heldNote(x.Held), x.Unread, x.Warning, x.Mode, x.Ceiling))
	}
	if len(l.Limits) > 0 {
		fmt.Fprintf(table, "  (waits and rejections: %s)\n", l.Since)
	}
	if len(l.Stores) > 0 {
		fmt.Fprintf(table, "\n  store of\t\tcalls\tp50\tp90\tfailed\toutages\tleased\treturned\twithout it\t\n")
	}
	for _, x := range l.Stores {
		fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Limits, x.State, x.Calls, x.P50, x.P90, x.Failed, x.Outages,
			x.Leased, x.Returned, x.Alone, x.Troubles)
	}
	if len(l.Servers) > 0 {
		fmt.Fprintf(table, "\n  server\tquota\tleft\tresets in\t\n")
	}
	for _, x := range l.Servers {
		if len(x.Quotas) == 0 {
			fmt.Fprintf(table, "  %s\t\t\t\t%s\n", x.Host, joined(heldNote(x.Held), x.More))
		}
		for _, q := range x.Quotas {
			fmt.Fprintf(table, "  %s\t%s\t%s\t%s\t%s\n", x.Host, strings.TrimSpace(q.Name+" "+q.Unit), q.Left.Text, q.Reset, joined(heldNote(x.Held), x.More))
		}
	}
	if len(l.Keys) > 0 {
		fmt.Fprintf(table, "\n  key\tlimit\tleft\twaiting\tnext in\t\n")
	}
	for _, x := range l.Keys {
		fmt.Fprintf(table, "  %s\t%s %s\t%s\t%s\t%s\t%s\n", x.Key, x.Limit, x.Rate, x.Left.Text, x.Waiting, x.Next, heldNote(x.Held))
	}
	table.Flush() // a Builder never fails
	if len(l.Events) > 0 {
		b.WriteString("\n  events, the latest first (UTC)\n")
	}
	for _, e := range l.Events {
		fmt.Fprintf(b, "  %s  %s\n", e.when(), e.Text)
	}
}

func heldNote(d string) string {
	if d == "" {
		return ""
	}
	return "held " + d
}

func joined(notes ...string) string {
	var some []string
	for _, n := range notes {
		if n != "" {
			some = append(some, n)
		}
	}
	return strings.Join(some, ", ")
}

// when returns the time of an event.
func (e eventView) when() string {
	if e.Since == "" {
		return e.At
	}
	return e.Since + "–" + e.At
}
