// Reload changes the limits of a running program through its configuration file: to new rates, to an invalid file, and
// to an additional limit. Meanwhile two tenants send as many requests as they may.
//
//	go run ./examples/reload
//
// The API is local. The package that follows the file is in limits.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/examples/reload/limits"
	"github.com/httpthrottle/throttle/throttletest"
)

// shows is what -h prints first.
const shows = `Reload changes the limits of a running program through its configuration file:
to new rates, to an invalid file, and to an additional limit. Meanwhile two
tenants send as many requests as they may.`

func main() {
	example.Main(example.WithoutFlags(shows, run))
}

// The API answers in 100 ms.
const takes = 100 * time.Millisecond

var files = []string{
	`{"rate": 5, "tenants": {"gold": 40}}`,
	`{"rate": 10, "tenants": {"gold": 80}}`,
	`{"rate": -10}`,
	`{"rate": 10, "tenants": {"gold": 80}, "in_flight": 4}`,
	`{"rate": 10, "tenants": {"gold": 80}, "in_flight": 2}`,
}

func run(ctx context.Context, out io.Writer, opts ...throttletest.Option) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	api, err := throttletest.New(append(opts, throttletest.WithServiceTime(throttletest.Constant(takes)))...)
	if err != nil {
		return err
	}
	defer api.Close()
	dir, err := os.MkdirTemp("", "reload")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "limits.json")
	transport, err := limits.New(api.Transport(), limits.Config{Rate: 1})
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	var gold, other atomic.Int64
	for range 8 {
		all.Go(func() { ask(ctx, transport, api.URL, "gold", &gold) })
		all.Go(func() { ask(ctx, transport, api.URL, "other", &other) })
	}
	fmt.Fprintf(out, "%-56s %8s %8s\n", "limits.json", "gold/s", "other/s")
	var rates []int64 // of gold
	for i, text := range files {
		if err := replaceFile(file, text); err != nil {
			return err
		}
		if i == 0 {
			log := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelError, ReplaceAttr: short}))
			all.Go(func() { transport.Follow(ctx, file, takes, log) })
		}
		if !wait(ctx, 2*time.Second) { // until the change is in effect
			return ctx.Err()
		}
		gold.Store(0)
		other.Store(0)
		if !wait(ctx, 2*time.Second) {
			return ctx.Err()
		}
		rates = append(rates, gold.Load()/2)
		fmt.Fprintf(out, "%-56s %8d %8d\n", text, rates[i], other.Load()/2)
	}
	before, invalid := rates[1], rates[2]
	example.Verdict(out, invalid > before*3/4, "The invalid file changed nothing: gold had %d/s before it, and %d/s with it.", before, invalid)
	fmt.Fprintln(out, "A window counts a request until a second after its response, but at most for\n1.05s: so of 80, 76 are sent a second.")
	return nil
}

// replaceFile replaces a file as a whole: it is never half written.
func replaceFile(file, text string) error {
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// short leaves the error of a log line.
func short(_ []string, a slog.Attr) slog.Attr {
	switch a.Key {
	case slog.TimeKey, slog.LevelKey, slog.MessageKey, "file":
		return slog.Attr{}
	}
	return a
}

// ask sends requests of a tenant one after the other, and counts them.
func ask(ctx context.Context, transport http.RoundTripper, url, tenant string, served *atomic.Int64) {
	client := &http.Client{Transport: transport}
	for ctx.Err() == nil {
		if err := get(ctx, client, url, tenant); err == nil {
			served.Add(1)
		}
	}
}

func get(ctx context.Context, client *http.Client, url, tenant string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-Tenant", tenant)
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}
