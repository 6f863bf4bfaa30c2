package throttleredis

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
)

// A proxy stands between a client and Redis. What it does to the next scripts is in faults; without any it passes all on.
type proxy struct {
	listener net.Listener
	target   string

	mu     sync.Mutex
	faults []fault
	runs   int // how many scripts have reached Redis
}

type fault func(p *proxy, request []byte, client, server net.Conn) (ok bool)

func startProxy(t *testing.T, s *server) (*proxy, *redis.Client) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &proxy{listener: l, target: s.addr()}
	var wg sync.WaitGroup
	var conns sync.Map
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			conns.Store(client, nil)
			wg.Go(func() { p.serve(client) })
		}
	})
	c := redis.NewClient(&redis.Options{Addr: l.Addr().String(), ContextTimeoutEnabled: true, MaxRetries: 3})
	t.Cleanup(func() {
		_ = c.Close()
		_ = l.Close()
		conns.Range(func(conn, _ any) bool { _ = conn.(net.Conn).Close(); return true })
		wg.Wait()
	})
	return p, c
}

// serve passes requests and responses on, one after the other.
func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer server.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		do := pass
		if isScript(buf[:n]) {
			do = p.next()
		}
		if !do(p, buf[:n], client, server) {
			return
		}
	}
}

func isScript(request []byte) bool {
	return bytes.Contains(request[:min(len(request), 64)], []byte("eval"))
}

func (p *proxy) next() fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.faults) == 0 {
		return pass
	}
	f := p.faults[0]
	p.faults = p.faults[1:]
	return f
}

func (p *proxy) inject(faults ...fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults, p.runs = faults, 0
}

func (p *proxy) ran() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs
}

func (p *proxy) forward(request []byte, server net.Conn) (response []byte, ok bool) {
	if isScript(request) {
		p.mu.Lock()
		p.runs++
		p.mu.Unlock()
	}
	if _, err := server.Write(request); err != nil {
		return nil, false
	}
	response = make([]byte, 1<<16)
	n, err := server.Read(response)
	return response[:n], err == nil
}

func pass(p *proxy, request []byte, client, server net.Conn) bool {
	response, ok := p.forward(request, server)
	if ok {
		_, err := client.Write(response)
		ok = err == nil
	}
	return ok
}

// reset ends the connection with a TCP reset.
func reset(client net.Conn) bool {
	_ = client.(*net.TCPConn).SetLinger(0)
	return false
}

func resetBefore(_ *proxy, _ []byte, client, _ net.Conn) bool { return reset(client) }

func resetAfter(p *proxy, request []byte, client, server net.Conn) bool {
	p.forward(request, server)
	return reset(client)
}

func halfAResponse(p *proxy, request []byte, client, server net.Conn) bool {
	response, _ := p.forward(request, server)
	_, _ = client.Write(response[:len(response)/2])
	return false
}

func drop(*proxy, []byte, net.Conn, net.Conn) bool { return true }

func delayed(d time.Duration) fault {
	return func(p *proxy, request []byte, client, server net.Conn) bool {
		time.Sleep(d)
		return pass(p, request, client, server)
	}
}

func TestRepeatedScriptGivesBackOnce(t *testing.T) {
	for name, f := range map[string]fault{"reset": resetAfter, "half a response": halfAResponse} {
		t.Run(name, func(t *testing.T) {
			p, c := startProxy(t, start(t))
			st := newStore(t, c)
			b := bucket("k")
			first := lease1(t, st, store.Part{Budget: b, Want: 2})
			lease1(t, st, store.Part{Budget: b, Want: 2})
			p.inject(f)
			lease1(t, st, store.Part{Budget: b, Back: []store.Return{{Tokens: 1, Lease: first.ID}}})
			if n := p.ran(); n != 2 {
				t.Errorf("the script ran %d times, want twice", n)
			}
			if got := lease1(t, st, store.Part{Budget: b, Want: 9}); got.Tokens != 2 {
				t.Errorf("%d tokens, want 2: one that was left and one that came back", got.Tokens)
			}
		})
	}
}

func TestRepeatedScriptGrantsNoMoreThanThereIs(t *testing.T) {
	p, c := startProxy(t, start(t))
	st := newStore(t, c)
	lease1(t, st, store.Part{Budget: bucket("k")})
	p.inject(resetAfter)
	if got := lease1(t, st, store.Part{Budget: bucket("k"), Want: 3}); got.Tokens != 2 { // 3 were granted and lost
		t.Errorf("%d tokens", got.Tokens)
	}
	slots := store.Budget{Kind: store.Slots, Limit: "l", Key: "k", N: 5}
	p.inject(resetAfter)
	if got := lease1(t, st, store.Part{Budget: slots, Holder: "h", Want: 3}); got.Tokens != 3 || got.Left != 2 {
		t.Errorf("slots: %+v", got)
	}
}

func TestResetBeforeTheScriptRanCostsNothing(t *testing.T) {
	p, c := startProxy(t, start(t))
	st := newStore(t, c)
	lease1(t, st, store.Part{Budget: bucket("k")})
	p.inject(resetBefore, resetBefore)
	if got := lease1(t, st, store.Part{Budget: bucket("k"), Want: 9}); got.Tokens != 5 || p.ran() != 1 {
		t.Errorf("%d tokens in %d runs", got.Tokens, p.ran())
	}
}

func TestNoResponseIsAnOutage(t *testing.T) {
	p, c := startProxy(t, start(t))
	st := newStore(t, c)
	lease1(t, st, store.Part{Budget: bucket("k")})
	p.inject(drop, drop, drop, drop)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := try(ctx, st, store.Part{Budget: bucket("k"), Want: 9}); err == nil || errors.Is(err, store.ErrSetup) {
		t.Errorf("the error is %v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	p.inject()
	if got := lease1(t, st, store.Part{Budget: bucket("k"), Want: 9}); got.Tokens != 5 {
		t.Errorf("%d tokens", got.Tokens)
	}
}

func TestLateScriptDoesNothing(t *testing.T) {
	p, c := startProxy(t, start(t))
	st := newStore(t, c)
	lease1(t, st, store.Part{Budget: bucket("k")})
	p.inject(delayed(200 * time.Millisecond))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := try(ctx, st, store.Part{Budget: bucket("k"), Want: 9}); err == nil {
		t.Error("no error")
	}
	eventually(t, "the script has run", func() bool { return p.ran() == 1 })
	time.Sleep(20 * time.Millisecond)
	if got := lease1(t, st, store.Part{Budget: bucket("k"), Want: 9}); got.Tokens != 5 {
		t.Errorf("%d tokens are left of 5", got.Tokens)
	}
}
