package throttletest

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// A Server is a [Handler] that is being served: on a loopback socket, or with [WithInMemory] without one. It speaks
// HTTP/1.1 and, without TLS, HTTP/2 (see [WithHTTP2]).
type Server struct {
	*Handler

	// URL is the base of the server's addresses, without a slash at its end: "http://127.0.0.1:40313", or
	// "http://api.test" in memory.
	URL string

	http      *http.Server
	transport *http.Transport
	served    chan struct{} // closed when Serve has returned
	conns     connections
}

// New starts a Server. The caller must call [Server.Close]. The error names everything that is wrong with the options, or says
// why the server cannot listen.
func New(opts ...Option) (*Server, error) {
	c, err := newConfig(opts, true)
	if err != nil {
		return nil, err
	}
	s := &Server{
		Handler:   newHandler(c),
		transport: &http.Transport{MaxIdleConnsPerHost: 10_000, Protocols: new(http.Protocols)},
		served:    make(chan struct{}),
	}
	listener, err := s.listen()
	if err != nil {
		return nil, fmt.Errorf("throttletest: %w", err)
	}
	s.transport.Protocols.SetHTTP1(!c.http2)
	s.transport.Protocols.SetUnencryptedHTTP2(c.http2)
	s.conns.open = make(map[net.Conn]bool)
	s.http = &http.Server{
		Handler:           s.Handler,
		ConnState:         s.conns.state,
		Protocols:         new(http.Protocols),
		ReadHeaderTimeout: time.Minute,
	}
	s.http.Protocols.SetHTTP1(true)
	s.http.Protocols.SetUnencryptedHTTP2(true)
	go func() {
		defer close(s.served)
		_ = s.http.Serve(listener) // ends with ErrServerClosed: nothing else closes the listener
	}()
	return s, nil
}

// Start is [New] for tests: it fails the test if the options are bad, and closes the server at the end of the test, in a
// bubble of testing/synctest at the end of the bubble.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	s, err := New(opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(s.Close)
	return s
}

func (s *Server) listen() (net.Listener, error) {
	if s.inMemory {
		l := newMemoryListener()
		s.transport.DialContext = l.dial
		s.URL = "http://" + memoryHost
		return l, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.URL = "http://" + l.Addr().String()
	return l, nil
}

// Transport returns a transport that reaches the server, without a bound on its connections. It returns the same one at every
// call; it works until Close. In memory all hosts lead to the server, without proxies or DNS.
func (s *Server) Transport() *http.Transport { return s.transport }

// Client returns a new client with [Server.Transport], which the caller may change. It has no timeout.
func (s *Server) Client() *http.Client { return &http.Client{Transport: s.transport} }

// Close aborts the requests that are being served, closes all connections, and returns when no goroutine of the server
// is left (those of its Transport end as they notice). It may be called several times and by several goroutines, but not
// by [WithHandler]'s handler, which it waits for.
func (s *Server) Close() {
	s.stop()
	_ = s.http.Close()
	<-s.served
	s.running.Wait()
	s.conns.close()
	s.transport.CloseIdleConnections()
}

// connections are those that the server has accepted and not closed. http.Server.Close forgets the hijacked ones and
// does not wait for the others.
type connections struct {
	mu   sync.Mutex // guards open
	open map[net.Conn]bool
	all  sync.WaitGroup // one for each connection that is not hijacked
}

// state is a http.Server.ConnState.
func (c *connections) state(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.open[conn] = true
		c.all.Add(1)
	case http.StateHijacked:
		c.all.Done()
	case http.StateClosed:
		delete(c.open, conn)
		c.all.Done()
	}
}

// close is called when no new connection can come.
func (c *connections) close() {
	c.mu.Lock()
	for conn := range c.open {
		_ = conn.Close()
	}
	c.mu.Unlock()
	c.all.Wait()
}
