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
	if testing.Short() { // it takes real time, and a quiet machine
		return
	}
	const n, per, roundTrip = 50, time.Second, 50 * time.Millisecond
	for _, http2 := range []bool{false, true} {
		for name, limit := range map[string]throttle.Limit{"quota": throttle.Quota(n, per), "sliding window": throttle.SlidingWindow(n, per)} {
			t.Run(fmt.Sprintf("%s, HTTP/2 %v", name, http2), func(t *testing.T) {
				t.Parallel()
				var mu sync.Mutex
				var log []time.Time
				sent, refused := 0, 0
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
				base.DialContext = farAway(t, server.Listener.Addr().String(), roundTrip)
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
				t.Logf("%d of %d refused", refused, sent)
				require.LessOrEqual(t, refused, sent/100, "of %d", sent)
				require.Greater(t, sent, 3*n)
			})
		}
	}
}
