// Command realservers measures clients at real servers that limit requests in flight, next to failsafe-go, and writes that section of
// docs/lab/real-servers.md:
//
//	go run ./realservers -runs 3
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/failsafehttp"

	"github.com/httpthrottle/throttle/internal/lab/realserver"
)

const head = "### Servers that limit requests in flight\n"

// A column is a client.
type column struct {
	head string
	realserver.Client
}

func columns() []column {
	return []column{
		{"known", realserver.ClientNamed("known in flight")},
		{"in flight", realserver.ClientNamed("in flight")},
		{"rate and in flight", realserver.ClientNamed("rate and in flight")},
		{"rate", realserver.ClientNamed("adaptive from 10/s")},
		{"failsafe-go", realserver.Client{Name: "failsafe-go", Other: func(base http.RoundTripper) http.RoundTripper {
			return failsafehttp.NewRoundTripper(base, adaptivelimiter.NewBuilder[*http.Response]().WithMaxWaitTime(time.Hour).Build())
		}}},
	}
}

func main() {
	runs := flag.Int("runs", 3, "take the medians of this many runs")
	lanes := flag.Int("lanes", 3, "how many measurements run at the same time")
	only := flag.String("servers", "", "only those that match this regular expression; the page stays as it is")
	page := flag.String("page", "../../../docs/lab/real-servers.md", "replace the section of this page")
	flag.Parse()
	text, err := section(*runs, *lanes, regexp.MustCompile(*only))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(text)
	if *only != "" {
		return
	}
	if err := replace(*page, text); err != nil {
		log.Fatal(err)
	}
}

// next is the title that follows the section.
const next = "\n## Time until"

// replace puts the section in the place of the one in the page, or where it belongs.
func replace(page, text string) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(old), head)
	if !found {
		if before, rest, found = strings.Cut(string(old), next); !found {
			return fmt.Errorf("%s has no section %q", page, strings.TrimSpace(next))
		}
		before, rest = before+"\n", next+rest
	}
	after := ""
	if i := strings.Index(rest, "\n## "); i >= 0 {
		after = rest[i:]
	}
	return os.WriteFile(page, []byte(before+text+after), 0o644)
}

func section(runs, lanes int, only *regexp.Regexp) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, head+"\nAccepted, in percent of what the server can do / refused, in percent of what was sent / 99th percentile of the time until the header, "+
		"in milliseconds; %s of 20 s, %s. *Known* is `InFlight` of the server's number, *in flight* `WithAdaptiveInFlight()`, *rate* `WithAdaptive()`, "+
		"and *failsafe-go* its adaptive limiter with its defaults. There are 16 callers, or four for each request that the server works on at a time.\n\n| server |",
		realserver.Medians(runs), time.Now().UTC().Format("January 2006"))
	all := columns()
	for _, c := range all {
		fmt.Fprintf(&b, " %s |", c.head)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(all)) + "\n")
	var missing []string
	for _, spec := range realserver.Specs() {
		switch {
		case spec.Slots == 0 || !only.MatchString(spec.Name):
			continue
		case !spec.Installed():
			missing = append(missing, spec.Name)
			continue
		}
		cells, err := row(spec, all, runs, lanes)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "| %s | %s |\n", spec.Name, strings.Join(cells, " | "))
	}
	if len(missing) > 0 {
		fmt.Fprintf(&b, "\nNot measured, because not installed: %s.\n", strings.Join(missing, "; "))
	}
	return b.String(), nil
}

// row measures a server. Each client has one of its own.
func row(spec realserver.Spec, all []column, runs, lanes int) ([]string, error) {
	var (
		cells   = make([]string, len(all))
		results = make([][]realserver.Result, len(all))
		mu      sync.Mutex
		failed  error
		group   sync.WaitGroup
		lane    = make(chan struct{}, lanes)
	)
	for range runs {
		for i, c := range all {
			lane <- struct{}{}
			group.Go(func() {
				defer func() { <-lane }()
				r, err := measure(spec, c.Client)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					failed = err
					return
				}
				log.Printf("%s: %s: %.1f / %.1f / %v, stalled %v", spec.Name, c.head, r.Share, r.Refused, r.P99, r.Stalled)
				results[i] = append(results[i], r)
			})
		}
	}
	group.Wait()
	if failed != nil {
		return nil, failed
	}
	for i := range cells {
		m := realserver.Median(results[i])
		cells[i] = fmt.Sprintf("%.1f / %.1f / %d", m.Share, m.Refused, m.P99.Milliseconds())
	}
	return cells, nil
}

func measure(spec realserver.Spec, c realserver.Client) (realserver.Result, error) {
	srv, err := spec.Start()
	if err != nil {
		return realserver.Result{}, err
	}
	defer srv.Close()
	const length = 20 * time.Second
	recorders, err := realserver.Load{Client: c, Length: length}.Run(srv, nil)
	if err != nil {
		return realserver.Result{}, err
	}
	return realserver.Summary(srv.Spec, recorders, length), nil
}
