// Kubernetes reads objects with two clients of client-go that share one Limiter, and with two that do not. client-go
// wraps its transport once for each client, so a limit that is made there belongs to one client.
//
//	go run ./examples/apps/sdk/kubernetes
//
// The API server is local and allows 10 requests in any 200 ms.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/throttletest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

const (
	allowed = 10
	window  = 200 * time.Millisecond
	margin  = 50 * time.Millisecond // for requests that take longer to arrive than others
	reads   = 30                    // by each client
	workers = 5                     // of each client
)

// shows is what -h prints first.
const shows = `Kubernetes reads objects with two clients of client-go that share one Limiter,
and with two that do not. client-go wraps its transport once for each client, so
a limit that is made there belongs to one client.`

func main() {
	example.Main(example.WithoutFlags(shows, run))
}

func run(ctx context.Context, out io.Writer, opts ...throttletest.Option) error {
	limit := throttle.WithLimit(throttle.SlidingWindow(allowed, window+margin))
	limiter, err := throttle.NewLimiter(limit)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "Two clients read %d objects each; the server allows %d in %v.\n\n", reads, allowed, window)
	separate, err := measure(ctx, limit, opts)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%-24s %3d refused  %4.1f s\n", "a limit for each client", separate.refused, separate.took.Seconds())
	shared, err := measure(ctx, throttle.WithLimiter(limiter), opts)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%-24s %3d refused  %4.1f s\n\n", "one Limiter", shared.refused, shared.took.Seconds())
	if shared.refused > 0 { // two requests arrived closer together than they were sent, by more than the margin
		fmt.Fprintf(out, "One Limiter for all clients: %d requests were refused, because this machine is busy.\n", shared.refused)
		return nil
	}
	fmt.Fprintln(out, "One Limiter for all clients: no request was refused.")
	return nil
}

type result struct {
	refused int64 // by the server; client-go tries again after its Retry-After
	took    time.Duration
}

// measure reads with two clients of one config.
func measure(ctx context.Context, limit throttle.Option, opts []throttletest.Option) (result, error) {
	server, err := throttletest.New(append(opts,
		throttletest.WithLimits(throttletest.SlidingWindow(allowed, window)), throttletest.WithHandler(http.HandlerFunc(configMap)))...)
	if err != nil {
		return result{}, err
	}
	defer server.Close()
	config := &rest.Config{
		Host: server.URL,
		QPS:  -1, // client-go's own limit of 5 a second would lie above ours
	}
	config.Wrap(func(http.RoundTripper) http.RoundTripper { // with a real server: wrap what is given
		return throttle.Must(throttle.New(server.Transport(), limit))
	})
	resource := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return result{}, err
	}
	headers, err := metadata.NewForConfig(config)
	if err != nil {
		return result{}, err
	}
	start := time.Now()
	err = each(
		func() error {
			_, err := objects.Resource(resource).Namespace("default").Get(ctx, "c", metav1.GetOptions{})
			return err
		},
		func() error {
			_, err := headers.Resource(resource).Namespace("default").Get(ctx, "c", metav1.GetOptions{})
			return err
		})
	return result{server.Counts().Refused, time.Since(start)}, err
}

// each makes every call as often as there are reads, and returns the last error.
func each(calls ...func() error) error {
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for _, call := range calls {
		for range workers {
			wg.Go(func() {
				for range reads / workers {
					if err := call(); err != nil {
						failed.Store(&err)
					}
				}
			})
		}
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// configMap is the API.
func configMap(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}}`)
}
