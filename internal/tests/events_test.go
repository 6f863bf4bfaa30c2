package tests

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
)

// What a vendor of language models streams, and how it ends a stream that is too much for it.
const (
	streamed   = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"overloaded_error\"}}\n\n"
	overloaded = "event: error\ndata: {\"type\": \"error\", \"error\": {\"type\": \"overloaded_error\", \"message\": \"Overloaded\"}}\n\n"
)

// A script is a body whose parts come a second after each other.
type script struct {
	parts []string
	rest  string
	end   func() // nil: nothing
}

func (s *script) Read(p []byte) (int, error) {
	if s.rest == "" {
		if len(s.parts) == 0 {
			if s.end != nil {
				s.end()
				s.end = nil
			}
			return 0, io.EOF
		}
		time.Sleep(time.Second)
		s.rest, s.parts = s.parts[0], s.parts[1:]
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

func (s *script) Close() error { return nil }

// streams answers with an event stream of these parts.
func streams(parts ...string) serverFunc {
	return func(*http.Request) *http.Response {
		resp := says(200, "Content-Type", "text/event-stream; charset=utf-8")
		resp.Body = &script{parts: parts}
		return resp
	}
}

// anthropicTo returns a Transport with the preset of Anthropic.
func anthropicTo(t *testing.T, base http.RoundTripper, opts ...throttle.Option) *throttle.Transport {
	return transportTo(t, base, append([]throttle.Option{throttle.WithServerHints(headers.Anthropic)}, opts...)...)
}

// readAll sends a request, and reads the response in pieces of n bytes.
func readAll(t *testing.T, tr *throttle.Transport, n int) string {
	t.Helper()
	resp, err := tr.RoundTrip(get(t, t.Context(), "https://api.anthropic.com/v1/messages"))
	require.NoError(t, err)
	var text strings.Builder
	_, err = io.CopyBuffer(struct{ io.Writer }{&text}, struct{ io.Reader }{resp.Body}, make([]byte, n))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return text.String()
}

// A limit that learns takes an event that a rule names for a refusal, when the caller has read it, and not before.
func TestALearnedLimitSeesAnErrorInAStream(t *testing.T) {
	for name, end := range map[string]string{
		"LF":        overloaded,
		"CRLF":      strings.ReplaceAll(overloaded, "\n", "\r\n"),
		"CR":        strings.ReplaceAll(overloaded, "\n", "\r"),
		"not ended": strings.TrimRight(overloaded, "\n"),
		"lines":     "data: {\"error\":\ndata: {\"type\": \"overloaded_error\"}}\n:\nevent: error\n\n",
	} {
		for _, piece := range []int{1, 7, 4096} {
			inBubble(t, name, func(t *testing.T) {
				start := time.Now()
				var cuts []time.Duration
				hooks := throttle.Hooks{OnRetune: func(e throttle.RetuneEvent) {
					if e.Reason == throttle.CauseThrottled {
						cuts = append(cuts, time.Since(start))
					}
				}}
				tr := anthropicTo(t, streams(streamed, streamed, end), throttle.WithLimit(throttle.Adaptive(throttle.AIMD{}),
					throttle.ServerQuota("tokens", throttle.Cost(costing(100)))), throttle.WithHooks(hooks))
				assert.Equal(t, streamed+streamed+end, readAll(t, tr, piece))
				assert.Equal(t, []time.Duration{3 * time.Second}, cuts)
				assert.Equal(t, uint64(1), tr.Stats().ServerRefused)
				for b := range tr.Limiter().Buckets() {
					assert.Zero(t, b.InFlight, b.Limit)
				}
			})
		}
	}
}

// What Classify says of a response stands: it is about the limit that has it.
func TestWhatClassifySaysOfAStreamStands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := anthropicTo(t, streams(streamed, overloaded), throttle.WithLimit(throttle.Adaptive(throttle.AIMD{Initial: 5},
			throttle.Classify(func(*http.Response, error) throttle.Outcome { return throttle.OutcomeOK }))))
		readAll(t, tr, 100)
		assert.InDelta(t, 5.0, tr.Limiter().Limits()[0].Rate, 1e-9)
		assert.Equal(t, uint64(1), tr.Stats().ServerRefused)
	})
}

// An event of another name, and text that only looks like the event, are no refusals.
func TestAStreamIsNoRefusalUnlessARuleNamesAnEvent(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		hint headers.Hint
	}{
		"text":              {streamed, headers.Anthropic},
		"another event":     {strings.Replace(overloaded, "event: error", "event: warning", 1), headers.Anthropic},
		"another error":     {strings.Replace(overloaded, "overloaded", "invalid_request", 1), headers.Anthropic},
		"a comment":         {": " + strings.Replace(overloaded, "\n", "\n: ", 1), headers.Anthropic},
		"no rule":           {overloaded, headers.Generic},
		"a rule of a body":  {overloaded, headers.Dialect{Rules: []headers.Rule{{Body: []headers.Match{{Name: "type"}}}}}},
		"longer than 4 KiB": {strings.Replace(overloaded, `{"type"`, `{"pad":"`+strings.Repeat("x", headers.BodyBytes)+`","type"`, 1), headers.Anthropic},
	} {
		inBubble(t, name, func(t *testing.T) {
			tr := transportTo(t, streams(c.body), throttle.WithServerHints(c.hint), throttle.WithLimit(throttle.Adaptive(throttle.AIMD{})))
			assert.Equal(t, c.body, readAll(t, tr, 100))
			assert.Zero(t, tr.Stats().ServerRefused)
		})
	}
}

// A rule of the user's names an event without a name, with how long to wait: that counts from the event.
func TestAnEventMayAskToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := "data: {\"error\":{\"code\":\"rate_limit_exceeded\",\"message\":\"Please try again in 20s.\"}}\n\n"
		own := headers.Dialect{
			Members: []headers.Field{{Name: "message", Role: headers.RoleRetryAfter, Form: headers.Sentence}},
			Rules:   []headers.Rule{{Event: "message", Body: []headers.Match{{Name: "code", Values: []string{"rate_limit_exceeded"}}}}},
		}
		for name, limits := range map[string][]throttle.Limit{"no limit": nil, "adaptive": {throttle.Adaptive(throttle.AIMD{})}, "in flight": {throttle.AdaptiveInFlight(throttle.Concurrency{})}} {
			start := time.Now()
			tr := transportTo(t, streams(streamed, streamed, streamed, said, streamed), throttle.WithServerHints(own), throttle.WithLimit(limits...))
			readAll(t, tr, 100)
			require.Equal(t, 5*time.Second, time.Since(start))
			resp, err := tr.RoundTrip(get(t, t.Context(), "https://api.anthropic.com/v1/messages"))
			require.NoError(t, err)
			assert.GreaterOrEqual(t, time.Since(start), 24*time.Second, name)
			assert.LessOrEqual(t, time.Since(start), 25*time.Second, name)
			resp.Body.Close()
		}
	})
}

// An event that says that no waiting helps is a final refusal.
func TestAnEventMayBeAFinalRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := headers.Dialect{Rules: []headers.Rule{{Event: "error", Body: []headers.Match{{Name: "type", Values: []string{"billing_error"}}}, Final: true, Reason: "billing"}}}
		tr := transportTo(t, streams(strings.Replace(overloaded, "overloaded", "billing", 1)), throttle.WithServerHints(own), throttle.WithFailFast())
		readAll(t, tr, 100)
		resp, err := tr.RoundTrip(get(t, t.Context(), "https://api.anthropic.com/v1/messages"))
		require.NoError(t, err)
		r, ok := throttle.RejectionOf(resp)
		require.True(t, ok)
		assert.Equal(t, throttle.ReasonFinal, r.Reason)
	})
}

// A stream that is compressed is not read. It counts as unread, and the caller gets it as it is.
func TestACompressedStreamIsUnread(t *testing.T) {
	for _, coding := range []string{"gzip", "br"} {
		inBubble(t, coding, func(t *testing.T) {
			tr := anthropicTo(t, serverFunc(func(r *http.Request) *http.Response {
				resp := streams(overloaded)(r)
				resp.Header.Set("Content-Encoding", coding)
				return resp
			}))
			assert.Equal(t, overloaded, readAll(t, tr, 100))
			assert.Zero(t, tr.Stats().ServerRefused)
			unread := uint64(0)
			for _, l := range tr.Limiter().Limits() {
				unread += l.Unread
			}
			assert.Equal(t, uint64(1), unread)
		})
	}
}

// Of a stream, only the present event is kept, and of that 4 KiB: reading more allocates nothing.
func TestOfAStreamOnlyOneEventIsKept(t *testing.T) {
	event := "data: " + strings.Repeat("x", 2*headers.BodyBytes) + "\n\n"
	tr := anthropicTo(t, serverFunc(func(*http.Request) *http.Response {
		resp := says(200, "Content-Type", "text/event-stream")
		resp.Body = io.NopCloser(strings.NewReader(strings.Repeat(event, 100)))
		return resp
	}))
	resp, err := tr.RoundTrip(get(t, t.Context(), "https://api.anthropic.com/v1/messages"))
	require.NoError(t, err)
	buffer := make([]byte, len(event))
	assert.Zero(t, testing.AllocsPerRun(50, func() { _, _ = io.ReadFull(resp.Body, buffer) }))
	require.NoError(t, resp.Body.Close())
}

// At a server that ends streams with an event when it has more than it can serve, a learned limit comes near to what it can, also after ten
// minutes.
func TestLearnedLimitsMeetAServerThatRefusesInItsStreams(t *testing.T) {
	for name, c := range map[string]struct {
		limit throttle.Limit
		most  int // that the server can accept in two minutes
		fits  func(inSecond, flying int) bool
	}{
		"a rate":   {throttle.Adaptive(throttle.AIMD{}), 2400, func(inSecond, _ int) bool { return inSecond <= 20 }},
		"a number": {throttle.AdaptiveInFlight(throttle.Concurrency{}), 1200, func(_, flying int) bool { return flying <= 20 }},
	} {
		inBubble(t, name, func(t *testing.T) {
			var mu sync.Mutex
			flying, inSecond, second := 0, 0, time.Now()
			accepted, refused := 0, 0
			tr := anthropicTo(t, roundTripper(func(r *http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				if time.Since(second) >= time.Second {
					second, inSecond = time.Now(), 0
				}
				flying++
				inSecond++
				parts := []string{streamed, streamed}
				if !c.fits(inSecond, flying) {
					parts = []string{overloaded}
					refused++
				} else {
					accepted++
				}
				resp := says(200, "Content-Type", "text/event-stream")
				resp.Body = &script{parts: parts, end: func() {
					mu.Lock()
					defer mu.Unlock()
					flying--
				}}
				return resp, nil
			}), throttle.WithLimit(c.limit))
			var wg sync.WaitGroup
			start := time.Now()
			for range 100 {
				wg.Go(func() {
					for time.Since(start) < 12*time.Minute {
						readAll(t, tr, 512)
					}
				})
			}
			time.Sleep(10 * time.Minute)
			mu.Lock()
			accepted, refused = 0, 0
			mu.Unlock()
			time.Sleep(2 * time.Minute)
			mu.Lock()
			t.Log(accepted, "accepted,", refused, "refused")
			assert.Greater(t, accepted, c.most*85/100)
			assert.Less(t, refused, accepted/8)
			mu.Unlock()
			wg.Wait()
		})
	}
}
