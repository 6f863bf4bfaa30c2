package bench

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
)

// BenchmarkUnits is what a request costs after the server has reported limits: of requests, and of two units of its own, in which responses settle
// the request by a header. Later responses report limits again, or none. For comparison, two limits of the user's own settle it in the same way.
func BenchmarkUnits(b *testing.B) {
	cost := throttle.Cost(func(*http.Request) int64 { return 1000 })
	settle := throttle.Settle(func(_ *http.Request, resp *http.Response) (int64, bool) {
		n, err := strconv.ParseInt(resp.Header["Content-Length"][0], 10, 64)
		return n, err == nil
	})
	units := throttle.WithLimit(throttle.ServerQuota("input_tokens", cost, settle), throttle.ServerQuota("output_tokens", cost, settle))
	own := throttle.WithLimit(throttle.TokenBucket(many, time.Second, throttle.Name("input"), throttle.Key(throttle.ByHost), cost, settle),
		throttle.TokenBucket(many, time.Second, throttle.Name("output"), throttle.Key(throttle.ByHost), cost, settle))
	inRequests := http.Header{"X-Ratelimit-Limit": {"1000000000000"}, "X-Ratelimit-Remaining": {"1000000000000"}, "X-Ratelimit-Reset": {"3600"}}
	inUnits := http.Header{"X-Ratelimit-Limit-Input-Tokens": {"1000000000000"}, "X-Ratelimit-Remaining-Input-Tokens": {"999999000000"}, "X-Ratelimit-Reset-Input-Tokens": {"60s"},
		"X-Ratelimit-Limit-Output-Tokens": {"1000000000000"}, "X-Ratelimit-Remaining-Output-Tokens": {"999999000000"}, "X-Ratelimit-Reset-Output-Tokens": {"60s"}}
	for _, c := range []struct {
		name    string
		reports http.Header
		again   bool
		opt     throttle.Option
	}{
		{"requests", inRequests, false, bucket}, {"units", inUnits, false, units}, {"requests, again", inRequests, true, bucket}, {"units, again", inUnits, true, units},
		{"requests, own units", inRequests, false, own},
	} {
		b.Run("reported="+c.name, func(b *testing.B) {
			t, err := throttle.New(instant{}, c.opt)
			if err != nil {
				b.Fatal(err)
			}
			req := request(b, "http://api.example.com")
			plain := req.Response.Header
			reported := plain.Clone()
			for name, values := range c.reports {
				reported[name] = values
			}
			req.Response.Header = reported
			if err := send(t, req); err != nil {
				b.Fatal(err)
			}
			if !c.again {
				req.Response.Header = plain
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := send(t, req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkUnitsSettledByBody is what a settlement from the body costs in a limit of the user's own, and in one of the server.
func BenchmarkUnitsSettledByBody(b *testing.B) {
	cost := throttle.Cost(func(*http.Request) int64 { return 1000 })
	settle := throttle.SettleJSON("usage.total_tokens")
	for name, limit := range map[string]throttle.Limit{
		"bucket": throttle.TokenBucket(many, time.Second, cost, settle), "server": throttle.ServerQuota("tokens", cost, settle),
	} {
		b.Run("limit="+name, func(b *testing.B) {
			t, err := throttle.New(instantJSON{}, throttle.WithLimit(limit))
			if err != nil {
				b.Fatal(err)
			}
			req := request(b, "http://api.example.com")
			b.ReportAllocs()
			for b.Loop() {
				resp, err := t.RoundTrip(req)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					b.Fatal(err)
				}
				if err := resp.Body.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// instantJSON is instant with a body that says what a request did cost.
type instantJSON struct{}

func (instantJSON) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Response.Body = io.NopCloser(strings.NewReader(`{"id":"1","choices":[{"message":{"content":"Hello"}}],"usage":{"total_tokens":400}}`))
	return r.Response, nil
}
