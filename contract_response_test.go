package throttle_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// refused returns the response to a request that fails fast and would have to wait that long.
func refused(t *testing.T, wait time.Duration, opts ...throttle.Option) (*http.Response, *http.Request) {
	limit := throttle.TokenBucket(1, wait, throttle.Initial(0), throttle.Name("it"))
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
		require.Equal(t, rejection.Error(), problem.Detail)
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
