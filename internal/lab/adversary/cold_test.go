package adversary

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// relay passes on what it reads, each part a while later.
func relay(to io.WriteCloser, from io.Reader, later time.Duration) {
	type part struct {
		due  time.Time
		data []byte
	}
	parts := make(chan part, 1024)
	go func() {
		defer close(parts)
		for {
			data := make([]byte, 16<<10)
			n, err := from.Read(data)
			if err != nil {
				return
			}
			parts <- part{time.Now().Add(later), data[:n]}
		}
	}()
	defer to.Close()
	for p := range parts {
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.data); err != nil {
			return
		}
	}
}

// farAway returns a function that dials through a proxy, so that a round trip takes that long, that of TCP's handshake, too.
func farAway(t *testing.T, address string, roundTrip time.Duration) func(context.Context, string, string) (net.Conn, error) {
	proxy, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { proxy.Close() })
	go func() {
		for {
			client, err := proxy.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", address)
			if err != nil {
				client.Close()
				return
			}
			go relay(server, client, roundTrip/2)
			go relay(client, server, roundTrip/2)
		}
	}()
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		time.Sleep(roundTrip)
		var d net.Dialer
		return d.DialContext(ctx, "tcp", proxy.Addr().String())
	}
}

// A strict server counts the first requests of a client, which open connections over TLS, two to three round trips later than the next
// ones. It refuses none of a client that keeps the same window.
func TestTheFirstBurstMayWaitForItsConnections(t *testing.T) {
	if testing.Short() { // it takes real time
		return
	}
	const n, per = 50, time.Second
	for _, http2 := range []bool{false, true} {
		for name, limit := range map[string]throttle.Limit{"quota": throttle.Quota(n, per), "sliding window": throttle.SlidingWindow(n, per)} {
			t.Run(fmt.Sprintf("%s, HTTP/2 %v", name, http2), func(t *testing.T) {
				var sent, refused int
				for range 3 { // on a busy machine, some requests travel for longer than a twentieth of the window
					sent, refused = coldBurst(t, limit, n, per, http2)
					t.Logf("%d of %d refused", refused, sent)
					if refused <= sent/100 && sent > 3*n {
						return
					}
				}
				require.Fail(t, "refused in three of three runs", "%d of %d", refused, sent)
			})
		}
	}
}

// coldBurst is what a server that keeps a log of n per period, 50 ms away, gets in 4.5 s of 2n callers, and what it refuses.
func coldBurst(t *testing.T, limit throttle.Limit, n int, per time.Duration, http2 bool) (sent, refused int) {
	var mu sync.Mutex
	var log []time.Time
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		for len(log) > 0 && now.Sub(log[0]) >= per {
			log = log[1:]
		}
		sent++
		if len(log) == n {
			refused++
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		log = append(log, now)
	}))
	server.EnableHTTP2 = http2
	server.StartTLS()
	defer server.Close()
	base := server.Client().Transport.(*http.Transport)
	base.DialContext = farAway(t, server.Listener.Addr().String(), 50*time.Millisecond)
	base.MaxIdleConnsPerHost = 2 * n
	base.ForceAttemptHTTP2 = http2
	tr, err := throttle.New(base, throttle.WithLimit(limit))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 4500*time.Millisecond)
	defer cancel()
	var callers sync.WaitGroup
	for range 2 * n {
		callers.Go(func() {
			for {
				if _, _, err := do(tr, get(t, server.URL).WithContext(ctx)); err != nil {
					return
				}
			}
		})
	}
	callers.Wait()
	server.Close() // it waits for its handlers
	return sent, refused
}
