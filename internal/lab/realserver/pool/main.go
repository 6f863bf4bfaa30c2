// Command pool is an HTTP server whose handlers share a pool, for which requests wait: of workers, or of connections to a PostgreSQL
// of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	addr := flag.String("addr", "", "listen there")
	token := flag.String("token", "", "the response to /ready")
	slots := flag.Int("slots", 8, "workers, or connections")
	service := flag.Duration("service", 40*time.Millisecond, "how long a request is worked on")
	dir := flag.String("postgres", "", "start a PostgreSQL in this directory, and let it work")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *addr, *token, *slots, *service, *dir); err != nil {
		log.Fatal(err)
	}
}

// A worker does the work of a request.
type worker func() error

func serve(ctx context.Context, addr, token string, slots int, service time.Duration, dir string) error {
	pool := make(chan worker, slots)
	if dir != "" {
		db, err := startPostgres(filepath.Join(dir, "data"))
		if err != nil {
			return err
		}
		defer db.stop()
		query := fmt.Sprintf("select pg_sleep(%g)", service.Seconds())
		for range slots {
			c, err := db.connect()
			if err != nil {
				return err
			}
			pool <- func() error { return c.query(query) }
		}
	}
	for len(pool) < slots {
		pool <- func() error { time.Sleep(service); return nil }
	}
	srv := &http.Server{Addr: addr, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ready" {
			fmt.Fprintln(w, token)
			return
		}
		work := <-pool
		err := work()
		pool <- work
		if err != nil {
			log.Print(err)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "ok")
	})}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
