package throttleredis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// A distance stands between a client and Redis: everything arrives half a round trip later, connections included.
type distance struct {
	net.Listener
	trip, jitter time.Duration

	mu    sync.Mutex
	conns map[net.Conn]bool // of clients
}

// away puts a distance before a server. With TLS, the server behind it speaks TLS.
func away(t *testing.T, target string, trip, jitter time.Duration, encrypted bool) (*distance, *redis.Options) {
	t.Helper()
	o := &redis.Options{}
	if encrypted {
		target, o.TLSConfig = terminated(t, target)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	d := &distance{Listener: l, trip: trip, jitter: jitter, conns: make(map[net.Conn]bool)}
	o.Addr = l.Addr().String()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			d.mu.Lock()
			d.conns[client] = true
			d.mu.Unlock()
			wg.Go(func() { d.carry(server, client, d.trip) }) // the first bytes wait for the connection
			wg.Go(func() { d.carry(client, server, 0) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		d.reset()
		wg.Wait()
	})
	return d, o
}

// carry copies what arrives, each piece half a round trip later and in order.
func (d *distance) carry(to io.WriteCloser, from io.Reader, first time.Duration) {
	type piece struct {
		at   time.Time
		text []byte
	}
	pieces := make(chan piece, 1024)
	go func() {
		defer close(pieces)
		for opened := time.Now(); ; {
			buf := make([]byte, 1<<16)
			n, err := from.Read(buf)
			if n > 0 {
				at := time.Now().Add(d.trip / 2)
				if d.jitter > 0 {
					at = at.Add(time.Duration(time.Now().UnixNano()*7919) % d.jitter / 2)
				}
				if opened := opened.Add(first + d.trip/2); at.Before(opened) {
					at = opened
				}
				pieces <- piece{at, buf[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range pieces {
		time.Sleep(time.Until(p.at))
		if _, err := to.Write(p.text); err != nil {
			break
		}
	}
	_ = to.Close()
	for range pieces {
	}
}

// reset ends all connections with a TCP reset.
func (d *distance) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
		delete(d.conns, c)
	}
}

// terminated returns the address of a server that speaks TLS, and passes what it reads on.
func terminated(t *testing.T, target string) (addr string, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
			go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
		}
	}()
	return l.Addr().String(), &tls.Config{RootCAs: roots}
}

// TestDistantRedisServesAgainAfterAReset has a limit with the default StoreTimeout of 250 ms and clients with the default options.
// It asks for half of the pace, in one of three tries, because it runs in real time; internal/lease has the shares in virtual time.
func TestDistantRedisServesAgainAfterAReset(t *testing.T) {
	if testing.Short() {
		return // it takes seconds of real time
	}
	s := start(t)
	for _, c := range []struct {
		trip, jitter time.Duration
		tls          bool
	}{
		{40 * time.Millisecond, 0, false}, {100 * time.Millisecond, 0, true}, {200 * time.Millisecond, 0, true},
		{90 * time.Millisecond, 150 * time.Millisecond, false},
	} {
		t.Run(fmt.Sprintf("%v, jitter %v, TLS %v", c.trip, c.jitter, c.tls), func(t *testing.T) {
			t.Parallel()
			d, options := away(t, s.addr(), c.trip, c.jitter, c.tls)
			client := redis.NewClient(options)
			t.Cleanup(func() { _ = client.Close() })
			const rate = 100
			st := newStore(t, client, Prefix(fmt.Sprintf("%v-%v-%v", c.trip, c.jitter, c.tls)))
			l, err := throttle.NewLimiter(throttle.WithLimit(throttle.Pace(rate, time.Second, throttle.Shared(st))))
			must(t, err)
			began := time.Now()
			var granted atomic.Int64
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range 32 {
				wg.Go(func() {
					for ctx.Err() == nil {
						if l.Wait(ctx, throttle.Ask{}) == nil {
							granted.Add(1)
						} else {
							time.Sleep(10 * time.Millisecond)
						}
					}
				})
			}
			defer wg.Wait()
			defer cancel()
			serves := func(what string) {
				t.Helper()
				for range 3 {
					time.Sleep(2 * time.Second)
					from, before := time.Now(), granted.Load()
					time.Sleep(2 * time.Second)
					part := float64(granted.Load()-before) / rate / time.Since(from).Seconds()
					t.Logf("%s: %.2f of the pace", what, part)
					if part >= 0.5 {
						return
					}
				}
				t.Errorf("%s: less than half of the pace", what)
			}
			serves("at first")
			d.reset()
			serves("after the reset")
			n := granted.Load()
			if most := 1 + rate*time.Since(began).Seconds(); float64(n) > most {
				t.Errorf("%d tokens, want at most %.0f", n, most)
			}
		})
	}
}

// TestFirstCallTakesOneConnection counts connections: to make one takes some round trips. The first call also looks at the server's
// replication and sends the source of the script.
func TestFirstCallTakesOneConnection(t *testing.T) {
	t.Parallel()
	s := start(t)
	var dials atomic.Int64
	client := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, s.addr())
	}})
	t.Cleanup(func() { _ = client.Close() })
	st := newStore(t, client)
	for range 3 {
		lease1(t, st, store.Part{Budget: bucket("k"), Want: 1})
	}
	if n := dials.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}
