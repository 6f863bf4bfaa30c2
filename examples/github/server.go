package main

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A github refuses as https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api has it, with small
// numbers and short windows. It is safe for concurrent use.
type github struct {
	mu        sync.Mutex
	resources map[string]*resource
	inFlight  int
	pressing  int       // requests in a row that came although nothing was left
	shut      time.Time // the end of a secondary limit
	overlap   int       // requests for core that were accepted while nothing was left of search
}

// A resource has a limit of its own, the primary one. Its window begins with the first request and ends at a whole
// second, because x-ratelimit-reset is in seconds since 1970.
type resource struct {
	name        string
	limit, used int
	reset       time.Time
}

const (
	window      = 3 * time.Second
	mostAtOnce  = 10 // requests, or it is a secondary limit
	mostPresses = 10 // in a row, or it is one too
)

func newGitHub() *github {
	return &github{resources: map[string]*resource{
		"core":   {name: "core", limit: 60},
		"search": {name: "search", limit: 10},
	}}
}

func (g *github) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, message := g.admit(w.Header(), resourceOf(r), time.Now())
	defer g.leave()
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	if status == http.StatusOK {
		time.Sleep(20 * time.Millisecond) // the work
	}
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"message":%q}`+"\n", message)
}

func resourceOf(r *http.Request) string {
	if strings.HasPrefix(r.URL.Path, "/search/") {
		return "search"
	}
	return "core"
}

func (g *github) admit(h http.Header, name string, now time.Time) (status int, message string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight++
	res := g.resources[name]
	res.roll(now)
	defer res.setHeaders(h)
	switch {
	case now.Before(g.shut), g.inFlight > mostAtOnce, g.pressing >= mostPresses:
		if !now.Before(g.shut) {
			g.shut, g.pressing = now.Add(time.Second), 0
		}
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(g.shut.Sub(now).Seconds()))))
		return http.StatusForbidden, "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
	case res.used == res.limit:
		g.pressing++
		return http.StatusForbidden, "API rate limit exceeded for user ID 1."
	}
	res.used++
	g.pressing = 0
	if search := g.resources["search"]; name == "core" && search.used == search.limit && now.Before(search.reset) {
		g.overlap++
	}
	return http.StatusOK, "Here you are."
}

func (g *github) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight--
}

// roll begins a window if the one before has ended.
func (r *resource) roll(now time.Time) {
	if !now.Before(r.reset) {
		r.used, r.reset = 0, now.Truncate(time.Second).Add(window)
	}
}

func (r *resource) setHeaders(h http.Header) {
	for name, value := range map[string]string{
		"limit":     strconv.Itoa(r.limit),
		"remaining": strconv.Itoa(r.limit - r.used),
		"used":      strconv.Itoa(r.used),
		"reset":     strconv.FormatInt(r.reset.Unix(), 10),
		"resource":  r.name,
	} {
		h.Set("X-Ratelimit-"+name, value)
	}
}
