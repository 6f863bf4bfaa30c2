package tests

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
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A contractCase is an exchange that must look the same to the caller whether its Transport is wrapped or not.
type contractCase struct {
	name   string
	only   string // "HTTP/1.1", "HTTP/2.0"; "": both
	tune   func(*http.Transport)
	handle http.HandlerFunc
	do     func(*exchange)
}

// An exchange is one run of a case. The transcript has what the caller sees of it.
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
	var timeout net.Error
	_ = errors.As(err, &timeout)
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

// A refusal is a request that must not be sent, and the Transport that it is given to.
type refusal struct {
	*testing.T
	tr   *throttle.Transport
	req  *http.Request
	body *countedBody
	mu   sync.Mutex
	sent []*http.Request // all that the Transport sent
}

// newRefusal returns a request of a Transport of one token per second, none of which are there at the beginning.
func newRefusal(t *testing.T, opts ...throttle.Option) *refusal {
	r := &refusal{T: t, body: &countedBody{Reader: strings.NewReader("body")}}
	limit := throttle.TokenBucket(1, time.Second, throttle.Initial(0), throttle.Name("it"))
	r.tr = throttle.Must(throttle.New(r, slices.Concat(opts, []throttle.Option{throttle.WithLimit(limit)})...))
	r.req = httpRequest(t, t.Context(), "POST", "http://user:secret@a/path?query#fragment")
	r.req.Body = r.body
	r.req.Trailer = http.Header{"X-Sum": nil}
	return r
}

func httpRequest(t *testing.T, ctx context.Context, method, url string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, url, nil)
	require.NoError(t, err)
	return req
}

// RoundTrip is the base of the Transport.
func (r *refusal) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = append(r.sent, req)
	if req.Body != nil {
		req.Body.Close()
	}
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: req}, nil
}

// enqueue lets n others wait, of that priority.
func (r *refusal) enqueue(n, priority int) {
	for range n {
		req := httpRequest(r.T, throttle.ContextWithPriority(r.Context(), priority), "GET", "http://b")
		go func() { _, _ = r.tr.RoundTrip(req) }()
	}
	synctest.Wait()
}

func (r *refusal) with(change func(context.Context) context.Context) {
	r.req = r.req.WithContext(change(r.req.Context()))
}

func (r *refusal) within(d time.Duration) {
	r.with(func(ctx context.Context) context.Context {
		ctx, cancel := context.WithTimeout(ctx, d)
		r.Cleanup(cancel)
		return ctx
	})
}

func (r *refusal) cost(n int64) {
	r.with(func(ctx context.Context) context.Context { return throttle.ContextWithCost(ctx, n) })
}

// soon calls f while the request is in line, which it would leave after one second.
func soon(f func()) { time.AfterFunc(time.Second/2, f) }

// A refusalCase is a way for a request not to be sent.
type refusalCase struct {
	name    string
	opts    []throttle.Option
	prepare func(*refusal)
	reason  throttle.Reason // 0: no refusal, but an error of another kind
	is      error           // what the error is, too
}

func (c *refusalCase) onlyError() bool {
	return c.reason == 0 || c.reason == throttle.ReasonDeadline || c.reason == throttle.ReasonCost
}

func refusalCases() []refusalCase {
	opt := func(opts ...throttle.Option) []throttle.Option { return opts }
	return []refusalCase{
		{name: "FailFast", reason: throttle.ReasonNoTokens, opts: opt(throttle.WithFailFast())},
		{name: "MaxWait", reason: throttle.ReasonMaxWait, opts: opt(throttle.WithMaxWait(time.Second - 1))},
		{name: "MaxWaitPassesInLine", reason: throttle.ReasonMaxWait, opts: opt(throttle.WithMaxWait(2 * time.Second)), prepare: func(r *refusal) {
			soon(func() { r.enqueue(2, 1) })
		}},
		{name: "Deadline", reason: throttle.ReasonDeadline, is: context.DeadlineExceeded, prepare: func(r *refusal) {
			r.within(time.Second)
		}},
		{name: "DeadlinePassesInLine", is: context.DeadlineExceeded, prepare: func(r *refusal) {
			r.within(2 * time.Second)
			soon(func() { r.enqueue(2, 1) })
		}},
		{name: "QueueFull", reason: throttle.ReasonQueueFull, opts: opt(throttle.WithMaxQueue(1)), prepare: func(r *refusal) {
			r.enqueue(1, 0)
		}},
		{name: "CostNeverPayable", reason: throttle.ReasonCost, prepare: func(r *refusal) { r.cost(2) }},
		{name: "CostNegative", reason: throttle.ReasonCost, prepare: func(r *refusal) { r.cost(-1) }},
		{name: "Held", reason: throttle.ReasonHeld, opts: opt(throttle.WithFailFast()), prepare: func(r *refusal) {
			r.tr.Limiter().Hold("", time.Hour)
		}},
		{name: "HeldInLine", reason: throttle.ReasonHeld, opts: opt(throttle.WithMaxWait(time.Minute)), prepare: func(r *refusal) {
			soon(func() { r.tr.Limiter().Hold("", time.Hour) })
		}},
		{name: "HeldInLineBeyondDeadline", reason: throttle.ReasonDeadline, is: context.DeadlineExceeded, prepare: func(r *refusal) {
			r.within(time.Minute)
			soon(func() { r.tr.Limiter().Hold("", time.Hour) })
		}},
		{name: "SlowedInLine", reason: throttle.ReasonMaxWait, opts: opt(throttle.WithMaxWait(time.Minute)), prepare: func(r *refusal) {
			soon(func() { assert.NoError(r, r.tr.Limiter().SetRate("it", 1, time.Hour)) })
		}},
		{name: "TooManyKeys", reason: throttle.ReasonKeys, opts: opt(throttle.WithMaxKeys(1), throttle.WithKey(throttle.ByHost)), prepare: func(r *refusal) {
			r.enqueue(1, 0)
		}},
		{name: "CanceledBefore", is: errContract, prepare: func(r *refusal) {
			r.with(func(ctx context.Context) context.Context { return canceledBy(ctx, errContract) })
		}},
		{name: "DeadlineBefore", is: context.DeadlineExceeded, prepare: func(r *refusal) { r.within(-time.Second) }},
		{name: "CanceledInLine", is: errContract, prepare: func(r *refusal) {
			ctx, cancel := context.WithCancelCause(r.req.Context())
			r.req = r.req.WithContext(ctx)
			soon(func() { cancel(errContract) })
		}},
		{name: "RequestCancelInLine", is: context.Canceled, prepare: func(r *refusal) {
			cancel := make(chan struct{})
			r.req.Cancel = cancel //lint:ignore SA1019 http.Client sets it with its Timeout
			soon(func() { close(cancel) })
		}},
		{name: "RateForFails", opts: opt(throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Key(throttle.ByHost),
			throttle.RateFor(func(string) (int64, time.Duration) { return -1, time.Second }))))},
	}
}

func canceledBy(ctx context.Context, cause error) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	cancel(cause)
	return ctx
}

// snapshot is what a RoundTripper may not change about a request; what is compared by identity is not in it.
func snapshot(r *http.Request) http.Request {
	c := r.Clone(context.Background())
	c.Body, c.GetBody, c.Cancel = nil, nil, nil //lint:ignore SA1019 http.Client sets Cancel with its Timeout
	return *c
}

// refuse runs the case, and checks what holds for every one of them.
func (c *refusalCase) refuse(t *testing.T, opts ...throttle.Option) (*http.Response, error) {
	r := newRefusal(t, slices.Concat(c.opts, opts)...)
	if c.prepare != nil {
		c.prepare(r)
	}
	before, ctx, address := snapshot(r.req), r.req.Context(), r.req.URL
	resp, err := r.tr.RoundTrip(r.req)
	assert.Equal(t, before, snapshot(r.req), "the request was changed")
	assert.True(t, r.req.Context() == ctx && r.req.URL == address && r.req.Body == r.body, "a part of the request was replaced")
	r.mu.Lock()
	defer r.mu.Unlock()
	assert.False(t, slices.ContainsFunc(r.sent, func(sent *http.Request) bool { return sent.Method == "POST" }), "the request was sent")
	assert.EqualValues(t, 1, r.body.closed.Load(), "the body must be closed once")
	assert.Zero(t, r.body.read.Load(), "the body was read")
	assert.True(t, (resp == nil) != (err == nil), "there must be a response or an error, and not both")
	return resp, err
}

func TestUnsentRequestsAreClosedAndUntouched(t *testing.T) {
	for _, c := range refusalCases() {
		t.Run(c.name+"/Response", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				resp, err := c.refuse(t)
				if c.onlyError() {
					c.check(t, err)
					return
				}
				require.NoError(t, err)
				rejection, ok := throttle.RejectionOf(resp)
				require.True(t, ok)
				require.Equal(t, c.reason, rejection.Reason)
			})
		})
		t.Run(c.name+"/Error", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, err := c.refuse(t, throttle.WithRejectionError())
				c.check(t, err)
			})
		})
		t.Run(c.name+"/Shaped", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shape := func(*throttle.Rejection, *http.Request) *http.Response { return &http.Response{StatusCode: 503} }
				resp, err := c.refuse(t, throttle.WithRejectionResponse(shape))
				if c.onlyError() {
					c.check(t, err)
					return
				}
				require.NoError(t, err)
				require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
			})
		})
	}
}

func (c *refusalCase) check(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	var rejection *throttle.Rejection
	ok := errors.As(err, &rejection)
	require.Equal(t, c.reason != 0, ok)
	require.Equal(t, c.reason != 0, errors.Is(err, throttle.ErrThrottled))
	if ok {
		require.Equal(t, c.reason, rejection.Reason)
	}
	if c.is != nil {
		require.ErrorIs(t, err, c.is)
	}
	require.Equal(t, c.is == context.DeadlineExceeded, errors.Is(err, context.DeadlineExceeded))
}

func TestErrorsSurviveTheClient(t *testing.T) {
	for _, c := range refusalCases() {
		for _, timeout := range []time.Duration{0, 24 * time.Hour} {
			t.Run(c.name+"/"+timeout.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRefusal(t, slices.Concat(c.opts, []throttle.Option{throttle.WithRejectionError()})...)
					if c.prepare != nil {
						c.prepare(r)
					}
					_, err := (&http.Client{Transport: r.tr, Timeout: timeout}).Do(r.req)
					c.check(t, err)
					var wrapped *url.Error
					ok := errors.As(err, &wrapped)
					require.True(t, ok)
					require.Equal(t, c.is == context.DeadlineExceeded, wrapped.Timeout())
					require.EqualValues(t, 1, r.body.closed.Load())
				})
			})
		}
	}
}

func TestTimeoutOfTheClientInLineIsATimeout(t *testing.T) {
	for name, prepare := range map[string]func(*refusal){
		"CantFit":      func(r *refusal) { r.enqueue(2, 0) },
		"PassesInLine": func(r *refusal) { soon(func() { r.enqueue(2, 1) }) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRefusal(t)
				prepare(r)
				_, err := (&http.Client{Transport: r.tr, Timeout: 2 * time.Second}).Do(r.req)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				var wrapped *url.Error
				ok := errors.As(err, &wrapped)
				require.True(t, ok && wrapped.Timeout())
				require.Equal(t, name == "CantFit", errors.Is(err, throttle.ErrThrottled))
				require.EqualValues(t, 1, r.body.closed.Load())
			})
		})
	}
}

func TestForeignRejectionAsCauseIsNoRefusal(t *testing.T) {
	foreign := &throttle.Rejection{Reason: throttle.ReasonMaxWait, Limit: "of another"}
	for _, inLine := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRefusal(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			if inLine {
				soon(func() { cancel(foreign) })
			} else {
				cancel(foreign)
			}
			resp, err := r.tr.RoundTrip(r.req.WithContext(ctx))
			require.Nil(t, resp)
			require.Same(t, foreign, err)
			require.Zero(t, r.tr.Stats().Rejected.Total())
		})
	}
}

func TestSentRequestsAreNeverChanged(t *testing.T) {
	for name, opts := range map[string][]throttle.Option{
		"Waiting": {throttle.WithWeights(map[string]int64{"POST /path": 1})},
		"DryRun":  {throttle.WithDryRun()},
		"Exempt":  {throttle.WithExempt(func(*http.Request) bool { return true })},
		"Keyed":   {throttle.WithKey(throttle.ByRoute("/{id}")), contractLimits()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRefusal(t, opts...)
				before, ctx, address := snapshot(r.req), r.req.Context(), r.req.URL
				resp, err := r.tr.RoundTrip(r.req)
				require.NoError(t, err)
				require.Equal(t, before, snapshot(r.req))
				require.True(t, r.req.Context() == ctx && r.req.URL == address && r.req.Body == r.body)
				require.Equal(t, http.StatusNoContent, resp.StatusCode)
				require.Len(t, r.sent, 1)
				require.Equal(t, before, snapshot(r.sent[0]))
				require.EqualValues(t, 1, r.body.closed.Load())
			})
		})
	}
}

func TestRequestWhoseCancelIsClosedIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRefusal(t)
		time.Sleep(time.Minute) // there are tokens
		cancel := make(chan struct{})
		close(cancel)
		r.req.Cancel = cancel //lint:ignore SA1019 http.Client sets it with its Timeout
		_, err := r.tr.RoundTrip(r.req)
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, r.sent)
	})
}
