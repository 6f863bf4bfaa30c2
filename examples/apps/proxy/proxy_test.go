package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A served proxy is between a client and one upstream, all in memory.
type served struct {
	*proxy
	client *http.Client
	t      *testing.T
}

// serve serves a proxy with an upstream "up" at http://api.openai.com, with further fields.
func serve(t *testing.T, fields string, upstream http.HandlerFunc) *served {
	t.Helper()
	c, err := configOf(t, `{"upstreams": {"up": {"url": "http://api.openai.com/base", `+fields+`}}}`)
	require.NoError(t, err)
	api := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithHandler(upstream))
	p, err := newProxy(c, api.Transport(), slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	front := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithHandler(p))
	return &served{p, &http.Client{Transport: front.Transport()}, t}
}

// send sends a request, with header fields as "Name: value".
func (s *served) send(ctx context.Context, method, path, body string, header ...string) (*http.Response, error) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://proxy.test"+path, strings.NewReader(body))
	require.NoError(s.t, err)
	for _, h := range header {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	return s.client.Do(req)
}

// get sends a request and returns its response with the whole body.
func (s *served) get(path string, header ...string) (*http.Response, string) {
	s.t.Helper()
	resp, err := s.send(s.t.Context(), http.MethodGet, path, "", header...)
	require.NoError(s.t, err)
	return resp, s.read(resp)
}

func (s *served) read(resp *http.Response) string {
	s.t.Helper()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return string(text)
}

func (s *served) limiter() *throttle.Limiter { return s.transports["up"].Limiter() }

func (s *served) limit(name string) throttle.LimitStats {
	s.t.Helper()
	for _, l := range s.limiter().Limits() {
		if l.Name == name {
			return l
		}
	}
	s.t.Fatalf("no limit %q", name)
	return throttle.LimitStats{}
}

func TestThePathSelectsTheUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, `"limits": []`, func(w http.ResponseWriter, r *http.Request) {
			dump, err := httputil.DumpRequest(r, true)
			assert.NoError(t, err)
			w.Write(dump)
		})
		resp, err := s.send(t.Context(), http.MethodPut, "/up/v1//a%2Fb?x=1&y", "text", "Authorization: Bearer key", "X-Other: 5", "Accept-Encoding: br")
		require.NoError(t, err)
		got := strings.ReplaceAll(s.read(resp), "\r\n", "\n")
		assert.Equal(t, "PUT /base/v1//a%2Fb?x=1&y HTTP/1.1\nHost: api.openai.com\nAccept-Encoding: gzip\nAuthorization: Bearer key\n"+
			"Content-Length: 4\nUser-Agent: Go-http-client/1.1\nX-Other: 5\n\ntext", got)
		for path, want := range map[string]int{
			"/up": 200, "/up/": 200, "/": 404, "/other/x": 404, "/upp": 404, "//up/x": 404, "/http://other.example/": 404,
			"/up/../../x": 400, "/up/a/./b": 400, "/up/%2e%2e/x": 400,
		} {
			resp, text := s.get(path)
			assert.Equal(t, want, resp.StatusCode, path)
			if want != 200 {
				assert.True(t, json.Valid([]byte(text)), text)
			}
		}
	})
}

// A request as to a forward proxy goes to the upstream that its path names, whatever its host is.
func TestTheProxyIsNotOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, `"limits": []`, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) })
		for request, want := range map[string]string{
			"GET http://evil.example/up/x HTTP/1.1\r\nHost: evil.example\r\n\r\n": "api.openai.com",
			"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n":     "404 Not Found",
			"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n": "404 Not Found",
		} {
			conn, err := s.client.Transport.(*http.Transport).DialContext(t.Context(), "tcp", "proxy.test:80")
			require.NoError(t, err)
			go io.WriteString(conn, request)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			require.NoError(t, err)
			assert.Contains(t, resp.Status+s.read(resp), want)
			conn.Close()
		}
	})
}

// Each event arrives when it was sent, and usage at the end settles the estimate. One token in four bytes is added to the cost.
func TestStreamsAreStreamedAndSettled(t *testing.T) {
	usage := `{"usage": {"total_tokens": 12}}` + "\n\n"
	testStream(t, "text/event-stream", "", "data: {}\n\n", "data: "+usage)
	testStream(t, "application/json", fmt.Sprint(5*len("{}\n")+len(usage)), "{}\n", usage) // of a known length, ReverseProxy flushes nothing by itself
}

func testStream(t *testing.T, contentType, contentLength, event, last string) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, `"limits": [{"kind": "bucket", "n": 5000, "per": "10h", "costs": {"POST /base/chat": 1000, "/": 0}, "bytes_per_token": 4,
			"settle": ["usage.total_tokens"]}]`, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", contentType)
			if contentLength != "" {
				w.Header().Set("Content-Length", contentLength)
			}
			for range 5 {
				io.WriteString(w, event)
				http.NewResponseController(w).Flush()
				time.Sleep(time.Second)
			}
			io.WriteString(w, last)
		})
		begin := time.Now()
		resp, err := s.send(t.Context(), http.MethodPost, "/up/chat", strings.Repeat("x", 400))
		require.NoError(t, err)
		var at []time.Duration
		buffer := make([]byte, 4096)
		for {
			n, err := resp.Body.Read(buffer)
			if n > 0 {
				at = append(at, time.Since(begin))
			}
			if err != nil {
				require.Equal(t, io.EOF, err)
				break
			}
			if len(at) == 2 {
				assert.EqualValues(t, 1100, s.limit("bucket").Charged)
			}
		}
		assert.Equal(t, []time.Duration{0, 1e9, 2e9, 3e9, 4e9, 5e9}, at)
		synctest.Wait()
		assert.EqualValues(t, 1100-12, s.limit("bucket").Returned)
		resp, err = s.send(t.Context(), http.MethodHead, "/up/models", "")
		require.NoError(t, err)
		resp.Body.Close()
		assert.EqualValues(t, 1100, s.limit("bucket").Charged, "other paths cost nothing")
	})
}

// Clients ask for compression, as httpx does. They get plain bodies, in which the proxy could read the cost.
func TestACompressedResponseIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, `"limits": [{"kind": "bucket", "n": 5000, "per": "10h", "costs": {"/": 1000}, "settle": ["usage.total_tokens"]}]`,
			func(w http.ResponseWriter, r *http.Request) {
				assert.Equal(t, "gzip", r.Header.Get("Accept-Encoding"))
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Content-Encoding", "gzip")
				z := gzip.NewWriter(w)
				io.WriteString(z, `{"usage": {"total_tokens": 12}}`)
				z.Close()
			})
		resp, text := s.get("/up/", "Accept-Encoding: gzip, deflate, br, zstd")
		assert.Empty(t, resp.Header.Get("Content-Encoding"))
		assert.Equal(t, `{"usage": {"total_tokens": 12}}`, text)
		l := s.limit("bucket")
		assert.EqualValues(t, 12, l.Charged-l.Returned)
		assert.Zero(t, l.Unread)
	})
}

// A client that leaves while it waits has spent nothing, and one that leaves during its response frees its slot, also with a body.
func TestAClientThatLeavesGivesItsPlaceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, `"limits": [{"kind": "in-flight", "n": 1}, {"kind": "bucket", "n": 10, "per": "10h"}]`,
			func(w http.ResponseWriter, r *http.Request) {
				http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})
		first, leaveFirst := context.WithCancel(t.Context())
		resp, err := s.send(first, http.MethodPost, "/up/", strings.Repeat("x", 100_000))
		require.NoError(t, err)
		second, leaveSecond := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := s.send(second, http.MethodPost, "/up/", strings.Repeat("x", 100_000))
			ended <- err
		}()
		synctest.Wait()
		assert.Equal(t, 1, s.limiter().Stats().Waiting)
		leaveSecond()
		require.ErrorIs(t, <-ended, context.Canceled)
		synctest.Wait()
		assert.Zero(t, s.limiter().Stats().Waiting)
		assert.EqualValues(t, 1, s.limit("bucket").Charged)
		assert.Equal(t, 1, s.limit("in-flight").InFlight)

		leaveFirst()
		resp.Body.Close()
		synctest.Wait()
		assert.Zero(t, s.limit("in-flight").InFlight)
		begin := time.Now()
		third, leaveThird := context.WithCancel(t.Context())
		resp, err = s.send(third, http.MethodPost, "/up/", "x")
		require.NoError(t, err)
		assert.Zero(t, time.Since(begin))
		leaveThird()
		resp.Body.Close()
	})
}

// Bodies arrive as they were sent, whether or not they fit in memory, and with a known length if they do.
func TestBodiesArriveWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []byte
		length := int64(0)
		s := serve(t, `"limits": []`, func(w http.ResponseWriter, r *http.Request) {
			got, _ = io.ReadAll(r.Body)
			length = r.ContentLength
		})
		whole := bytes.Repeat([]byte("0123456789abcdef"), bodyMost/16+1)
		for _, n := range []int{0, 1, bodyMost, bodyMost + 1} {
			for _, known := range []bool{true, false} {
				if known && n == bodyMost {
					continue // it is as one byte, and takes a while
				}
				var body io.Reader = bytes.NewReader(whole[:n])
				if !known {
					body = io.MultiReader(body)
				}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://proxy.test/up/", body)
				require.NoError(t, err)
				resp, err := s.client.Do(req)
				require.NoError(t, err)
				resp.Body.Close()
				assert.True(t, bytes.Equal(whole[:n], got), n)
				if known || n <= bodyMost {
					assert.EqualValues(t, n, length, n)
				} else {
					assert.EqualValues(t, -1, length)
				}
			}
		}
	})
}

// A body is let go when it was sent and its response has begun.
func TestBodiesAreNotKeptDuringAStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := configOf(t, `{"upstreams": {"up": {"url": "http://up.test"}}}`)
		require.NoError(t, err)
		api := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})))
		var sent *http.Request
		var kept weak.Pointer[byte]
		p, err := newProxy(c, tripper(func(r *http.Request) (*http.Response, error) {
			sent = r
			kept = weak.Make(&(*bodyOf(r).bytes.Load())[0])
			return api.Transport().RoundTrip(r)
		}), slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		front := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithHandler(p))
		s := &served{p, front.Client(), t}
		ctx, cancel := context.WithCancel(t.Context())
		resp, err := s.send(ctx, http.MethodPost, "/up/", strings.Repeat("x", 100_000))
		require.NoError(t, err)
		runtime.GC()
		assert.Nil(t, kept.Value())
		_, err = sent.GetBody()
		assert.Error(t, err)
		cancel()
		resp.Body.Close()
	})
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The vendor counts each model separately. The proxy finds the model in the body, although no client of it sets GetBody.
func TestModelsAreCountedSeparately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, `"limits": [{"kind": "server-quota", "unit": "tokens"}]`, func(http.ResponseWriter, *http.Request) {})
		for _, model := range []string{"small", "large"} {
			resp, err := s.send(t.Context(), http.MethodPost, "/up/v1/chat/completions", `{"messages": [], "model": "`+model+`"}`, "Content-Type: application/json")
			require.NoError(t, err)
			resp.Body.Close()
		}
		keys := make(map[string]bool)
		for b := range s.limiter().Buckets() {
			keys[b.Key] = true
		}
		assert.Equal(t, map[string]bool{"api.openai.com small": true, "api.openai.com large": true}, keys)
	})
}

// A rejection looks like a refusal of the upstream: SDKs wait as long as it says, or do not retry if no waiting helps.
func TestRejectionsAreThoseOfTheUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ok := func(http.ResponseWriter, *http.Request) {}
		const bucket = `"max_wait": "1s", "limits": [{"kind": "bucket", "n": 1, "per": "90s", "costs": {"/base/large": 2}}]`
		s := serve(t, bucket, ok)
		s.get("/up/")
		resp, text := s.get("/up/")
		assert.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, "90", resp.Header.Get("Retry-After"))
		assert.Equal(t, "90000", resp.Header.Get("Retry-After-Ms"))
		assert.Contains(t, text, `"error":{"type":"rate_limit_error","code":"rate_limit_exceeded"`)
		resp, text = s.get("/up/large")
		assert.Equal(t, 413, resp.StatusCode)
		assert.Contains(t, text, "cost 2 exceeds the burst of 1")
		assert.EqualValues(t, 1, s.limit("bucket").Charged)

		s = serve(t, `"shape": "google", `+bucket, ok)
		s.get("/up/")
		resp, text = s.get("/up/")
		assert.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, "90", resp.Header.Get("Retry-After"))
		assert.Contains(t, text, `"status":"RESOURCE_EXHAUSTED"`)
	})
}

// An upstream that is down is a 502, and costs nothing. One that breaks off breaks the response off.
func TestUpstreamsThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, `"limits": [{"kind": "bucket", "n": 10, "per": "10h"}]`, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/base/half" {
				io.WriteString(w, "half")
				http.NewResponseController(w).Flush()
			}
			panic(http.ErrAbortHandler)
		})
		resp, text := s.get("/up/")
		assert.Equal(t, 502, resp.StatusCode)
		assert.JSONEq(t, `{"error": {"type": "proxy_error", "message": "the upstream did not respond: EOF"}}`, text)
		resp, err := s.send(t.Context(), http.MethodGet, "/up/half", "")
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	})
}

// An upgraded connection, such as a WebSocket, passes both ways.
func TestUpgradedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, `"limits": [{"kind": "in-flight", "n": 1}]`, func(w http.ResponseWriter, r *http.Request) {
			conn, buffer, err := http.NewResponseController(w).Hijack()
			if !assert.NoError(t, err) {
				return
			}
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			line, _ := buffer.ReadString('\n')
			io.WriteString(conn, "echo "+line)
			buffer.ReadString('\n')
		})
		resp, err := s.send(t.Context(), http.MethodGet, "/up/", "", "Connection: Upgrade", "Upgrade: echo")
		require.NoError(t, err)
		require.Equal(t, 101, resp.StatusCode)
		io.WriteString(resp.Body.(io.Writer), "hello\n")
		got := make([]byte, 100)
		n, err := resp.Body.Read(got)
		require.NoError(t, err)
		assert.Equal(t, "echo hello\n", string(got[:n]))
		assert.Equal(t, 1, s.limit("in-flight").InFlight)
		resp.Body.Close()
		synctest.Wait()
		assert.Zero(t, s.limit("in-flight").InFlight)
	})
}

// Callers take turns: one with ten requests that wait delays another by one.
func TestCallersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, `"limits": [{"kind": "pace", "n": 1, "per": "1s", "fair_by": "X-Caller"}]`, func(http.ResponseWriter, *http.Request) {})
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { s.get("/up/", "X-Caller: many") })
		}
		synctest.Wait()
		begin := time.Now()
		s.get("/up/", "X-Caller: one")
		assert.LessOrEqual(t, time.Since(begin), 2*time.Second)
		all.Wait()
		assert.Equal(t, 10*time.Second, time.Since(begin).Round(time.Second))
	})
}

// After SIGTERM, requests that wait are sent, new ones get 503 with Retry-After, and those that would be late are rejected.
func TestShutdownSendsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, `"limits": [{"kind": "pace", "n": 1, "per": "4s"}]`, func(http.ResponseWriter, *http.Request) {})
		s.get("/up/")
		begin := time.Now()
		ended := make(map[int][]time.Duration) // by status
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 3 { // due after 4, 8 and 12 s
			all.Go(func() {
				resp, _ := s.get("/up/")
				mu.Lock()
				defer mu.Unlock()
				ended[resp.StatusCode] = append(ended[resp.StatusCode], time.Since(begin))
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		all.Go(func() { s.shutdown(ctx) })
		time.Sleep(500 * time.Millisecond)
		resp, text := s.get("/up/")
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, "10", resp.Header.Get("Retry-After"))
		assert.True(t, resp.Close)
		assert.Contains(t, text, "shutting down")
		all.Wait()
		assert.Equal(t, map[int][]time.Duration{200: {4e9, 8e9}, 503: {10e9}}, ended)
	})
}

// A thousand streams are read at the same time, and an InFlight limit lets as many begin at a time as it says.
func TestManyStreams(t *testing.T) {
	many := 1000
	if testing.Short() {
		many = 100
	}
	for _, c := range []struct {
		streams, limit int
		takes          time.Duration
	}{{many, many, 5 * time.Second}, {100, 10, 50 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, fmt.Sprintf(`"limits": [{"kind": "in-flight", "n": %d}]`, c.limit), streamFive)
			begin := time.Now()
			var all sync.WaitGroup
			for range c.streams {
				all.Go(func() {
					resp, err := s.send(t.Context(), http.MethodPost, "/up/", "{}")
					if assert.NoError(t, err) {
						assert.Equal(t, fiveEvents, s.read(resp))
					}
				})
			}
			all.Wait()
			assert.Equal(t, c.takes, time.Since(begin))
			synctest.Wait()
			assert.Zero(t, s.limit("in-flight").InFlight)
		})
	}
}

const fiveEvents = "data: 0\n\ndata: 1\n\ndata: 2\n\ndata: 3\n\ndata: 4\n\n"

func streamFive(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range 5 {
		fmt.Fprintf(w, "data: %d\n\n", i)
		http.NewResponseController(w).Flush()
		time.Sleep(time.Second)
	}
}
