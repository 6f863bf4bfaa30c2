package tests

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// uncached is what is charged of a response: all tokens but those that were cached, and five for each of the answer; nothing for an
// error.
func uncached(resp *http.Response, n []int64) (int64, bool) {
	input, cached, output := n[0], max(n[1], 0), n[2]
	switch {
	case resp.StatusCode != http.StatusOK:
		return 0, true
	case input < 0 || output < 0:
		return 0, false
	}
	return input - cached + 5*output, true
}

// frame is one of an Amazon event stream. Checksums are not read.
func frame(payload string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(12+len(payload)+4))
	return string(b) + "\x00\x00\x00\x00" + "\x00\x00\x00\x00" + payload + "\x00\x00\x00\x00"
}

func TestAFunctionComputesTheCostOfNumbersInABody(t *testing.T) {
	const said = `{"usage":{"input":30,"-cached":20,"output":8}}`
	inBase64 := `{"bytes":"` + base64.StdEncoding.EncodeToString([]byte(said)) + `"}`
	for name, c := range map[string]struct {
		status     int
		kind, body string
		read       func(*testing.T, *http.Response)
		want       float64
	}{
		"with arithmetic":                  {200, "application/json", said, drained, 50},
		"a default for what is missing":    {200, "application/json", `{"usage":{"input":30,"output":8}}`, drained, 70},
		"without what it needs":            {200, "application/json", `{"usage":{"input":30}}`, drained, 100},
		"an error":                         {500, "application/json", `{"error":{}}`, drained, 0},
		"an error without a body":          {500, "", "", drained, 0},
		"an error in HTML":                 {502, "text/html", "<p>", closedAtOnce, 0},
		"no number in HTML":                {200, "text/html", "<p>", drained, 100},
		"closed unread":                    {200, "application/json", said, closedAtOnce, 100},
		"an error that was closed unread":  {500, "application/json", `{"error":{}}`, closedAtOnce, 100},
		"a JSON array as a stream":         {200, "application/json", "[{\"usage\":{\"output\":1}}\n,\r\n" + said + "\n]", drained, 50},
		"an Amazon event stream":           {200, "application/vnd.amazon.eventstream", frame(`{"x":1}`) + frame(said), drained, 50},
		"an Amazon event stream in base64": {200, "application/vnd.amazon.eventstream", frame(inBase64) + frame(`{}`), drained, 50},
	} {
		inBubble(t, name, func(t *testing.T) {
			base := roundTripper(func(req *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: c.status, Header: http.Header{"Content-Type": {c.kind}}, Request: req,
					Body: io.NopCloser(strings.NewReader(c.body)), ContentLength: int64(len(c.body))}, nil
			})
			limit := tokens(throttle.SettleJSONFunc(uncached, "usage.input", "usage.-cached", "usage.output"))
			tr := throttle.Must(throttle.New(base, throttle.WithLimit(limit)))
			resp := opened(t, tr, t.Context())
			c.read(t, resp)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, 1000-c.want, left(t, tr.Limiter(), "tpm"))
		})
	}
}

// A function is called by the goroutine that reads or closes the body, and never by the one that sees the end of a context.
func TestACostFunctionIsCalledByTheReaderOfTheBody(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		calls := 0
		limit := tokens(throttle.SettleJSONFunc(func(_ *http.Response, n []int64) (int64, bool) { calls++; return n[0], true }, "n"))
		tr := throttle.Must(throttle.New(answers("application/json", `{"n":7} `), throttle.WithLimit(limit, throttle.InFlight(1))))
		ctx, cancel := context.WithCancel(t.Context())
		resp := opened(t, tr, ctx)
		_, err := io.ReadFull(resp.Body, make([]byte, len(`{"n":7}`)))
		require.NoError(t, err)
		cancel()
		time.Sleep(time.Second)
		require.Zero(t, calls)
		require.Zero(t, inFlight(tr.Limiter()), "the slot is free")
		require.NoError(t, resp.Body.Close())
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 1, calls)
		require.Equal(t, 993., left(t, tr.Limiter(), "tpm"))
	})
}

func TestSettleJSONFuncChecksItsArguments(t *testing.T) {
	_, err := throttle.New(nil, throttle.WithLimit(tokens(throttle.SettleJSONFunc(nil, "a..b"))))
	require.ErrorContains(t, err, "SettleJSONFunc(nil): a function is needed")
	require.ErrorContains(t, err, `SettleJSONFunc: path "a..b"`)
}
