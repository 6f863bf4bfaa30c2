package tests

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// answers sends back one body again and again.
func answers(kind, body string) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {kind}}, Request: req,
			Body: io.NopCloser(strings.NewReader(body))}, nil
	})
}

// tokens is a limit of 1,000 a minute, of which each request is thought to cost 100.
func tokens(opts ...throttle.LimitOption) throttle.Limit {
	return throttle.SlidingWindow(1000, time.Minute, append(opts, throttle.Name("tpm"), throttle.Cost(costing(100)))...)
}

func drained(_ *testing.T, resp *http.Response) {
	_, _ = io.Copy(io.Discard, resp.Body)
}

func closedAtOnce(t *testing.T, resp *http.Response) { require.NoError(t, resp.Body.Close()) }

const (
	usage  = `{"choices":[{"text":"{\"usage\":{\"total_tokens\":1}}"}],"usage":{"prompt_tokens":30,"total_tokens":42}}`
	stream = "data: {\"choices\":[{\"delta\":\"so\"}],\"usage\":null}\n\n" +
		"data: {\"choices\":[],\"usage\":{\"total_tokens\":42}}\n\ndata: [DONE]\n\n"
	message = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":30,\"output_tokens\":1}}}\n\n" +
		"event: content_block_delta\ndata: {\"delta\":{\"text\":\"so\"}}\n\n" +
		"event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":12}}\n\n"
)

func TestABodyReportsWhatTheRequestHasCost(t *testing.T) {
	both := throttle.SettleJSON("usage.input_tokens|message.usage.input_tokens", "usage.output_tokens")
	total := throttle.SettleJSON("usage.total_tokens")
	decoded := func(t *testing.T, resp *http.Response) {
		var into struct{ Usage map[string]int }
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&into))
		require.Equal(t, 42, into.Usage["total_tokens"])
		closedAtOnce(t, resp)
	}
	until := func(part string) func(*testing.T, *http.Response) {
		return func(t *testing.T, resp *http.Response) {
			var read bytes.Buffer
			for !strings.Contains(read.String(), part) {
				_, err := io.CopyN(&read, resp.Body, 1)
				require.NoError(t, err)
			}
			closedAtOnce(t, resp)
		}
	}
	byByte := func(t *testing.T, resp *http.Response) { _, _ = io.Copy(io.Discard, iotest.OneByteReader(resp.Body)) }
	for _, c := range []struct {
		name, kind, body string
		read             func(*testing.T, *http.Response)
		settle           throttle.LimitOption
		want             float64
	}{
		{"read to its end", "application/json", usage, drained, total, 42},
		{"byte by byte", "application/json", usage, byByte, total, 42},
		{"decoded, and closed", "application/json; charset=utf-8", usage, decoded, total, 42},
		{"of a type of its own", "Application/Vnd.Api+JSON", usage, drained, total, 42},
		{"of no type", "", usage, drained, total, 42},
		{"events", "text/event-stream", stream, drained, total, 42},
		{"events, closed after the last", "text/event-stream", stream, until("[DONE]"), total, 42},
		{"events, closed before it was said", "text/event-stream", stream, until("null"), total, 100},
		{"a sum", "text/event-stream", message, drained, both, 42},
		{"a sum, closed before all was said", "text/event-stream", message, until("content"), both, 100},
		{"a sum of which a part is never said", "application/json", `{"usage":{"output_tokens":5}}`, drained, both, 5},
		{"a sum of which a part is never said, closed", "application/json", `{"usage":{"output_tokens":5}}`, until("}}"), both, 100},
		{"lines", "application/x-ndjson", "{\"usage\":{\"total_tokens\":7}}\n{\"usage\":{\"total_tokens\":9}}\n", drained, total, 9},
		{"of another type", "text/html", usage, drained, total, 100},
		{"closed unread", "application/json", usage, closedAtOnce, total, 100},
		{"without a number", "application/json", `{"usage":{"total_tokens":"42"}}`, drained, total, 100},
		{"negative", "application/json", `{"usage":{"total_tokens":-42}}`, drained, total, 100},
		{"absurd", "application/json", `{"usage":{"total_tokens":9e99}}`, drained, total, 100},
		{"cut short", "application/json", usage[:40], drained, total, 100},
		{"empty", "application/json", "", drained, total, 100},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			tr, err := throttle.New(answers(c.kind, c.body), throttle.WithLimit(tokens(c.settle)))
			require.NoError(t, err)
			resp := opened(t, tr, t.Context())
			assert.Equal(t, 900.0, left(t, tr.Limiter(), "tpm"))
			c.read(t, resp)
			assert.Equal(t, 1000-c.want, left(t, tr.Limiter(), "tpm"))
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, 1000-c.want, left(t, tr.Limiter(), "tpm"), "once")
		})
	}
}

// A body is compressed where the caller asked for it; otherwise net/http undoes it.
func TestABodyThatTheCallerAskedForCompressedIsLeftAlone(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = io.WriteString(w, usage)
	require.NoError(t, w.Close())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(packed.Bytes())
	}))
	defer server.Close()
	for asked, want := range map[string]float64{"": 42, "gzip": 100} {
		tr, err := throttle.New(server.Client().Transport, throttle.WithLimit(tokens(throttle.SettleJSON("usage.total_tokens"))))
		require.NoError(t, err)
		req := get(t, t.Context(), server.URL)
		if asked != "" {
			req.Header.Set("Accept-Encoding", asked)
		}
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		got, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, 1000-want, left(t, tr.Limiter(), "tpm"))
		if asked != "" {
			assert.Equal(t, packed.Bytes(), got)
		}
	}
}

// What the server has sent is there for the caller at once, and as it was sent.
func TestAStreamIsNotDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := io.Pipe()
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream"}}, Request: req, Body: from}, nil
		})
		tr, err := throttle.New(base, throttle.WithLimit(tokens(throttle.SettleJSON("usage.total_tokens"))))
		require.NoError(t, err)
		events := strings.SplitAfter(stream, "\n\n")[:3]
		go func() {
			for _, event := range events {
				time.Sleep(time.Second)
				_, _ = io.WriteString(to, event)
			}
			to.Close()
		}()
		start := time.Now()
		resp := opened(t, tr, t.Context())
		buf := make([]byte, 1000)
		for i, event := range events {
			n, err := resp.Body.Read(buf)
			require.NoError(t, err)
			require.Equal(t, event, string(buf[:n]))
			require.Equal(t, time.Duration(i+1)*time.Second, time.Since(start))
		}
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, 958.0, left(t, tr.Limiter(), "tpm"))
		synctest.Wait()
	})
}

// Of a header, a body and a receipt, the first that reports the cost counts.
func TestAChargeIsCorrectedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := answers("application/json", usage).RoundTrip(req)
			if req.Header.Get("X-Reports") != "" {
				resp.Header.Set("X-Cost", "7")
			}
			return resp, err
		})
		tr, err := throttle.New(base, throttle.WithLimit(tokens(throttle.Settle(byHeader), throttle.SettleJSON("usage.total_tokens"))))
		require.NoError(t, err)
		spent := 0.0
		check := func(cost float64) {
			t.Helper()
			spent += cost
			assert.Equal(t, 1000-spent, left(t, tr.Limiter(), "tpm"))
		}
		ctx, receipt := throttle.ContextWithReceipt(t.Context())
		drained(t, opened(t, tr, ctx))
		check(42)
		assert.ErrorContains(t, receipt.Settle("tpm", 1), "before")
		resp := opened(t, tr, ctx)
		require.NoError(t, receipt.Settle("tpm", 3))
		drained(t, resp)
		check(3)
		req := get(t, ctx, api)
		req.Header.Set("X-Reports", "yes")
		resp, err = tr.RoundTrip(req)
		require.NoError(t, err)
		drained(t, resp)
		check(7)
		assert.ErrorContains(t, receipt.Settle("tpm", 1), "before")
	})
}

func TestSlotsAndCostsOfOneBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(answers("application/json", usage), throttle.WithLimit(
			throttle.InFlight(2), tokens(throttle.SettleJSON("usage.total_tokens")),
			throttle.FixedWindow(1000, time.Hour, throttle.Name("prompt"), throttle.Cost(costing(100)), throttle.SettleJSON("usage.prompt_tokens")),
			throttle.TokenBucket(10, time.Second)))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		resp := opened(t, tr, ctx)
		assert.Equal(t, 1, inFlight(tr.Limiter()))
		_, err = io.CopyN(io.Discard, resp.Body, int64(strings.Index(usage, ",\"total")+1))
		require.NoError(t, err)
		cancel()
		synctest.Wait()
		assert.Zero(t, inFlight(tr.Limiter()), "the context has ended")
		assert.Equal(t, 970.0, left(t, tr.Limiter(), "prompt"), "reported by then")
		drained(t, resp)
		assert.Equal(t, 900.0, left(t, tr.Limiter(), "tpm"), "not reported by then")
		drained(t, opened(t, tr, t.Context()))
		assert.Equal(t, 858.0, left(t, tr.Limiter(), "tpm"))
		assert.Equal(t, 940.0, left(t, tr.Limiter(), "prompt"))
	})
}

// A context that lives on keeps nothing of the bodies that are over.
func TestABodyThatIsOverWaitsForItsContextNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(answers("text/plain", "x"), throttle.WithLimit(throttle.InFlight(1)))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		counting := &stopped{Context: ctx}
		drained(t, opened(t, tr, counting))
		assert.Equal(t, 1, counting.began)
		assert.Equal(t, 1, counting.stopped)
	})
}

// stopped is a context that counts what waits for its end by AfterFunc.
type stopped struct {
	context.Context
	began, stopped int
}

// Value hides the context within, which would be asked in its place.
func (s *stopped) Value(any) any { return nil }

func (s *stopped) AfterFunc(f func()) (stop func() bool) {
	s.began++
	within := context.AfterFunc(s.Context, f)
	return func() bool {
		s.stopped++
		return within()
	}
}

// A body may be closed, and its context end, while it is read; a hook may do as it likes.
func TestABodyThatEndsInEveryWayAtOnce(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			var resp *http.Response
			settled := 0
			tr, err := throttle.New(answers("application/json", strings.Repeat(" ", 100_000)+usage),
				throttle.WithLimit(throttle.InFlight(1), tokens(throttle.SettleJSON("usage.total_tokens"))),
				throttle.WithHooks(throttle.Hooks{OnSettle: func(throttle.SettleEvent) {
					settled++
					_ = resp.Body.Close()
				}}))
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			resp = opened(t, tr, ctx)
			var all sync.WaitGroup
			all.Go(func() { drained(t, resp) })
			all.Go(cancel)
			all.Go(func() { _ = resp.Body.Close() })
			all.Wait()
			synctest.Wait()
			assert.Zero(t, inFlight(tr.Limiter()))
			assert.LessOrEqual(t, settled, 1)
			assert.Equal(t, 900+58*float64(settled), left(t, tr.Limiter(), "tpm"))
		})
	}
}

func TestABodyThatFailsReportsWhatItHadBefore(t *testing.T) {
	reset := errors.New("reset")
	base := roundTripper(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Request: req,
			Body: io.NopCloser(io.MultiReader(strings.NewReader(usage+"\n{"), iotest.ErrReader(reset)))}, nil
	})
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(base, throttle.WithLimit(tokens(throttle.SettleJSON("usage.total_tokens"))))
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, opened(t, tr, t.Context()).Body)
		require.ErrorIs(t, err, reset)
		assert.Equal(t, 958.0, left(t, tr.Limiter(), "tpm"))
	})
}

func TestPathsThatMakeNoSenseAreErrors(t *testing.T) {
	_, err := throttle.New(nil, throttle.WithLimit(tokens(throttle.SettleJSON()),
		throttle.Pace(1, 1, throttle.SettleJSON("a..b", "")), throttle.InFlight(1, throttle.SettleJSON("a"))))
	for _, part := range []string{`"tpm": SettleJSON: no path`, `SettleJSON: path "a..b"`, `SettleJSON: path ""`, "SettleJSON does not fit a limit of kind in-flight"} {
		assert.ErrorContains(t, err, part)
	}
}

// A body is charged before its slot is free, so the request that waits for that waits for the debt, too.
func TestADebtCountsBeforeItsSlotIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(answers("application/json", usage), throttle.WithLimit(throttle.InFlight(1),
			throttle.TokenBucket(1, time.Second, throttle.Burst(43), throttle.Cost(costing(2)), throttle.SettleJSON("usage.total_tokens"))))
		require.NoError(t, err)
		start := time.Now()
		resp := opened(t, tr, t.Context())
		time.AfterFunc(time.Millisecond, func() { drained(t, resp) }) // which costs 42, so 1 is left
		closedAtOnce(t, opened(t, tr, t.Context()))
		assert.Equal(t, time.Second, time.Since(start))
	})
}
