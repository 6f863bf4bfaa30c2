// Command quota sends a request to each URL of its arguments, 8,000 a day at most with all other processes of the host that name the same
// FILE, also if some of them are killed.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store/file"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: quota FILE URL…")
	}
	if err := run(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, path string, urls []string) error {
	quota, err := file.Open(path)
	if err != nil {
		return err
	}
	transport, err := throttle.New(nil, throttle.WithMaxWait(time.Minute), throttle.WithLimit(
		throttle.FixedWindow(8000, 24*time.Hour, throttle.Name("daily"), throttle.Shared(quota)),
		throttle.TokenBucket(5, time.Second, throttle.Name("rate"))))
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport}
	for _, url := range urls {
		if err := get(ctx, client, url); err != nil {
			return err
		}
	}
	return nil
}

func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if r, ok := throttle.RejectionOf(resp); ok {
		return fmt.Errorf("the rest is for tomorrow: %w", errors.Join(r, ctx.Err()))
	}
	fmt.Println(url, resp.Status)
	return nil
}
