// Package throttleotel exports a [throttle.Limiter] to OpenTelemetry: metrics that are read when they are collected, and span
// events of requests that wait or are rejected.
//
//	limiter, err := throttle.NewLimiter(throttle.WithHooks(throttleotel.Hooks()), …)
//	_, err = throttleotel.Register(limiter, "github")
//	reader := sdkmetric.NewPeriodicReader(exporter, sdkmetric.WithProducer(throttleotel.NewProducer(limiter, "github")))
//
// All metrics have the attribute throttle.limiter, so that several Limiters can use one MeterProvider; each needs a name of its
// own. Attributes are bounded by the number of limits, never by keys. OpenTelemetry has no semantic convention for limits on the
// client's side, so the names are those of this package. docs/observability.md describes each.
//
// # Order of wrapping
//
// Put the Transport outside and otelhttp inside:
//
//	transport, err := throttle.New(otelhttp.NewTransport(base), …)
//
// Then each request that is sent has a client span, and a value of http.client.request.duration. Waits are events of the caller's
// span, and a rejection has no client span.
//
// With otelhttp outside, the client span contains the wait, and the events are those of the client span. A synthetic 429 is then
// an error span, and counts in http.client.request.duration as if the server had sent it. The example of [Hooks] shows how to
// mark it.
package throttleotel
