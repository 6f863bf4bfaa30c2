package pattern

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// anyText returns a pattern that may be invalid in any way, or meet many others.
func anyText(r *rand.Rand) string {
	switch r.IntN(4) {
	case 0:
		return anyPattern(r)
	case 1:
		return pick(r, "", "", "GET ") + "/" + pick(r, "a", "{x}") + "/" + pick(r, "b", "{y}") + pick(r, "", "/", "/{$}", "/{z...}")
	}
	var b strings.Builder
	for range r.IntN(6) {
		b.WriteString(pick(r, "GET", "get", "G=T", " ", "\t", "a.com", "A.com:80", "/", "/", "/", "{x}", "{x}", "{y}", "{$}", "{z...}", "{", "}", "{}",
			"{1}", "{x", "{...}", "a{x}", "..", ".", "%2", "%2f", "?", "#", "\n", "é", "\xff", "*"))
	}
	return b.String()
}

// refusedBy returns what a ServeMux panics with if patterns are registered one after the other, without the place in the source;
// "" for each that it takes.
func refusedBy(mux *http.ServeMux, patterns []string) (reasons []string) {
	for _, p := range patterns {
		reasons = append(reasons, func() (reason string) {
			defer func() {
				if p := recover(); p != nil {
					reason = fmt.Sprint(p)
				}
			}()
			mux.Handle(p, http.NotFoundHandler())
			return ""
		}())
	}
	return reasons
}

func lowerHosts(patterns []string) (lower []string) {
	for _, p := range patterns {
		lower = append(lower, lowerHost(p))
	}
	return lower
}

// Invalid patterns and conflicts are exactly those of a ServeMux, and what is left works as there.
func TestVerdictsOnPatternsAreThoseOfServeMux(t *testing.T) {
	invalid, conflicts := 0, 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 2))
		patterns := make([]string, 1+r.IntN(8))
		for i := range patterns {
			patterns[i] = anyText(r)
		}
		mux := new(http.ServeMux)
		var valid, faults []string
		for i, reason := range refusedBy(mux, lowerHosts(patterns)) {
			switch {
			case reason == "":
				valid = append(valid, patterns[i])
				continue
			case strings.Contains(reason, "conflicts with"):
				conflicts++
			default:
				invalid++
			}
			faults = append(faults, fmt.Sprintf("pattern %q: ", patterns[i]))
		}
		var asked []string
		m, err := New(patterns, func(p string) string {
			asked = append(asked, p)
			return p
		})
		require.Equal(t, valid, asked, "a value is asked for once for each valid pattern, in order, as it was written: %q", patterns)
		if len(faults) == 0 {
			require.NoError(t, err, "%q", patterns)
		} else {
			lines := strings.Split(err.Error(), "\n")
			require.Len(t, lines, len(faults), "a line for each fault: %q", patterns)
			for i := range lines {
				require.True(t, strings.HasPrefix(lines[i], faults[i]), "%q instead of %q", lines[i], faults[i])
				require.NotContains(t, lines[i], "registered at")
			}
		}
		for range 10 {
			requireAgreement(t, m, mux, anyRequest(r))
		}
	}
	assert.Greater(t, invalid, 500)
	assert.Greater(t, conflicts, 500)
}

// validPatterns draws n patterns, and returns those that a ServeMux accepts together.
func validPatterns(r *rand.Rand, n int) (valid []string) {
	patterns := make([]string, n)
	for i := range patterns {
		patterns[i] = anyPattern(r)
	}
	reasons := refusedBy(new(http.ServeMux), lowerHosts(patterns))
	for i, p := range patterns {
		if reasons[i] == "" {
			valid = append(valid, p)
		}
	}
	return valid
}

func TestOrderOfPatternsDoesNotMatter(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 3))
		valid := validPatterns(r, 2+r.IntN(10))
		m, err := New(valid, self)
		require.NoError(t, err)
		r.Shuffle(len(valid), func(i, k int) { valid[i], valid[k] = valid[k], valid[i] })
		other, err := New(valid, self)
		require.NoError(t, err, "what conflicts does so in any order")
		for range 30 {
			req := anyRequest(r)
			want, _ := m.Match(req)
			got, _ := other.Match(req)
			require.Equal(t, want, got, "%q: %s %s%s", valid, req.Method, req.Host, req.URL.Path)
		}
	}
}

// A ServeMux treats CONNECT in its own way; to a Map it is a method as any other.
func TestConnectIsMatchedAsAnyOtherMethod(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 4))
		var connect []string
		other := validPatterns(r, 1+r.IntN(10)) // with CONNECT, a path that is not clean is valid, too
		for _, p := range other {
			connect = append(connect, strings.Replace(p, "PURGE", "CONNECT", 1))
		}
		m, err := New(connect, self)
		require.NoError(t, err)
		twin, err := New(other, self)
		require.NoError(t, err)
		for range 30 {
			req := anyRequest(r)
			req.Method = "PURGE"
			want, ok := twin.Match(req)
			req.Method = http.MethodConnect
			got, found := m.Match(req)
			require.Equal(t, ok, found)
			require.Equal(t, strings.Replace(want, "PURGE", "CONNECT", 1), got, "%q: %s%s", connect, req.Host, req.URL.Path)
		}
	}
}

// A client's requests have their host in the URL and may lack method and path; a server's have it in Host.
func TestHostOfTheURLCountsAsThatOfTheRequest(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 5))
		patterns := make([]string, 1+r.IntN(10))
		for i := range patterns {
			patterns[i] = anyPattern(r)
		}
		m, _ := mapOf(t, patterns...)
		for range 30 {
			server := anyRequest(r)
			client := &http.Request{Method: server.Method, URL: &url.URL{Host: server.Host, Path: server.URL.Path, RawPath: server.URL.RawPath}}
			if client.Method == http.MethodGet && r.IntN(2) == 0 {
				client.Method = ""
			}
			if client.URL.Path == "/" {
				client.URL.Path, client.URL.RawPath = "", ""
			}
			want, _ := m.Match(server)
			got, _ := m.Match(client)
			require.Equal(t, want, got, "%q: %s %s", patterns, client.Method, client.URL)
			client.Host = "other.com"
			server.Host = "other.com"
			want, _ = m.Match(server)
			got, _ = m.Match(client)
			require.Equal(t, want, got, "Host takes precedence over the URL: %q: %s %s", patterns, client.Method, client.URL)
		}
	}
}

func TestNameOfAWildcardHasNoEffect(t *testing.T) {
	for _, x := range [][2]string{{"GET a.com/{x}/b/{y...}", "GET a.com/{longer}/b/{x...}"}, {"/a/{x...}", "/a/{é...}"}, {"/a/", "/a/{rest...}"}} {
		m, err := New(x[:1], func(string) int { return 1 })
		require.NoError(t, err)
		other, err := New(x[1:], func(string) int { return 1 })
		require.NoError(t, err)
		r := rand.New(rand.NewPCG(1, 6))
		for range 2000 {
			req := anyRequest(r)
			want, _ := m.Match(req)
			got, _ := other.Match(req)
			require.Equal(t, want, got, "%q: %s", x, req.URL.Path)
		}
	}
}

// every calls f with all texts of those bytes that have up to n of them.
func every(bytes string, n int, f func(s string)) {
	of := []string{""}
	for range n + 1 {
		var longer []string
		for _, s := range of {
			f(s)
			for _, b := range bytes {
				longer = append(longer, s+string(b))
			}
		}
		of = longer
	}
}

func TestCleanPathsAreKnownAsSuch(t *testing.T) {
	every("/.a", 7, func(p string) {
		c := clean(p)
		require.Equal(t, c, clean(c), "%q", p)
		require.Equal(t, path.Clean("/"+p), path.Clean(c), "%q", p)
		require.Equal(t, strings.HasSuffix("/"+p, "/"), strings.HasSuffix(c, "/") && (c != "/" || strings.HasSuffix("/"+p, "/")), "%q is %q", p, c)
		if isClean(p) {
			require.Equal(t, c, p)
		}
		if c == p && !strings.Contains(p, "/.") {
			require.True(t, isClean(p), "%q", p)
		}
	})
}

func TestSegmentsOfAPathAreThePath(t *testing.T) {
	every("/a", 8, func(p string) {
		var all []string
		for rest := "/" + p; rest != ""; {
			var segment string
			segment, rest = cut(rest)
			require.NotContains(t, segment, "/")
			all = append(all, segment)
		}
		require.Equal(t, strings.Split(p, "/"), all)
	})
}

// Every path of few letters, against patterns that meet in all ways: literals, wildcards, {$} and trailing slashes.
func TestShortPathsAllMatchAsInServeMux(t *testing.T) {
	m, mux := mapOf(t, "/a", "/a/", "/a/{$}", "/a/{x}", "/a/{x}/", "/{x}/{$}", "/a/a/a", "/a/%2F", "/{x}/%2F/{y}", "/%2E/a", "POST /{x...}", "a.com/a/{x}")
	for _, host := range []string{"", "a.com", "A.COM:80"} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodHead} {
			every("/.a", 6, func(p string) {
				requireAgreement(t, m, mux, &http.Request{Method: method, Host: host, URL: &url.URL{Path: p}})
				raw := strings.ReplaceAll(p, ".", "%2F") // an escaped slash separates no segments
				if u, err := url.Parse("/" + raw); err == nil {
					requireAgreement(t, m, mux, &http.Request{Method: method, Host: host, URL: u})
				}
			})
		}
	}
}

// Only a path that must be cleaned or unescaped, and a host in upper case, cost memory.
func TestNoMatchOfAPlainRequestAllocates(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 7))
	var patterns []string
	for range 60 {
		patterns = append(patterns, anyPattern(r))
	}
	m, _ := mapOf(t, patterns...)
	for range 2000 {
		req := anyRequest(r)
		req.Host = strings.ToLower(req.Host)
		if req.URL.RawPath == "" && isClean(req.URL.Path) && !slices.Contains([]string{"a:b:c", "[::1]"}, req.Host) {
			require.Zero(t, testing.AllocsPerRun(1, func() { m.Match(req) }), "%s %s%s", req.Method, req.Host, req.URL.Path)
		}
	}
}

func TestRequestWithoutAURLMatchesNothing(t *testing.T) {
	m, err := New([]string{"/"}, self)
	require.NoError(t, err)
	got, ok := m.Match(&http.Request{Method: http.MethodGet, Host: "a.com"})
	assert.Empty(t, got)
	assert.False(t, ok)
}
