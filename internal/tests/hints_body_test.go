package tests

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A streaming server answers with headers at once, and with a body that the test writes.
type streaming struct {
	status int
	header http.Header
	bodies []*io.PipeWriter
	sent   int
}

func (s *streaming) RoundTrip(req *http.Request) (*http.Response, error) {
	r, w := io.Pipe()
	s.bodies = append(s.bodies, w)
	s.sent++
	return &http.Response{StatusCode: s.status, Header: s.header.Clone(), Body: r, Request: req, ContentLength: -1}, nil
}

func header(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

const (
	secondaryLimit = `{"message":"You have exceeded a secondary rate limit. Please wait."}`
	shopifyLimit   = `{"errors":[{"extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":50,` +
		`"throttleStatus":{"maximumAvailable":1000,"currentlyAvailable":10,"restoreRate":50}}}}`
)

// bodyCases are responses whose bodies report how long to wait, and whose headers do not.
var bodyCases = map[string]struct {
	preset headers.Preset
	host   string
	status int
	header http.Header
	body   string
	hold   time.Duration
}{
	"GitHub":  {headers.GitHub, "api.github.com", 403, header("Content-Type", "application/json", "X-RateLimit-Remaining", "4000"), secondaryLimit, time.Minute},
	"Shopify": {headers.Shopify, "shop.myshopify.com", 200, header("Content-Type", "application/json"), shopifyLimit, 800 * time.Millisecond},
	"Discord": {headers.Discord, "discord.com", 429, header("Content-Type", "application/json"), `{"retry_after": 64.5}`, 64500 * time.Millisecond},
	"Google": {headers.Google, "storage.googleapis.com", 429, header("Content-Type", "application/json"),
		`{"error":{"status":"RESOURCE_EXHAUSTED","details":[{"retryDelay":"30s"}]}}`, 30 * time.Second},
	"Auto": {headers.Auto, "api.github.com", 403, header("Content-Type", "application/json"), secondaryLimit, time.Minute},
}

func TestHeadersAreNeverHeldUpByABody(t *testing.T) {
	for name, c := range bodyCases {
		for kind, limits := range map[string][]throttle.Limit{
			"": nil, ", limited": {throttle.TokenBucket(100, time.Second)},
			", with slots and costs": {throttle.InFlight(10), throttle.TokenBucket(100, time.Second, throttle.SettleJSON("cost"))},
		} {
			inBubble(t, name+kind, func(t *testing.T) {
				server := &streaming{status: c.status, header: c.header}
				tr, err := throttle.New(server, throttle.WithLimit(limits...), throttle.WithServerHints(c.preset))
				require.NoError(t, err)
				start := time.Now()
				resp, err := tr.RoundTrip(get(t, t.Context(), "https://"+c.host+"/a"))
				require.NoError(t, err)
				require.Zero(t, time.Since(start), "the body stalls")
				go func() {
					_, _ = io.WriteString(server.bodies[0], c.body)
					server.bodies[0].Close()
				}()
				text, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.Equal(t, c.body, string(text))
				require.NoError(t, resp.Body.Close())
				assert.Zero(t, inFlight(tr.Limiter()))

				_, err = tr.RoundTrip(get(t, t.Context(), "https://"+c.host+"/a"))
				require.NoError(t, err)
				assert.GreaterOrEqual(t, time.Since(start), c.hold)
				assert.LessOrEqual(t, time.Since(start), c.hold*11/10+time.Second)
			})
		}
	}
}

// A body is used as far as the caller reads it: to its end, to the most that is kept, or until it is closed.
func TestABodyTakesEffectAsTheCallerReadsIt(t *testing.T) {
	long := secondaryLimit[:len(secondaryLimit)-1] + `,"more":"` + strings.Repeat("x", 2*headers.BodyBytes) + `"}`
	for name, c := range map[string]struct {
		body string
		read func(*testing.T, io.ReadCloser)
		held bool
	}{
		"to the end":              {secondaryLimit, func(t *testing.T, r io.ReadCloser) { _, _ = io.ReadAll(r) }, true},
		"as much as is kept":      {long, func(t *testing.T, r io.ReadCloser) { _, _ = io.CopyN(io.Discard, r, headers.BodyBytes) }, true},
		"one byte less":           {long, func(t *testing.T, r io.ReadCloser) { _, _ = io.CopyN(io.Discard, r, headers.BodyBytes-1) }, false},
		"in part, then closed":    {long, func(t *testing.T, r io.ReadCloser) { _, _ = io.CopyN(io.Discard, r, 1000); r.Close() }, true},
		"closed, and not read":    {secondaryLimit, func(t *testing.T, r io.ReadCloser) { r.Close() }, false},
		"byte by byte":            {secondaryLimit, func(t *testing.T, r io.ReadCloser) { _, _ = io.ReadAll(oneByte{r}) }, true},
		"closed after the end":    {secondaryLimit, func(t *testing.T, r io.ReadCloser) { _, _ = io.ReadAll(r); r.Close() }, true},
		"neither read nor closed": {secondaryLimit, func(*testing.T, io.ReadCloser) {}, false},
	} {
		inBubble(t, name, func(t *testing.T) {
			holds := 0
			tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
				resp := says(403, "Content-Type", "application/json")
				resp.Body = io.NopCloser(strings.NewReader(c.body))
				return resp
			}), throttle.WithFailFast(), throttle.WithServerHints(headers.GitHub),
				throttle.WithHooks(throttle.Hooks{OnHold: func(throttle.HoldEvent) { holds++ }}))
			require.NoError(t, err)
			resp, err := tr.RoundTrip(get(t, t.Context(), "https://api.github.com/a"))
			require.NoError(t, err)
			c.read(t, resp.Body)
			again, err := tr.RoundTrip(get(t, t.Context(), "https://api.github.com/a"))
			require.NoError(t, err)
			rejection, held := throttle.RejectionOf(again)
			require.Equal(t, c.held, held)
			if held {
				assert.Equal(t, 1, holds)
				assert.GreaterOrEqual(t, rejection.Wait, time.Minute)
			}
		})
	}
}

type oneByte struct{ io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.Reader.Read(p[:1]) }

// A wait in a body counts from the arrival of the headers.
func TestAHoldThatABodyAsksForBeginsWithTheHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &streaming{status: 429, header: header("Content-Type", "application/json")}
		tr, err := throttle.New(server, throttle.WithServerHints(headers.Discord), throttle.WithLimit(throttle.Adaptive(throttle.AIMD{})))
		require.NoError(t, err)
		start := time.Now()
		resp, err := tr.RoundTrip(get(t, t.Context(), "https://discord.com/a"))
		require.NoError(t, err)
		time.Sleep(50 * time.Second)
		go func() {
			_, _ = io.WriteString(server.bodies[0], `{"retry_after": 64}`)
			server.bodies[0].Close()
		}()
		_, _ = io.ReadAll(resp.Body)
		_, err = tr.RoundTrip(get(t, t.Context(), "https://discord.com/a"))
		require.NoError(t, err)
		assert.GreaterOrEqual(t, time.Since(start), 64*time.Second)
		assert.LessOrEqual(t, time.Since(start), 66*time.Second)
	})
}

// The quota of a response is counted once, by its headers, although its body is read later.
func TestAResponseWhoseBodyIsReadIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := 10
		server := roundTripper(func(req *http.Request) (*http.Response, error) {
			left--
			return &http.Response{StatusCode: 200, Request: req, Body: io.NopCloser(strings.NewReader(`{"data":1}`)), Header: header(
				"Content-Type", "application/json", "X-RateLimit-Resource", "graphql", "X-RateLimit-Limit", "10",
				"X-RateLimit-Remaining", strconv.Itoa(left), "X-RateLimit-Reset", strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10))}, nil
		})
		tr, err := throttle.New(server, throttle.WithFailFast(), throttle.WithServerHints(headers.GitHub))
		require.NoError(t, err)
		for range 12 {
			resp, err := tr.RoundTrip(get(t, t.Context(), "https://api.github.com/graphql"))
			require.NoError(t, err)
			_, _ = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		assert.Zero(t, left)
		for b := range tr.Limiter().Buckets() {
			assert.Zero(t, b.InFlight, b.Limit)
		}
	})
}

// A preset that needs the body ignores one that is missing.
func TestAnEmptyBodyStaysAsItIs(t *testing.T) {
	for _, method := range []string{"GET", "HEAD"} {
		for _, status := range []int{200, 403, 429, 503} {
			for _, body := range []io.ReadCloser{http.NoBody, nil} {
				base := roundTripper(func(req *http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: status, Header: header("Content-Type", "application/json", "X-RateLimit-Remaining", "0"), Body: body, Request: req}, nil
				})
				tr, err := throttle.New(base, throttle.WithServerHints(headers.GitHub), throttle.WithLimit(throttle.InFlight(3)))
				require.NoError(t, err)
				req, err := http.NewRequestWithContext(t.Context(), method, "https://api.github.com/a", nil)
				require.NoError(t, err)
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				assert.Equal(t, body, resp.Body)
				assert.Zero(t, inFlight(tr.Limiter()), "%s %d", method, status)
			}
		}
	}
}

// An upgraded connection can be written to, under a preset that wants bodies, too.
func TestAnUpgradedConnectionIsLeftAloneByPresets(t *testing.T) {
	base := roundTripper(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 101, Header: header("Content-Type", "application/json"), Body: struct{ io.ReadWriteCloser }{}, Request: req}, nil
	})
	every := headers.Dialect{Rules: []headers.Rule{{Body: []headers.Match{{Name: "code"}}}}}
	tr, err := throttle.New(base, throttle.WithServerHints(every))
	require.NoError(t, err)
	resp, err := tr.RoundTrip(get(t, t.Context(), api))
	require.NoError(t, err)
	assert.Implements(t, (*io.Writer)(nil), resp.Body)
	assert.IsType(t, struct{ io.ReadWriteCloser }{}, resp.Body)
}

// http.Client ignores a response beside an error, and does not close its body.
func TestAResponseBesideAnErrorKeepsNoSlot(t *testing.T) {
	broken := errors.New("broken")
	for name, status := range map[string]int{"200": 200, "429": 429} {
		t.Run(name, func(t *testing.T) {
			base := roundTripper(func(req *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("x")), Request: req, Header: header("Retry-After", "60")}, broken
			})
			tr, err := throttle.New(base, throttle.WithLimit(throttle.InFlight(2), throttle.TokenBucket(10, time.Second)), throttle.WithFailFast())
			require.NoError(t, err)
			for range 5 {
				_, err := tr.RoundTrip(get(t, t.Context(), api))
				require.ErrorIs(t, err, broken)
			}
			assert.Zero(t, inFlight(tr.Limiter()))
		})
	}
}

// emptyAfter is a server that reports nothing to that many requests, and afterwards, with as many headers, that its quota is empty.
func emptyAfter(silent *int) serverFunc {
	return func(*http.Request) *http.Response {
		if *silent--; *silent >= 0 {
			return says(200, "Date", "Fri, 20 Nov 2026 12:00:00 GMT", "Server", "x", "Vary", "Accept")
		}
		return says(200, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "60")
	}
}

func TestGoodResponsesOfSilentServersAreReadAtABoundedRate(t *testing.T) {
	for name, opts := range map[string][]throttle.Option{
		"one limit":                   {throttle.WithLimit(throttle.TokenBucket(1_000_000, time.Second))},
		"a limit that needs outcomes": {throttle.WithLimit(throttle.InFlight(1_000_000))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				silent := 101 // the first one with that number of headers, 100 without a pause, and one more each second
				tr, err := throttle.New(emptyAfter(&silent), append(opts, throttle.WithFailFast())...)
				require.NoError(t, err)
				for range 101 {
					ask(t, tr, api)
				}
				for range 3 {
					ask(t, tr, api)
					require.Empty(t, tr.Limiter().Servers(), "not read yet")
				}
				time.Sleep(time.Second - 1)
				for range 2 {
					ask(t, tr, api)
					require.Empty(t, tr.Limiter().Servers(), "not read yet")
				}
				time.Sleep(time.Nanosecond)
				ask(t, tr, api)
				require.NotEmpty(t, tr.Limiter().Servers())
			})
		})
	}
}

// A server that begins to report limits sends more headers than before.
func TestTheFirstReportOfASilentServerIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
			if sent++; sent <= 1000 {
				return says(200, "Date", "Fri, 20 Nov 2026 12:00:00 GMT", "Server", "x")
			}
			return says(200, "Date", "Fri, 20 Nov 2026 12:00:00 GMT", "Server", "x", "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "60")
		}), throttle.WithFailFast())
		require.NoError(t, err)
		for range 1001 {
			_, refused := ask(t, tr, api)
			require.Nil(t, refused)
		}
		_, refused := ask(t, tr, api)
		require.NotNil(t, refused)
		assert.Equal(t, throttle.ReasonHeld, refused.Reason)
	})
}

// A server that has reported limits may stop, and begin again. That, and a refusal of another server, is no reason to read more.
func TestTheFirstReportWithMoreHeadersIsReadAlsoAfterOthers(t *testing.T) {
	plain := []string{"Date", "Fri, 20 Nov 2026 12:00:00 GMT", "Server", "x"}
	for name, first := range map[string]*http.Response{
		"a report":                    says(200, "X-RateLimit-Limit", "1000000", "X-RateLimit-Remaining", "999999", "X-RateLimit-Reset", "3600"),
		"a refusal of another server": says(503),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				next := first
				tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response { return next }), throttle.WithFailFast())
				require.NoError(t, err)
				if first.StatusCode == 200 {
					ask(t, tr, api)
				} else {
					ask(t, tr, "http://other.example.com/")
				}
				next = says(200, plain...)
				for range 1000 {
					ask(t, tr, api)
				}
				next = says(200, "RateLimit-Remaining", "0", "RateLimit-Reset", "60")
				for range 2 {
					_, refused := ask(t, tr, api)
					require.Nil(t, refused, "as many headers as a thousand responses without a report")
				}
				next = says(200, append(plain, "RateLimit-Remaining", "0", "RateLimit-Reset", "60")...)
				_, refused := ask(t, tr, api)
				require.Nil(t, refused)
				_, refused = ask(t, tr, api)
				require.NotNil(t, refused)
				assert.Equal(t, throttle.ReasonHeld, refused.Reason)
			})
		})
	}
}

func TestABusyServerDoesNotKeepOthersFromBeingHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := 1000
		tr, err := throttle.New(emptyAfter(&silent), throttle.WithFailFast())
		require.NoError(t, err)
		for range silent {
			ask(t, tr, api)
		}
		for i := range 10 { // that all are in one place with the busy one happens once in 64^10 runs
			ask(t, tr, fmt.Sprintf("http://api-%d.example.com/", i))
		}
		assert.NotEmpty(t, tr.Limiter().Servers())
	})
}

func TestEachRefusalOfASilentServerIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
			if sent++; sent > 1000 {
				return says(503, "Retry-After", "5")
			}
			return says(200, "Date", "Fri, 20 Nov 2026 12:00:00 GMT")
		}), throttle.WithFailFast())
		require.NoError(t, err)
		for range 1001 {
			ask(t, tr, api)
		}
		_, refused := ask(t, tr, api)
		require.NotNil(t, refused)
		assert.Equal(t, throttle.ReasonHeld, refused.Reason)
	})
}

func TestWithServerHintsEachResponseIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := 1000
		tr, err := throttle.New(emptyAfter(&silent), throttle.WithServerHints(headers.Generic), throttle.WithFailFast())
		require.NoError(t, err)
		for range silent + 1 {
			ask(t, tr, api)
		}
		_, refused := ask(t, tr, api)
		require.NotNil(t, refused)
		assert.Equal(t, throttle.ReasonHeld, refused.Reason)
	})
}
