package throttleredis

import (
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
)

// A distance stands between a client and Redis: everything arrives half a round trip later, connections included.
type distance struct {
	net.Listener
	trip, jitter time.Duration

	mu    sync.Mutex
	conns map[net.Conn]bool // of clients
}

// away returns the distance to a server. With TLS, the way ends where the TLS does.
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

// TestDistantRedisIsInReachAgainAfterAReset has a limit with the default StoreTimeout of 250 ms and clients with the default options.
func TestDistantRedisIsInReachAgainAfterAReset(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes some seconds of real time")
	}
	s := start(t)
	for _, c := range []struct {
		trip, jitter time.Duration
		tls          bool
	}{
		{40 * time.Millisecond, 0, false}, {40 * time.Millisecond, 0, true}, {100 * time.Millisecond, 0, false}, {100 * time.Millisecond, 0, true},
		{200 * time.Millisecond, 0, false}, {200 * time.Millisecond, 0, true}, {90 * time.Millisecond, 150 * time.Millisecond, false},
	} {
		t.Run(fmt.Sprintf("%v, jitter %v, TLS %v", c.trip, c.jitter, c.tls), func(t *testing.T) {
			t.Parallel()
			d, options := away(t, s.addr(), c.trip, c.jitter, c.tls)
			client := redis.NewClient(options)
			t.Cleanup(func() { _ = client.Close() })
			store := newStore(t, client, Prefix(fmt.Sprintf("%v-%v-%v", c.trip, c.jitter, c.tls)))
			l, err := throttle.NewLimiter(throttle.WithLimit(throttle.Pace(100, time.Second, throttle.Shared(store))))
			must(t, err)
			var granted atomic.Int64
			stop := make(chan struct{})
			var wg sync.WaitGroup
			for range 32 {
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if l.Wait(t.Context(), throttle.Ask{}) == nil {
							granted.Add(1)
						} else {
							time.Sleep(10 * time.Millisecond)
						}
					}
				})
			}
			defer wg.Wait()
			defer close(stop)
			during := func(what string, after, over time.Duration, least float64) {
				t.Helper()
				time.Sleep(after)
				before := granted.Load()
				time.Sleep(over)
				part := float64(granted.Load()-before) / 100 / over.Seconds()
				t.Logf("%s: %.2f of the pace", what, part)
				if part < least || part > 1.1 {
					t.Errorf("%s: %.2f of the pace", what, part)
				}
			}
			during("at first", 2*time.Second, 2*time.Second, 0.8)
			d.reset()
			during("after the reset", 2*time.Second, 2*time.Second, 0.8)
		})
	}
}
