// Proxy keeps the programs of a host within the rate limits of the APIs they
// call, whatever language they are written in: a client that has the proxy's
// address as its base URL waits there for its turn.
//
//	go run ./examples/apps/proxy -config examples/apps/proxy/limits.json
//	curl http://127.0.0.1:8080/github/zen
//
// The path begins with the name of an upstream of the file: http://127.0.0.1:8080/openai/v1/models becomes
// https://api.openai.com/v1/models. Requests go nowhere else. Keys are those of the clients, and are passed on, and not logged. The live
// page and /metrics are at an address of their own.
//
// Without max_wait, a request waits until its client leaves. With it, it is rejected with 429 and Retry-After, in the shape that the file
// names. A cost that can never be paid is a 413, because SDKs repeat a 429. A request's body of up to 4 MiB is read before it waits, so that
// the proxy notices that a client has left, and finds the model, which vendors count separately. Longer bodies and all responses are
// passed on as they come.
//
// After SIGTERM, requests that wait are sent, streams end, and new requests get a 503 with Retry-After, for at most drain, 25 s by default.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/throttlepage"
	"github.com/httpthrottle/throttle/throttleprom"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// shows is what -h prints first.
const shows = `Proxy keeps the programs of a host within the rate limits of the APIs they
call, whatever language they are written in: a client that has the proxy's
address as its base URL waits there for its turn.`

func main() { example.Main(run) }

// run serves until ctx ends, and then until the requests under way have ended.
func run(ctx context.Context, args []string, out io.Writer) (err error) {
	c, err := parse(args, out)
	if err != nil {
		return example.Usage(err)
	}
	log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	p, err := newProxy(c, connections(), log)
	defer func() { err = errors.Join(err, p.close()) }()
	if err != nil {
		return err
	}
	clients, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	defer clients.Close()
	figures, err := net.Listen("tcp", c.Page)
	if err != nil {
		return err
	}
	defer figures.Close()
	for _, name := range slices.Sorted(maps.Keys(c.Upstreams)) {
		fmt.Fprintf(out, "http://%s/%s is %s\n", clients.Addr(), name, c.Upstreams[name].URL)
	}
	fmt.Fprintf(out, "The page is http://%s/, and metrics are at /metrics.\n", figures.Addr())
	page := throttlepage.New(p.limiters())
	defer page.Close()
	beside := server(monitor(page, p.limiters()), log)
	defer beside.Close()
	failed := make(chan error, 2)
	go func() { failed <- beside.Serve(figures) }()
	return p.serve(ctx, clients, time.Duration(c.Drain), failed)
}

// serve serves until ctx ends or an error arrives. Then new requests are rejected, and those under way may take as long as drain to end.
func (p *proxy) serve(ctx context.Context, clients net.Listener, drain time.Duration, failed chan error) error {
	s := server(p, p.log)
	go func() { failed <- s.Serve(clients) }()
	select {
	case err := <-failed:
		return errors.Join(err, s.Close())
	case <-ctx.Done():
	}
	drained, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	p.shutdown(drained)
	ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Until(*p.ends.Load())+time.Second) // for the last responses
	defer cancel()
	if err := s.Shutdown(ended); err != nil {
		p.log.Warn("responses were cut off")
	}
	return s.Close()
}

func server(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
}

// connections returns the transport below the limits. It keeps the idle connections of a busy host, of which net/http keeps two.
func connections() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, 1000
	return t
}

func (p *proxy) limiters() map[string]*throttle.Limiter {
	all := make(map[string]*throttle.Limiter)
	for name, t := range p.transports {
		all[name] = t.Limiter()
	}
	return all
}

// monitor serves the page, and metrics for Prometheus beside it.
func monitor(page http.Handler, limiters map[string]*throttle.Limiter) http.Handler {
	metrics := prometheus.NewRegistry()
	for name, l := range limiters {
		metrics.MustRegister(throttleprom.NewCollector(l, name))
	}
	mux := http.NewServeMux()
	mux.Handle("/", page)
	mux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	return mux
}

func parse(args []string, out io.Writer) (*config, error) {
	var name, listen, page string
	flags := example.NewFlags(shows)
	flags.StringVar(&name, "config", "", "file with upstreams and limits")
	flags.StringVar(&listen, "listen", "", "address of the proxy, instead of the file's")
	flags.StringVar(&page, "page", "", "address of the page and the metrics, instead of the file's")
	if err := flags.Parse(args, out); err != nil {
		return nil, err
	}
	if name == "" {
		return nil, errors.New("-config is missing")
	}
	c, err := readConfig(name)
	if err != nil {
		return nil, err
	}
	if listen != "" {
		c.Listen = listen
	}
	if page != "" {
		c.Page = page
	}
	return c, nil
}
