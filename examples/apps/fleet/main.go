// Fleet runs eight processes that share 100 requests per second over Redis. One process is killed, and Redis is stopped
// for a while. A chart shows how many requests each process sent. The API, which enforces the limit, refuses none.
//
//	go run ./examples/apps/fleet
//
// It starts a redis-server of its own, without a file, on a loopback port. Without redis-server on the machine, eight Limiters
// in one process stand for the processes, over a store in memory.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/throttleredis"
	"github.com/httpthrottle/throttle/throttletest"
)

const (
	processes = 8
	callers   = 4   // of each process
	rate      = 100 // requests per second, of all processes
	burst     = 10
	tolerance = 20 // the API's burst is larger by so much: a Redis that was started again has a full bucket
)

// What happens when, since the first second.
const (
	killAt = 2 * time.Second
	stopAt = 3500 * time.Millisecond
	backAt = 4500 * time.Millisecond
	endAt  = 7 * time.Second
)

const header = "X-Process"

// shows is what -h prints first.
const shows = `Fleet runs eight processes that share 100 requests per second over Redis. One
process is killed, and Redis is stopped for a while. A chart shows how many
requests each process sent. The API, which enforces the limit, refuses none.`

func main() {
	redis.SetLogger(silent{})
	example.Main(run)
}

// silent keeps go-redis from logging that Redis is stopped.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := example.NewFlags(shows)
	var (
		memory    bool
		process   int
		addr, url string
	)
	flags.BoolVar(&memory, "memory", false, "do not look for redis-server")
	flags.IntVar(&process, "process", 0, "be this process of the fleet, as the program starts them; needs -redis and -api")
	flags.StringVar(&addr, "redis", "", "address of the Redis that a process uses")
	flags.StringVar(&url, "api", "", "URL of the API that a process calls")
	if err := flags.Parse(args, out); err != nil {
		return example.Usage(err)
	}
	alone := process == 0 && addr == "" && url == ""
	one := process >= 1 && process <= processes && addr != "" && url != "" && !memory
	switch {
	case !alone && !one:
		return example.Usage(fmt.Errorf("-process %d -redis %q -api %q: want none of them, or all of them and a process from 1 to %d", process, addr, url, processes))
	case one:
		store := storeAt(addr)
		if err := store.Check(ctx); err != nil {
			return err
		}
		return work(ctx, process, store, url)
	}
	path, err := exec.LookPath("redis-server")
	if err != nil || memory {
		fmt.Fprintln(out, "No redis-server: eight Limiters in this process stand for eight processes, over a store in memory.")
		path = ""
	}
	return play(ctx, path, out)
}

// storeAt returns the store that a process uses.
func storeAt(addr string) *throttleredis.Store {
	rdb := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, DialerRetries: 1, MaxRetries: -1})
	store, err := throttleredis.New(rdb)
	if err != nil {
		panic(err) // the client is one that it takes
	}
	return store
}

// work is what each process does until ctx ends or the API cannot be reached: it calls the API as often as it may.
func work(ctx context.Context, process int, store store.Store, url string) error {
	transport, err := throttle.New(nil, throttle.WithLimit(
		throttle.TokenBucket(rate, time.Second, throttle.Burst(burst), throttle.Name("api"), throttle.Shared(store))))
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport}
	var g errgroup.Group
	for range callers {
		g.Go(func() error {
			for ctx.Err() == nil {
				if err := call(ctx, client, url, process); err != nil && ctx.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// call makes one request. What the API makes of it is counted there.
func call(ctx context.Context, client *http.Client, url string, process int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set(header, strconv.Itoa(process))
	resp, err := client.Do(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	return err
}

// play runs the fleet and shows what it got.
func play(ctx context.Context, redisServer string, out io.Writer) error {
	c := newChart()
	api, err := throttletest.New(throttletest.WithHandler(c), throttletest.WithLimits(
		throttletest.TokenBucket(rate, time.Second, throttletest.Burst(burst+tolerance))))
	if err != nil {
		return err
	}
	defer api.Close()
	f, err := newFleet(redisServer, api.URL)
	if err != nil {
		return err
	}
	defer f.close()
	for i := range processes {
		if err := f.start(ctx, i+1); err != nil {
			return err
		}
	}
	select {
	case <-c.first: // the processes have come up
	case <-time.After(time.Minute):
		return errors.New("no process called the API within a minute")
	}
	fmt.Fprintf(out, "%d processes share %d requests per second.\n", processes, rate)
	for _, event := range []struct {
		at   time.Duration
		what string
		do   func() error
	}{
		{killAt, "process 8 is killed", func() error { return f.kill(processes) }},
		{stopAt, "the store is stopped", f.stopStore},
		{backAt, "the store is started again", f.startStore},
		{endAt, "", func() error { return nil }},
	} {
		select {
		case <-time.After(time.Until(c.began.Add(event.at))):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if event.what != "" {
			fmt.Fprintf(out, "%4.1f s  %s\n", event.at.Seconds(), event.what)
		}
		if err := event.do(); err != nil {
			return err
		}
	}
	c.show(out)
	counts := api.Counts()
	fmt.Fprintf(out, "\nThe API accepted %d requests and refused %d.\n", counts.Accepted, counts.Refused)
	return nil
}
