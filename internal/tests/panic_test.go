package tests

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
)

// Whatever function of the user's panics, the request body is closed, and so is the response body if there is one.
func TestAPanicLeavesNoBodyOpen(t *testing.T) {
	opt := func(opts ...throttle.Option) []throttle.Option { return opts }
	hook := func(h throttle.Hooks) throttle.Option { return throttle.WithHooks(h) }
	late := throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Initial(0), throttle.Name("late")))
	for name, c := range map[string]struct {
		opts []throttle.Option
		sent bool
	}{
		"KeyFunc":            {opts: opt(throttle.WithKey(func(*http.Request) string { panic("key") }), throttle.WithLimit(throttle.InFlight(1)))},
		"KeyFunc of a limit": {opts: opt(throttle.WithLimit(throttle.InFlight(1, throttle.Key(func(*http.Request) string { panic("key") }))))},
		"CostFunc":           {opts: opt(throttle.WithCost(func(*http.Request) int64 { panic("cost") }), throttle.WithLimit(throttle.Pace(1, time.Second)))},
		"Exempt":             {opts: opt(throttle.WithExempt(func(*http.Request) bool { panic("exempt") }))},
		"RateFor": {opts: opt(throttle.WithKey(throttle.ByHost), throttle.WithLimit(throttle.Pace(1, time.Second, throttle.RateFor(
			func(string) (int64, time.Duration) { panic("rate") }))))},
		"OnGrant":         {opts: opt(hook(throttle.Hooks{OnGrant: func(throttle.GrantEvent) { panic("grant") }}))},
		"OnGrant in line": {opts: opt(late, hook(throttle.Hooks{OnGrant: func(throttle.GrantEvent) { panic("grant") }}))},
		"OnWait":          {opts: opt(late, hook(throttle.Hooks{OnWait: func(throttle.WaitEvent) { panic("wait") }}))},
		"OnReject":        {opts: opt(late, throttle.WithFailFast(), hook(throttle.Hooks{OnReject: func(throttle.RejectEvent) { panic("reject") }}))},
		"Shape": {opts: opt(late, throttle.WithFailFast(), throttle.WithRejectionResponse(
			func(*throttle.Rejection, *http.Request) *http.Response { panic("shape") }))},
		"OnHold":          {opts: opt(hook(throttle.Hooks{OnHold: func(throttle.HoldEvent) { panic("hold") }})), sent: true},
		"OnHold, counted": {opts: opt(throttle.WithLimit(throttle.InFlight(1)), hook(throttle.Hooks{OnHold: func(throttle.HoldEvent) { panic("hold") }})), sent: true},
		"Settle": {opts: opt(throttle.WithLimit(throttle.Pace(1, time.Second, throttle.Settle(
			func(*http.Request, *http.Response) (int64, bool) { panic("settle") })))), sent: true},
		"Classify": {opts: opt(throttle.WithLimit(throttle.Adaptive(throttle.AIMD{}, throttle.Classify(func(*http.Response, error) throttle.Outcome { panic("classify") })))), sent: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				request := &countedBody{Reader: strings.NewReader("request")}
				response := &countedBody{Reader: strings.NewReader("response")}
				sent := false
				base := roundTripper(func(req *http.Request) (*http.Response, error) {
					sent = true
					req.Body.Close()
					return &http.Response{StatusCode: 429, Header: header("Retry-After", "9"), Body: response, Request: req}, nil
				})
				tr, err := throttle.New(base, c.opts...)
				require.NoError(t, err)
				req, err := http.NewRequestWithContext(t.Context(), "POST", api, request)
				require.NoError(t, err)
				require.Panics(t, func() { _, _ = tr.RoundTrip(req) })
				assert.Equal(t, c.sent, sent)
				assert.EqualValues(t, 1, request.closed.Load(), "the request's body")
				if sent {
					assert.EqualValues(t, 1, response.closed.Load(), "the response's body")
				}
				assert.Zero(t, inFlight(tr.Limiter()))
				require.NoError(t, tr.Shutdown(t.Context()), "no request is in flight")
			})
		})
	}
}

func TestAPanicOfATicketLeavesNoBodyOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook := throttle.WithHooks(throttle.Hooks{OnGrant: func(throttle.GrantEvent) { panic("grant") }})
		tr, err := throttle.New(nil, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Initial(0))), hook)
		require.NoError(t, err)
		body := &countedBody{Reader: strings.NewReader("request")}
		req, err := http.NewRequestWithContext(t.Context(), "POST", api, body)
		require.NoError(t, err)
		ticket, err := tr.Enqueue(req)
		require.NoError(t, err)
		require.PanicsWithValue(t, "grant", func() { _, _ = ticket.RoundTrip(req) })
		assert.EqualValues(t, 1, body.closed.Load())
		require.NoError(t, tr.Shutdown(t.Context()), "no request is in flight")
	})
}

// The caller of HEAD gets no body, and so cannot close one.
func TestTheBodyOfAShapedResponseToHEADIsClosed(t *testing.T) {
	body := &countedBody{Reader: strings.NewReader("slow down")}
	tr, err := throttle.New(nil, throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0))), throttle.WithFailFast(),
		throttle.WithRejectionResponse(func(*throttle.Rejection, *http.Request) *http.Response {
			return &http.Response{StatusCode: 503, ContentLength: 9, Body: body}
		}))
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(context.Background(), "HEAD", api, nil)
	require.NoError(t, err)
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	assert.Equal(t, http.NoBody, resp.Body)
	assert.EqualValues(t, 9, resp.ContentLength)
	assert.EqualValues(t, 1, body.closed.Load())
	_, _ = io.ReadAll(resp.Body)
}

// The context of a request may end in any goroutine, where no caller could recover the panic of a hook: it gives slots back, and
// calls no hook.
func TestTheEndOfAContextCallsNoHook(t *testing.T) {
	events := func(called *[]string) throttle.Option {
		call := func(name string) { *called = append(*called, name); panic(name) }
		return throttle.WithHooks(throttle.Hooks{
			OnSettle:        func(throttle.SettleEvent) { call("settle") },
			OnHold:          func(throttle.HoldEvent) { call("hold") },
			OnServerRefusal: func(throttle.ServerRefusalEvent) { call("refusal") },
			OnRetune:        func(throttle.RetuneEvent) { call("retune") },
		})
	}
	for _, c := range []struct {
		name, body, want string
		opts             []throttle.Option
	}{
		{"a cost", `{"usage":{"total_tokens":42}}`, "settle", []throttle.Option{throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.SettleJSON("usage.total_tokens")))}},
		{"a refusal", `{"errors":[{"extensions":{"code":"RATELIMITED"}}]}`, "refusal", []throttle.Option{throttle.WithServerHints(headers.Linear)}},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			var called []string
			tr, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 400, Header: header("Content-Type", "application/json"), Request: req, Body: io.NopCloser(strings.NewReader(c.body))}, nil
			}), append(c.opts, events(&called), throttle.WithLimit(throttle.InFlight(1)))...)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			resp := opened(t, tr, ctx)
			_, err = io.CopyN(io.Discard, resp.Body, int64(len(c.body)))
			require.NoError(t, err)
			require.EqualValues(t, 1, inFlight(tr.Limiter()))
			cancel()
			synctest.Wait()
			require.Empty(t, called)
			require.Zero(t, inFlight(tr.Limiter()), "the slot is free")
			require.PanicsWithValue(t, c.want, func() { _ = resp.Body.Close() })
			require.Equal(t, []string{c.want}, called)
			require.NoError(t, resp.Body.Close())
		})
	}
}
