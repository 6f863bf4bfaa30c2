package pattern

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// mapOf returns a Map of those patterns that are valid beside each other, each its own value, and a ServeMux of the same.
func mapOf(t testing.TB, patterns ...string) (*Map[string], *http.ServeMux) {
	mux, valid := new(http.ServeMux), []string(nil)
	for _, p := range patterns {
		if validate(mux, lowerHost(p)) == nil {
			valid = append(valid, p)
		}
	}
	m, err := New(valid, self)
	require.NoError(t, err)
	return m, mux
}

func self(pattern string) string { return pattern }

// requireAgreement checks that a Map finds the pattern that a ServeMux finds if all hosts are in lower case.
func requireAgreement(t testing.TB, m *Map[string], mux *http.ServeMux, r *http.Request) {
	lower := *r
	lower.Host = strings.ToLower(r.Host)
	_, want := mux.Handler(&lower)
	got, ok := m.Match(r)
	require.Equal(t, want, lowerHost(got), "%s %s%s, raw %q", r.Method, r.Host, r.URL.Path, r.URL.RawPath)
	require.Equal(t, want != "", ok)
}

// TestMapAgreesWithServeMux compares random patterns and requests, of few words so that many of them meet.
func TestMapAgreesWithServeMux(t *testing.T) {
	found := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		patterns := make([]string, 1+r.IntN(12))
		for i := range patterns {
			patterns[i] = anyPattern(r)
		}
		m, mux := mapOf(t, patterns...)
		for range 40 {
			req := anyRequest(r)
			requireAgreement(t, m, mux, req)
			if _, ok := m.Match(req); ok {
				found++
			}
		}
	}
	require.Greater(t, found, 3000*40/10, "too few requests match")
}

func pick(r *rand.Rand, from ...string) string { return from[r.IntN(len(from))] }

var methods = []string{"GET", "HEAD", "POST", "PURGE"}

func anyPattern(r *rand.Rand) string {
	var b strings.Builder
	if r.IntN(2) == 0 {
		b.WriteString(pick(r, methods...) + pick(r, " ", "\t", "  "))
	}
	b.WriteString(pick(r, "", "", "", "a.com", "b.com", "::1", "[::1]", "A.com"))
	for i := range r.IntN(4) {
		b.WriteString("/" + pick(r, "a", "b", "c", "a b", "%61", "%2F", "%", "é", "", ".", "..", "*", fmt.Sprintf("{x%d}", i)))
	}
	b.WriteString(pick(r, "", "/", "/{$}", "/{rest...}"))
	return b.String()
}

func anyRequest(r *rand.Rand) *http.Request {
	var b strings.Builder
	for range r.IntN(5) {
		b.WriteString("/" + pick(r, "a", "b", "c", "a", "b", "c", "a b", "%61", "%2F", "%2f", "%", "é", "", ".", "..", ".a", "*", "{x0}"))
	}
	b.WriteString(pick(r, "", "/", "/"))
	path := b.String()
	req := &http.Request{Method: pick(r, methods...), Host: pick(r, "", "a.com", "b.com:80", "[::1]:443", "[::1]", "A.com", "c.com", "a:b:c")}
	if u, err := url.ParseRequestURI(path); err == nil && r.IntN(2) == 0 {
		req.URL = u
	} else {
		req.URL = &url.URL{Path: path}
	}
	return req
}

func FuzzMap(f *testing.F) {
	f.Add("GET a.com/x/{y}\n/x/\nPOST /{z...}\n/{$}", "GET", "a.com:80", "/x/y", "")
	f.Add("/a/%2F\n/a/{$}\n/a//b", "HEAD", "", "/a//", "/a/%2F")
	f.Add("/a/{x}/c\n/a/b/\n/a/b/{y}", "PUT", "[::1]", "/a/./b/../b", "")
	f.Fuzz(func(t *testing.T, patterns, method, host, path, raw string) {
		if method == "" || method == http.MethodConnect || len(patterns) > 500 {
			return // Map differs on purpose
		}
		m, mux := mapOf(t, strings.Split(patterns, "\n")...)
		requireAgreement(t, m, mux, &http.Request{Method: method, Host: host, URL: &url.URL{Path: path, RawPath: raw}})
	})
}

func TestRequestsOfAClientAreMatchedToo(t *testing.T) {
	m, err := New([]string{"GET a.com/{$}", "CONNECT c.com/", "/tree/", "b.com/x", "GET D.com/{id}"}, self)
	require.NoError(t, err)
	for want, r := range map[string]*http.Request{
		"GET a.com/{$}":  {URL: &url.URL{Host: "a.com:443"}},
		"CONNECT c.com/": {Method: http.MethodConnect, Host: "c.com:443", URL: &url.URL{Host: "c.com:443"}},
		"/tree/":         {Method: http.MethodConnect, URL: &url.URL{Path: "/tree"}},
		"b.com/x":        {Method: http.MethodPut, Host: "b.com", URL: &url.URL{Host: "a.com", Path: "/./x"}},
		"GET D.com/{id}": {URL: &url.URL{Host: "d.COM:80", Path: "/1"}},
		"":               {Method: http.MethodGet},
	} {
		got, ok := m.Match(r)
		require.Equal(t, want, got)
		require.Equal(t, want != "", ok)
	}
}

func TestErrorsNameEveryPattern(t *testing.T) {
	_, err := New([]string{"GET /a", "GET {", "/{x}/", "no path", "GET /a", ""}, self)
	require.EqualError(t, err, strings.Join([]string{
		`pattern "GET {": parsing "GET {": at offset 4: host/path missing /`,
		`pattern "no path": parsing "no path": at offset 3: host/path missing /`,
		`pattern "GET /a": pattern "GET /a" conflicts with pattern "GET /a": GET /a matches the same requests as GET /a`,
		`pattern "": http: invalid pattern`,
	}, "\n"))
	_, err = New([]string{"/a/{x}", "/{y}/b"}, self)
	require.ErrorContains(t, err, `pattern "/{y}/b" conflicts with pattern "/a/{x}"`)
	require.NotContains(t, err.Error(), ".go")
}

// TestManyBranchesAreFound has more methods, hosts and segments at one place than are looked through one by one.
func TestManyBranchesAreFound(t *testing.T) {
	var patterns []string
	for i := range 3 * fewEdges {
		patterns = append(patterns, fmt.Sprintf("M%d h%d.com/p%d/q%d", i, i, i, i), fmt.Sprintf("/p%d", i), fmt.Sprintf("PUT /p%d/", i))
	}
	m, mux := mapOf(t, patterns...)
	for i := range 3 * fewEdges {
		for _, r := range []*http.Request{
			{Method: fmt.Sprintf("M%d", i), Host: fmt.Sprintf("h%d.com", i), URL: &url.URL{Path: fmt.Sprintf("/p%d/q%d", i, i)}},
			{Method: http.MethodGet, URL: &url.URL{Path: fmt.Sprintf("/p%d", i)}},
			{Method: http.MethodPut, URL: &url.URL{Path: fmt.Sprintf("/p%d", i)}},
		} {
			requireAgreement(t, m, mux, r)
			_, ok := m.Match(r)
			require.True(t, ok)
		}
	}
}

// usual are patterns and requests as a client of an API has them.
var usual = map[string]int64{"POST /upload": 10, "api.example.com/search/": 3, "GET /users/{id}/events": 2, "/": 1}

func requests(tb testing.TB) (all []*http.Request) {
	for _, s := range []string{
		"POST https://api.example.com/upload", "GET https://api.example.com/search/code?q=x", "GET https://example.com:8443/users/42/events",
		"HEAD https://api.example.com/users/42/events", "GET https://example.com/a%2Fb/.well-known", "DELETE https://example.com",
	} {
		method, address, _ := strings.Cut(s, " ")
		r, err := http.NewRequest(method, address, nil)
		require.NoError(tb, err)
		all = append(all, r)
	}
	return all
}

func TestMatchDoesNotAllocate(t *testing.T) {
	m, err := New(slices.Collect(maps.Keys(usual)), func(p string) int64 { return usual[p] })
	require.NoError(t, err)
	for _, r := range slices.DeleteFunc(requests(t), func(r *http.Request) bool { return r.URL.RawPath != "" }) {
		require.Zero(t, testing.AllocsPerRun(100, func() { m.Match(r) }), "%s %s", r.Method, r.URL)
	}
}

func BenchmarkMatch(b *testing.B) {
	m, err := New(slices.Collect(maps.Keys(usual)), func(p string) int64 { return usual[p] })
	require.NoError(b, err)
	mux := new(http.ServeMux)
	for p := range usual {
		mux.Handle(p, http.NotFoundHandler())
	}
	for _, r := range requests(b) {
		name := r.Method + " " + r.URL.Path
		b.Run("map/"+name, func(b *testing.B) {
			for b.Loop() {
				m.Match(r)
			}
		})
		b.Run("mux/"+name, func(b *testing.B) {
			r.URL.Path = max(r.URL.Path, "/")
			for b.Loop() {
				mux.Handler(r)
			}
		})
	}
}
