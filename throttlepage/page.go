// Package throttlepage shows Limiters as a live web page: what waits, for how long and for which limit, what was rejected, and
// what servers have said.
//
//	mux.Handle("/debug/throttle/", throttlepage.New(map[string]*throttle.Limiter{"github": transport.Limiter()}))
//
// The page has no login. It shows keys, hosts and traffic, so mount it where you would mount net/http/pprof: on an internal
// address, or behind your own authentication. Nothing on it changes anything.
//
// Without JavaScript the page shows the moment at which it was loaded. With JavaScript it follows a stream of server-sent events,
// one a second. Where streams do not get through, it fetches itself instead.
//
// Limiters are read at most once a second, however many clients look, and not at all while none does. There is no goroutine
// except those of the page's own requests. Requests that a Limiter limits pay nothing for the page. The page remembers two
// minutes, in about 60 kB for each limit, and shows at most 50 keys and 50 servers of a Limiter.
package throttlepage

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/httpthrottle/throttle"
)

//go:embed page.html page.css page.js
var files embed.FS

// An Option configures the page.
type Option interface{ apply(*page) }

type option func(*page)

func (f option) apply(p *page) { f(p) }

// HideKeys replaces every key and host by a hash, in the page and in its state.json. The hash of a key stays the same as long
// as the handler is used, and cannot be computed elsewhere.
func HideKeys() Option { return option(func(p *page) { p.names = secretNames() }) }

// New returns a handler that shows limiters by their names. Mount it at a path that ends in a slash: it serves the page there,
// and beside it events, the stream that the page follows, and state.json, the same figures for programs. All other paths that
// end in a slash serve the page too. New panics if a Limiter or an Option is nil.
func New(limiters map[string]*throttle.Limiter, opts ...Option) http.Handler {
	sources := make(map[string]source, len(limiters))
	for name, l := range limiters {
		if l == nil {
			panic(fmt.Sprintf("throttlepage: New: the Limiter %q is nil", name))
		}
		sources[name] = l
	}
	return newPage(sources, opts...)
}

// A page is the handler.
type page struct {
	names    naming
	document *template.Template
	css      template.CSS
	js       template.JS
	policy   string // Content-Security-Policy

	mu     sync.Mutex // guards what follows; held while Limiters are read, so that viewers share what was read
	views  []*watched // by name
	latest frame

	servers shutdowns
}

func newPage(sources map[string]source, opts ...Option) *page {
	p := &page{
		names:    plainNames,
		document: template.Must(template.New("").Funcs(template.FuncMap{"quiet": quiet}).ParseFS(files, "page.html")),
		css:      template.CSS(mustRead("page.css")),
		js:       template.JS(mustRead("page.js")),
	}
	p.policy = strings.Join([]string{
		"default-src 'none'", "script-src " + hashOf(string(p.js)), "style-src " + hashOf(string(p.css)), "connect-src 'self'",
		"img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
	}, "; ")
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		p.views = append(p.views, &watched{name: name, source: sources[name]})
	}
	for _, o := range opts {
		if o == nil {
			panic("throttlepage: New: an Option is nil")
		}
		o.apply(p)
	}
	return p
}

func mustRead(name string) string {
	text, err := files.ReadFile(name)
	if err != nil {
		panic("throttlepage: bug: " + err.Error())
	}
	return string(text)
}

// hashOf returns the source expression of a Content-Security-Policy that allows text inline.
func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", p.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "the page is read-only", http.StatusMethodNotAllowed)
		return
	}
	switch r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:] { // whatever the path is that p is mounted at
	case "":
		p.serveDocument(w)
	case "state.json":
		p.serveState(w)
	case "events":
		p.stream(w, r)
	default:
		http.Error(w, "not found: the page is at a path that ends in a slash", http.StatusNotFound)
	}
}

func (p *page) serveDocument(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	data := struct {
		Content template.HTML
		CSS     template.CSS
		JS      template.JS
	}{p.frame().content, p.css, p.js}
	_ = p.document.ExecuteTemplate(w, "document", data) // fails only if the client is gone
}

func (p *page) serveState(w http.ResponseWriter) {
	text, err := json.MarshalIndent(p.frame().state, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n')) // as above
}
