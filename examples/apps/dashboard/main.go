// Dashboard shows, on a web page, four clients with different limits of an API whose limit changes. It also exports
// their figures to Prometheus; throttleprom/grafana has a board for them.
//
//	go run ./examples/apps/dashboard
//	go run ./examples/apps/dashboard -listen 127.0.0.1:9000 -for 30s
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"golang.org/x/sync/errgroup"
)

// shows is what -h prints first.
const shows = `Dashboard shows, on a web page, four clients with different limits of an API
whose limit changes. It also exports their figures to Prometheus;
throttleprom/grafana has a board for them.`

func main() { example.Main(run) }

// run serves the page until ctx ends, or for the time that the arguments say.
func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(args, out)
	if err != nil {
		return example.Usage(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.duration > 0 { // not as a deadline, because requests that would miss it would be rejected
		defer time.AfterFunc(c.duration, cancel).Stop()
	}
	listener, err := net.Listen("tcp", c.listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	api, err := startAPI(c.change)
	if err != nil {
		return err
	}
	defer api.Close()
	clients, err := newClients(api)
	if err != nil {
		return err
	}
	limiters := make(map[string]*throttle.Limiter)
	for _, cl := range clients {
		limiters[cl.name] = cl.transport.Limiter()
	}
	fmt.Fprintf(out, "Open http://%s/ to see the four clients.\n", listener.Addr())
	fmt.Fprintln(out, "Metrics for Prometheus are at /metrics. throttleprom/grafana has a board for Grafana and alert rules.")

	work, ctx := errgroup.WithContext(ctx)
	page := throttlepage.New(limiters, throttlepage.Every(time.Second)) // charts of 12 minutes, instead of an hour
	defer page.Close()
	server := &http.Server{Handler: handler(page, limiters), ReadHeaderTimeout: 5 * time.Second}
	work.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	work.Go(func() error {
		<-ctx.Done()
		return server.Shutdown(context.WithoutCancel(ctx)) // ends the streams of the page as well
	})
	work.Go(func() error { return api.change(ctx) })
	for _, cl := range clients {
		work.Go(func() error { return cl.load(ctx, api.URL) })
	}
	if err := work.Wait(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(limiters)) {
		fmt.Fprintf(out, "%s: %v\n", name, limiters[name].Stats())
	}
	return nil
}

// handler serves the page, and metrics for Prometheus beside it.
func handler(page http.Handler, limiters map[string]*throttle.Limiter) http.Handler {
	metrics := prometheus.NewRegistry()
	for name, l := range limiters {
		metrics.MustRegister(throttleprom.NewCollector(l, name))
	}
	mux := http.NewServeMux()
	mux.Handle("/", page)
	mux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	return mux
}

type config struct {
	listen           string
	duration, change time.Duration
}

func parse(args []string, out io.Writer) (config, error) {
	var c config
	flags := example.NewFlags(shows)
	flags.StringVar(&c.listen, "listen", "127.0.0.1:8080", "address of the page")
	flags.DurationVar(&c.duration, "for", 0, "end after this time; 0: when interrupted")
	flags.DurationVar(&c.change, "change", 30*time.Second, "the limit of the API changes this often")
	if err := flags.Parse(args, out); err != nil {
		return c, err
	}
	switch {
	case c.duration < 0:
		return c, fmt.Errorf("-for %v: must not be negative", c.duration)
	case c.change <= 0:
		return c, fmt.Errorf("-change %v: must be positive", c.change)
	}
	return c, nil
}
