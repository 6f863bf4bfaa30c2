package jsonfinder

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A sink takes what is copied. Unlike io.Discard it has no buffer of its own: io.Copy's is 32 KiB.
type sink struct{}

func (sink) Write(p []byte) (int, error) { return len(p), nil }

// A bodyReader is what is between a response and its reader.
type bodyReader struct {
	io.Reader
	finder Finder
	plain  bool // it is not observed
}

func (r *bodyReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if !r.plain {
		r.finder.Observe(p[:n])
	}
	return n, err
}

// BenchmarkFinder has bodies in memory observed in pieces of 32 KiB.
func BenchmarkFinder(b *testing.B) {
	for _, l := range jsonLoads() {
		b.Run(l.name, func(b *testing.B) {
			paths, err := compileJSON(l.paths)
			require.NoError(b, err)
			body := []byte(l.body)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				f := paths.Finder(formOf(l.events))
				for i := 0; i < len(body); i += 32 << 10 {
					f.Observe(body[i:min(i+32<<10, len(body))])
				}
				if n, _ := f.Sum(); n != l.want {
					b.Fatal(n)
				}
			}
		})
	}
}

// The benchmarks below have bodies copied in turns with and without a finder. They report the median of the ratios of what
// both took: 0.8 is a finder with which eight tenths of the bytes come in the same time.

func BenchmarkCopyTCP(b *testing.B) {
	benchmarkCopy(b, func(b *testing.B, l jsonLoad) func() io.Reader {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(b, err)
		return stream(b, l, listener, func() (net.Conn, error) { return net.Dial("tcp", listener.Addr().String()) })
	})
}

func BenchmarkCopyTLS(b *testing.B) {
	benchmarkCopy(b, func(b *testing.B, l jsonLoad) func() io.Reader {
		s := httptest.NewTLSServer(nil) // for its certificate
		defer s.Close()
		listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: s.TLS.Certificates})
		require.NoError(b, err)
		config := s.Client().Transport.(*http.Transport).TLSClientConfig
		return stream(b, l, listener, func() (net.Conn, error) { return tls.Dial("tcp", listener.Addr().String(), config) })
	})
}

// stream has the body sent again and again.
func stream(b *testing.B, l jsonLoad, listener net.Listener, dial func() (net.Conn, error)) func() io.Reader {
	b.Cleanup(func() { _ = listener.Close() })
	body := []byte(l.body)
	go func() {
		sender, err := listener.Accept()
		for err == nil {
			_, err = sender.Write(body)
		}
		if sender != nil {
			_ = sender.Close()
		}
	}()
	client, err := dial()
	require.NoError(b, err)
	b.Cleanup(func() { _ = client.Close() })
	return func() io.Reader { return io.LimitReader(client, int64(len(l.body))) }
}

func BenchmarkCopyHTTP(b *testing.B)  { benchmarkHTTP(b, httptest.NewServer, false) }
func BenchmarkCopyHTTPS(b *testing.B) { benchmarkHTTP(b, httptest.NewTLSServer, false) }

// BenchmarkCopyGzip is of what most servers send, since net/http asks for it and undoes it.
func BenchmarkCopyGzip(b *testing.B) { benchmarkHTTP(b, httptest.NewServer, true) }

func benchmarkHTTP(b *testing.B, start func(http.Handler) *httptest.Server, zipped bool) {
	benchmarkCopy(b, func(b *testing.B, l jsonLoad) func() io.Reader {
		body := []byte(l.body)
		if zipped {
			var z bytes.Buffer
			w := gzip.NewWriter(&z)
			_, err := w.Write(body)
			require.NoError(b, errors.Join(err, w.Close()))
			body = z.Bytes()
		}
		s := start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if zipped {
				w.Header().Set("Content-Encoding", "gzip")
			}
			_, _ = w.Write(body)
		}))
		b.Cleanup(s.Close)
		return func() io.Reader {
			response, err := s.Client().Get(s.URL)
			require.NoError(b, err)
			return response.Body // which is closed by being read to its end
		}
	})
}

// benchmarkCopy takes what connects to a sender of a load, and returns what begins its next body.
func benchmarkCopy(b *testing.B, connect func(*testing.B, jsonLoad) func() io.Reader) {
	const bodies = 100 // in turn
	for _, l := range jsonLoads() {
		b.Run("load="+l.name, func(b *testing.B) {
			paths, err := compileJSON(l.paths)
			require.NoError(b, err)
			next, buf := connect(b, l), make([]byte, 32<<10)
			turn := func(plain bool) float64 {
				start := time.Now()
				for range bodies {
					r := &bodyReader{next(), paths.Finder(formOf(l.events)), plain}
					if n, err := io.CopyBuffer(sink{}, r, buf); err != nil || n != int64(len(l.body)) {
						b.Fatal(n, err)
					}
					if n, _ := r.finder.Sum(); !plain && n != l.want {
						b.Fatal(n)
					}
				}
				return time.Since(start).Seconds()
			}
			var ratios, speeds []float64
			for b.Loop() {
				plain := turn(true)
				ratios = append(ratios, plain/turn(false))
				speeds = append(speeds, bodies*float64(len(l.body))/1e6/plain)
			}
			b.ReportMetric(median(ratios), "ratio")
			b.ReportMetric(median(speeds), "plainMB/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
