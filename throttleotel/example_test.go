package throttleotel_test

import (
	"fmt"
	"log"
	"net/http"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttleotel"
)

// The recommended order: one client span for each request that is really sent.
func Example() {
	limiter, err := throttle.NewLimiter(
		throttle.WithLimit(throttle.TokenBucket(10, time.Second)),
		throttle.WithHooks(throttleotel.Hooks()))
	if err != nil {
		log.Fatal(err)
	}
	reader := sdkmetric.NewManualReader(sdkmetric.WithProducer(throttleotel.NewProducer(limiter, "github")))
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	if _, err := throttleotel.Register(limiter, "github", throttleotel.WithMeterProvider(provider)); err != nil {
		log.Fatal(err)
	}
	transport, err := throttle.New(otelhttp.NewTransport(http.DefaultTransport), throttle.WithLimiter(limiter))
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	fmt.Println(client.Transport == transport)
	// Output: true
}

// With otelhttp outside, a synthetic 429 counts as if the server had sent it. A hook marks it.
func ExampleHooks_otelhttpOutside() {
	mark := throttle.Hooks{OnReject: func(e throttle.RejectEvent) {
		if labeler, ok := otelhttp.ClientLabelerFromContext(e.Context); ok {
			labeler.Add(attribute.String("throttle.rejected", e.Rejection.Reason.Label()))
		}
	}}
	transport, err := throttle.New(http.DefaultTransport, throttle.WithFailFast(),
		throttle.WithLimit(throttle.TokenBucket(10, time.Second)),
		throttle.WithHooks(throttleotel.Hooks()), throttle.WithHooks(mark))
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: otelhttp.NewTransport(transport)}
	fmt.Println(client.Timeout)
	// Output: 0s
}
