package throttle

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
)

// A CostFunc tells how many tokens a request costs. It must not change the request or read its body, and is called by
// many goroutines at once. 0 means that the limit does not apply; a negative cost is refused.
type CostFunc func(*http.Request) int64

// routes match requests against patterns of http.ServeMux.
type routes struct {
	mux  http.ServeMux
	pool sync.Pool
}

// A probe is a request as a ServeMux wants to see it; a client's may lack what a server's has.
type probe struct {
	request http.Request
	url     url.URL
}

func newRoutes(patterns []string) (*routes, error) {
	r := &routes{pool: sync.Pool{New: func() any { return new(probe) }}}
	var faults []error
	for _, pattern := range patterns {
		if err := r.add(pattern); err != nil {
			faults = append(faults, err)
		}
	}
	return r, errors.Join(faults...)
}

func (rs *routes) add(pattern string) (err error) {
	defer func() {
		// ServeMux says what is wrong with a pattern by a panic.
		if p := recover(); p != nil {
			err = fmt.Errorf("pattern %q: %v", pattern, p)
		}
	}()
	rs.mux.Handle(pattern, http.NotFoundHandler())
	return nil
}

// match returns the pattern that matches r, "" if none does.
func (rs *routes) match(r *http.Request) string {
	if r.URL == nil {
		return ""
	}
	p := rs.pool.Get().(*probe)
	defer rs.pool.Put(p)
	p.url = *r.URL
	p.url.User = nil
	if p.url.Path == "" {
		p.url.Path = "/"
	}
	p.request.Method, p.request.Host, p.request.URL = r.Method, hostOf(r), &p.url
	if r.Method == "" {
		p.request.Method = http.MethodGet
	}
	_, pattern := rs.mux.Handler(&p.request)
	return pattern
}

// weights give requests a cost by pattern.
type weights struct {
	routes *routes
	costs  map[string]int64
}

func newWeights(costs map[string]int64) (*weights, error) {
	var faults []error
	patterns := make([]string, 0, len(costs))
	for pattern, cost := range costs {
		patterns = append(patterns, pattern)
		if cost < 0 {
			faults = append(faults, fmt.Errorf("cost %d of pattern %q is negative", cost, pattern))
		}
	}
	routes, err := newRoutes(patterns)
	return &weights{routes, costs}, errors.Join(append(faults, err)...)
}

func (w *weights) cost(r *http.Request) int64 {
	if pattern := w.routes.match(r); pattern != "" {
		return w.costs[pattern]
	}
	return 1
}
