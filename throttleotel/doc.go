// Package throttleotel exports a [throttle.Limiter] to OpenTelemetry: metrics that are read when they are collected, and span
// events of requests that wait or are rejected.
//
//	limiter, err := throttle.NewLimiter(throttle.WithHooks(throttleotel.Hooks()), …)
//	_, err = throttleotel.Register(limiter, "github")
//	reader := sdkmetric.NewPeriodicReader(exporter, sdkmetric.WithProducer(throttleotel.NewProducer(limiter, "github")))
//
// All metrics have the attribute throttle.limiter, so that several Limiters can use one MeterProvider; each needs a name of its
// own. Attributes are bounded by the number of limits, never by keys. OpenTelemetry has no semantic convention for limits on the
// client's side, so the names are those of this package.
//
// # Instruments
//
// They have the names of the Prometheus metrics with dots; docs/prometheus.md describes each:
//
//	throttle.requests            throttle.rejections         throttle.wait (a cumulative histogram)
//	throttle.tokens.charged      throttle.tokens.returned    throttle.tokens.available
//	throttle.tokens.estimated    throttle.tokens.settled     throttle.tokens.capacity
//	throttle.server_refusals     throttle.holds              throttle.retunes
//	throttle.waiting_requests    throttle.waiting_callers    throttle.in_flight_requests
//	throttle.rate                throttle.held_until         throttle.grants_undone
//	throttle.keys                throttle.keys_max           throttle.keys_evicted
//	throttle.queue_max_requests  throttle.dry_run
//	throttle.store.up            throttle.store.processes    throttle.store.age
//	throttle.store.calls         throttle.store.call         throttle.store.tokens
//	throttle.store.asks          throttle.store.outages
//
// With [WithRetries]:
//
//	throttle.retry.attempts      throttle.retries            throttle.retry.give_ups
//	throttle.retry.budget        throttle.retry.budget_max
//
// With [RegisterPool], of a Pool and its members:
//
//	throttle.pool.requests                   throttle.pool.rejections              throttle.pool.moves
//	throttle.pool.waiting_requests           throttle.pool.in_flight_requests      throttle.pool.delayed_requests
//	throttle.pool.member.out                 throttle.pool.member.held             throttle.pool.member.failures
//	throttle.pool.member.requests            throttle.pool.member.latency
//	throttle.pool.member.waiting_requests    throttle.pool.member.in_flight_requests
//
// The attributes are throttle.limiter, or throttle.pool and throttle.member, throttle.limit, throttle.outcome, throttle.reason, throttle.source, throttle.cause,
// throttle.store, throttle.kind and throttle.client.
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
