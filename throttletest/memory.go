package throttletest

import (
	"context"
	"net"
	"sync"
)

// A memoryListener connects clients and a server of one process by net.Pipe. Unlike a socket, a pipe blocks durably in
// the sense of testing/synctest, so time advances in a bubble while both sides wait.
type memoryListener struct {
	conns chan net.Conn
	done  chan struct{}
	close sync.Once
}

func newMemoryListener() *memoryListener {
	return &memoryListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// dial is a DialContext. All addresses lead to the server, so that a test can play several hosts.
func (l *memoryListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.done:
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: l.Addr(), Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *memoryListener) Close() error {
	l.close.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *memoryListener) Addr() net.Addr { return memoryAddr{} }

type memoryAddr struct{}

func (memoryAddr) Network() string { return "memory" }
func (memoryAddr) String() string  { return memoryHost }

// memoryHost lies in a domain that is reserved for tests (RFC 2606), so it belongs to no host if it leaks.
const memoryHost = "api.test"
