package bench

import (
	"net/http"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/httpthrottle/throttle"
)

// instant answers at once, so that what is measured is what stands before it.
type instant struct{ resp *http.Response }

func (i instant) RoundTrip(*http.Request) (*http.Response, error) { return i.resp, nil }

// wrapped is the ten lines around golang.org/x/time/rate that most programs have.
type wrapped struct {
	limiter *rate.Limiter
	next    http.RoundTripper
}

func (w *wrapped) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := w.limiter.Wait(r.Context()); err != nil {
		return nil, err
	}
	return w.next.RoundTrip(r)
}

// many is a limit that is never reached.
const many = 1_000_000_000

func transports(tb testing.TB) []struct {
	name string
	http.RoundTripper
} {
	base := instant{&http.Response{StatusCode: http.StatusOK, Body: http.NoBody}}
	ours := func(opts ...throttle.Option) http.RoundTripper {
		t, err := throttle.New(base, opts...)
		if err != nil {
			tb.Fatal(err)
		}
		return t
	}
	bucket := throttle.WithLimit(throttle.TokenBucket(many, time.Second))
	return []struct {
		name string
		http.RoundTripper
	}{
		{"bare", base},
		{"xtime", &wrapped{rate.NewLimiter(many, many), base}},
		{"one", ours(bucket)},
		{"host", ours(bucket, throttle.WithKey(throttle.ByHost))},
		{"weights", ours(bucket, throttle.WithWeights(map[string]int64{"GET /items/{id}": 2, "/": 1}))},
		{"three", ours(throttle.WithLimit(
			throttle.TokenBucket(many, time.Second),
			throttle.SlidingWindow(many, time.Minute),
			throttle.FixedWindow(many, time.Hour)))},
		{"adaptive", heard(tb, false, throttle.WithAdaptive(throttle.AIMD{Initial: many}))},
		{"gate", heard(tb, true, bucket)},
		{"everything", heard(tb, true, bucket, throttle.WithAdaptive(throttle.AIMD{Initial: many}), throttle.WithKey(throttle.ByHost))},
	}
}

// heard is a Transport that is sent answers with the usual headers, none of them about limits, after one that has told of
// limits, or not: then all requests pass gates.
func heard(tb testing.TB, told bool, opts ...throttle.Option) http.RoundTripper {
	base := &changing{instant{&http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{
		"X-Ratelimit-Remaining": {"1000000000000"}, "X-Ratelimit-Reset": {"3600"}}}}}
	t, err := throttle.New(base, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	if told {
		if _, err := t.RoundTrip(request(tb)); err != nil {
			tb.Fatal(err)
		}
	}
	base.resp = &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Header: http.Header{
		"Date": {"Fri, 20 Nov 2026 12:00:00 GMT"}, "Content-Type": {"application/json"}, "Content-Length": {"2048"},
		"Server": {"nginx"}, "Etag": {`"abc"`}, "Vary": {"Accept-Encoding"}}}
	return t
}

// changing is instant with answers that change.
type changing struct{ instant }

func BenchmarkRoundTrip(b *testing.B) {
	for _, t := range transports(b) {
		b.Run("impl="+t.name, func(b *testing.B) {
			req := request(b)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := t.RoundTrip(req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkContended is the same by 64 goroutines at once, for -cpu 2.
func BenchmarkContended(b *testing.B) {
	for _, t := range transports(b) {
		b.Run("impl="+t.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				req := request(b)
				for pb.Next() {
					if _, err := t.RoundTrip(req); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

func request(tb testing.TB) *http.Request {
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, "http://api.example.com/items/42", nil)
	if err != nil {
		tb.Fatal(err)
	}
	return req
}
