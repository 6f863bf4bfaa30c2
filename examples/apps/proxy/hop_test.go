//go:build unix

package main

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// BenchmarkHop measures what the proxy costs beside a ReverseProxy without limits: the processor time and the latency that each adds to a
// request, over loopback sockets, all in one process. Requests go directly, by the one and by the other in turns, in blocks of some
// milliseconds, and what counts is the median of the blocks. So a busy machine affects all three alike.
//
//	go test -run '^$' -bench Hop -benchtime 300x ./examples/apps/proxy
func BenchmarkHop(b *testing.B) {
	for _, c := range []struct{ name, limits, method, body string }{
		{"GET, one limit", `{"kind": "bucket", "n": 1000000, "per": "1s"}`, http.MethodGet, ""},
		{"POST of 2 KB, settled tokens and slots", `{"kind": "bucket", "n": 1000000000, "per": "1s", "costs": {"/": 1000}, "bytes_per_token": 4,
			"settle": ["usage.total_tokens"]}, {"kind": "in-flight", "n": 1000}`, http.MethodPost, `{"model": "m", "text": "` + strings.Repeat("x", 2000) + `"}`},
	} {
		for _, clients := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/clients=%d", c.name, clients), func(b *testing.B) {
				hops := startHops(b, c.limits)
				for _, h := range hops {
					h.block(b, c.method, c.body, clients) // connections are made
				}
				samples := make([][]sample, len(hops))
				for b.Loop() {
					for i, h := range hops {
						samples[i] = append(samples[i], h.block(b, c.method, c.body, clients))
					}
				}
				added := func(i int, of func(sample) time.Duration) float64 {
					var all []time.Duration
					for n := range samples[i] {
						all = append(all, of(samples[i][n])-of(samples[0][n]))
					}
					return float64(median(all)) / 1000
				}
				for what, of := range map[string]func(sample) time.Duration{
					"cpu": func(s sample) time.Duration { return s.cpu },
					"p50": func(s sample) time.Duration { return s.at(50) },
					"p99": func(s sample) time.Duration { return s.at(99) },
				} {
					bare, proxy := added(1, of), added(2, of)
					b.ReportMetric(bare, "bare-"+what+"-µs")
					b.ReportMetric(proxy, "proxy-"+what+"-µs")
					b.ReportMetric(proxy/bare, what+"-ratio")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// A hop is a way to the upstream.
type hop struct {
	client *http.Client
	url    string
}

// startHops returns the way without a proxy, by a bare one, and by ours.
func startHops(b *testing.B, limits string) (hops []hop) {
	answer := `{"text": "` + strings.Repeat("y", 2000) + `", "usage": {"total_tokens": 500}}`
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	}))
	b.Cleanup(api.Close)
	target, err := url.Parse(api.URL)
	if err != nil {
		b.Fatal(err)
	}
	bare := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     connections(),
		FlushInterval: -1,
	}
	u := &upstream{URL: api.URL}
	var parsed struct {
		Limits []limit `json:"limits"`
	}
	if t := decode("limits", []byte(`{"limits": [`+limits+`]}`), &parsed); t.err() != nil {
		b.Fatal(t.err())
	}
	u.Limits = parsed.Limits
	p, err := newProxy(&config{Upstreams: map[string]*upstream{"up": u}}, connections(), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	for _, handler := range []http.Handler{nil, http.StripPrefix("/up", bare), p} {
		h := hop{&http.Client{Transport: connections()}, api.URL}
		if handler != nil {
			s := httptest.NewServer(handler)
			b.Cleanup(s.Close)
			h.url = s.URL
		}
		b.Cleanup(h.client.CloseIdleConnections)
		hops = append(hops, h)
	}
	return hops
}

// A sample is a block of requests.
type sample struct {
	cpu       time.Duration   // of a request
	latencies []time.Duration // in order
}

func (s sample) at(percent int) time.Duration { return s.latencies[(len(s.latencies)-1)*percent/100] }

// block sends a hundred requests or more.
func (h hop) block(b *testing.B, method, body string, clients int) sample {
	each := max(100/clients, 10)
	latencies := make([]time.Duration, each*clients)
	before := processorTime(b)
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			for i := range each {
				began := time.Now()
				req, err := http.NewRequestWithContext(b.Context(), method, h.url+"/up/", strings.NewReader(body))
				if err != nil {
					b.Error(err)
					return
				}
				resp, err := h.client.Do(req)
				if err != nil {
					b.Error(err)
					return
				}
				if n, err := io.Copy(io.Discard, resp.Body); err != nil || n < 2000 {
					b.Error(resp.Status, n, err)
				}
				_ = resp.Body.Close()
				latencies[c*each+i] = time.Since(began)
			}
		})
	}
	all.Wait()
	cpu := (processorTime(b) - before) / time.Duration(len(latencies))
	slices.Sort(latencies)
	return sample{cpu, latencies}
}

// processorTime returns what this process has used.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func median[T cmp.Ordered](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}
