package throttlepage

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden page")

// request returns a request to this machine.
func request(method, path string) *http.Request {
	r := httptest.NewRequest(method, path, nil)
	r.Host = "localhost"
	return r
}

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, request(http.MethodGet, path))
	return w
}

// all returns every text that a handler sends.
func all(t *testing.T, h http.Handler) map[string]string {
	t.Helper()
	page, state := get(h, "/"), get(h, "/state.json")
	require.Equal(t, http.StatusOK, page.Code)
	require.Equal(t, http.StatusOK, state.Code)
	return map[string]string{"page": page.Body.String(), "state": state.Body.String(), "event": firstEvent(t, h), "text": get(h, "/text").Body.String()}
}

func TestFirstLookIsComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(map[string]source{"github": busy(time.Now()), "idle": &fake{stats: throttle.Stats{DryRun: true}}})
		got := string(p.frame(query{}).content)
		if *update {
			require.NoError(t, os.WriteFile("testdata/content.html", []byte(got), 0o644))
		}
		want, err := os.ReadFile("testdata/content.html")
		require.NoError(t, err)
		assert.Equal(t, string(want), got)
		assert.Contains(t, get(p, "/").Body.String(), got)
	})
}

func TestStoreThatIsUnreachableIsSeenFirst(t *testing.T) {
	f := busy(time.Now())
	f.stats.Rejected, f.stores[1].Up = throttle.Counts[throttle.Reason]{}, false
	page := get(newPage(map[string]source{"github": f}), "/").Body.String()
	for _, want := range []string{
		`<b class="state">no store</b>`, "The store of “learned” is unreachable.", `“learned” <b class="state">unreachable</b>`,
		`“requests”, “tenants” <b class="state">reachable</b>`, `data-label="Calls">232<`, `data-label="Leased">18,400<`, `data-label="Returned">31<`,
		`data-label="Outages">1<`, `data-label="Without it">7<`, "another process has a stricter rule, 1 ask about an unreadable budget",
	} {
		assert.Contains(t, page, want)
	}
}

func TestHeadersAreStrict(t *testing.T) {
	p := newPage(map[string]source{"a": &fake{}})
	for _, path := range []string{"/", "/state.json", "/nothing"} {
		h := get(p, path).Header()
		assert.Equal(t, "no-store", h.Get("Cache-Control"), path)
		assert.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), path)
		assert.Equal(t, "no-referrer", h.Get("Referrer-Policy"), path)
		policy := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'"} {
			assert.Contains(t, policy, want, path)
		}
		assert.NotContains(t, policy, "unsafe")
		assert.NotContains(t, policy, "*")
	}
	assert.Equal(t, "text/html; charset=utf-8", get(p, "/").Header().Get("Content-Type"))
	assert.Equal(t, "application/json", get(p, "/state.json").Header().Get("Content-Type"))
}

// What the policy does not allow, a browser drops without a word to the user.
func TestPolicyAllowsOwnScriptAndStyle(t *testing.T) {
	w := get(newPage(map[string]source{"a": busy(time.Now())}), "/")
	page, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
	for _, element := range []string{"script", "style"} {
		found := regexp.MustCompile(`(?s)<`+element+`>(.*?)</`+element+`>`).FindAllStringSubmatch(page, -1)
		require.Len(t, found, 1)
		assert.Contains(t, policy, element+"-src "+hashOf(found[0][1])+";")
	}
	assert.NotRegexp(t, `(?i)<[^>]* (style|on[a-z]+)=`, page, "no inline style or handler")
	assert.NotRegexp(t, `(?i)(src|href|action)="(https?:)?//`, page, "no other host")
}

func TestScriptIsSmall(t *testing.T) {
	assert.Less(t, len(mustRead("page.js")), 5<<10)
}

func TestNothingIsWritable(t *testing.T) {
	p := newPage(map[string]source{"a": &fake{}})
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions} {
		w := httptest.NewRecorder()
		p.ServeHTTP(w, request(method, "/"))
		assert.Equal(t, http.StatusMethodNotAllowed, w.Code, method)
		assert.Equal(t, "GET, HEAD", w.Header().Get("Allow"), method)
	}
}

func TestHeadSendsNoStream(t *testing.T) {
	w := httptest.NewRecorder()
	newPage(nil).ServeHTTP(w, request(http.MethodHead, "/events"))
	assert.Equal(t, "text/event-stream", w.Header().Get("Content-Type"))
	assert.Empty(t, w.Body.String())
}

func TestServesAtEveryPath(t *testing.T) {
	p := newPage(map[string]source{"github": &fake{}})
	for name, mount := range map[string]func(*http.ServeMux){
		"/":                func(m *http.ServeMux) { m.Handle("/", p) },
		"/debug/throttle/": func(m *http.ServeMux) { m.Handle("/debug/throttle/", p) },
		"/admin/limits/":   func(m *http.ServeMux) { m.Handle("/admin/", http.StripPrefix("/admin/limits", p)) },
		"/x/":              func(m *http.ServeMux) { m.Handle("GET /x/", http.StripPrefix("/x/", p)) },
	} {
		mux := http.NewServeMux()
		mount(mux)
		assert.Contains(t, get(mux, name).Body.String(), "<h2>github</h2>", name)
		assert.True(t, json.Valid(get(mux, name+"state.json").Body.Bytes()), name)
		assert.Contains(t, firstEvent(t, at(mux, name)), "github", name)
		assert.Equal(t, http.StatusNotFound, get(mux, name+"favicon.ico").Code, name)
	}
}

// at serves the root as h serves that path.
func at(h http.Handler, path string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = path + strings.TrimPrefix(r.URL.Path, "/")
		h.ServeHTTP(w, r)
	})
}

var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `</main></style><script>`, `{{.}}`, `javascript:alert(1)`,
	"\r\n\r\nevent: close\ndata: x", "nul\x00 esc\x1b[31m", "turned\u202eround", "broken\xff\xc0utf8", "line\u2028break", strings.Repeat("long", 1<<16),
}

func TestHostileNamesStayText(t *testing.T) {
	for _, name := range hostile {
		f := busy(time.Now())
		for i := range f.limits[:3] {
			f.limits[i].Name = name
		}
		f.single.Limit, f.stores[0].Limits[0] = name, name
		f.buckets[2].Key, f.buckets[2].Limit = name, name
		f.servers[1].Host, f.servers[1].Account = name, name
		f.servers[1].Quotas[0].Name, f.servers[1].Quotas[0].Unit = name, name
		for part, text := range all(t, newPage(map[string]source{name: f})) {
			assertHarmless(t, name, part, text)
		}
	}
}

func assertHarmless(t *testing.T, name, part, text string) {
	t.Helper()
	assert.True(t, utf8.ValidString(text), "%s of %.40q", part, name)
	switch part {
	case "state":
		assert.True(t, json.Valid([]byte(text)), "%.40q", name)
		return
	case "text":
		assert.NotContains(t, text, "\x1b", "%.40q", name)
		return
	}
	assert.False(t, strings.ContainsFunc(text, func(r rune) bool {
		return r != '\n' && r != '\u00a0' && !unicode.IsPrint(r)
	}), "%s of %.40q has something that is not printable", part, name)
	assert.Less(t, len(text), 40_000, "%s of %.40q", part, name)
	if part == "page" {
		assert.Equal(t, 1, strings.Count(text, "<script"), "%.40q", name)
		assert.Equal(t, 2, strings.Count(text, "</main>"), "one is in the script; %.40q", name)
		assert.NotContains(t, text, "<img", "%.40q", name)
		return
	}
	assert.NotContains(t, text, "<script", "%.40q", name)
	for line := range strings.Lines(strings.TrimSuffix(text, "\n\n")) {
		assert.True(t, strings.HasPrefix(line, "data: "), "%.40q: %q", name, line)
	}
}

// A host whose parts are counted separately has a row for each, with the words by which a person recognizes it, and no more rows than others.
func TestPartsOfAHostHaveNamesAndNoMoreRowsThanOthers(t *testing.T) {
	f := &fake{limits: []throttle.LimitStats{{Name: "server", Kind: "server", Keys: 64}}}
	for i := range 64 {
		part := fmt.Sprintf("GET /list-%c%c/*", 'a'+i/8, 'a'+i%8)
		f.servers = append(f.servers, throttle.ServerStats{Host: "h", For: part, HeldUntil: time.Now().Add(time.Duration(100-i) * time.Minute)})
	}
	for part, text := range all(t, newPage(map[string]source{"x": f})) {
		shown := 0
		for _, s := range f.servers {
			if strings.Contains(text, s.For) {
				shown++
			}
		}
		assert.Positive(t, shown, part)
		assert.LessOrEqual(t, shown, most, part)
	}
}

func TestHideKeys(t *testing.T) {
	secrets := []string{"acme", "zenith", "api.example.com", "uploads.example.com", "team-7"}
	p := newPage(map[string]source{"github": busy(time.Now())}, HideKeys())
	for part, text := range all(t, p) {
		for _, secret := range secrets {
			assert.NotContains(t, text, secret, part)
		}
	}
	assert.Equal(t, p.names("acme"), p.names("acme"))
	assert.NotEqual(t, p.names("acme"), p.names("acme "))
	assert.Regexp(t, `^#[0-9a-f]{12}$`, p.names("acme"))
	assert.NotEqual(t, p.names("acme"), newPage(nil, HideKeys()).names("acme"), "a guessed key cannot be checked")
	for _, text := range all(t, newPage(map[string]source{"github": busy(time.Now())})) {
		assert.Contains(t, text, "acme", "without the option they are shown")
	}
}

// ByHeader hashes, and the page has no other way to a header.
func TestCredentialsLeaveNoTrace(t *testing.T) {
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"30"}}, Body: http.NoBody, Request: r}, nil
	})
	transport := throttle.Must(throttle.New(base, throttle.WithKey(throttle.ByHeader("Authorization")), throttle.WithLimit(throttle.TokenBucket(5, time.Hour))))
	req := httptest.NewRequest(http.MethodGet, "http://api.example.com/", nil)
	req.Header.Set("Authorization", "Bearer secret-token")
	resp, err := transport.RoundTrip(req)
	require.NoError(t, err)
	resp.Body.Close()
	p := New(map[string]*throttle.Limiter{"api": transport.Limiter()})
	defer p.Close()
	for part, text := range all(t, p) {
		assert.Contains(t, text, "api.example.com", part)
		assert.NotContains(t, text, "secret-token", part)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestANilLimiterAndANilOptionPanic(t *testing.T) {
	assert.PanicsWithValue(t, "throttlepage: New: an Option is nil", func() { New(nil, nil) })
	assert.PanicsWithValue(t, `throttlepage: New: the Limiter "github" is nil`, func() {
		New(map[string]*throttle.Limiter{"github": nil})
	})
}

func TestNoLimiterAtAll(t *testing.T) {
	p := New(nil)
	assert.Contains(t, get(p, "/").Body.String(), "There is no Limiter to show.")
	assert.JSONEq(t, "[]", get(p, "/state.json").Body.String())
}

// A limit whose options match no response is marked.
func TestALimitThatFindsNothingIsMarked(t *testing.T) {
	p := newPage(map[string]source{"github": &fake{limits: []throttle.LimitStats{{Name: "tpm", Kind: "bucket", Warning: "none of 100 responses had a number at “x”"}}}})
	for part, text := range all(t, p) {
		assert.Contains(t, text, "none of 100 responses", part)
	}
}

// A limit that cannot read bodies is marked, and what helps is its title; also the limit "server", of which nothing else is known.
func TestLimitThatCannotReadBodiesIsMarked(t *testing.T) {
	for name, limit := range map[string]throttle.LimitStats{"tpm": {Name: "tpm", Kind: "bucket", Unread: 2}, "server": {Name: "server", Kind: "server", Unread: 2}} {
		p := newPage(map[string]source{"github": &fake{limits: []throttle.LimitStats{limit}}})
		for part, text := range all(t, p) {
			if part == "state" {
				assert.Contains(t, text, `"unread": 2`)
				continue
			}
			assert.Contains(t, text, "2 compressed responses unread", "%s of %s", part, name)
			assert.Equal(t, part != "text", strings.Contains(text, "delete Accept-Encoding"), "%s of %s", part, name)
		}
	}
}
