package throttleotel

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/httpthrottle/throttle"
)

// A HookOption configures [Hooks].
type HookOption interface{ applyTo(*hooks) }

type hookOption func(*hooks)

func (o hookOption) applyTo(h *hooks) { o(h) }

type hooks struct{ keys bool }

// WithKeys adds the attribute throttle.key to span events. By default keys are omitted, because they may name persons or tenants.
func WithKeys() HookOption { return hookOption(func(h *hooks) { h.keys = true }) }

// Hooks returns hooks that add events to the span in the context of a request, if that records. A request that is granted
// immediately has none. The events and their attributes are:
//
//	throttle.wait            throttle.limit, throttle.cost, throttle.wait (the expected wait)
//	throttle.grant           throttle.limit, throttle.waited
//	throttle.cancel          throttle.limit, throttle.waited
//	throttle.reject          throttle.limit, throttle.reason, throttle.cost, throttle.wait (the expected wait)
//	throttle.settle          throttle.limit, throttle.charged, throttle.cost
//	throttle.server_refusal  http.response.status_code, throttle.retry_after
//
// Durations are in seconds.
func Hooks(opts ...HookOption) throttle.Hooks {
	h := new(hooks)
	for _, o := range opts {
		o.applyTo(h)
	}
	return throttle.Hooks{
		OnWait: func(e throttle.WaitEvent) {
			if span := recording(e.Context); span != nil {
				h.event(span, "throttle.wait", e.Limit, e.Key, attribute.Int64("throttle.cost", e.Cost), seconds("throttle.wait", e.Wait))
			}
		},
		OnGrant: func(e throttle.GrantEvent) {
			if e.Waited <= 0 {
				return
			}
			if span := recording(e.Context); span != nil {
				h.event(span, "throttle.grant", e.Limit, e.Key, seconds("throttle.waited", e.Waited))
			}
		},
		OnReject: func(e throttle.RejectEvent) {
			if span := recording(e.Context); span != nil {
				r := e.Rejection
				h.event(span, "throttle.reject", r.Limit, r.Key, attribute.String("throttle.reason", r.Reason.Label()),
					attribute.Int64("throttle.cost", r.Cost), seconds("throttle.wait", r.Wait))
			}
		},
		OnCancel: func(e throttle.CancelEvent) {
			if span := recording(e.Context); span != nil {
				h.event(span, "throttle.cancel", e.Limit, e.Key, seconds("throttle.waited", e.Waited))
			}
		},
		OnSettle: func(e throttle.SettleEvent) {
			if span := recording(e.Context); span != nil {
				h.event(span, "throttle.settle", e.Limit, e.Key, attribute.Int64("throttle.charged", e.Charged), attribute.Int64("throttle.cost", e.Cost))
			}
		},
		OnServerRefusal: func(e throttle.ServerRefusalEvent) {
			if span := recording(e.Context); span != nil {
				span.AddEvent("throttle.server_refusal", trace.WithAttributes(
					attribute.Int("http.response.status_code", e.Status), seconds("throttle.retry_after", e.RetryAfter)))
			}
		},
	}
}

// recording returns the span in a context; nil: there is none that records.
func recording(ctx context.Context) trace.Span {
	if ctx == nil {
		return nil
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		return span
	}
	return nil
}

func (h *hooks) event(span trace.Span, name, limit, key string, with ...attribute.KeyValue) {
	with = append(with, attribute.String("throttle.limit", limit))
	if h.keys && key != "" {
		with = append(with, attribute.String("throttle.key", key))
	}
	span.AddEvent(name, trace.WithAttributes(with...))
}

func seconds(name string, d time.Duration) attribute.KeyValue {
	return attribute.Float64(name, d.Seconds())
}
