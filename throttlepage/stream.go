package throttlepage

import (
	"bytes"
	"net/http"
	"sync"
	"time"
)

const writeTimeout = 10 * time.Second // for one event, instead of the server's WriteTimeout for all of them

// stream sends an event for each new frame, with charts only when those have changed, until the client disconnects or the server shuts down.
func (p *Page) stream(w http.ResponseWriter, r *http.Request, q query) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // asks nginx not to buffer it
	if r.Method == http.MethodHead {
		return
	}
	c := http.NewResponseController(w)
	// The deadlines of the server are those of a whole exchange. Without support for them there is no deadline to extend.
	_ = c.SetReadDeadline(time.Time{})
	_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err := c.Flush(); err != nil {
		http.Error(w, "this server cannot stream: "+err.Error(), http.StatusNotImplemented)
		return
	}
	over := p.servers.of(r)
	for charts := -1; ; {
		f := p.frame(q)
		content := f.brief // the client has the charts
		if f.points != charts {
			content, charts = f.content, f.points
		}
		_ = c.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := w.Write(message(string(content))); err != nil {
			return
		}
		if err := c.Flush(); err != nil {
			return
		}
		select {
		case <-time.After(time.Until(f.at.Add(fresh))):
		case <-r.Context().Done():
			return
		case <-over:
			return
		}
	}
}

// message returns text as a server-sent event. Every kind of line break ends a field there.
func message(text string) []byte {
	b := bytes.ReplaceAll([]byte(text), []byte("\r"), nil)
	b = bytes.ReplaceAll(b, []byte("\n"), []byte("\ndata: "))
	return append(append([]byte("data: "), b...), "\n\n"...)
}

// shutdowns knows when servers shut down, so that streams do not delay that: a Server waits for its requests to end.
type shutdowns struct {
	mu sync.Mutex
	by map[*http.Server]chan struct{}
}

// of returns a channel that is closed when the server of r shuts down.
func (s *shutdowns) of(r *http.Request) <-chan struct{} {
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	over, ok := s.by[server]
	if !ok {
		over = make(chan struct{})
		if s.by == nil {
			s.by = make(map[*http.Server]chan struct{})
		}
		s.by[server] = over
		server.RegisterOnShutdown(sync.OnceFunc(func() {
			s.mu.Lock()
			delete(s.by, server)
			s.mu.Unlock()
			close(over)
		}))
	}
	return over
}
