package throttleprom_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/retry"
	"github.com/httpthrottle/throttle/throttleprom"
)

// A client that retries exports the figures of its limits, of its requests and of its retries. The first two requests to this server
// fail.
func ExampleWithRetries() {
	failures := 2
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if failures > 0 {
			failures--
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer api.Close()

	transport, err := throttle.New(nil, throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Name("requests"))))
	if err != nil {
		log.Fatal(err)
	}
	client := retry.NewClient(transport)
	client.RetryWaitMin = time.Millisecond
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(throttleprom.NewCollector(transport.Limiter(), "api",
		throttleprom.WithTransport("api", transport), throttleprom.WithRetries("api", client.Policy)))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))

	resp, err := client.StandardClient().Get(api.URL) // or give the client to an SDK
	if err != nil {
		log.Fatal(err)
	}
	resp.Body.Close()

	families, err := metrics.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, family := range families {
		switch name := family.GetName(); name {
		case "throttle_retry_attempts_total", "throttle_retries_total":
			sum := 0.0
			for _, m := range family.Metric {
				sum += m.Counter.GetValue()
			}
			fmt.Println(name, sum)
		}
	}
	// Output:
	// throttle_retries_total 2
	// throttle_retry_attempts_total 3
}
