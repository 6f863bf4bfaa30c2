// Command heldback measures what clients get from middlewares that nothing in this module was designed for, and writes the tables of
// docs/lab/held-back.md (make held-back).
package main

import (
	"errors"
	"flag"
	"log"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/httpthrottle/throttle/internal/lab/realserver"
)

// phases are the parts of a window that have passed when a client begins, because some servers favour one.
var phases = []float64{0, 1. / 3, 2. / 3}

func main() {
	lanes := flag.Int("lanes", 16, "how many measurements run at the same time")
	page := flag.String("page", "../../../docs/lab/held-back.md", "replace the tables of this page")
	flag.Parse()
	old, err := os.ReadFile(*page)
	if err != nil {
		log.Fatal(err)
	}
	all, err := measureAll(settings(), *lanes)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(*page, []byte(replaceTables(string(old), tables(settings(), all))), 0o644); err != nil {
		log.Fatal(err)
	}
}

// A cell is a client at a server.
type cell struct{ setting, client string }

// measureAll returns what each client gets from each server, in each phase.
func measureAll(servers []setting, lanes int) (map[cell][]realserver.Result, error) {
	var (
		mu      sync.Mutex
		results = make(map[cell][]realserver.Result)
		failed  error
		group   sync.WaitGroup
		lane    = make(chan struct{}, lanes)
	)
	servers = slices.Clone(servers)
	slices.SortStableFunc(servers, func(a, b setting) int { return int(b.length() - a.length()) }) // the longest first
	for _, s := range servers {
		for _, c := range columns {
			for _, phase := range phases {
				lane <- struct{}{}
				group.Go(func() {
					defer func() { <-lane }()
					r, err := s.measure(c.client, phase)
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						failed = errors.Join(failed, err)
						return
					}
					log.Printf("%s: %s from %.0f %%: %.1f / %.2f, stalled %v", s.Name, c.client, 100*phase, r.Share, r.Refused, r.Stalled)
					key := cell{s.Name, c.client}
					results[key] = append(results[key], r)
				})
			}
		}
	}
	group.Wait()
	return results, failed
}

// length returns how long a client is measured.
func (s setting) length() time.Duration { return max(24*time.Second, 3*s.Per) }

// measure returns what a client gets from a server of its own, at which a window began with a request of another client so that this part
// of it has passed.
func (s setting) measure(client string, phase float64) (realserver.Result, error) {
	srv, err := s.start(s.Spec)
	if err != nil {
		return realserver.Result{}, err
	}
	defer srv.close()
	if phase > 0 {
		if _, err := get(http.DefaultClient, srv.url); err != nil {
			return realserver.Result{}, err
		}
		time.Sleep(time.Duration(phase * float64(s.Per)))
	}
	recorders, err := realserver.Load{Client: realserver.ClientNamed(client), Length: s.length()}.Run(
		&realserver.Server{Spec: s.Spec, URL: strings.TrimSuffix(srv.url, path)}, nil)
	if err != nil {
		return realserver.Result{}, err
	}
	return realserver.Summary(s.Spec, recorders, s.length()), nil
}
