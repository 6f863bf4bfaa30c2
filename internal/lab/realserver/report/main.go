// Command report measures what clients get from real servers, and prints it as the page docs/lab/real-servers.md (make servers).
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/httpthrottle/throttle/internal/lab/realserver"
)

// The clients of the columns.
var columns = []string{"known", "known without hints", "window", "hints", "adaptive", "adaptive from 10/s", "in flight", "rate and in flight", "known in flight", "both"}

func main() {
	servers := flag.String("servers", "", "measure the servers that match this regular expression only")
	clients := flag.String("clients", "", "measure the clients that match this regular expression only")
	lanes := flag.Int("lanes", 12, "how many measurements run at the same time")
	runs := flag.Int("runs", 1, "take the medians of this many runs")
	out := flag.String("o", "", "write the page to this file too")
	flag.Parse()
	ofServer, ofClient := regexp.MustCompile(*servers), regexp.MustCompile(*clients)

	r := &report{runs: *runs, lanes: make(chan struct{}, *lanes), results: make(map[realserver.Bar]*cell)}
	for _, spec := range realserver.Specs() {
		switch {
		case !ofServer.MatchString(spec.Name):
		case !spec.Installed():
			r.missing = append(r.missing, spec.Name)
		default:
			r.rows = append(r.rows, spec.Name)
		}
	}
	r.columns = slices.DeleteFunc(columns, func(c string) bool { return !ofClient.MatchString(c) })
	for _, bar := range realserver.Bars() {
		if slices.Contains(r.rows, bar.Spec) && ofClient.MatchString(bar.Client) {
			r.bars = append(r.bars, bar)
		}
	}
	r.measure()
	r.write(os.Stdout)
	if *out == "" {
		return
	}
	f, err := os.Create(*out)
	if err != nil {
		log.Fatal(err)
	}
	r.write(f)
	if err := f.Close(); err != nil {
		log.Fatal(err)
	}
}

// A report is a page in the making.
type report struct {
	rows, columns, missing []string
	bars                   []realserver.Bar
	runs                   int
	lanes                  chan struct{}
	results                map[realserver.Bar]*cell // by the load: the rest of the key is zero
}

// A cell is one load at one server.
type cell struct {
	mu  sync.Mutex
	all []realserver.Result
}

func (c *cell) median() realserver.Result { return realserver.Median(c.all) }

// load is the part of a bar that says what is measured.
func load(b realserver.Bar) realserver.Bar {
	return realserver.Bar{Spec: b.Spec, Client: b.Client, Clients: b.Clients, Callers: b.Callers, Length: b.Length}
}

// measure fills in the results, the longest first.
func (r *report) measure() {
	var loads []realserver.Bar
	add := func(b realserver.Bar) {
		if !slices.Contains(loads, b) {
			loads = append(loads, b)
			r.results[b] = new(cell)
		}
	}
	for _, bar := range r.bars {
		add(load(bar))
		if bar.Like != "" {
			bar.Client = bar.Like
			add(load(bar))
		}
	}
	for _, row := range r.rows {
		for _, column := range r.columns {
			add(realserver.Bar{Spec: row, Client: column})
		}
	}
	slices.SortStableFunc(loads, func(a, b realserver.Bar) int { return int(b.Length - a.Length) })
	var all sync.WaitGroup
	for range r.runs {
		for _, b := range loads {
			r.lanes <- struct{}{}
			all.Go(func() {
				defer func() { <-r.lanes }()
				result, err := b.Measure()
				if err != nil {
					log.Fatal(err)
				}
				log.Printf("%s: %.1f %% / %.2f %%", b, result.Share, result.Refused)
				c := r.results[b]
				c.mu.Lock()
				c.all = append(c.all, result)
				c.mu.Unlock()
			})
		}
	}
	all.Wait()
}

const head = `# Real servers

[What to expect](../server-hints.md#what-to-expect) has the advice. This page has what clients get from rate-limited servers, by ` + "`make servers`" + ` over loopback: %d callers that always have another
request, for 20 s unless the table says otherwise; %s, %s. Each server accepts 50 requests per second unless its name
says otherwise, and takes 2 ms for a request (40 ms where it counts requests in flight).

- *known* is a token bucket with 95 %% of the limit and a burst of 1. *Window* is a sliding window of 95 %% of it.
- *hints* has no limit of its own, only server hints.
- *adaptive* is ` + "`WithAdaptive`" + ` from twice the limit, or from the default start. *Both* is known and adaptive together.
- *in flight* is ` + "`WithAdaptiveInFlight`" + `. *Rate and in flight* adds ` + "`WithAdaptive`" + `. *Known in flight* is ` + "`InFlight`" + ` of the right size, where the server limits that.

`

func (r *report) write(w io.Writer) {
	fmt.Fprintf(w, head, 16, realserver.Medians(r.runs), time.Now().Format("January 2006"))
	r.table(w, "Accepted, in percent of the server's limit / refused, in percent of what was sent", func(m realserver.Result) string {
		return fmt.Sprintf("%.1f / %.1f", m.Share, m.Refused)
	})
	r.table(w, "Time until the header of an accepted response, median / 99th percentile, in milliseconds", func(m realserver.Result) string {
		return fmt.Sprintf("%d / %d", m.P50.Milliseconds(), m.P99.Milliseconds())
	})
	r.longer(w)
	r.goals(w)
	if len(r.missing) > 0 {
		fmt.Fprintf(w, "Not measured, because not installed: %s.\n", strings.Join(r.missing, "; "))
	}
}

func (r *report) table(w io.Writer, title string, text func(realserver.Result) string) {
	fmt.Fprintf(w, "## %s\n\n| server | %s |\n|---|%s\n", title, strings.Join(r.columns, " | "), strings.Repeat("---|", len(r.columns)))
	for _, row := range r.rows {
		fmt.Fprintf(w, "| %s |", row)
		for _, column := range r.columns {
			fmt.Fprintf(w, " %s |", text(r.results[realserver.Bar{Spec: row, Client: column}].median()))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
}

// longer is the table of the loads that are not in the others.
func (r *report) longer(w io.Writer) {
	fmt.Fprint(w, "## Other loads\n\nFairness is Jain's index of what the clients got: 1 means equal shares. The trend compares the ratio of the largest to ",
		"the smallest share in the last third of the time with that in the second third.\n\n",
		"| server | client | clients | seconds | callers each | accepted / refused | p50 / p99, ms | fairness | trend |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, bar := range r.bars {
		if bar.Length == 0 && bar.Callers == 0 && bar.Clients == 0 {
			continue
		}
		m := r.results[load(bar)].median()
		fairness := "| |"
		if bar.Clients > 1 {
			fairness = fmt.Sprintf("%.3f | %.2f |", m.Jain, m.Trend)
		}
		fmt.Fprintf(w, "| %s | %s | %d | %.0f | %d | %.1f / %.1f | %d / %d | %s\n", bar.Spec, bar.Client, max(1, bar.Clients),
			max(20, bar.Length.Seconds()), max(16, bar.Callers), m.Share, m.Refused, m.P50.Milliseconds(), m.P99.Milliseconds(), fairness)
	}
	fmt.Fprintln(w)
}

// goals lists what is not reached and why, and logs what is reached although the tests assert less.
func (r *report) goals(w io.Writer) {
	var missed []string
	for _, bar := range r.bars {
		m := r.results[load(bar)].median()
		text := fmt.Sprintf("%.1f / %.2f", m.Share, m.Refused)
		if bar.Like != "" {
			like := bar
			like.Client = bar.Like
			known := r.results[load(like)].median()
			m.Share *= 100 / known.Share
			m.Slower = float64(m.P50) / float64(known.P50)
			text = fmt.Sprintf("%.1f %% of %s", m.Share, bar.Like)
		}
		_, why := bar.Least()
		switch {
		case bar.Reached(m, 0) && why != "":
			log.Printf("reached, although listed as missed: %s: %s", bar, text)
		case !bar.Reached(m, 0):
			if why != "" {
				why = ": " + why
			}
			missed = append(missed, fmt.Sprintf("- %s: %s%s%s", bar, text, aim(bar, m), why))
		}
	}
	fmt.Fprintf(w, "## Goals\n\n%d of %d goals are reached.", len(r.bars)-len(missed), len(r.bars))
	if len(missed) > 0 {
		fmt.Fprintf(w, " These goals are missed, each with its reason:\n\n%s", strings.Join(missed, "\n"))
	}
	fmt.Fprint(w, "\n\n")
}

func aim(b realserver.Bar, m realserver.Result) string {
	text := fmt.Sprintf(" (goal %.0f", b.Share)
	if b.Refused > 0 {
		text += fmt.Sprintf(" / %.1f", b.Refused)
	}
	if b.P50 > 0 {
		text += fmt.Sprintf(", median %v: %v", b.P50, m.P50.Round(time.Millisecond))
	}
	if b.Slower > 0 {
		text += fmt.Sprintf(", median %.1f times: %.1f", b.Slower, m.Slower)
	}
	if b.Clients > 1 {
		text += fmt.Sprintf(", fairness %.2f: %.3f, trend %.1f: %.2f", b.Jain, m.Jain, b.Trend, m.Trend)
	}
	return text + ")"
}
