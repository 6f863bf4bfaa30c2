// Package pattern maps requests to values by patterns of [net/http.ServeMux]. A match does not allocate unless the path must be
// cleaned or unescaped, or the host has capitals or a port that net cannot split off.
//
// A ServeMux validates the patterns, so their syntax, their precedence and what is a conflict are those of the Go release
// that the program is built with. Requests are matched as ServeMux matches them, with these differences:
//   - The host is that of the URL where Request.Host is empty, as in a client's requests. An empty method is GET, and an
//     empty path is "/".
//   - Hosts match in any case: a client sends them as its URLs have them.
//   - A CONNECT request is matched as any other; ServeMux does not clean its path.
//   - GODEBUG=httpmuxgo121=1 has no effect on matching.
package pattern

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"
)

// A Map holds a value for each of its patterns. It is safe for concurrent use.
type Map[V any] struct {
	hosts, anyHost node
	values         []V // by leaf
}

// New returns a Map that holds value(p) for each pattern p. The error names every pattern that is invalid or conflicts
// with one before it.
func New[V any](patterns []string, value func(pattern string) V) (*Map[V], error) {
	m := &Map[V]{values: make([]V, 1)}
	var mux http.ServeMux
	var faults []error
	for _, pattern := range patterns {
		lower := lowerHost(pattern)
		err := validate(&mux, lower)
		if err == nil {
			m.values = append(m.values, value(pattern))
			err = m.add(lower, leaf(len(m.values)-1))
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("pattern %q: %w", pattern, err))
		}
	}
	return m, errors.Join(faults...)
}

// validate registers a pattern with mux, which panics if it is invalid.
func validate(mux *http.ServeMux, pattern string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			text := registered.ReplaceAllString(fmt.Sprint(p), "")
			err = errors.New(strings.ReplaceAll(text, "\n", " "))
		}
	}()
	mux.Handle(pattern, http.NotFoundHandler())
	return nil
}

// lowerHost returns a pattern with its host in lower case.
func lowerHost(pattern string) string {
	_, rest := cutMethod(pattern)
	host, _, _ := strings.Cut(rest, "/")
	method := pattern[:len(pattern)-len(rest)]
	return method + strings.ToLower(host) + rest[len(host):]
}

// cutMethod returns the method of a pattern, "" if it has none, and what follows it.
func cutMethod(pattern string) (method, rest string) {
	i := strings.IndexAny(pattern, " \t")
	if i < 0 {
		return "", pattern
	}
	return pattern[:i], strings.TrimLeft(pattern[i+1:], " \t")
}

// registered is what ServeMux says about the place in the source that a pattern comes from, which is this package.
var registered = regexp.MustCompile(` \(registered at [^)]*\)`)

// add adds a valid pattern: [METHOD ][HOST]/[PATH].
func (m *Map[V]) add(pattern string, l leaf) error {
	method, rest := cutMethod(pattern)
	i := strings.IndexByte(rest, '/')
	if i < 0 {
		return errors.New("it has no path")
	}
	n := &m.anyHost
	if host := rest[:i]; host != "" {
		n = m.hosts.child(host)
	}
	if method != "" {
		n = n.child(method)
	} else {
		n = n.wildChild()
	}
	for rest = rest[i:]; rest != ""; {
		var segment string
		segment, rest = cut(rest)
		switch {
		case segment == "" && rest == "", strings.HasPrefix(segment, "{") && strings.HasSuffix(segment, "...}"):
			n.rest = l
			return nil
		case segment == "{$}":
			n = n.child(slash)
		case strings.HasPrefix(segment, "{"):
			n = n.wildChild()
		default:
			n = n.child(unescape(segment))
		}
	}
	n.leaf = l
	return nil
}

// slash is the segment of a trailing slash that nothing follows, in a pattern {$}.
const slash = "/"

// cut returns the first segment of a path that begins with a slash, and what follows it.
func cut(path string) (segment, rest string) {
	for i := 1; i < len(path); i++ { // faster than strings.IndexByte, because segments are short
		if path[i] == '/' {
			return path[1:i], path[i:]
		}
	}
	return path[1:], ""
}

func unescape(segment string) string {
	if s, err := url.PathUnescape(segment); err == nil {
		return s
	}
	return segment
}

// Match returns the value of the pattern that matches r, and whether there is one.
func (m *Map[V]) Match(r *http.Request) (value V, ok bool) {
	if r.URL == nil {
		return value, false
	}
	s := search{method: r.Method, path: r.URL.Path}
	if s.method == "" {
		s.method = http.MethodGet
	}
	if r.URL.RawPath != "" {
		s.path, s.escaped = r.URL.EscapedPath(), true
	}
	l, exact := m.search(&s, r)
	if !exact && !isClean(s.path) {
		s = search{method: s.method, path: clean(s.path), escaped: s.escaped}
		l, _ = m.search(&s, r)
	}
	if (l == 0 || s.inexact) && s.withSlash != 0 {
		l = s.withSlash // such as /tree/ for /tree, which ServeMux would redirect there
	}
	return m.values[l], l != 0
}

// search returns the leaf of the most specific pattern: of the host first, then of any host. exact reports that the path is clean,
// and matches to its end.
func (m *Map[V]) search(s *search, r *http.Request) (l leaf, exact bool) {
	if s.path == "" || s.path[0] != '/' {
		return 0, false
	}
	if len(m.hosts.few) > 0 {
		host := hostOf(r)
		h := m.hosts.find(host)
		if h == nil {
			h = m.hosts.find(strings.ToLower(host))
		}
		if h != nil {
			l = s.host(h)
		}
	}
	if l == 0 {
		l = s.host(&m.anyHost)
	}
	return l, l != 0 && !s.inexact && !s.dotted
}

// isClean reports whether clean would return p. It may be wrong in saying no.
func isClean(p string) bool {
	if p == "" || p[0] != '/' {
		return false
	}
	for i := 1; i < len(p); i++ {
		if p[i-1] == '/' && (p[i] == '/' || p[i] == '.') {
			return false
		}
	}
	return true
}

// clean returns p as a ServeMux cleans it.
func clean(p string) string {
	if !strings.HasPrefix(p, "/") {
		p = "/" + p
	}
	cleaned := path.Clean(p)
	switch {
	case !strings.HasSuffix(p, "/") || cleaned == "/":
		return cleaned
	case p[:len(p)-1] == cleaned:
		return p
	}
	return cleaned + "/"
}

// hostOf returns the host of r without its port.
func hostOf(r *http.Request) string {
	host := r.Host
	if host == "" {
		host = r.URL.Host
	}
	if strings.IndexByte(host, ':') >= 0 {
		if h, _, err := net.SplitHostPort(host); err == nil {
			return h
		}
	}
	return host
}
