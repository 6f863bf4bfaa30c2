package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/store/file"
)

// A proxy sends requests to the upstreams of its file, under their limits.
type proxy struct {
	handlers   map[string]http.Handler
	transports map[string]*throttle.Transport
	stores     []io.Closer
	log        *slog.Logger
	ends       atomic.Pointer[time.Time] // when the last request has to end; nil: it is not shutting down
}

// newProxy returns a proxy that sends requests with base. Close it, also after an error.
func newProxy(c *config, base http.RoundTripper, log *slog.Logger) (*proxy, error) {
	p := &proxy{handlers: make(map[string]http.Handler), transports: make(map[string]*throttle.Transport), log: log}
	for _, name := range slices.Sorted(maps.Keys(c.Upstreams)) {
		u := c.Upstreams[name]
		target, err := u.target()
		if err != nil {
			return p, err
		}
		var shared store.Store
		if c.Store != "" {
			if err := os.MkdirAll(c.Store, 0o700); err != nil {
				return p, err
			}
			budgets, err := file.Open(filepath.Join(c.Store, name), file.WithLogger(log))
			if err != nil {
				return p, err
			}
			p.stores = append(p.stores, budgets)
			shared = budgets
		}
		log := log.With("upstream", name)
		transport, err := u.transport(base, shared, log)
		if err != nil {
			return p, err
		}
		p.transports[name] = transport
		p.handlers[name] = http.StripPrefix("/"+name, &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(target)
				r.Out.Header.Del("Accept-Encoding") // so that net/http decompresses, and the cost can be read
			},
			Transport:      transport,
			FlushInterval:  -1,
			ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelWarn),
			ModifyResponse: func(resp *http.Response) error { bodyOf(resp.Request).drop(); return nil },
			ErrorHandler:   func(w http.ResponseWriter, r *http.Request, err error) { p.fail(w, r, err, log) },
		})
	}
	return p, nil
}

type bodyKey struct{}

func bodyOf(r *http.Request) *sentBody {
	body, _ := r.Context().Value(bodyKey{}).(*sentBody)
	return body
}

// ServeHTTP sends a request to the upstream that the first segment of its path names.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	handler, ok := p.handlers[name]
	if !ok {
		say(w, http.StatusNotFound, fmt.Sprintf("no upstream %q; there are %s", name, names(p.handlers)))
		return
	}
	if slices.ContainsFunc(strings.Split(r.URL.Path, "/"), func(s string) bool { return s == ".." || s == "." }) {
		say(w, http.StatusBadRequest, "the path has dot segments")
		return
	}
	body, err := readBody(r)
	if err != nil {
		say(w, http.StatusBadRequest, "the body of the request ended early")
		return
	}
	handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), bodyKey{}, body)))
}

// fail responds to a request that has got no response.
func (p *proxy) fail(w http.ResponseWriter, r *http.Request, err error, log *slog.Logger) {
	rejection, rejected := errors.AsType[*throttle.Rejection](err)
	switch ends := p.ends.Load(); {
	case r.Context().Err() != nil: // the client has left
		w.WriteHeader(http.StatusBadGateway)
	case rejected && rejection.Reason == throttle.ReasonShutdown && ends != nil:
		w.Header().Set("Retry-After", strconv.Itoa(1+max(0, int(time.Until(*ends).Seconds()))))
		w.Header().Set("Connection", "close")
		say(w, http.StatusServiceUnavailable, "the proxy is shutting down")
	case rejected && rejection.Reason == throttle.ReasonCost: // for good, so no 429, after which SDKs would retry
		say(w, http.StatusRequestEntityTooLarge, rejection.Error())
	case rejected:
		rejection.WriteResponse(w)
	default:
		log.Error("request failed", "method", r.Method, "error", err) // neither its URL nor its header, which may have a key
		say(w, http.StatusBadGateway, "the upstream did not respond: "+err.Error())
	}
}

// say responds with an error in the form that SDKs of language models read.
func say(w http.ResponseWriter, status int, message string) {
	var body struct {
		Error struct {
			Type    string `json:"type"`
			Message string `json:"message"`
		} `json:"error"`
	}
	body.Error.Type, body.Error.Message = "proxy_error", message
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // an error is that of the client's connection
}

// shutdown rejects new requests, and returns when those that wait were sent and their responses have begun, or when ctx ends.
func (p *proxy) shutdown(ctx context.Context) {
	if ends, ok := ctx.Deadline(); ok {
		p.ends.Store(&ends)
	}
	var all sync.WaitGroup
	for name, t := range p.transports {
		all.Go(func() {
			if err := t.Shutdown(ctx); err != nil {
				p.log.Warn("requests were rejected, or are in flight", "upstream", name)
			}
		})
	}
	all.Wait()
}

// close closes the stores.
func (p *proxy) close() (err error) {
	for _, s := range p.stores {
		err = errors.Join(err, s.Close())
	}
	return err
}
