package bench

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// BenchmarkLoopback is the cost of a request over a loopback socket, to a server in the same process. A request there
// takes some hundred times as long as what is to be seen, on a machine that does other things too. So each client takes
// turns with a bare one, in blocks of some milliseconds, and what counts is the median of the ratios of neighbours.
func BenchmarkLoopback(b *testing.B) {
	for _, protocol := range []string{"http1", "http2"} {
		url, transport := startServer(b, protocol)
		for _, n := range []int{1, goroutines} {
			for _, c := range clients {
				b.Run(fmt.Sprintf("protocol=%s/goroutines=%d/impl=%s", protocol, n, c.name), func(b *testing.B) {
					takeTurns(b, block{transport, url, n}, block{c.wrap(b, transport), url, n})
				})
			}
		}
	}
}

// startServer starts a server that answers with 2 KiB.
func startServer(b *testing.B, protocol string) (url string, t *http.Transport) {
	body := make([]byte, 2048)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body)
	}))
	t = &http.Transport{MaxIdleConnsPerHost: goroutines, Protocols: new(http.Protocols)}
	if protocol == "http2" {
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		t.Protocols.SetUnencryptedHTTP2(true)
	} else {
		t.Protocols.SetHTTP1(true)
	}
	s.Start()
	b.Cleanup(func() {
		t.CloseIdleConnections()
		s.Close()
	})
	return s.URL, t
}

// A block is some requests, by so many goroutines.
type block struct {
	transport  http.RoundTripper
	url        string
	goroutines int
}

// perBlock requests are sent by each goroutine: together they take some milliseconds.
func (c block) perBlock() int {
	if c.goroutines == 1 {
		return 32
	}
	return 2
}

func (c block) run(b *testing.B) time.Duration {
	began := time.Now()
	if c.goroutines == 1 {
		c.work(b)
		return time.Since(began)
	}
	var all sync.WaitGroup
	for range c.goroutines {
		all.Go(func() { c.work(b) })
	}
	all.Wait()
	return time.Since(began)
}

func (c block) work(b *testing.B) {
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, c.url+"/items/42", nil)
	if err != nil {
		b.Error(err)
		return
	}
	for range c.perBlock() {
		resp, err := c.transport.RoundTrip(req)
		if err != nil {
			b.Error(err)
			return
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			b.Error(err)
		}
		if err := resp.Body.Close(); err != nil {
			b.Error(err)
		}
	}
}

// takeTurns lets the two take turns, each being first every other time, until the time is over.
func takeTurns(b *testing.B, bare, one block) {
	b.ReportAllocs() // of the server too
	bare.run(b)      // so that there are connections
	one.run(b)
	var ratios, times []float64
	for i := 0; b.Loop(); i++ {
		var t, u time.Duration
		if i%2 == 0 {
			t = bare.run(b)
			u = one.run(b)
		} else {
			u = one.run(b)
			t = bare.run(b)
		}
		ratios = append(ratios, float64(u)/float64(t))
		times = append(times, float64(u))
	}
	n := float64(one.goroutines * one.perBlock())
	b.ReportMetric(median(times)/n, "ns/op")
	b.ReportMetric(100*median(ratios), "%ofBare")
	bytes, allocs := allocated(func() { one.run(b) })
	b.ReportMetric(bytes/n, "B/op")
	b.ReportMetric(allocs/n, "allocs/op")
}

// allocated returns what f and all that goes on meanwhile allocate.
func allocated(f func()) (bytes, objects float64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc - before.TotalAlloc), float64(after.Mallocs - before.Mallocs)
}

func median[T cmp.Ordered](x []T) T { return quantile(x, 0.5) }

// quantile sorts x, and returns the value that so large a share of it is below.
func quantile[T cmp.Ordered](x []T, q float64) (none T) {
	if len(x) == 0 {
		return none
	}
	slices.Sort(x)
	return x[min(len(x)-1, int(q*float64(len(x))))]
}
