package adversary

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// do sends a request and reads the response.
func do(rt http.RoundTripper, req *http.Request) (status int, body string, err error) {
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(all), err
}

// tokens returns the balance of a limit without keys.
func tokens(t testing.TB, l *throttle.Limiter, limit string) float64 {
	b, ok := l.Bucket(limit, "")
	require.True(t, ok)
	return b.Tokens
}

// onlyH2C speaks HTTP/2 without TLS, and nothing else.
func onlyH2C() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

// Over one connection of HTTP/2 without TLS, slots are held and freed by streams, also by those that are cancelled or reset.
func TestH2CKeepsSlotsByStream(t *testing.T) {
	var now, most, addresses atomic.Int64
	seen := new(sync.Map)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for n := now.Add(1); ; {
			old := most.Load()
			if n <= old || most.CompareAndSwap(old, n) {
				break
			}
		}
		defer now.Add(-1)
		if _, known := seen.LoadOrStore(r.RemoteAddr, true); !known {
			addresses.Add(1)
		}
		w.Header().Set("Trailer", "X-End")
		switch r.URL.Path {
		case "/reset":
			panic(http.ErrAbortHandler)
		case "/hang":
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
		fmt.Fprint(w, r.Proto)
		w.Header().Set("X-End", "yes")
	}))
	server.Config.Protocols = onlyH2C()
	server.Start()
	defer server.Close()
	base := &http.Transport{Protocols: onlyH2C()}
	defer base.CloseIdleConnections()
	tr, err := throttle.New(base, throttle.WithLimit(throttle.InFlight(3)))
	require.NoError(t, err)
	var group sync.WaitGroup
	for i := range 60 {
		group.Go(func() {
			switch i % 3 {
			case 0:
				status, body, err := do(tr, get(t, server.URL))
				require.NoError(t, err)
				require.Equal(t, "200 HTTP/2.0", fmt.Sprint(status, " ", body))
			case 1:
				_, _, err := do(tr, get(t, server.URL+"/reset"))
				require.Error(t, err)
			default:
				ctx, cancel := context.WithCancel(t.Context())
				resp, err := tr.RoundTrip(get(t, server.URL+"/hang").WithContext(ctx))
				require.NoError(t, err)
				cancel() // the body is never read, nor closed
				defer resp.Body.Close()
			}
		})
	}
	group.Wait()
	require.LessOrEqual(t, most.Load(), int64(3+20), "streams that were cancelled may end later at the server")
	require.Equal(t, int64(1), addresses.Load(), "one connection")
	require.Eventually(t, func() bool { return tokens(t, tr.Limiter(), "in-flight") == 3 }, 10*time.Second, time.Millisecond)
	resp, err := tr.RoundTrip(get(t, server.URL))
	require.NoError(t, err)
	require.Equal(t, 2., tokens(t, tr.Limiter(), "in-flight"))
	_, _ = io.Copy(io.Discard, resp.Body)
	require.Equal(t, "yes", resp.Trailer.Get("X-End"))
	require.Equal(t, 3., tokens(t, tr.Limiter(), "in-flight"))
	resp.Body.Close()
}

// A proxy for tests: it tunnels with CONNECT, or refuses to.
func newProxy(t testing.TB, status *atomic.Int64) (*httptest.Server, *atomic.Int64) {
	var asked atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if code := int(status.Load()); code != http.StatusOK || r.Method != http.MethodConnect {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(code)
			return
		}
		there, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", r.Host)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		here, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			there.Close()
			return
		}
		fmt.Fprint(here, "HTTP/1.1 200 Connection Established\r\n\r\n")
		go func() {
			_, _ = io.Copy(there, buffered)
			there.Close()
		}()
		_, _ = io.Copy(here, there)
		here.Close()
	}))
	t.Cleanup(proxy.Close)
	return proxy, &asked
}

// A request through a tunnel is charged once, and one for which the proxy refuses a tunnel stays charged, because net/http does not
// distinguish that from a request that was sent. It frees its slot, and what the proxy asks for holds no host.
func TestRequestsThroughATunnelAreChargedOnce(t *testing.T) {
	var status atomic.Int64
	status.Store(http.StatusOK)
	proxy, asked := newProxy(t, &status)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	defer server.Close()
	base := server.Client().Transport.(*http.Transport).Clone()
	at, err := url.Parse(proxy.URL)
	require.NoError(t, err)
	base.Proxy, base.DisableKeepAlives = http.ProxyURL(at), true
	tr, err := throttle.New(base, throttle.WithLimit(throttle.TokenBucket(10, 24*time.Hour), throttle.InFlight(2)), throttle.WithMaxWait(0))
	require.NoError(t, err)
	for range 3 {
		code, body, err := do(tr, get(t, server.URL))
		require.NoError(t, err)
		require.Equal(t, "200 hello", fmt.Sprint(code, " ", body))
	}
	require.Equal(t, int64(3), asked.Load())
	require.InDelta(t, 7, tokens(t, tr.Limiter(), "bucket"), .01)
	for _, code := range []int64{http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusProxyAuthRequired} {
		status.Store(code)
		_, _, err := do(tr, get(t, server.URL))
		require.ErrorContains(t, err, http.StatusText(int(code)))
		require.NotErrorIs(t, err, throttle.ErrThrottled)
	}
	require.InDelta(t, 4, tokens(t, tr.Limiter(), "bucket"), .01)
	require.Equal(t, 2., tokens(t, tr.Limiter(), "in-flight"))
	status.Store(http.StatusOK)
	_, _, err = do(tr, get(t, server.URL))
	require.NoError(t, err, "what the proxy refused holds no host")
}

// A caller may itself ask for a tunnel: it keeps its slot until it is closed.
func TestATunnelOfTheCallerKeepsItsSlot(t *testing.T) {
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\n\r\n")
		line, _ := bufio.NewReader(buffered).ReadString('\n')
		fmt.Fprint(conn, "echo ", line)
	}))
	defer echo.Close()
	base := new(http.Transport)
	defer base.CloseIdleConnections()
	tr, err := throttle.New(base, throttle.WithLimit(throttle.InFlight(1)))
	require.NoError(t, err)
	from, to := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodConnect, echo.URL, from)
	require.NoError(t, err)
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	require.Zero(t, tokens(t, tr.Limiter(), "in-flight"))
	_, err = io.WriteString(to, "hello\n")
	require.NoError(t, err)
	got, err := bufio.NewReader(resp.Body).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "echo hello\n", got)
	to.Close()
	resp.Body.Close()
	require.Equal(t, 1., tokens(t, tr.Limiter(), "in-flight"))
}

// A stream of events that net/http unpacks is settled as it comes.
func TestAPackedStreamIsSettled(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		for _, used := range []int{1, 5, 42} {
			fmt.Fprintf(z, "event: delta\ndata: {\"usage\":{\"total_tokens\":%d}}\n\n", used)
			_ = z.Flush()
			_ = http.NewResponseController(w).Flush()
		}
		fmt.Fprint(z, "data: [DONE]\n\n")
		_ = z.Close()
	}))
	defer server.Close()
	for asked, want := range map[string]float64{"": 1000 - 42, "gzip": 1000 - 100} {
		tr, err := throttle.New(server.Client().Transport, throttle.WithCost(func(*http.Request) int64 { return 100 }), throttle.WithLimit(
			throttle.TokenBucket(1, 366*24*time.Hour, throttle.Burst(1000), throttle.Name("tpm"), throttle.SettleJSON("usage.total_tokens"))))
		require.NoError(t, err)
		req := get(t, server.URL)
		if asked != "" {
			req.Header.Set("Accept-Encoding", asked)
		}
		_, _, err = do(tr, req)
		require.NoError(t, err)
		require.InDelta(t, want, tokens(t, tr.Limiter(), "tpm"), .01)
	}
}

// descriptors returns how many file descriptors are open; false: the system does not say.
func descriptors() (int, bool) {
	all, err := os.ReadDir("/proc/self/fd")
	return len(all), err == nil
}

// However requests end, no file descriptor and no goroutine is left.
func TestNoDescriptorIsLeft(t *testing.T) {
	var group sync.WaitGroup
	before, ok := descriptors()
	if !ok {
		require.NotEqual(t, "linux", runtime.GOOS)
		return
	}
	routines := runtime.NumGoroutine()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/abort":
			panic(http.ErrAbortHandler)
		case "/hang":
			<-r.Context().Done()
		case "/cut":
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "short")
		case "/refuse":
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	down, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	closed := "http://" + down.Addr().String()
	down.Close()
	base := new(http.Transport)
	tr, err := throttle.New(base, throttle.WithLimit(throttle.TokenBucket(2000, time.Second, throttle.Burst(50)), throttle.InFlight(20)), throttle.WithMaxWait(50*time.Millisecond))
	require.NoError(t, err)
	for i := range 40 {
		group.Go(func() {
			for k := range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+(i*k)%20)*time.Millisecond)
				path := [...]string{"/", "/abort", "/hang", "/cut", "/refuse"}[k%5]
				at := server.URL + path
				if k%7 == 0 {
					at = closed
				}
				_, _, _ = do(tr, get(t, at).WithContext(ctx))
				cancel()
			}
		})
	}
	group.Wait()
	base.CloseIdleConnections()
	server.Close()
	require.Eventually(t, func() bool {
		now, _ := descriptors()
		return now <= before+2 && runtime.NumGoroutine() <= routines+2 // the poller of the runtime has two
	}, 20*time.Second, 10*time.Millisecond)
	require.Equal(t, 20., tokens(t, tr.Limiter(), "in-flight"))
	require.Zero(t, tr.Stats().Waiting)
}

// A base that ends a request with both a response and an error, or with neither, breaks no account.
func TestABaseThatBreaksItsContract(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		both := false
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			if both {
				return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, errors.New("both")
			}
			return nil, nil
		})
		tr, err := throttle.New(base, throttle.WithLimit(throttle.InFlight(1)))
		require.NoError(t, err)
		for range 4 {
			both = !both
			_, _ = tr.RoundTrip(get(t, "http://a.test/"))
			require.Equal(t, 1., tokens(t, tr.Limiter(), "in-flight"))
		}
	})
}
