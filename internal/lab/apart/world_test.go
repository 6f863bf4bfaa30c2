//go:build !race

package apart

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A world is a server with several quotas.
type world struct {
	seed   uint64
	host   string
	by     []string // what it counts by
	naming string   // how it reports its quotas
	refuse string   // how it says when to try again
	span   time.Duration
	quotas []*counted
}

// A counted is a quota, and those who send requests that fall under it.
type counted struct {
	name    string
	limit   int64
	window  time.Duration
	kind    string // how it counts
	callers int
	latency time.Duration // the mean of a request
	trait   map[string]string
}

var (
	dimensions = []string{"path", "deep path", "method", "credential", "model", "model in path"}
	namings    = []string{"plain", "plain", "draft", "one name", "named"}
	refusals   = []string{"Retry-After", "reset", "neither"}
	counts     = []string{"fixed", "fixed", "sliding", "bucket"}
)

func draw(seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 40))
	pick := func(from []string) string { return from[r.IntN(len(from))] }
	between := func(least, most float64) float64 { return math.Exp(math.Log(least) + r.Float64()*math.Log(most/least)) }
	w := &world{seed: seed, host: "api.example", naming: pick(namings), refuse: pick(refusals)}
	w.by = []string{pick(dimensions)}
	if r.IntN(4) == 0 {
		if more := pick(dimensions); more != w.by[0] {
			w.by = append(w.by, more)
		}
	}
	n := 2 + r.IntN(4)
	if len(w.by) == 1 && w.by[0] == "method" {
		n = min(n, 3)
	}
	per := between(1, 3600)
	size := between(10, 1500)
	same := r.IntN(5) == 0 // credentials of one plan
	for i := range n {
		q := &counted{name: fmt.Sprintf("quota-%c", 'a'+i), kind: pick(counts), callers: 3 + r.IntN(14), trait: map[string]string{}}
		window := per * []float64{1, 1, 1, 2, .5}[r.IntN(5)]
		q.limit = int64(math.Round(min(size*between(1, 40), 15_000, 100*window, 20_000)))
		if i == 0 || same {
			q.limit = int64(math.Round(min(size, 100*window)))
		}
		q.limit = max(q.limit, 10)
		q.window = time.Duration(math.Ceil(window)) * time.Second
		for d, by := range w.by {
			value := i
			if len(w.by) > 1 { // the first divides them into two groups
				value = []int{i % 2, i / 2}[d]
			}
			q.trait[by] = fmt.Sprint(value)
		}
		demand := between(1.3, 3) // requests that the callers could send, of those that the quota allows
		q.latency = time.Duration(float64(q.callers) * float64(q.window) / (demand * float64(q.limit)))
		q.latency = min(max(q.latency, 20*time.Millisecond), 2*time.Second)
		w.quotas = append(w.quotas, q)
		w.span = max(w.span, 5*q.window)
	}
	w.span = min(max(w.span, 20*time.Second), 4*time.Hour)
	return w
}

func (w *world) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: by %s, %s, refuses with %s, for %v", w.seed, strings.Join(w.by, " and "), w.naming, w.refuse, w.span)
	for _, q := range w.quotas {
		fmt.Fprintf(&b, "\n  %v: %d per %v, %s, %d callers, %v a request", q.trait, q.limit, q.window, q.kind, q.callers, q.latency.Round(time.Millisecond))
	}
	return b.String()
}

// request returns a request that falls under the quota.
func (w *world) request(ctx context.Context, q *counted, r *rand.Rand) *http.Request {
	method, url, body, token := "GET", "http://"+w.host+"/v1/items", "", "one"
	for by, value := range q.trait {
		switch by {
		case "path":
			url = "http://" + w.host + "/v1/items" + value
		case "method":
			method = []string{"GET", "POST", "DELETE"}[value[0]-'0']
		case "credential":
			token = value
		}
	}
	if value, ok := q.trait["deep path"]; ok {
		url += fmt.Sprintf("/%d/part%s", r.IntN(50), value)
	}
	if value, ok := q.trait["model in path"]; ok {
		url += "/models/m" + value + ":generate"
	}
	if value, ok := q.trait["model"]; ok {
		if method == "GET" {
			method = "POST"
		}
		body = fmt.Sprintf(`{"messages":[{"role":"user","content":"%d"}],"model":"m-%s"}`, r.IntN(1000), value)
	}
	var reader io.Reader
	if body != "" {
		reader = bytes.NewReader([]byte(body))
	}
	req, _ := http.NewRequestWithContext(ctx, method, url, reader)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Authorization", "Bearer "+token)
	return req
}

// A counter is the server's count of one quota.
type counter struct {
	*counted
	start time.Time
	at    int64       // fixed: which window
	used  int64       //
	log   []time.Time // sliding
	level float64     // bucket: what is used
	last  time.Time
}

// take counts a request, and returns what is left, until when nothing is if that is so, and whether it is accepted.
func (c *counter) take(now time.Time) (left int64, end time.Time, ok bool) {
	switch c.kind {
	case "fixed":
		if at := int64(now.Sub(c.start) / c.window); at != c.at {
			c.at, c.used = at, 0
		}
		if ok = c.used < c.limit; ok {
			c.used++
		}
		return c.limit - c.used, c.start.Add(time.Duration(c.at+1) * c.window), ok
	case "sliding":
		from, _ := slices.BinarySearchFunc(c.log, now.Add(-c.window), time.Time.Compare)
		for from < len(c.log) && !c.log[from].After(now.Add(-c.window)) {
			from++
		}
		c.log = c.log[from:]
		if ok = int64(len(c.log)) < c.limit; ok {
			c.log = append(c.log, now)
		}
		return c.limit - int64(len(c.log)), c.log[0].Add(c.window), ok
	default:
		rate := float64(c.limit) / c.window.Seconds()
		if !c.last.IsZero() {
			c.level = max(0, c.level-rate*now.Sub(c.last).Seconds())
		}
		c.last = now
		if ok = c.level+1 <= float64(c.limit); ok {
			c.level++
		}
		next := max(0, c.level+1-float64(c.limit)) / rate
		return int64(float64(c.limit) - c.level), now.Add(time.Duration(next * float64(time.Second))), ok
	}
}

// report writes what a response reports.
func (w *world) report(h http.Header, q *counted, left int64, end, now time.Time, ok bool) (wait time.Duration) {
	until := max(end.Sub(now), 0)
	seconds := int64(math.Ceil(until.Seconds()))
	reset := q.kind != "bucket" && (w.refuse != "neither")
	name := ""
	switch w.naming {
	case "one name":
		name = "default"
	case "named":
		name = q.name
	}
	switch w.naming {
	case "draft", "one name":
		if name == "" {
			name = "default"
		}
		h.Set("RateLimit-Policy", fmt.Sprintf(`"%s";q=%d;w=%d`, name, q.limit, int64(q.window.Seconds())))
		if reset {
			h.Set("RateLimit", fmt.Sprintf(`"%s";r=%d;t=%d`, name, left, seconds))
		} else {
			h.Set("RateLimit", fmt.Sprintf(`"%s";r=%d`, name, left))
		}
	default:
		h.Set("X-RateLimit-Limit", fmt.Sprint(q.limit))
		h.Set("X-RateLimit-Remaining", fmt.Sprint(left))
		if reset {
			h.Set("X-RateLimit-Reset", fmt.Sprint(seconds))
		}
		if name != "" {
			h.Set("X-RateLimit-Resource", name)
		}
	}
	if !ok && w.refuse == "Retry-After" {
		h.Set("Retry-After", fmt.Sprint(max(1, seconds)))
		return time.Duration(max(1, seconds)) * time.Second
	}
	if !ok && reset {
		return until
	}
	return 0
}
