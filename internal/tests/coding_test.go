package tests

import (
	"bytes"
	"compress/gzip"
	"io"
	"log/slog"
	"net/http"
	"runtime"
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

func zipped(t testing.TB, text string) string {
	t.Helper()
	var b strings.Builder
	w := gzip.NewWriter(&b)
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

// encodes answers each request with that status and body, as if the request had asked for that encoding.
func encodes(status int, encoding, body string) http.RoundTripper {
	return serverFunc(func(*http.Request) *http.Response {
		resp := says(status, "Content-Type", "application/json", "Content-Encoding", encoding)
		resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		return resp
	})
}

func unread(l *throttle.Limiter) map[string]uint64 {
	n := map[string]uint64{}
	for _, s := range l.Limits() {
		if s.Unread > 0 {
			n[s.Name] = s.Unread
		}
	}
	return n
}

// A proxy passes on the Accept-Encoding of its client, so that net/http leaves bodies compressed.
func TestACompressedRefusalThatNoWaitingEndsRejectsTheNextRequest(t *testing.T) {
	whole := func(t *testing.T, body io.ReadCloser, want string) {
		got, err := io.ReadAll(body)
		require.NoError(t, err)
		require.Equal(t, want, string(got), "the caller's bytes are those of the server")
	}
	for how, read := range map[string]func(*testing.T, io.ReadCloser, string){
		"whole":        whole,
		"byte by byte": func(t *testing.T, body io.ReadCloser, want string) { whole(t, io.NopCloser(oneByte{body}), want) },
		"all but the checksum": func(t *testing.T, body io.ReadCloser, want string) {
			_, err := io.CopyN(io.Discard, body, int64(len(want)-8))
			require.NoError(t, err)
		},
	} {
		for _, encoding := range []string{"gzip", "GZIP", " x-gzip ", "identity, gzip", "gzip,"} {
			inBubble(t, how+" "+encoding, func(t *testing.T) {
				body := zipped(t, noCredit)
				tr, err := throttle.New(encodes(429, encoding, body), throttle.WithServerHints(headers.Auto), throttle.WithLimit(throttle.InFlight(1)))
				require.NoError(t, err)
				start := time.Now()
				resp, err := tr.RoundTrip(get(t, t.Context(), llm))
				require.NoError(t, err)
				assert.Equal(t, []string{encoding}, resp.Header["Content-Encoding"])
				read(t, resp.Body, body)
				require.NoError(t, resp.Body.Close())
				assert.Zero(t, inFlight(tr.Limiter()))
				_, r := ask(t, tr, llm)
				require.NotNil(t, r)
				assert.Equal(t, throttle.ReasonFinal, r.Reason)
				assert.Zero(t, time.Since(start))
				assert.Empty(t, unread(tr.Limiter()))
			})
		}
	}
}

func TestWhatADialectReadsInABodyItReadsInACompressedOne(t *testing.T) {
	for name, c := range bodyCases {
		inBubble(t, name, func(t *testing.T) {
			h := c.header.Clone()
			h.Set("Content-Encoding", "gzip")
			tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
				return &http.Response{StatusCode: c.status, Header: h.Clone(), Body: io.NopCloser(strings.NewReader(zipped(t, c.body))), ContentLength: -1}
			}), throttle.WithServerHints(c.preset), throttle.WithFailFast())
			require.NoError(t, err)
			_, r := ask(t, tr, "https://"+c.host+"/a")
			require.Nil(t, r)
			_, r = ask(t, tr, "https://"+c.host+"/a")
			require.NotNil(t, r)
			assert.GreaterOrEqual(t, r.Wait, c.hold)
			assert.LessOrEqual(t, r.Wait, c.hold*11/10+time.Second)
		})
	}
}

// What says that it is gzip, and is not, or not to its end, is passed on as it is, and changes nothing else.
func TestABodyThatIsNoGzipIsHarmless(t *testing.T) {
	good := zipped(t, noCredit)
	for name, c := range map[string]struct {
		body  string
		final bool
	}{
		"plain":            {noCredit, true}, // a transport decompressed it, and left the header
		"noise":            {strings.Repeat("\x1f\x8b\x08\xff", 2000), false},
		"only its header":  {good[:10], false},
		"broken":           {good[:12] + strings.Repeat("\xff", 300), false},
		"a wrong checksum": {good[:len(good)-8] + "12345678", true},
		"empty":            {"", false},
	} {
		inBubble(t, name, func(t *testing.T) {
			tr, err := throttle.New(encodes(429, "gzip", c.body), throttle.WithServerHints(headers.Auto), throttle.WithFailFast())
			require.NoError(t, err)
			resp, err := tr.RoundTrip(get(t, t.Context(), llm))
			require.NoError(t, err)
			got, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, c.body, string(got))
			_, r := ask(t, tr, llm)
			if c.final {
				require.NotNil(t, r)
			}
			assert.Equal(t, c.final, r != nil && r.Reason == throttle.ReasonFinal)
		})
	}
}

// Of 8 MB in 8 kB, only a few kB are decoded.
func TestAGzipBombIsNotUnpacked(t *testing.T) {
	bomb := zipped(t, strings.Repeat(" ", 8<<20))
	tr, err := throttle.New(encodes(429, "gzip", bomb), throttle.WithServerHints(headers.OpenAI))
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, r := ask(t, tr, llm)
	require.Nil(t, r)
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

func TestABodyThatCannotBeReadIsSaidOnce(t *testing.T) {
	settling := throttle.TokenBucket(1000, time.Minute, throttle.Name("tpm"), throttle.SettleJSON("usage.total_tokens"))
	byHeader := throttle.TokenBucket(1000, time.Minute, throttle.Name("points"), throttle.SettleJSONFunc(func(resp *http.Response, n []int64) (int64, bool) {
		return 7, resp.Header.Get("X-Cost") == "7"
	}, "cost"))
	for name, c := range map[string]struct {
		limit    throttle.Limit
		status   int
		encoding string
		method   string
		header   string
		want     map[string]uint64
	}{
		"a cost, in gzip":                {settling, 200, "gzip", "", "", map[string]uint64{"tpm": 3}},
		"a cost, in brotli":              {settling, 200, "br", "", "", map[string]uint64{"tpm": 3}},
		"a cost in identity":             {settling, 200, "identity", "", "", nil},
		"no JSON":                        {settling, 200, "br", "", "Content-Type: text/html", nil},
		"no body":                        {settling, 204, "gzip", "", "", nil},
		"of a HEAD":                      {settling, 200, "gzip", http.MethodHead, "", nil},
		"a cost in a header":             {byHeader, 200, "br", "", "X-Cost: 7", nil},
		"a cost in no header":            {byHeader, 200, "br", "", "", map[string]uint64{"points": 3}},
		"a limit that needs no body":     {throttle.TokenBucket(1000, time.Minute), 200, "br", "", "", nil},
		"a refusal, in gzip":             {throttle.TokenBucket(1000, time.Minute), 429, "gzip", "", "Retry-After: 1", nil},
		"a refusal, in brotli":           {throttle.TokenBucket(1000, time.Minute), 429, "br", "", "Retry-After: 1", map[string]uint64{"server": 3}},
		"a refusal, deflated":            {throttle.TokenBucket(1000, time.Minute), 429, "Deflate", "", "Retry-After: 1", map[string]uint64{"server": 3}},
		"a refusal, twice in gzip":       {throttle.TokenBucket(1000, time.Minute), 429, "gzip, gzip", "", "Retry-After: 1", map[string]uint64{"server": 3}},
		"a refusal, in gzip in zstd":     {throttle.TokenBucket(1000, time.Minute), 429, "gzip, zstd", "", "Retry-After: 1", map[string]uint64{"server": 3}},
		"a refusal that needs no body":   {throttle.TokenBucket(1000, time.Minute), 404, "br", "", "", nil},
		"a refusal, of a limit and both": {settling, 429, "br", "", "Retry-After: 1", map[string]uint64{"tpm": 3, "server": 3}},
	} {
		inBubble(t, name, func(t *testing.T) {
			var log bytes.Buffer
			tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
				resp := says(c.status, "Content-Type", "application/json", "Content-Encoding", c.encoding)
				if name, value, ok := strings.Cut(c.header, ": "); ok {
					resp.Header.Set(name, value)
				}
				resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader("{}")), -1
				return resp
			}), throttle.WithServerHints(headers.Auto), throttle.WithLimit(c.limit), throttle.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			require.NoError(t, err)
			for range 3 {
				req := get(t, t.Context(), llm)
				if c.method != "" {
					req.Method = c.method
				}
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			}
			if c.want == nil {
				c.want = map[string]uint64{}
			}
			assert.Equal(t, c.want, unread(tr.Limiter()))
			assert.Equal(t, len(c.want), strings.Count(log.String(), "Accept-Encoding"), "%s", log.String())
			for limit := range c.want {
				assert.Regexp(t, `Accept-Encoding.* limit=`+limit+` host=api.openai.com content_encoding="?`+c.encoding, log.String())
			}
		})
	}
}

// A body may be closed while it is read, and its end is reported once.
func TestACompressedBodyThatIsClosedWhileItIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := zipped(t, noCredit)
		for range 100 {
			tr, err := throttle.New(encodes(429, "gzip", body), throttle.WithServerHints(headers.OpenAI), throttle.WithLimit(throttle.InFlight(1)))
			require.NoError(t, err)
			resp, err := tr.RoundTrip(get(t, t.Context(), llm))
			require.NoError(t, err)
			var all sync.WaitGroup
			all.Go(func() { _, _ = io.Copy(io.Discard, oneByte{resp.Body}) })
			all.Go(func() { _ = resp.Body.Close() })
			all.Go(func() { _ = resp.Body.Close() })
			all.Wait()
			assert.Zero(t, inFlight(tr.Limiter()))
			assert.Equal(t, uint64(1), tr.Limiter().Stats().ServerRefused)
		}
	})
}
