package tests

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"

	"github.com/stretchr/testify/require"
)

// refused returns the response to a request that fails fast and would have to wait that long.
func refused(t *testing.T, wait time.Duration, opts ...throttle.Option) (*http.Response, *http.Request) {
	n := max(1, time.Millisecond/max(1, wait)) // a period is a millisecond at least
	limit := throttle.TokenBucket(int64(n), n*wait, throttle.Initial(0), throttle.Name("it"))
	opts = append(opts, throttle.WithLimit(limit), throttle.WithFailFast(), throttle.WithKey(throttle.ByHost))
	req := httpRequest(t, t.Context(), "GET", "http://a/")
	resp, err := throttle.Must(throttle.New(nil, opts...)).RoundTrip(req)
	require.NoError(t, err)
	return resp, req
}

func TestSyntheticResponseIsWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resp, req := refused(t, 90*time.Second)
		require.Equal(t, "429 Too Many Requests", resp.Status)
		require.Equal(t, 429, resp.StatusCode)
		require.True(t, resp.Proto == "HTTP/1.1" && resp.ProtoAtLeast(1, 1) && !resp.ProtoAtLeast(1, 2), resp.Proto)
		require.Equal(t, "90", resp.Header.Get("Retry-After"))
		require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
		for name := range resp.Header {
			require.NotContains(t, name, "limit", "go-github refuses later calls by itself where it sees such a header")
		}
		require.Equal(t, req.URL, resp.Request.URL)

		var wire bytes.Buffer
		require.NoError(t, resp.Write(&wire))
		parsed, err := http.ReadResponse(bufio.NewReader(&wire), req)
		require.NoError(t, err)
		require.Equal(t, resp.Header, parsed.Header)
		require.Equal(t, resp.ContentLength, parsed.ContentLength)
		var problem struct {
			Type, Title, Detail string
			Status              int
		}
		require.NoError(t, json.NewDecoder(parsed.Body).Decode(&problem))
		require.NotEmpty(t, problem.Title)
		require.Equal(t, "https://iana.org/assignments/http-problem-types#quota-exceeded", problem.Type)
		require.Equal(t, 429, problem.Status)
		rejection, ok := throttle.RejectionOf(resp)
		require.True(t, ok)
		require.Equal(t, "Too many requests: retry in 90 s", problem.Detail)
		require.Equal(t, throttle.Rejection{Reason: throttle.ReasonNoTokens, Limit: "it", Key: "a", Cost: 1, Wait: 90 * time.Second}, *rejection)
	})
}

func TestRetryAfterIsRoundedUpAndNeverZero(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		1: "1", time.Second - 1: "1", time.Second: "1", time.Second + 1: "2", 90*time.Second + 1: "91",
		math.MaxInt64 / 2: "4611686019",
	} {
		synctest.Test(t, func(t *testing.T) {
			resp, _ := refused(t, wait)
			require.Equal(t, want, resp.Header.Get("Retry-After"), wait)
		})
	}
}

func TestSyntheticResponseToHEADHasNoBody(t *testing.T) {
	limit := throttle.TokenBucket(1, time.Second, throttle.Initial(0))
	tr := throttle.Must(throttle.New(nil, throttle.WithLimit(limit), throttle.WithFailFast()))
	resp, err := tr.RoundTrip(httpRequest(t, t.Context(), "HEAD", "http://a"))
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Empty(t, body)
}

func TestRejectionOfWorksThroughTheClient(t *testing.T) {
	for name, client := range map[string]http.Client{
		"WithoutTimeout": {},
		"WithTimeout":    {Timeout: time.Hour}, // replaces the body
	} {
		for what, opts := range map[string][]throttle.Option{"Usual": nil, "Shaped": {
			throttle.WithRejectionResponse(func(*throttle.Rejection, *http.Request) *http.Response { return &http.Response{StatusCode: 503} }),
		}} {
			t.Run(name+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					client.Transport = newRefusal(t, append(opts, throttle.WithFailFast())...).tr
					resp, err := client.Get("http://user:password@a/")
					require.NoError(t, err)
					defer resp.Body.Close()
					rejection, ok := throttle.RejectionOf(resp)
					require.True(t, ok)
					require.Equal(t, throttle.ReasonNoTokens, rejection.Reason)
					_, err = io.ReadAll(resp.Body)
					require.NoError(t, err)
				})
			})
		}
	}
}

func TestRejectionOfIsNotForgedByAServer(t *testing.T) {
	local, _ := refused(t, time.Hour)
	body, err := io.ReadAll(local.Body)
	require.NoError(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		maps.Copy(w.Header(), local.Header)
		w.WriteHeader(local.StatusCode)
		_, _ = w.Write(body)
	}))
	defer server.Close()
	client := &http.Client{Transport: throttle.Must(throttle.New(nil, contractLimits()))}
	resp, err := client.Get(server.URL)
	require.NoError(t, err)
	defer resp.Body.Close()
	_, ok := throttle.RejectionOf(resp)
	require.False(t, ok)
	for _, none := range []*http.Response{nil, {}, {Request: &http.Request{}}} {
		_, ok := throttle.RejectionOf(none)
		require.False(t, ok)
	}
}

// A retry layer sometimes has only the response, and so its Request.
func TestRejectionOfIsNotInheritedByARetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRefusal(t, throttle.WithFailFast())
		refused, err := r.tr.RoundTrip(httpRequest(t, t.Context(), "GET", "http://a"))
		require.NoError(t, err)
		time.Sleep(time.Second)
		for _, again := range []*http.Request{
			refused.Request, refused.Request.Clone(refused.Request.Context()), httpRequest(t, refused.Request.Context(), "GET", "http://a"),
		} {
			time.Sleep(time.Second)
			resp, err := r.tr.RoundTrip(again)
			require.NoError(t, err)
			require.Equal(t, http.StatusNoContent, resp.StatusCode)
			_, ok := throttle.RejectionOf(resp)
			require.False(t, ok, "the server answered %d", resp.StatusCode)
		}
		_, ok := throttle.RejectionOf(refused)
		require.True(t, ok)
	})
}

func TestShapedResponsesAreCompleted(t *testing.T) {
	type response = http.Response
	for name, c := range map[string]struct{ shape, want *response }{
		"Nil":   {nil, &response{Status: "429 Too Many Requests", StatusCode: 429, Proto: "HTTP/1.1"}},
		"Empty": {&response{}, &response{Status: "429 Too Many Requests", StatusCode: 429, Proto: "HTTP/1.1"}},
		"Code":  {&response{StatusCode: 503}, &response{Status: "503 Service Unavailable", StatusCode: 503, Proto: "HTTP/1.1"}},
		"Whole": {
			&response{Status: "503 SlowDown", StatusCode: 503, Proto: "HTTP/2.0", ProtoMajor: 2, Header: http.Header{"A": {"b"}}, Request: &http.Request{}},
			&response{Status: "503 SlowDown", StatusCode: 503, Proto: "HTTP/2.0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			resp, req := refused(t, time.Hour, throttle.WithRejectionResponse(func(r *throttle.Rejection, req *http.Request) *http.Response {
				require.Equal(t, throttle.ReasonNoTokens, r.Reason)
				require.Equal(t, "http://a/", req.URL.String())
				return c.shape
			}))
			require.Equal(t, []any{c.want.Status, c.want.StatusCode, c.want.Proto}, []any{resp.Status, resp.StatusCode, resp.Proto})
			require.NotNil(t, resp.Body)
			require.NotNil(t, resp.Header)
			require.Equal(t, req.URL, resp.Request.URL)
			_, ok := throttle.RejectionOf(resp)
			require.True(t, ok)
		})
	}
}

func TestTimeoutOfTheClientPasses(t *testing.T) {
	for name, handle := range map[string]http.HandlerFunc{
		"BeforeHeaders": func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"WithinBody": func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "hello")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"NotReached": func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") },
	} {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(name+"/"+protocol, func(t *testing.T) {
				var plain []string
				for _, w := range contractWrappers {
					synctest.Test(t, func(t *testing.T) {
						x := &exchange{T: t, url: "http://a"}
						x.client = &http.Client{Transport: w.wrap(pipeTo(t, handle, protocol)), Timeout: time.Second}
						begin := time.Now()
						x.do(x.request(t.Context(), "GET", "/", ""))
						x.note("at %v", time.Since(begin).Truncate(10*time.Millisecond))
						if plain == nil {
							plain = x.transcript
						}
						require.Equal(t, plain, x.transcript, w.name)
					})
				}
				t.Log(plain)
			})
		}
	}
}

// pipeTo returns an http.Transport whose connections end at that handler, in this bubble.
func pipeTo(t *testing.T, handle http.HandlerFunc, protocol string) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(protocol == "HTTP/1.1")
	protocols.SetUnencryptedHTTP2(protocol == "HTTP/2.0")
	l := &pipeListener{make(chan net.Conn), make(chan struct{})}
	server := &http.Server{Handler: handle, Protocols: &protocols}
	go func() { _ = server.Serve(l) }()
	tr := &http.Transport{Protocols: &protocols, DialContext: l.dial}
	t.Cleanup(func() { tr.CloseIdleConnections(); server.Close() })
	return tr
}

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	l.conns <- server
	return client, nil
}

func (l *pipeListener) Close() error   { close(l.closed); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func TestResponsesPassUntouched(t *testing.T) {
	send := func(method, body string, header ...string) func(*exchange) {
		return func(x *exchange) {
			req := x.request(x.Context(), method, "/path?query", body)
			for i := 0; i < len(header); i += 2 {
				req.Header.Set(header[i], header[i+1])
			}
			x.do(req)
		}
	}
	large := strings.Repeat("0123456789abcdef", 1<<18)
	testContract(t, []contractCase{
		{name: "HEAD", do: send("HEAD", ""), handle: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1234")
		}},
		{name: "NoContent", do: send("GET", ""), handle: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusNoContent)
		}},
		{name: "ContentLength", do: send("GET", ""), handle: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "5")
			fmt.Fprint(w, "hello")
		}},
		{name: "Chunked", do: send("GET", ""), handle: func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "hel")
			w.(http.Flusher).Flush()
			fmt.Fprint(w, "lo")
		}},
		{name: "Compressed", do: send("GET", ""), handle: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			fmt.Fprint(z, "hello")
		}},
		{name: "LargeBodies", do: send("POST", large, "Authorization", "Bearer secret"), handle: func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			fmt.Fprint(w, r.ContentLength, r.TransferEncoding, r.Header, r.RequestURI, len(body), "\n")
			w.Write(body)
		}},
		{name: "ServersOwn429", do: send("POST", "body"), handle: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "0")
			w.Header().Set("X-RateLimit-Remaining", "0")
			w.WriteHeader(http.StatusTooManyRequests)
		}},
		{name: "ClosesBeforeAnswering", do: send("POST", "body"), handle: func(w http.ResponseWriter, r *http.Request) {
			panic(http.ErrAbortHandler)
		}},
		{name: "ClosesWithinBody", do: send("GET", ""), handle: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "10")
			fmt.Fprint(w, "hello")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}},
		{name: "ServerClosesConnection", only: "HTTP/1.1", handle: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Connection", "close")
		}, do: func(x *exchange) {
			for range 3 {
				x.do(x.request(x.Context(), "GET", "/", ""))
			}
		}},
	})
}

func TestBothDirectionsStreamAtOnce(t *testing.T) {
	testContract(t, []contractCase{{name: "Echo", handle: func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		if err := errors.Join(c.EnableFullDuplex(), c.Flush()); err != nil {
			panic(err)
		}
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			fmt.Fprintln(w, "echo of", lines.Text())
			c.Flush()
		}
	}, do: func(x *exchange) {
		body, in := io.Pipe()
		req := x.request(x.Context(), "POST", "/", "")
		req.Body = body
		resp, err := x.client.Do(req)
		require.NoError(x, err)
		defer resp.Body.Close()
		answers := bufio.NewReader(resp.Body)
		for i := range 3 {
			fmt.Fprintln(in, "line", i)
			answer, err := answers.ReadString('\n')
			x.note("%q %v", answer, err)
		}
		in.Close()
		_, err = answers.ReadByte()
		x.note("%v", err)
	}}})
}

func TestTrailersPassBothWays(t *testing.T) {
	testContract(t, []contractCase{{name: "Trailers", handle: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Announced")
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %q", body, r.Trailer)
		w.Header().Set("X-Announced", r.Trailer.Get("X-Sum"))
		w.Header().Set(http.TrailerPrefix+"X-Sudden", "yes")
	}, do: func(x *exchange) {
		req := x.request(x.Context(), "POST", "/", "")
		req.Trailer = http.Header{"X-Sum": nil}
		req.Body = io.NopCloser(io.MultiReader(strings.NewReader("body"), readerFunc(func([]byte) (int, error) {
			req.Trailer.Set("X-Sum", "42")
			return 0, io.EOF
		})))
		x.do(req)
	}}})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestInformationalResponsesPass(t *testing.T) {
	// traced notes what comes before the answer to a request, and whether its body was read.
	traced := func(x *exchange, expect string) {
		var read atomic.Int64
		ctx := httptrace.WithClientTrace(x.Context(), &httptrace.ClientTrace{
			Got100Continue: func() { x.note("continue") },
			Got1xxResponse: func(code int, header textproto.MIMEHeader) error { x.note("%d %q", code, header); return nil },
		})
		req := x.request(ctx, "POST", "/", "")
		if expect != "" {
			req.Header.Set("Expect", expect)
		}
		body := strings.NewReader("body")
		req.Body = io.NopCloser(readerFunc(func(p []byte) (int, error) { read.Add(1); return body.Read(p) }))
		x.do(req)
		x.note("body read: %t", read.Load() > 0)
	}
	plain := func(x *exchange) { traced(x, "") }
	expecting := func(x *exchange) { traced(x, "100-continue") }
	patient := func(tr *http.Transport) { tr.ExpectContinueTimeout = time.Hour }
	testContract(t, []contractCase{
		{name: "EarlyHints", do: plain, handle: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			io.Copy(w, r.Body)
		}},
		{name: "ContinueGranted", tune: patient, do: expecting, handle: func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }},
		{name: "ContinueRefused", tune: patient, do: expecting, handle: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusExpectationFailed)
		}},
	})
}

func TestUpgradedBodiesStayWritable(t *testing.T) {
	testContract(t, []contractCase{{name: "Upgrade", only: "HTTP/1.1", handle: func(w http.ResponseWriter, r *http.Request) {
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		fmt.Fprintf(buf, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		for buf.Flush() == nil {
			line, err := buf.ReadString('\n')
			if err != nil {
				return
			}
			fmt.Fprint(buf, "echo of ", line)
		}
	}, do: func(x *exchange) {
		req := x.request(x.Context(), "GET", "/", "")
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
		resp, err := x.client.Do(req)
		require.NoError(x, err)
		stream, ok := resp.Body.(io.ReadWriteCloser)
		require.True(x, ok, "%T", resp.Body)
		defer stream.Close()
		answers := bufio.NewReader(stream)
		for i := range 3 {
			fmt.Fprintln(stream, "line", i)
			answer, err := answers.ReadString('\n')
			x.note("%d %q %v", resp.StatusCode, answer, err)
		}
	}}})
}

// expiring is a context whose deadline passes when done is closed.
type expiring struct {
	context.Context
	done chan struct{}
}

func (e expiring) Done() <-chan struct{} { return e.done }

func (e expiring) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestCancellationPasses(t *testing.T) {
	// Each way to end a request, as the request and the function that ends it.
	ways := map[string]func(*exchange, *http.Request) (*http.Request, func()){
		"Cancel": func(x *exchange, r *http.Request) (*http.Request, func()) {
			ctx, cancel := context.WithCancel(x.Context())
			return r.WithContext(ctx), cancel
		},
		"Cause": func(x *exchange, r *http.Request) (*http.Request, func()) {
			ctx, cancel := context.WithCancelCause(x.Context())
			return r.WithContext(ctx), func() { cancel(errContract) }
		},
		"Deadline": func(x *exchange, r *http.Request) (*http.Request, func()) {
			ctx := expiring{x.Context(), make(chan struct{})}
			return r.WithContext(ctx), func() { close(ctx.done) }
		},
		"RequestCancel": func(x *exchange, r *http.Request) (*http.Request, func()) {
			cancel := make(chan struct{})
			r.Cancel = cancel //lint:ignore SA1019 http.Client sets it with its Timeout
			return r, func() { close(cancel) }
		},
	}
	var cases []contractCase
	for name, way := range ways {
		handle := func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if r.URL.Path != "/headers" {
				fmt.Fprint(w, "hello")
				w.(http.Flusher).Flush()
			}
			if r.URL.Path != "/after" {
				<-r.Context().Done()
				panic(http.ErrAbortHandler) // lest the client see a body that ended well, while it closes the connection
			}
		}
		cases = append(cases, contractCase{name: name, handle: handle, do: func(x *exchange) {
			if name != "RequestCancel" { // closed in advance, net/http sees it too late to know whether the server was reached
				req, end := way(x, x.request(x.Context(), "POST", "/before", "body"))
				end()
				x.do(req)
				x.note("arrived: %d", len(x.arrived))
			}

			req, end := way(x, x.request(x.Context(), "POST", "/headers", "body"))
			go func() { <-x.arrived; end() }()
			x.do(req)

			req, end = way(x, x.request(x.Context(), "POST", "/body", "body"))
			resp, err := x.client.Do(req)
			require.NoError(x, err)
			<-x.arrived
			_, err = io.ReadFull(resp.Body, make([]byte, 5))
			require.NoError(x, err)
			end()
			x.noteResponse(resp)

			req, end = way(x, x.request(x.Context(), "POST", "/after", "body"))
			x.do(req)
			<-x.arrived
			end()
		}})
	}
	testContract(t, cases)
}

func TestRedirectsAreFollowed(t *testing.T) {
	handle := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if code := 0; r.URL.Path != "/end" {
			fmt.Sscanf(r.URL.Path, "/%d", &code)
			http.Redirect(w, r, "/end", code)
			return
		}
		fmt.Fprintf(w, "%s %s %d", r.Method, body, r.ContentLength)
	}
	var cases []contractCase
	for _, code := range []int{302, 307, 308} {
		cases = append(cases, contractCase{name: fmt.Sprint(code), handle: handle, do: func(x *exchange) {
			path := fmt.Sprintf("/%d", code)
			x.do(x.request(x.Context(), "POST", path, "body")) // can't be sent twice
			for _, body := range []string{"", "body"} {
				req, err := http.NewRequestWithContext(x.Context(), "POST", x.url+path, bytes.NewReader([]byte(body)))
				require.NoError(x, err)
				x.do(req)
			}
		}})
	}
	testContract(t, cases)
}

func TestConnectionsAreReusedAndClosed(t *testing.T) {
	handle := func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") }
	traced := func(x *exchange) {
		ctx := httptrace.WithClientTrace(x.Context(), &httptrace.ClientTrace{
			GotConn: func(i httptrace.GotConnInfo) { x.note("reused: %t", i.Reused) },
		})
		x.do(x.request(ctx, "GET", "/", ""))
	}
	testContract(t, []contractCase{
		{name: "Reuse", handle: handle, do: func(x *exchange) { traced(x); traced(x); traced(x) }},
		{name: "CloseIdleConnections", only: "HTTP/1.1", handle: handle, do: func(x *exchange) {
			traced(x)
			x.client.CloseIdleConnections()
			traced(x)
		}},
	})
}

func TestMalformedRequestsGetTheBasesError(t *testing.T) {
	handle := func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Method) }
	cases := []contractCase{}
	for name, spoil := range map[string]func(*http.Request){
		"NoURL":     func(r *http.Request) { r.URL = nil },
		"NoHeader":  func(r *http.Request) { r.Header = nil },
		"NoHost":    func(r *http.Request) { r.URL.Host, r.Host = "", "" },
		"NoScheme":  func(r *http.Request) { r.URL.Scheme = "" },
		"NoMethod":  func(r *http.Request) { r.Method = "" },
		"BadMethod": func(r *http.Request) { r.Method = "a b" },
		"BadHeader": func(r *http.Request) { r.Header["a b"] = []string{"c"} },
	} {
		cases = append(cases, contractCase{name: name, handle: handle, do: func(x *exchange) {
			req := x.request(x.Context(), "POST", "/", "")
			spoil(req)
			body := &countedBody{Reader: strings.NewReader("body")}
			req.Body = body
			resp, err := x.client.Transport.RoundTrip(req)
			x.note("%v", err)
			if err == nil {
				x.noteResponse(resp)
			}
			x.note("closed: %t", body.closed.Load() > 0)
		}})
	}
	testContract(t, cases)
}

// countedBody is a request body that counts what is done to it.
type countedBody struct {
	io.Reader
	read, closed atomic.Int64
}

func (b *countedBody) Read(p []byte) (int, error) { b.read.Add(1); return b.Reader.Read(p) }
func (b *countedBody) Close() error               { b.closed.Add(1); return nil }
