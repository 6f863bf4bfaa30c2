package pool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/internal/bridge"
	"github.com/httpthrottle/throttle/pool"
	"github.com/httpthrottle/throttle/retry"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A step is what a member's server does with a request.
type step func(*http.Request) (*http.Response, error)

func respond(status int, body string, lines ...string) step {
	return func(req *http.Request) (*http.Response, error) {
		h := http.Header{"Content-Type": {"application/json"}}
		for _, line := range lines {
			name, value, _ := strings.Cut(line, ": ")
			h.Set(name, value)
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
	}
}

func breakWith(err error) step {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

// A script is a server that takes its steps one after the other, and the last one again and again.
type script struct {
	mu    sync.Mutex
	steps []step
	sent  int
	texts []string // the bodies that it got
}

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	text := []byte(nil)
	if req.Body != nil {
		text, _ = io.ReadAll(req.Body)
		req.Body.Close()
	}
	s.mu.Lock()
	do := s.steps[min(s.sent, len(s.steps)-1)]
	s.sent++
	s.texts = append(s.texts, string(text))
	s.mu.Unlock()
	return do(req)
}

// scripted returns members a, b, … in this order of preference, whose servers do these steps, and a client that retries.
func scripted(t *testing.T, opts []throttle.Option, steps ...[]step) (servers []*script, members []pool.Member, client *retry.Client) {
	for i, steps := range steps {
		servers = append(servers, &script{steps: steps})
		tr, err := throttle.New(servers[i], opts...)
		require.NoError(t, err)
		members = append(members, pool.Member{Name: string(rune('a' + i)), Transport: tr, After: time.Duration(i)})
	}
	return servers, members, retry.NewClient(of(t, members), retry.WithReader(openAI(t)))
}

func openAI(t testing.TB) *headers.Reader {
	r, err := headers.NewReader(headers.OpenAI)
	require.NoError(t, err)
	return r
}

var (
	ok       = respond(200, "fine")
	noCredit = respond(429, `{"error":{"code":"insufficient_quota","message":"pay"}}`)
	broken   = breakWith(errors.New("the connection broke"))
	hints    = []throttle.Option{throttle.WithServerHints(headers.OpenAI)}
)

// A failed attempt is sent by another member immediately, where a retry is allowed at all and whatever the server asked for.
func TestARetryIsSentByAnotherMember(t *testing.T) {
	const get, post = http.MethodGet, http.MethodPost
	for name, c := range map[string]struct {
		method string
		first  step
		key    string
		status int // 0: an error
		moved  bool
	}{
		"limited":                {get, respond(429, "", "Retry-After: 3600"), "", 200, true},
		"limited POST":           {post, respond(429, "", "Retry-After: 3600"), "", 200, true},
		"final POST":             {post, noCredit, "", 200, true},
		"a revoked token":        {post, respond(401, ""), "", 200, true},
		"no credit left":         {post, respond(402, ""), "", 200, true},
		"broken":                 {get, broken, "", 200, true},
		"500":                    {get, respond(500, ""), "", 200, true},
		"500 to a keyed POST":    {post, respond(500, ""), "k", 200, true},
		"broken keyed POST":      {post, broken, "k", 200, true},
		"500 to a POST":          {post, respond(500, ""), "", 500, false},
		"broken POST":            {post, broken, "", 0, false},
		"not found":              {get, respond(404, ""), "", 404, false},
		"forbidden":              {get, respond(403, ""), "", 403, false},
		"500 that asks for none": {get, respond(500, "", "X-Should-Retry: false"), "", 500, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				servers, _, client := scripted(t, hints, []step{c.first}, []step{ok})
				req, err := http.NewRequestWithContext(t.Context(), c.method, "http://api.example.com/", strings.NewReader("text"))
				require.NoError(t, err)
				if c.key != "" {
					req.Header.Set("Idempotency-Key", c.key)
				}
				start := time.Now()
				resp, err := client.StandardClient().Do(req)
				require.Zero(t, time.Since(start))
				require.Equal(t, c.status == 0, err != nil, "%v", err)
				if err == nil {
					require.Equal(t, c.status, resp.StatusCode)
				}
				require.Equal(t, 1, servers[0].sent)
				require.Equal(t, c.moved, servers[1].sent == 1)
				if c.moved {
					require.Equal(t, []string{"text"}, servers[1].texts)
					require.EqualValues(t, 2, client.Policy.Stats().Attempts)
				}
			})
		})
	}
}

// After all members have failed, the client waits until the first of them may be tried again, whichever failed last.
func TestTheRoundEndsWhenAMemberMayBeTriedAgain(t *testing.T) {
	for name, steps := range map[string][2]step{
		"the first one":         {respond(429, "", "Retry-After: 5"), respond(429, "", "Retry-After: 600")},
		"the last one":          {respond(429, "", "Retry-After: 600"), respond(429, "", "Retry-After: 5")},
		"the other is final":    {respond(429, "", "Retry-After: 5"), noCredit},
		"the other was final":   {noCredit, respond(429, "", "Retry-After: 5")},
		"the other is revoked":  {respond(429, "", "Retry-After: 5"), respond(401, "")},
		"the other was revoked": {respond(401, ""), respond(429, "", "Retry-After: 5")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				servers, _, client := scripted(t, hints, []step{steps[0], ok}, []step{steps[1], ok})
				start := time.Now()
				resp, err := client.Get("http://api.example.com/")
				require.NoError(t, err)
				require.Equal(t, 200, resp.StatusCode)
				require.GreaterOrEqual(t, time.Since(start), time.Second) // a revoked token may be tried again after a backoff
				require.LessOrEqual(t, time.Since(start), 6*time.Second)
				require.Equal(t, 3, servers[0].sent+servers[1].sent)
			})
		})
	}
}

// RetryMax and the budget limit retries by other members, too, and each is counted and has its number in the context.
func TestRetriesByOtherMembersAreCounted(t *testing.T) {
	failing := []step{respond(500, "whole")}
	for name, c := range map[string]struct {
		most, reserve, sent int
	}{"no retries": {0, 100, 1}, "one": {1, 100, 3}, "two members more": {2, 100, 6}, "an empty budget": {4, 1, 2}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var attempts []int
				servers, members, _ := scripted(t, []throttle.Option{throttle.WithHooks(throttle.Hooks{OnGrant: func(e throttle.GrantEvent) {
					attempts = append(attempts, retry.Retries(e.Context))
				}})}, failing, failing, failing)
				client := retry.NewClient(of(t, members), retry.WithBudget(c.reserve, 0))
				client.RetryMax = c.most
				resp, err := client.Get("http://api.example.com/")
				require.NoError(t, err)
				require.Equal(t, 500, resp.StatusCode)
				text, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.Equal(t, "whole", string(text))
				require.Equal(t, c.sent, servers[0].sent+servers[1].sent+servers[2].sent)
				require.EqualValues(t, c.sent, client.Policy.Stats().Attempts)
				require.Equal(t, []int{0, 1, 2, 1, 2, 2}[:min(c.sent, 2)], attempts[:min(c.sent, 2)])
			})
		})
	}
}

// A body that cannot be read again is sent once.
func TestABodyWithoutGetBodyIsNotSentAgain(t *testing.T) {
	servers, members, _ := scripted(t, hints, []step{respond(500, "whole")}, []step{ok})
	rt := of(t, members)
	ctx := bridge.WithNext(t.Context(), func(*http.Request, *http.Response, error) *http.Request { panic("asked") })
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://api.example.com/", io.NopCloser(bytes.NewReader([]byte("text"))))
	require.NoError(t, err)
	resp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	require.Equal(t, 500, resp.StatusCode)
	require.Zero(t, servers[1].sent)
}

// What docs/recipes.md says of GetBody: a stream is sent by another member immediately in a request of retryablehttp, and after a wait in one
// of net/http.
func TestAStreamIsSentByAnotherMemberIfItHasGetBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stream := func() io.Reader { return io.MultiReader(strings.NewReader("te"), strings.NewReader("xt")) }
		sent := func(servers []*script) []string { return slices.Concat(servers[0].texts, servers[1].texts) }
		servers, _, client := scripted(t, hints, []step{respond(429, ""), ok}, []step{ok})
		start := time.Now()
		req, err := retryablehttp.NewRequestWithContext(t.Context(), http.MethodPost, "http://api.example.com/", stream())
		require.NoError(t, err)
		resp, err := client.Do(req)
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode)
		require.Zero(t, time.Since(start))
		require.Equal(t, []string{"text", "text"}, sent(servers))

		servers, _, client = scripted(t, hints, []step{respond(429, ""), ok}, []step{ok})
		resp, err = client.StandardClient().Post("http://api.example.com/", "text/plain", stream())
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode)
		require.Positive(t, time.Since(start))
		require.Equal(t, []string{"text", "text"}, sent(servers))
	})
}

// Whatever happens to one of three members under load, each request gets a good response, and almost as soon as from the other two.
func TestNoRequestIsLostWithAMember(t *testing.T) {
	for name, bad := range map[string]step{
		"held":       respond(429, "", "Retry-After: 60"),
		"final":      noCredit,
		"revoked":    respond(401, ""),
		"overloaded": respond(503, ""),
		"fails":      respond(500, ""),
		"down":       breakWith(&net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}),
		"unreachable": func(*http.Request) (*http.Response, error) {
			time.Sleep(30 * time.Second)
			return nil, &net.OpError{Op: "dial", Err: errTimeout}
		},
		"hangs":   func(*http.Request) (*http.Response, error) { time.Sleep(5 * time.Second); return nil, errTimeout }, // ResponseHeaderTimeout
		"slow":    func(r *http.Request) (*http.Response, error) { time.Sleep(20 * time.Second); return ok(r) },
		"removed": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var members []pool.Member
				var servers []*script
				good := func(r *http.Request) (*http.Response, error) { time.Sleep(200 * time.Millisecond); return ok(r) }
				for i := range 3 {
					servers = append(servers, &script{steps: []step{good}})
					tr, err := throttle.New(servers[i], throttle.WithServerHints(headers.OpenAI),
						throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Burst(1)), throttle.InFlight(5, throttle.Name("slots"))))
					require.NoError(t, err)
					members = append(members, pool.Member{Name: fmt.Sprint(i), Transport: tr})
				}
				p := of(t, members)
				client := retry.NewClient(p, retry.WithReader(openAI(t))).StandardClient()
				ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
				defer cancel()
				time.AfterFunc(10*time.Second, func() {
					if bad == nil {
						assert.NoError(t, p.Set(members[:2]...))
						return
					}
					servers[2].mu.Lock()
					defer servers[2].mu.Unlock()
					servers[2].steps = []step{bad}
				})
				var all sync.WaitGroup
				for range 10 {
					all.Go(func() {
						for ctx.Err() == nil {
							resp, err := client.Get("http://api.example.com/")
							if assert.NoError(t, err) {
								assert.Equal(t, 200, resp.StatusCode)
								resp.Body.Close()
							}
						}
					})
				}
				all.Wait()
				t.Log(servers[0].sent, servers[1].sent, servers[2].sent)
				require.GreaterOrEqual(t, servers[0].sent+servers[1].sent, 2*40*10*95/100)
			})
		})
	}
}

// errTimeout is like that of net/http for a server that sends no header in time.
var errTimeout error = timeout{}

type timeout struct{}

func (timeout) Error() string   { return "timeout awaiting response headers" }
func (timeout) Timeout() bool   { return true }
func (timeout) Temporary() bool { return true }
