package throttle_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A contractCase is an exchange that must look the same to the caller whether its Transport is wrapped or not.
type contractCase struct {
	name   string
	only   string // "HTTP/1.1", "HTTP/2.0"; "": both
	tune   func(*http.Transport)
	handle http.HandlerFunc
	do     func(*exchange)
}

// An exchange is one run of a case. What the caller sees of it goes to the transcript.
type exchange struct {
	*testing.T
	url        string
	client     *http.Client
	arrived    chan struct{} // a value for each request that reached the server
	transcript []string
}

func (x *exchange) note(format string, args ...any) {
	x.transcript = append(x.transcript, fmt.Sprintf(format, args...))
}

// noteError notes what programs ask an error; its text may differ.
func (x *exchange) noteError(what string, err error) {
	x.Helper()
	timeout, _ := errors.AsType[net.Error](err)
	is := map[string]bool{
		"error": err != nil, "canceled": errors.Is(err, context.Canceled), "deadline": errors.Is(err, context.DeadlineExceeded),
		"timeout": timeout != nil && timeout.Timeout(), "cause": errors.Is(err, errContract),
		"end": errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF),
	}
	maps.DeleteFunc(is, func(_ string, yes bool) bool { return !yes })
	x.note("%s: %v", what, slices.Sorted(maps.Keys(is)))
}

var errContract = errors.New("the caller's own cause")

// do sends a request, and notes the response to its end.
func (x *exchange) do(req *http.Request) {
	x.Helper()
	resp, err := x.client.Do(req)
	x.noteError("sent", err)
	if err == nil {
		x.noteResponse(resp)
	}
}

func (x *exchange) noteResponse(resp *http.Response) {
	x.Helper()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	x.note("%s %s, length %d, encoding %v, uncompressed %t, header %q, trailer %q, request %s", resp.Proto, resp.Status,
		resp.ContentLength, resp.TransferEncoding, resp.Uncompressed, strip(resp.Header), resp.Trailer, resp.Request.Method)
	x.note("body of %d: %x", len(body), sha256.Sum256(body))
	x.noteError("read", err)
}

func strip(h http.Header) http.Header {
	h = h.Clone()
	h.Del("Date")
	return h
}

// request returns a request whose body, if it is not "", can't be rewound.
func (x *exchange) request(ctx context.Context, method, path, body string) *http.Request {
	x.Helper()
	var r io.Reader
	if body != "" {
		r = io.MultiReader(strings.NewReader(body))
	}
	req, err := http.NewRequestWithContext(ctx, method, x.url+path, r)
	require.NoError(x, err)
	return req
}

// contractWrappers are what is put between the client and the http.Transport.
var contractWrappers = []struct {
	name string
	wrap func(http.RoundTripper) http.RoundTripper
}{
	{"Plain", func(base http.RoundTripper) http.RoundTripper { return base }},
	{"Generous", func(base http.RoundTripper) http.RoundTripper {
		return throttle.Must(throttle.New(base, contractLimits(), throttle.WithWeights(map[string]int64{"POST /": 3})))
	}},
	{"Exempt", func(base http.RoundTripper) http.RoundTripper {
		return throttle.Must(throttle.New(base, contractLimits(), throttle.WithExempt(func(*http.Request) bool { return true })))
	}},
	{"Waiting", func(base http.RoundTripper) http.RoundTripper { return alwaysInLine{base} }},
	{"Nested", func(base http.RoundTripper) http.RoundTripper {
		return throttle.Must(throttle.New(throttle.Must(throttle.New(base, contractLimits())), contractLimits()))
	}},
}

func contractLimits() throttle.Option {
	return throttle.WithLimit(
		throttle.TokenBucket(1e9, time.Second, throttle.Key(throttle.ByHost)),
		throttle.SlidingWindow(1e9, time.Second, throttle.Key(throttle.ByHeader("Authorization"))),
		throttle.FixedWindow(1e9, time.Hour, throttle.Key(throttle.ByRoute("GET /", "POST /{id}"))),
		throttle.InFlight(1e6),
		throttle.Adaptive(throttle.AIMD{Initial: 1e9}),
	)
}

// alwaysInLine lets each request wait 2 ms, in the line of a Transport of its own.
type alwaysInLine struct{ base http.RoundTripper }

func (a alwaysInLine) RoundTrip(req *http.Request) (*http.Response, error) {
	limit := throttle.TokenBucket(1, 2*time.Millisecond, throttle.Initial(0))
	return throttle.Must(throttle.New(a.base, contractLimits(), throttle.WithLimit(limit))).RoundTrip(req)
}

func (a alwaysInLine) CloseIdleConnections() {
	throttle.Must(throttle.New(a.base)).CloseIdleConnections()
}

func testContract(t *testing.T, cases []contractCase) {
	for _, c := range cases {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			if c.only == "" || c.only == proto {
				t.Run(c.name+"/"+strings.ReplaceAll(proto, "/", ""), func(t *testing.T) { t.Parallel(); c.compare(t, proto) })
			}
		}
	}
}

// compare runs the case with each wrapper, and wants the transcripts to be equal.
func (c *contractCase) compare(t *testing.T, proto string) {
	var plain []string
	for _, w := range contractWrappers {
		ok := t.Run(w.name, func(t *testing.T) {
			x := c.run(t, proto, w.wrap)
			require.NotEmpty(t, x.transcript)
			if plain == nil {
				plain = x.transcript
			}
			require.Equal(t, plain, x.transcript)
		})
		if !ok {
			return
		}
	}
	t.Logf("%s\n%s", c.name, strings.Join(plain, "\n"))
}

func (c *contractCase) run(t *testing.T, proto string, wrap func(http.RoundTripper) http.RoundTripper) *exchange {
	x := &exchange{T: t, arrived: make(chan struct{}, 100)}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		x.arrived <- struct{}{}
		c.handle(w, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.EnableHTTP2 = proto == "HTTP/2.0"
	server.StartTLS()
	t.Cleanup(server.Close)
	base := server.Client().Transport.(*http.Transport)
	if c.tune != nil {
		c.tune(base)
	}
	x.url, x.client = server.URL, &http.Client{Transport: wrap(base)}
	c.do(x)
	return x
}
