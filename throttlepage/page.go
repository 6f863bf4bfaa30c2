// Package throttlepage shows Limiters as a live web page: which requests wait, for how long and for which limit, what was
// rejected, what servers refused, and all of that during the last hour.
//
//	page := throttlepage.New(map[string]*throttle.Limiter{"github": transport.Limiter()})
//	mux.Handle("/debug/throttle/", page)
//
// The page has no login. It shows keys, hosts and traffic, so mount it where you would mount net/http/pprof: on an internal
// address, or behind your own authentication. Nothing on it changes anything. Other web sites cannot read it: the page rejects
// requests that they send, with status 403, and requests for a host name that may be theirs. If your server has such a name and
// no TLS, for example behind a reverse proxy, pass [AllowHosts].
//
// Without JavaScript the page shows the state at the time it was loaded. With JavaScript it follows a stream of server-sent
// events, one a second. If a proxy blocks streams, it reloads its figures instead.
//
// A page is usually opened after an alarm, so it remembers: every 5 s it reads its Limiters, whether or not a client is
// connected, and keeps an hour of charts, in about 25 kB for each Limiter, and the last 100 events of each. [Every] changes that,
// and [Page.Close] ends it. While clients are connected, it reads once a second, however many they are, and keeps two minutes of
// histograms, in about 60 kB for each limit, and a copy of up to 100,000 keys, in about 160 bytes for each. It shows at most 50 keys
// and 50 servers of a Limiter. Requests that a Limiter limits pay nothing for the page.
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
	"time"

	"github.com/httpthrottle/throttle"
)

//go:embed page.html page.css page.js
var files embed.FS

// An Option configures a [Page].
type Option interface{ apply(*Page) }

type option func(*Page)

func (f option) apply(p *Page) { f(p) }

// HideKeys replaces every key and host by a hash, in the page, its text and its state.json. The hash of a key stays the same for
// as long as the Page is used, and cannot be computed elsewhere.
func HideKeys() Option { return option(func(p *Page) { p.names = secretNames() }) }

// Every sets how often the Limiters are read while no client is connected. The default is 5 s. The charts keep 720 readings,
// which is an hour by default. With 0 the Limiters are read only while a client is connected. New panics if d is negative or less
// than a second.
func Every(d time.Duration) Option {
	return option(func(p *Page) {
		if d != 0 && d < time.Second {
			panic(fmt.Sprintf("throttlepage: Every(%v): must be 0, or a second and more", d))
		}
		p.sampling = d > 0
		if p.sampling {
			p.every = d
		}
	})
}

// A Page is an [http.Handler] that shows Limiters. It is safe for concurrent use.
type Page struct {
	names    naming
	document *template.Template
	css      template.CSS
	js       template.JS
	policy   string          // Content-Security-Policy
	hosts    map[string]bool // that are allowed, beside those that always are; "*": all
	every    time.Duration
	sampling bool

	mu     sync.Mutex // guards what follows; held while Limiters are read, so that viewers share what was read
	views  []*watched // by name
	read   time.Time  // when the Limiters were read
	took   int        // points that were taken of each Limiter
	frames map[query]*frame
	timer  *time.Timer // for the next reading that no client asks for; nil: there is none
	closed bool

	servers shutdowns
}

// New returns a Page that shows limiters by their names. Mount it at a path that ends in a slash: it serves the page there, and
// beside it events, the stream that the page follows, text, the page as plain text, and state.json, the same figures for
// programs. All other paths that end in a slash serve the page, too. New panics if a Limiter or an Option is nil.
func New(limiters map[string]*throttle.Limiter, opts ...Option) *Page {
	sources := make(map[string]source, len(limiters))
	for name, l := range limiters {
		if l == nil {
			panic(fmt.Sprintf("throttlepage: New: the Limiter %q is nil", name))
		}
		sources[name] = l
	}
	p := newPage(sources, opts...)
	p.start()
	return p
}

// newPage returns a Page that does not read by itself so far.
func newPage(sources map[string]source, opts ...Option) *Page {
	p := &Page{
		names:    plainNames,
		document: template.Must(template.New("").Funcs(template.FuncMap{"quiet": quiet}).ParseFS(files, "page.html")),
		css:      template.CSS(mustRead("page.css")),
		js:       template.JS(mustRead("page.js")),
		every:    5 * time.Second,
		sampling: true,
		hosts:    make(map[string]bool),
		frames:   make(map[query]*frame),
	}
	p.policy = strings.Join([]string{
		"default-src 'none'", "script-src " + hashOf(string(p.js)), "style-src " + hashOf(string(p.css)), "connect-src 'self'",
		"img-src data:", "base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'",
	}, "; ")
	for i, name := range slices.Sorted(maps.Keys(sources)) {
		p.views = append(p.views, &watched{id: fmt.Sprintf("l%d", i), name: name, source: sources[name]})
	}
	for _, o := range opts {
		if o == nil {
			panic("throttlepage: New: an Option is nil")
		}
		o.apply(p)
	}
	return p
}

// start takes the first reading, and sets the timer of the next one.
func (p *Page) start() {
	if !p.sampling || len(p.views) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readLocked(time.Now())
	p.timer = time.AfterFunc(p.every, p.tick)
}

func (p *Page) tick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	if now := time.Now(); now.Sub(p.read) >= p.every {
		p.readLocked(now)
	}
	p.timer.Reset(time.Until(p.read.Add(p.every)))
}

// Close ends the readings while no client is connected, so that nothing refers to the Page and its Limiters any more. A client
// that connects later still sees current figures. Close may be called several times.
func (p *Page) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.timer != nil {
		p.timer.Stop()
	}
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

// ServeHTTP implements [http.Handler].
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", p.policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	if why := p.notAllowed(r); why != "" {
		http.Error(w, why, http.StatusForbidden)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "the page is read-only", http.StatusMethodNotAllowed)
		return
	}
	switch q := queryOf(r); r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:] { // whatever the path is that p is mounted at
	case "":
		p.serveDocument(w, q)
	case "text":
		h.Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(textOf(p.frame(q).view, r.URL.Query().Get("limiter")))) // fails only if the client is gone
	case "state.json":
		p.serveState(w, q)
	case "events":
		p.stream(w, r, q)
	default:
		http.Error(w, "not found: the page is at a path that ends in a slash", http.StatusNotFound)
	}
}

func (p *Page) serveDocument(w http.ResponseWriter, q query) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	f := p.frame(q)
	data := struct {
		Content template.HTML
		CSS     template.CSS
		JS      template.JS
		Query   query
		Orders  []order
		Several bool
	}{f.content, p.css, p.js, q, orders, len(p.views) > 1}
	_ = p.document.ExecuteTemplate(w, "document", data) // as above
}

func (p *Page) serveState(w http.ResponseWriter, q query) {
	text, err := json.MarshalIndent(p.frame(q).state, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(text, '\n')) // as above
}
